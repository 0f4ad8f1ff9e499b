//! Reads the text form of programs. Composite functions are expanded (see [`crate::op`]).

use crate::op::{Op, Ratio};
use crate::program::{Block, Program, Tile};

/// The longest text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The most tensors and tiles of a program.
const MAX_NODES: usize = 2000;
/// The most dimensions of a tensor.
const MAX_RANK: usize = 8;

/// The programs of a text, one after the other.
///
/// # Errors
/// The line of the first problem, and what it is.
pub fn parse(text: &str) -> Result<Vec<Program>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("a text of {} bytes; at most {MAX_BYTES} are read", text.len()));
    }
    let code = |line: &'_ str| line.split('#').next().unwrap_or("").trim().to_owned();
    let lines: Vec<(usize, String)> =
        text.lines().enumerate().map(|(at, line)| (at + 1, code(line))).collect();
    let lines: Vec<(usize, String)> = lines.into_iter().filter(|(_, line)| !line.is_empty()).collect();
    let mut reader = Reader { lines: &lines, line: 0 };
    let mut programs = Vec::new();
    while !reader.lines.is_empty() {
        let program = reader.program();
        programs.push(program.map_err(|problem| format!("line {}: {problem}", reader.line))?);
    }
    Ok(programs)
}

struct Reader<'a> {
    lines: &'a [(usize, String)],
    line: usize,
}

/// What the names of a text stand for.
type Names = Vec<usize>;

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<&'a str, String> {
        let ((line, text), rest) = self.lines.split_first().ok_or("the text ends before }")?;
        (self.line, self.lines) = (*line, rest);
        Ok(text)
    }

    fn program(&mut self) -> Result<Program, String> {
        let head = self.next()?.strip_prefix("mugraph ").and_then(|rest| rest.strip_suffix('{'));
        head.and_then(|name| quoted(name.trim())).ok_or("expected mugraph \"name\" {")?;
        let (mut program, mut names) = (Program::default(), Names::new());
        loop {
            let statement = self.next()?;
            if statement == "}" {
                break;
            }
            if program.nodes.len() > MAX_NODES {
                return Err(format!("more than {MAX_NODES} tensors"));
            }
            if let Some(rest) = statement.strip_prefix("output ") {
                let (name, tensor) = rest.rsplit_once(' ').ok_or("expected output \"name\" tensor")?;
                let name = quoted(name.trim()).ok_or("expected a name in quotes")?;
                if program.outputs.iter().any(|(known, _)| *known == name) {
                    return Err(format!("a second output {name}"));
                }
                let tensor = named(tensor, 't', &names)?;
                program.outputs.push((name, tensor));
                continue;
            }
            let (defined, definition) = statement.split_once(" = ").ok_or("expected a definition")?;
            let first = names.len();
            self.define(&mut program, &mut names, definition)?;
            let expected: Vec<String> = (first..names.len()).map(|at| format!("t{at}")).collect();
            if items(defined) != expected {
                return Err(format!("defines {defined}, expected {}", expected.join(", ")));
            }
        }
        if program.outputs.is_empty() { Err("no output".into()) } else { Ok(program) }
    }

    fn define(&mut self, program: &mut Program, names: &mut Names, definition: &str) -> Result<(), String> {
        for (word, is_mask) in [("input ", false), ("mask ", true)] {
            if let Some(rest) = definition.strip_prefix(word).filter(|rest| rest.starts_with('"')) {
                let (name, shape) = rest.rsplit_once('[').ok_or("expected a shape")?;
                let name = quoted(name.trim()).ok_or("expected a name in quotes")?;
                let shape = numbers(shape.strip_suffix(']').ok_or("expected a shape")?)?;
                if program.inputs().any(|(_, known, _)| known == name) || shape.len() > MAX_RANK {
                    return Err(format!("a second input {name}, or more than {MAX_RANK} dimensions"));
                }
                names.push(program.input(&name, is_mask, shape));
                return Ok(());
            }
        }
        if let Some(head) = definition.strip_prefix("block ") {
            let block = self.block(head, names)?;
            names.extend(program.block(block)?);
            return Ok(());
        }
        let (op, args) = application(definition)?;
        let args: Vec<usize> =
            args.into_iter().map(|arg| named(arg, 't', names)).collect::<Result<_, _>>()?;
        let result = expanded(op, args, &mut |op, args| program.op(op, args))?;
        names.push(result);
        Ok(())
    }

    fn block(&mut self, head: &str, tensors: &Names) -> Result<Block, String> {
        let (grid, range) = head
            .strip_suffix('{')
            .and_then(|head| head.split_once(" loop "))
            .ok_or("expected block [grid] loop range {")?;
        let grid =
            grid.trim().strip_prefix('[').and_then(|grid| grid.strip_suffix(']')).ok_or("expected a grid")?;
        let iterations = range.trim().parse().map_err(|_| "expected the range of the loop")?;
        let (mut block, mut names) =
            (Block { grid: numbers(grid)?, iterations, tiles: Vec::new(), stores: Vec::new() }, Names::new());
        loop {
            let statement = self.next()?;
            if statement == "}" {
                return Ok(block);
            }
            if block.tiles.len() > MAX_NODES {
                return Err(format!("more than {MAX_NODES} tiles"));
            }
            if let Some(rest) = statement.strip_prefix("store ") {
                let (tile, grid) = rest.split_once(' ').ok_or("expected store tile [grid]")?;
                block.stores.push((named(tile, 's', &names)?, map(grid)?));
                continue;
            }
            let (defined, definition) = statement.split_once(" = ").ok_or("expected a definition")?;
            if defined.trim() != format!("s{}", names.len()) {
                return Err(format!("defines {defined}, expected s{}", names.len()));
            }
            let tile = |text: &str| named(text, 's', &names);
            let words: Vec<&str> = definition.split_whitespace().collect();
            let simple = match words[..] {
                ["load", tensor, .., along] if words.len() > 3 => {
                    let rest =
                        definition.strip_prefix("load ").map(|rest| rest.trim_start().strip_prefix(tensor));
                    let rest = rest
                        .flatten()
                        .and_then(|rest| rest.trim().strip_suffix(along))
                        .ok_or("expected load tensor [grid] loop")?;
                    Tile::Load { tensor: named(tensor, 't', tensors)?, grid: map(rest)?, along: dim(along)? }
                }
                ["running_max", arg] => Tile::RunningMax(tile(arg)?),
                ["accumulate", "sum", arg] => Tile::Sum(tile(arg)?),
                ["accumulate", "max", arg] => Tile::Largest(tile(arg)?),
                ["accumulate", "rescaled", max, degree, arg] => {
                    let degree = Ratio::parse(degree).ok_or("expected a degree")?;
                    Tile::Rescaled { tile: tile(arg)?, max: tile(max)?, degree }
                }
                _ => {
                    let (op, args) = application(definition)?;
                    let args = args.into_iter().map(tile).collect::<Result<Vec<usize>, _>>()?;
                    let result = expanded(op, args, &mut |op, args| {
                        block.tiles.push(Tile::Op(op, args));
                        Ok(block.tiles.len() - 1)
                    })?;
                    names.push(result);
                    continue;
                }
            };
            block.tiles.push(simple);
            names.push(block.tiles.len() - 1);
        }
    }
}

/// An operator of the text form.
enum Written {
    /// One of ours.
    Plain(Op),
    Sigmoid,
    Silu,
    Tanh,
    Gelu,
    RmsNorm(Ratio),
}

/// Makes one or more of our operators of one of the text form.
fn expanded(
    op: Written,
    args: Vec<usize>,
    push: &mut dyn FnMut(Op, Vec<usize>) -> Result<usize, String>,
) -> Result<usize, String> {
    let ratio = |num, den| Ratio { num, den };
    let x = match (&op, &args[..]) {
        (Written::Plain(_), _) => 0,
        (_, [x]) => *x,
        _ => return Err("expected one operand".into()),
    };
    let sigmoid = |x, push: &mut dyn FnMut(Op, Vec<usize>) -> Result<usize, String>| {
        let negated = push(Op::Scale(ratio(-1, 1)), vec![x])?;
        let power = push(Op::Exp, vec![negated])?;
        let more = push(Op::Offset(ratio(1, 1)), vec![power])?;
        push(Op::Reciprocal, vec![more])
    };
    match op {
        Written::Plain(op) => push(op, args),
        Written::Sigmoid => sigmoid(x, push),
        Written::Silu => {
            let factor = sigmoid(x, push)?;
            push(Op::Mul, vec![x, factor])
        }
        Written::Tanh => {
            let double = push(Op::Scale(ratio(2, 1)), vec![x])?;
            let sigmoid = sigmoid(double, push)?;
            let double = push(Op::Scale(ratio(2, 1)), vec![sigmoid])?;
            push(Op::Offset(ratio(-1, 1)), vec![double])
        }
        Written::Gelu => {
            let square = push(Op::Square, vec![x])?;
            let cube = push(Op::Mul, vec![square, x])?;
            let small = push(Op::Scale(ratio(44_715, 1_000_000)), vec![cube])?;
            let sum = push(Op::Add, vec![x, small])?;
            let exponent = push(Op::GeluFactor, vec![sum])?;
            let factor = sigmoid(exponent, push)?;
            push(Op::Mul, vec![x, factor])
        }
        Written::RmsNorm(eps) => {
            let square = push(Op::Square, vec![x])?;
            let mut mean = push(Op::Mean, vec![square])?;
            if eps.num != 0 {
                mean = push(Op::Offset(eps), vec![mean])?;
            }
            let root = push(Op::Sqrt, vec![mean])?;
            push(Op::Div, vec![x, root])
        }
    }
}

/// An operator and the names of its operands.
fn application(definition: &str) -> Result<(Written, Vec<&str>), String> {
    let end = definition.find(['(', ' ']).unwrap_or(definition.len());
    let (name, rest) = definition.split_at(end);
    let (params, args) = match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').ok_or("expected )")?,
        None => ("", rest),
    };
    Ok((operator(name, params)?, items(args)))
}

fn operator(name: &str, params: &str) -> Result<Written, String> {
    let wrong = || format!("no operator {name}({params})");
    let ratio = || Ratio::parse(params.trim()).ok_or_else(wrong);
    if params.trim().is_empty() {
        return Ok(Written::Plain(match name {
            "sigmoid" => return Ok(Written::Sigmoid),
            "silu" => return Ok(Written::Silu),
            "tanh" => return Ok(Written::Tanh),
            "gelu" => return Ok(Written::Gelu),
            "matmul" => Op::Matmul,
            "exp" => Op::Exp,
            "square" => Op::Square,
            "sqrt" => Op::Sqrt,
            "log" => Op::Log,
            "erf" => Op::Erf,
            "relu" => Op::Relu,
            "guard" => Op::Guard,
            "add" => Op::Add,
            "sub" => Op::Sub,
            "mul" => Op::Mul,
            "div" => Op::Div,
            "max" => Op::Max,
            "mask" => Op::Mask,
            _ => return Err(wrong()),
        }));
    }
    match name {
        "scale" => return Ok(Written::Plain(Op::Scale(ratio()?))),
        "offset" => return Ok(Written::Plain(Op::Offset(ratio()?))),
        "rms_norm" => return Ok(Written::RmsNorm(ratio()?)),
        "causal" => {
            let (offset, shape) = params.split_once(',').ok_or_else(wrong)?;
            let offset: i64 = offset.trim().parse().map_err(|_| wrong())?;
            return Ok(Written::Plain(Op::Causal { shape: numbers(shape)?, offset }));
        }
        _ => {}
    }
    let params = numbers(params)?;
    Ok(Written::Plain(match (name, &params[..]) {
        ("sum", [dim]) => Op::Sum { dim: *dim, keep: 1 },
        ("sum", [dim, keep]) => Op::Sum { dim: *dim, keep: *keep },
        ("largest", [dim]) => Op::Largest { dim: *dim, keep: 1 },
        ("largest", [dim, keep]) => Op::Largest { dim: *dim, keep: *keep },
        ("transpose", _) => Op::Transpose(params),
        ("reshape", _) if params.len() <= MAX_RANK => Op::Reshape(params),
        ("broadcast", _) => Op::Broadcast(params),
        ("slice", [dim, start, len]) => Op::Slice { dim: *dim, start: *start, len: *len },
        ("repeat", [dim, times]) => Op::Repeat { dim: *dim, times: *times },
        ("rotate", [dim, group]) => Op::Rotate { dim: *dim, group: *group },
        ("concat", [dim]) => Op::Concat { dim: *dim },
        ("below", [dim, limit, shape @ ..]) if shape.len() <= MAX_RANK => {
            Op::Below { shape: shape.to_vec(), dim: *dim, limit: *limit }
        }
        _ => return Err(wrong()),
    }))
}

fn items(text: &str) -> Vec<&str> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() }
}

fn named(text: &str, letter: char, names: &Names) -> Result<usize, String> {
    let number = text.trim().strip_prefix(letter).and_then(|number| number.parse::<usize>().ok());
    let found = number.and_then(|number| names.get(number).copied());
    found.ok_or_else(|| format!("{text} is not defined before"))
}

fn dim(text: &str) -> Result<Option<usize>, String> {
    match text.trim() {
        "-" => Ok(None),
        number => number.parse().map(Some).map_err(|_| format!("expected a dimension or -, not {number}")),
    }
}

fn map(text: &str) -> Result<Vec<Option<usize>>, String> {
    let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.ok_or_else(|| format!("expected [..], not {text}"))?.split(',').map(dim).collect()
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("expected a number, not {text}"));
    items(text).into_iter().map(number).collect()
}

/// What stands between quotes, if it can be seen and has no quotes or backslashes.
fn quoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    (format!("{inner:?}") == text).then(|| inner.to_owned())
}
