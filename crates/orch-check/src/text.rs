//! Reads the text form of programs. Composite functions and kernels are written by fewer operators:
//!
//! - [`COMPOSITES`] says what functions are; `rotate`, and reductions that keep more than one element, are slices of their operand.
//! - In a kernel all blocks and iterations are computed at once. What an iteration takes from the one before, a running maximum and
//!   a rescaled sum, is written out.

use crate::program::{Op, Program, Ratio, Scalar, Tiling};
use std::collections::BTreeMap;

/// The longest text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The largest grid.
const MAX_BLOCKS: usize = 1 << 20;
/// The longest loop.
const MAX_ITERATIONS: usize = 1 << 16;

/// Functions of numbers by their names.
const SCALARS: [(&str, Scalar); 13] = [
    ("exp", Scalar::Exp),
    ("square", Scalar::Square),
    ("sqrt", Scalar::Sqrt),
    ("log", Scalar::Log),
    ("erf", Scalar::Erf),
    ("relu", Scalar::Relu),
    ("guard", Scalar::Guard),
    ("reciprocal", Scalar::Reciprocal),
    ("gelu_factor", Scalar::GeluFactor),
    ("add", Scalar::Sum),
    ("mul", Scalar::Mul),
    ("max", Scalar::Largest),
    ("mask", Scalar::Mask),
];

/// Name, number of operands, and what it is: operators with the numbers of operands, of which the first are those of the function
/// and each further one is the result of the next operator. `$` is the parameter.
const COMPOSITES: [(&str, usize, &str); 7] = [
    ("sub", 2, "scale(-1) 1; add 0 2"),
    ("div", 2, "reciprocal 1; mul 0 2"),
    ("sigmoid", 1, "scale(-1) 0; exp 1; offset(1) 2; reciprocal 3"),
    ("silu", 1, "sigmoid 0; mul 0 1"),
    ("tanh", 1, "scale(2) 0; sigmoid 1; scale(2) 2; offset(-1) 3"),
    ("gelu", 1, "square 0; mul 0 1; scale(44715/1000000) 2; add 0 3; gelu_factor 4; sigmoid 5; mul 0 6"),
    ("rms_norm", 1, "square 0; mean 1; offset($) 2; sqrt 3; div 0 4"),
];

/// The programs of a text, one after the other.
///
/// # Errors
/// The line of the first problem, and what it is.
pub fn parse(text: &str) -> Result<Vec<Program>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("a text of {} bytes; at most {MAX_BYTES} are read", text.len()));
    }
    let lines = text.lines().map(words).enumerate().filter(|(_, words)| *words != Ok(Vec::new()));
    let mut reader = Reader { lines: lines.collect(), next: 0 };
    let mut programs = Vec::new();
    while reader.next < reader.lines.len() {
        let program = reader.program();
        programs.push(program.map_err(|problem| {
            format!("line {}: {problem}", reader.lines[reader.next.clamp(1, reader.lines.len()) - 1].0 + 1)
        })?);
    }
    Ok(programs)
}

/// The words of a line up to a comment. What stands in quotes, or in brackets after a word, is part of a word.
fn words(line: &str) -> Result<Vec<&str>, String> {
    let (mut rest, mut words) = (line.split('#').next().unwrap_or("").trim(), Vec::new());
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '"', '[', '(']).unwrap_or(rest.len());
        let (first, inner) = rest.split_at((end + 1).min(rest.len()));
        let closing = match first.chars().last() {
            Some('"') => inner.find('"').map(|at| at + 2),
            Some('[') => inner.find(']').map(|at| at + 2),
            Some('(') => inner.find(')').map(|at| at + 2),
            _ => (end > 0).then_some(0),
        };
        let end = end + closing.ok_or("something is not closed, or missing")?;
        words.push(&rest[..end]);
        let next = rest[end..].trim_start();
        rest = next.strip_prefix(',').unwrap_or(next).trim_start();
    }
    Ok(words)
}

struct Reader<'a> {
    /// The lines that are not empty, with their numbers.
    lines: Vec<(usize, Result<Vec<&'a str>, String>)>,
    next: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Result<Vec<&'a str>, String> {
        self.next += 1;
        self.lines.get(self.next - 1).ok_or("the text ends before }")?.1.clone()
    }

    fn program(&mut self) -> Result<Program, String> {
        match self.line()?[..] {
            ["mugraph", name, "{"] => _ = quoted(name)?,
            _ => return Err("expected mugraph \"name\" {".into()),
        }
        let (mut program, mut names, mut kernels) = (Program::default(), Vec::new(), 0);
        loop {
            let line = self.line()?;
            let (defined, definition) = match line[..] {
                ["}"] if program.outputs.is_empty() => return Err("no output".into()),
                ["}"] => return Ok(program),
                ["output", name, tensor] => {
                    let name = quoted(name)?;
                    if program.outputs.iter().any(|(known, _)| *known == name) {
                        return Err(format!("a second output {name}"));
                    }
                    program.outputs.push((name, named(tensor, 't', &names)?));
                    continue;
                }
                _ => line.split_at(line.iter().position(|word| *word == "=").ok_or("expected a definition")?),
            };
            let first = names.len();
            match definition[1..] {
                ["block", grid, "loop", iterations, "{"] => {
                    kernels += 1;
                    let (blocks, iterations) = (numbers(grid)?, number(iterations)?);
                    let kernel = KernelText { number: kernels, blocks, iterations, ..KernelText::default() };
                    names.extend(self.kernel(&mut program, &names, kernel)?);
                }
                [kind @ ("input" | "mask"), name, shape] if name.starts_with('"') => {
                    let (name, is_mask, shape) = (quoted(name)?, kind == "mask", numbers(shape)?);
                    if program.inputs().any(|(_, known, ..)| known == name) {
                        return Err(format!("a second input {name}"));
                    }
                    names.push(program.push(Op::Input { name, is_mask, shape }, &[])?);
                }
                [op, ref args @ ..] => {
                    let args =
                        args.iter().map(|arg| named(arg, 't', &names)).collect::<Result<Vec<_>, _>>()?;
                    names.push(apply(&mut program, op, &args, 0)?);
                }
                [] => return Err("expected a definition".into()),
            }
            let expected: Vec<String> = (first..names.len()).map(|at| format!("t{at}")).collect();
            if defined != expected {
                return Err(format!("defines {}, expected {}", defined.join(", "), expected.join(", ")));
            }
        }
    }

    /// The tensors that a kernel stores.
    fn kernel(
        &mut self,
        program: &mut Program,
        tensors: &[usize],
        mut kernel: KernelText,
    ) -> Result<Vec<usize>, String> {
        let blocks = kernel.blocks.iter().try_fold(1usize, |product, &blocks| product.checked_mul(blocks));
        if !blocks.is_some_and(|blocks| (1..=MAX_BLOCKS).contains(&blocks))
            || !(1..=3).contains(&kernel.blocks.len())
            || !(1..=MAX_ITERATIONS).contains(&kernel.iterations)
        {
            return Err(format!("a grid of {:?} with a loop of {}", kernel.blocks, kernel.iterations));
        }
        let mut stored = Vec::new();
        loop {
            let line = self.line()?;
            let [name, "=", ref definition @ ..] = line[..] else {
                match line[..] {
                    ["}"] => return Ok(stored),
                    ["store", tile, dims] => stored.push(kernel.stored(program, tile, dims)?),
                    _ => return Err("expected a definition or store".into()),
                }
                continue;
            };
            if name != format!("s{}", kernel.tiles.len()) {
                return Err(format!("defines {name}, expected s{}", kernel.tiles.len()));
            }
            let tile = match *definition {
                ["load", tensor, dims, along] => {
                    let (tensor, along) = (named(tensor, 't', tensors)?, dim(along)?);
                    let tiling = kernel.tiling(program.nodes[tensor].shape.len(), dims);
                    let tiling = tiling
                        .filter(|_| along.is_none_or(|dim| dim < program.nodes[tensor].shape.len()))
                        .ok_or_else(|| format!("a load by {dims} may not stand in a block like this"))?;
                    let stage = if along.is_some() { Stage::Loop } else { Stage::Fixed };
                    let op = Op::Split { tiling, along, iterations: kernel.iterations };
                    Tile { tensor: program.push(op, &[tensor])?, stage }
                }
                ["running_max", tile] => kernel.running_max(program, tile)?,
                ["accumulate", how, ref of @ .., tile] => kernel.accumulated(program, how, of, tile)?,
                [op, ref args @ ..] => {
                    let args = args.iter().map(|arg| kernel.named(arg)).collect::<Result<Vec<_>, _>>()?;
                    let stage = args.iter().map(|tile| tile.stage).max().unwrap_or(Stage::Fixed);
                    if stage == Stage::After && args.iter().any(|tile| tile.stage == Stage::Loop) {
                        return Err(format!("{name} mixes values of the loop with values after it"));
                    }
                    let args: Vec<usize> = args.into_iter().map(|tile| tile.tensor).collect();
                    Tile { tensor: apply(program, op, &args, kernel.blocks.len() + 1)?, stage }
                }
                [] => return Err("expected a definition".into()),
            };
            kernel.tiles.push(tile);
        }
    }
}

/// When a tile is known.
#[derive(Clone, Copy, PartialEq, PartialOrd, Eq, Ord, Debug)]
enum Stage {
    /// It is the same in all iterations.
    Fixed,
    /// In each iteration anew.
    Loop,
    /// After the loop.
    After,
}

/// A tile: of all blocks and iterations.
#[derive(Clone, Copy, Debug)]
struct Tile {
    tensor: usize,
    stage: Stage,
}

#[derive(Default)]
struct KernelText {
    number: usize,
    /// Along each axis of the grid. These are the first dimensions of a tile's tensor, then comes that of the loop.
    blocks: Vec<usize>,
    iterations: usize,
    tiles: Vec<Tile>,
    /// Of running maxima those of each iteration.
    running: BTreeMap<usize, Vec<usize>>,
}

impl KernelText {
    fn named(&self, name: &str) -> Result<Tile, String> {
        let numbers: Vec<usize> = (0..self.tiles.len()).collect();
        Ok(self.tiles[named(name, 's', &numbers)?])
    }

    /// How the grid cuts a tensor, if it can.
    fn tiling(&self, rank: usize, dims: &str) -> Option<Tiling> {
        let dims: Vec<Option<usize>> = inside(dims).split(',').map(dim).collect::<Result<_, _>>().ok()?;
        let is_first = |(at, dim): (usize, &Option<usize>)| {
            dim.is_none_or(|inner| inner < rank && !dims[..at].contains(dim))
        };
        let is_map = dims.len() == self.blocks.len() && dims.iter().enumerate().all(is_first);
        is_map.then(|| Tiling { kernel: self.number, blocks: self.blocks.clone(), dims })
    }

    fn stored(&self, program: &mut Program, tile: &str, dims: &str) -> Result<usize, String> {
        let Tile { tensor, stage } = self.named(tile)?;
        let tiling = self.tiling(program.nodes[tensor].shape.len() - self.blocks.len() - 1, dims);
        let is_once = |tiling: &Tiling| {
            tiling.dims.iter().zip(&self.blocks).all(|(dim, &blocks)| dim.is_some() || blocks == 1)
        };
        let tiling = tiling.filter(|tiling| stage != Stage::Loop && is_once(tiling));
        let op = Op::Merge(tiling.ok_or_else(|| format!("{tile} is stored by {dims}"))?);
        program
            .push(op, &[tensor])
            .map_err(|problem| format!("what is stored is too long, or uneven: {problem}"))
    }

    /// A tile in each iteration.
    fn in_loop(&self, program: &mut Program, name: &str) -> Result<usize, String> {
        let Tile { tensor, stage } = self.named(name)?;
        let mut shape = crate::program::lens(&program.nodes[tensor].shape);
        if stage == Stage::After {
            return Err(format!("{name} is known after the loop only"));
        }
        if shape[self.blocks.len()] == self.iterations {
            return Ok(tensor);
        }
        shape[self.blocks.len()] = self.iterations;
        program.push(Op::Broadcast(shape), &[tensor])
    }

    fn iteration(&self, program: &mut Program, tensor: usize, start: usize) -> Result<usize, String> {
        program.push(Op::Slice { dim: self.blocks.len(), start, len: 1 }, &[tensor])
    }

    /// The largest over this and earlier iterations.
    fn running_max(&mut self, program: &mut Program, name: &str) -> Result<Tile, String> {
        let all = self.in_loop(program, name)?;
        let mut maxima = vec![self.iteration(program, all, 0)?];
        for at in 1..self.iterations {
            let next = self.iteration(program, all, at)?;
            maxima.push(program.push(Op::Each(Scalar::Largest), &[maxima[at - 1], next])?);
        }
        let tensor = program.push(Op::Concat(self.blocks.len()), &maxima)?;
        self.running.insert(tensor, maxima);
        Ok(Tile { tensor, stage: Stage::Loop })
    }

    /// A sum or maximum over iterations. A rescaled sum is multiplied by `e^(degree (before - now))` as a running maximum changes.
    fn accumulated(&self, program: &mut Program, how: &str, of: &[&str], tile: &str) -> Result<Tile, String> {
        let (all, prefix) = (self.in_loop(program, tile)?, self.blocks.len() + 1);
        let tensor = match (how, of) {
            ("sum", []) => program.push(Op::Reduce(Scalar::Sum, prefix - 1), &[all])?,
            ("max", []) => program.push(Op::Reduce(Scalar::Largest, prefix - 1), &[all])?,
            ("rescaled", [max, degree]) => {
                let maxima = self.running.get(&self.named(max)?.tensor);
                let maxima = maxima.ok_or_else(|| format!("{max} may not stand in a block like this"))?;
                let mut sum = self.iteration(program, all, 0)?;
                for at in 1..self.iterations {
                    let now = apply(program, "guard", &[maxima[at]], prefix)?;
                    let change = apply(program, "sub", &[maxima[at - 1], now], prefix)?;
                    let exponent = apply(program, &format!("scale({degree})"), &[change], prefix)?;
                    let factor = apply(program, "exp", &[exponent], prefix)?;
                    let before = apply(program, "mul", &[sum, factor], prefix)?;
                    is_like(program, before, sum, prefix)?;
                    let next = self.iteration(program, all, at)?;
                    sum = apply(program, "add", &[before, next], prefix)?;
                }
                sum
            }
            _ => return Err(format!("accumulate {how} may not stand in a block like this")),
        };
        Ok(Tile { tensor, stage: Stage::After })
    }
}

/// Adds what an operator computes of tensors that have some dimensions before those that the text knows.
fn apply(program: &mut Program, word: &str, args: &[usize], prefix: usize) -> Result<usize, String> {
    let (name, params) = word.split_at(word.find('(').unwrap_or(word.len()));
    let unknown = || format!("no operator {name}({})", inside(params));
    if let Some((_, count, steps)) = COMPOSITES.iter().find(|(known, ..)| *known == name) {
        if args.len() != *count || params.is_empty() == steps.contains('$') {
            return Err(unknown());
        }
        let mut values = args.to_vec();
        for step in steps.split("; ") {
            let step = step.replace('$', inside(params));
            let (op, operands) = step.split_once(' ').ok_or_else(unknown)?;
            let operands = operands.split(' ').map(|at| number(at).map(|at| values[at]));
            let operands = operands.collect::<Result<Vec<usize>, _>>()?;
            values.push(apply(program, op, &operands, prefix)?);
        }
        return values.last().copied().ok_or_else(unknown);
    }
    let op = match (name, inside(params)) {
        ("matmul", "") => Op::Matmul,
        ("scale", param) => Op::Each(Scalar::Scale(ratio(param).ok_or_else(unknown)?)),
        ("offset", param) => Op::Each(Scalar::Offset(ratio(param).ok_or_else(unknown)?)),
        ("mean", "") => {
            let x = *args.first().ok_or_else(unknown)?;
            let last = program.nodes[x].shape.len().checked_sub(1).filter(|&last| last >= prefix);
            let last = last.ok_or_else(unknown)?;
            let count = program.extent(x, last).ok_or("a mean of parts that are uneven")?;
            let sum = program.push(Op::Reduce(Scalar::Sum, last), args)?;
            return apply(program, &format!("scale(1/{count})"), &[sum], prefix);
        }
        ("causal", params) if prefix == 0 => {
            let (offset, shape) = params.split_once(',').ok_or_else(unknown)?;
            Op::Causal { offset: offset.parse().map_err(|_| unknown())?, shape: numbers(shape)? }
        }
        (_, "") => {
            let (_, scalar) = SCALARS.iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
            Op::Each(*scalar)
        }
        _ => {
            let params = numbers(params)?;
            let at = |dim: usize| dim.saturating_add(prefix);
            match (name, &params[..]) {
                ("sum", &[dim]) | ("sum", &[dim, 1]) => Op::Reduce(Scalar::Sum, at(dim)),
                ("largest", &[dim]) | ("largest", &[dim, 1]) => Op::Reduce(Scalar::Largest, at(dim)),
                ("sum", &[dim, keep]) => return kept(program, Scalar::Sum, args, (at(dim), keep)),
                ("largest", &[dim, keep]) => return kept(program, Scalar::Largest, args, (at(dim), keep)),
                ("rotate", &[dim, len]) => return rotated(program, args, (at(dim), len)),
                ("transpose", order) => {
                    Op::Transpose((0..prefix).chain(order.iter().map(|&dim| at(dim))).collect())
                }
                ("slice", &[dim, start, len]) => Op::Slice { dim: at(dim), start, len },
                ("repeat", &[dim, times]) => Op::Repeat { dim: at(dim), times },
                ("concat", &[dim]) => {
                    let args = in_all_blocks(program, args, prefix)?;
                    return program.push(Op::Concat(at(dim)), &args);
                }
                ("reshape" | "broadcast" | "below", _) if prefix > 0 => {
                    return Err(format!("{name} may not stand in a block"));
                }
                ("reshape", _) => Op::Reshape(params),
                ("broadcast", _) => Op::Broadcast(params),
                ("below", &[dim, limit, ref shape @ ..]) => Op::Below { dim, limit, shape: shape.to_vec() },
                _ => return Err(unknown()),
            }
        }
    };
    let result = program.push(op, args)?;
    if name == "mask" {
        is_like(program, result, args[0], prefix)?;
    }
    Ok(result)
}

/// That a result is not larger than an operand.
fn is_like(program: &Program, result: usize, operand: usize, prefix: usize) -> Result<(), String> {
    let [result, operand] = [result, operand].map(|tensor| &program.nodes[tensor].shape[prefix..]);
    if result == operand { Ok(()) } else { Err("an operand is larger than what it is applied to".into()) }
}

/// Tiles as tensors that have the same blocks and iterations.
fn in_all_blocks(program: &mut Program, args: &[usize], prefix: usize) -> Result<Vec<usize>, String> {
    let lens: Vec<Vec<usize>> =
        args.iter().map(|&arg| crate::program::lens(&program.nodes[arg].shape)).collect();
    let wide = |at: usize| lens.iter().map(|lens| lens[at]).max().unwrap_or(1);
    let wide =
        |own: &Vec<usize>| (0..own.len()).map(|at| if at < prefix { wide(at) } else { own[at] }).collect();
    let pairs = args.iter().zip(&lens).map(|(&arg, own)| {
        let wide: Vec<usize> = wide(own);
        if wide == *own { Ok(arg) } else { program.push(Op::Broadcast(wide), &[arg]) }
    });
    pairs.collect()
}

/// The starts of parts of a dimension.
fn starts(program: &Program, args: &[usize], dim: usize, len: usize) -> Result<Vec<usize>, String> {
    let extent = args.first().and_then(|&arg| program.extent(arg, dim));
    let extent = extent.filter(|extent| args.len() == 1 && len > 0 && extent.is_multiple_of(len));
    Ok((0..extent.ok_or_else(|| format!("a part of {len} elements does not suit"))?).step_by(len).collect())
}

/// Element `j` of the result combines elements `j, j + keep, ..`.
fn kept(
    program: &mut Program,
    scalar: Scalar,
    args: &[usize],
    (dim, keep): (usize, usize),
) -> Result<usize, String> {
    let mut result = None;
    for start in starts(program, args, dim, keep)? {
        let part = program.push(Op::Slice { dim, start, len: keep }, args)?;
        result = Some(result.map_or(Ok(part), |sum| program.push(Op::Each(scalar), &[sum, part]))?);
    }
    result.ok_or_else(|| "nothing is combined".into())
}

/// In each run of two groups the halves (a, b) become (-b, a).
fn rotated(program: &mut Program, args: &[usize], (dim, len): (usize, usize)) -> Result<usize, String> {
    let mut parts = Vec::new();
    for start in starts(program, args, dim, len.saturating_mul(2))? {
        let second = program.push(Op::Slice { dim, start: start + len, len }, args)?;
        parts.push(apply(program, "scale(-1)", &[second], 0)?);
        parts.push(program.push(Op::Slice { dim, start, len }, args)?);
    }
    program.push(Op::Concat(dim), &parts)
}

/// What stands between brackets.
fn inside(word: &str) -> &str {
    word.trim_start_matches(['(', '[']).trim_end_matches([')', ']']).trim()
}

fn named(text: &str, letter: char, names: &[usize]) -> Result<usize, String> {
    let number = text.strip_prefix(letter).and_then(|number| number.parse::<usize>().ok());
    number
        .and_then(|number| names.get(number).copied())
        .ok_or_else(|| format!("{text} is not defined before"))
}

fn dim(text: &str) -> Result<Option<usize>, String> {
    if text.trim() == "-" { Ok(None) } else { number(text).map(Some) }
}

fn number(text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| format!("expected a number, not {text}"))
}

fn numbers(list: &str) -> Result<Vec<usize>, String> {
    let list = inside(list);
    if list.is_empty() { Ok(Vec::new()) } else { list.split(',').map(number).collect() }
}

/// Reads `3`, `-1/8`.
fn ratio(text: &str) -> Option<Ratio> {
    let (num, den) = text.split_once('/').unwrap_or((text, "1"));
    let (num, den) = (num.parse().ok()?, den.parse().ok()?);
    (den > 0 && num != i64::MIN).then_some(Ratio { num, den })
}

/// A name in quotes, without escapes.
fn quoted(word: &str) -> Result<String, String> {
    let inner = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
    let inner = inner.filter(|inner| format!("{inner:?}") == word);
    inner.map(str::to_owned).ok_or_else(|| "expected a name in quotes".into())
}
