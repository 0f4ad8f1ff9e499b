//! Reads the text form of programs. Composite functions and kernels are written by fewer operators:
//!
//! - `sigmoid x` is `1 / (1 + e^-x)`, `silu x` is `x sigmoid(x)`, `tanh x` is `2 sigmoid(2 x) - 1`, `gelu x` is
//!   `x sigmoid(c (x + 0.044715 x³))` with `c = 2 sqrt(2 / pi)`, `rms_norm x` is `x / sqrt(mean x² + eps)`, `a - b` is `a + -1 b`,
//!   `a / b` is `a (1 / b)`; `rotate` and reductions that keep more than one element are slices of their operand.
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

/// The programs of a text, one after the other.
///
/// # Errors
/// The line of the first problem, and what it is.
pub fn parse(text: &str) -> Result<Vec<Program>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("a text of {} bytes; at most {MAX_BYTES} are read", text.len()));
    }
    let mut reader = Reader { lines: text.lines().collect(), line: 0, words: Vec::new() };
    let mut programs = Vec::new();
    while reader.lines[reader.line..].iter().any(|line| !code(line).is_empty()) {
        let program = reader.program();
        programs.push(program.map_err(|problem| format!("line {}: {problem}", reader.line))?);
    }
    Ok(programs)
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split('#').next().unwrap_or("").trim()
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    /// The number of the line that is read.
    line: usize,
    /// What is left of it, last word first.
    words: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    /// Goes to the next line that is not empty.
    fn advance(&mut self) -> Result<(), String> {
        self.words.clear();
        while self.words.is_empty() {
            let mut rest = code(self.lines.get(self.line).ok_or("the text ends before }")?);
            self.line += 1;
            while let Some(first) = rest.chars().next() {
                let is_mark = |c: char| "()[]{},=\"".contains(c);
                let end = match first {
                    '"' => 2 + rest[1..].find('"').ok_or("a name without an end")?,
                    _ if is_mark(first) => 1,
                    _ => rest.find(|c: char| c.is_whitespace() || is_mark(c)).unwrap_or(rest.len()),
                };
                self.words.push(&rest[..end]);
                rest = rest[end..].trim_start();
            }
        }
        self.words.reverse();
        Ok(())
    }

    fn is_next(&self, word: &str) -> bool {
        self.words.last() == Some(&word)
    }

    fn word(&mut self) -> Result<&'a str, String> {
        self.words.pop().ok_or_else(|| "the line ends too early".into())
    }

    fn expect(&mut self, words: &[&str]) -> Result<(), String> {
        words.iter().try_for_each(|word| {
            let found = self.word()?;
            if found == *word { Ok(()) } else { Err(format!("expected {word}, not {found}")) }
        })
    }

    fn end(&self) -> Result<(), String> {
        self.words.last().map_or(Ok(()), |word| Err(format!("{word} after the end of a statement")))
    }

    /// A name in quotes, without escapes.
    fn quoted(&mut self) -> Result<String, String> {
        let word = self.word()?;
        let inner = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
        inner
            .filter(|inner| format!("{inner:?}") == word)
            .map(str::to_owned)
            .ok_or_else(|| "expected a name in quotes".into())
    }

    /// Words with commas between them, up to a mark or the end of the line.
    fn list(&mut self, end: &str) -> Result<Vec<&'a str>, String> {
        let mut list = Vec::new();
        while !self.words.is_empty() && !self.is_next(end) {
            if !list.is_empty() {
                self.expect(&[","])?;
            }
            list.push(self.word()?);
        }
        if end.is_empty() { Ok(list) } else { self.expect(&[end]).map(|()| list) }
    }

    fn bracketed<T>(&mut self, item: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        self.expect(&["["])?;
        self.list("]")?.into_iter().map(item).collect()
    }

    fn program(&mut self) -> Result<Program, String> {
        self.advance()?;
        self.expect(&["mugraph"])?;
        self.quoted()?;
        self.expect(&["{"])?;
        let (mut program, mut names, mut kernels) = (Program::default(), Vec::new(), 0);
        loop {
            self.end()?;
            self.advance()?;
            if self.is_next("}") {
                self.word()?;
                self.end()?;
                return if program.outputs.is_empty() { Err("no output".into()) } else { Ok(program) };
            }
            if self.is_next("output") {
                self.word()?;
                let name = self.quoted()?;
                if program.outputs.iter().any(|(known, _)| *known == name) {
                    return Err(format!("a second output {name}"));
                }
                let tensor = named(self.word()?, 't', &names)?;
                program.outputs.push((name, tensor));
                continue;
            }
            let defined = self.list("=")?;
            let first = names.len();
            let word = self.word()?;
            if word == "block" {
                kernels += 1;
                let kernel = Kernel::new(self.bracketed(number)?, kernels);
                names.extend(self.kernel(&mut program, &names, kernel)?);
            } else if matches!(word, "input" | "mask")
                && self.words.last().is_some_and(|word| word.starts_with('"'))
            {
                let (name, is_mask) = (self.quoted()?, word == "mask");
                let shape = self.bracketed(number)?;
                if program.inputs().any(|(_, known, ..)| known == name) {
                    return Err(format!("a second input {name}"));
                }
                names.push(program.push(Op::Input { name, is_mask, shape }, &[])?);
            } else {
                let (params, args) = self.application()?;
                let args =
                    args.into_iter().map(|arg| named(arg, 't', &names)).collect::<Result<Vec<_>, _>>()?;
                names.push(apply(&mut program, word, &params, &args, 0)?);
            }
            let expected: Vec<String> = (first..names.len()).map(|at| format!("t{at}")).collect();
            if defined != expected {
                return Err(format!("defines {}, expected {}", defined.join(", "), expected.join(", ")));
            }
        }
    }

    /// Parameters in parentheses, and operands.
    fn application(&mut self) -> Result<(Vec<&'a str>, Vec<&'a str>), String> {
        let mut params = Vec::new();
        if self.is_next("(") {
            self.word()?;
            params = self.list(")")?;
        }
        Ok((params, self.list("")?))
    }

    /// The tensors that a kernel stores.
    fn kernel(
        &mut self,
        program: &mut Program,
        tensors: &[usize],
        mut kernel: Kernel,
    ) -> Result<Vec<usize>, String> {
        self.expect(&["loop"])?;
        kernel.iterations = number(self.word()?)?;
        self.expect(&["{"])?;
        let blocks = kernel.blocks.iter().try_fold(1usize, |product, &blocks| product.checked_mul(blocks));
        if !blocks.is_some_and(|blocks| (1..=MAX_BLOCKS).contains(&blocks))
            || kernel.blocks.len() > 3
            || !(1..=MAX_ITERATIONS).contains(&kernel.iterations)
        {
            return Err(format!("a grid of {:?} with a loop of {}", kernel.blocks, kernel.iterations));
        }
        let mut stored = Vec::new();
        loop {
            self.end()?;
            self.advance()?;
            let word = self.word()?;
            if word == "}" {
                return Ok(stored);
            }
            if word == "store" {
                let tile = kernel.named(self.word()?)?;
                let tiling = kernel.tiling(self.bracketed(dim)?);
                let is_once =
                    tiling.dims.iter().zip(&tiling.blocks).all(|(dim, &blocks)| dim.is_some() || blocks == 1);
                let rank = program.nodes[tile.tensor].shape.len() - kernel.prefix();
                if !is_once || !tiling.is_map(rank) || tile.stage == Stage::Loop {
                    return Err(format!("{tile:?} is stored by {:?}", tiling.dims));
                }
                stored.push(
                    program
                        .push(Op::Merge(tiling), &[tile.tensor])
                        .map_err(|problem| format!("a stored tensor is too long, or uneven: {problem}"))?,
                );
                continue;
            }
            let name = format!("s{}", kernel.tiles.len());
            if word != name {
                return Err(format!("defines {word}, expected {name}"));
            }
            self.expect(&["="])?;
            let tile = match self.word()? {
                "load" => {
                    let tensor = named(self.word()?, 't', tensors)?;
                    let (tiling, along) = (kernel.tiling(self.bracketed(dim)?), dim(self.word()?)?);
                    let rank = program.nodes[tensor].shape.len();
                    if !tiling.is_map(rank) || along.is_some_and(|dim| dim >= rank) {
                        return Err(format!(
                            "a load by {:?} may not stand in a block like this",
                            tiling.dims
                        ));
                    }
                    let stage = if along.is_some() { Stage::Loop } else { Stage::Fixed };
                    let op = Op::Split { tiling, along, iterations: kernel.iterations };
                    Tile { tensor: program.push(op, &[tensor])?, stage }
                }
                "running_max" => {
                    let tile = kernel.named(self.word()?)?;
                    kernel.running_max(program, tile)?
                }
                "accumulate" => {
                    let how = self.word()?;
                    let rescaled = if how == "rescaled" {
                        Some((kernel.named(self.word()?)?, ratio(self.word()?)?))
                    } else {
                        None
                    };
                    let tile = kernel.named(self.word()?)?;
                    kernel.accumulated(program, how, tile, rescaled)?
                }
                word => {
                    let (params, args) = self.application()?;
                    let args =
                        args.into_iter().map(|arg| kernel.named(arg)).collect::<Result<Vec<Tile>, _>>()?;
                    let stage = args.iter().map(|tile| tile.stage).max().unwrap_or(Stage::Fixed);
                    if stage == Stage::After && args.iter().any(|tile| tile.stage == Stage::Loop) {
                        return Err(format!("{name} mixes values of the loop with values after it"));
                    }
                    let args: Vec<usize> = args.into_iter().map(|tile| tile.tensor).collect();
                    let tensor = apply(program, word, &params, &args, kernel.prefix())?;
                    Tile { tensor, stage }
                }
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

struct Kernel {
    number: usize,
    blocks: Vec<usize>,
    iterations: usize,
    tiles: Vec<Tile>,
    /// Of running maxima those of each iteration.
    running: BTreeMap<usize, Vec<usize>>,
}

impl Kernel {
    fn new(blocks: Vec<usize>, number: usize) -> Kernel {
        Kernel { number, blocks, iterations: 1, tiles: Vec::new(), running: BTreeMap::new() }
    }

    /// The dimensions before those of a tile: the axes of the grid, and the loop.
    fn prefix(&self) -> usize {
        self.blocks.len() + 1
    }

    fn named(&self, name: &str) -> Result<Tile, String> {
        let numbers: Vec<usize> = (0..self.tiles.len()).collect();
        Ok(self.tiles[named(name, 's', &numbers)?])
    }

    fn tiling(&self, dims: Vec<Option<usize>>) -> Tiling {
        Tiling { kernel: self.number, blocks: self.blocks.clone(), dims }
    }

    /// The tile in each iteration.
    fn in_loop(&self, program: &mut Program, tile: Tile) -> Result<usize, String> {
        let mut shape = crate::program::lens(&program.nodes[tile.tensor].shape);
        if shape[self.blocks.len()] == self.iterations {
            return Ok(tile.tensor);
        }
        shape[self.blocks.len()] = self.iterations;
        program.push(Op::Broadcast(shape), &[tile.tensor])
    }

    fn iteration(&self, program: &mut Program, tensor: usize, start: usize) -> Result<usize, String> {
        program.push(Op::Slice { dim: self.blocks.len(), start, len: 1 }, &[tensor])
    }

    /// The largest over this and earlier iterations.
    fn running_max(&mut self, program: &mut Program, tile: Tile) -> Result<Tile, String> {
        if tile.stage == Stage::After {
            return Err("a running maximum after the loop".into());
        }
        let all = self.in_loop(program, tile)?;
        let mut maxima = vec![self.iteration(program, all, 0)?];
        for at in 1..self.iterations {
            let next = self.iteration(program, all, at)?;
            maxima.push(program.each(Scalar::Largest, &[maxima[at - 1], next])?);
        }
        let tensor = program.push(Op::Concat(self.blocks.len()), &maxima)?;
        self.running.insert(tensor, maxima);
        Ok(Tile { tensor, stage: Stage::Loop })
    }

    /// A sum or maximum over iterations; a sum that is rescaled is multiplied by `e^(degree (before - now))` as a running maximum changes.
    fn accumulated(
        &self,
        program: &mut Program,
        how: &str,
        tile: Tile,
        rescaled: Option<(Tile, Ratio)>,
    ) -> Result<Tile, String> {
        let loop_dim = self.blocks.len();
        if tile.stage == Stage::After {
            return Err("a value after the loop is accumulated".into());
        }
        let tensor = match (how, rescaled) {
            ("sum", _) => {
                let all = self.in_loop(program, tile)?;
                program.push(Op::Reduce(Scalar::Sum, loop_dim), &[all])?
            }
            ("max", _) => program.push(Op::Reduce(Scalar::Largest, loop_dim), &[tile.tensor])?,
            (_, Some((max, degree))) if self.running.contains_key(&max.tensor) => {
                let (all, maxima) = (self.in_loop(program, tile)?, &self.running[&max.tensor]);
                let mut sum = self.iteration(program, all, 0)?;
                for at in 1..self.iterations {
                    let now = program.each(Scalar::Guard, &[maxima[at]])?;
                    let change = difference(program, maxima[at - 1], now)?;
                    let exponent = program.each(Scalar::Scale(degree), &[change])?;
                    let factor = program.each(Scalar::Exp, &[exponent])?;
                    let next = self.iteration(program, all, at)?;
                    let before = program.each(Scalar::Mul, &[sum, factor])?;
                    let [old, new] =
                        [sum, before].map(|tensor| &program.nodes[tensor].shape[self.prefix()..]);
                    if old != new {
                        return Err("a maximum larger than the sum that it rescales".into());
                    }
                    sum = program.each(Scalar::Sum, &[before, next])?;
                }
                sum
            }
            _ => return Err(format!("accumulate {how} may not stand in a block like this")),
        };
        Ok(Tile { tensor, stage: Stage::After })
    }
}

impl Tiling {
    fn is_map(&self, rank: usize) -> bool {
        let dims: Vec<usize> = self.dims.iter().flatten().copied().collect();
        let is_first = |(at, dim): (usize, &usize)| *dim < rank && !dims[..at].contains(dim);
        self.dims.len() == self.blocks.len() && dims.iter().enumerate().all(is_first)
    }
}

fn difference(program: &mut Program, a: usize, b: usize) -> Result<usize, String> {
    let negative = program.each(Scalar::Scale(Ratio { num: -1, den: 1 }), &[b])?;
    program.each(Scalar::Sum, &[a, negative])
}

/// Adds what an operator of the text form computes of tensors that have some dimensions before those that the text knows.
fn apply(
    program: &mut Program,
    name: &str,
    params: &[&str],
    args: &[usize],
    prefix: usize,
) -> Result<usize, String> {
    let unknown = || format!("no operator {name}({})", params.join(", "));
    if let Some((_, scalar)) = SCALARS.iter().find(|(known, _)| *known == name && params.is_empty()) {
        return program.each(*scalar, args);
    }
    let whole = |num| Ratio { num, den: 1 };
    let one_of = |given: &[usize]| {
        given.first().copied().filter(|_| given.len() == 1).ok_or_else(|| format!("{name} takes one operand"))
    };
    let two_of =
        |given: &[usize]| <[usize; 2]>::try_from(given).map_err(|_| format!("{name} takes two operands"));
    let sigmoid = |program: &mut Program, x: usize| {
        let negative = program.each(Scalar::Scale(whole(-1)), &[x])?;
        let power = program.each(Scalar::Exp, &[negative])?;
        let divisor = program.each(Scalar::Offset(whole(1)), &[power])?;
        program.each(Scalar::Reciprocal, &[divisor])
    };
    match (name, params) {
        ("matmul", []) => return program.push(Op::Matmul, args),
        ("sub", []) => return two_of(args).and_then(|[a, b]| difference(program, a, b)),
        ("div", []) => {
            let [a, b] = two_of(args)?;
            let inverse = program.each(Scalar::Reciprocal, &[b])?;
            return program.each(Scalar::Mul, &[a, inverse]);
        }
        ("sigmoid", []) => return one_of(args).and_then(|x| sigmoid(program, x)),
        ("silu", []) => {
            let x = one_of(args)?;
            let factor = sigmoid(program, x)?;
            return program.each(Scalar::Mul, &[x, factor]);
        }
        ("tanh", []) => {
            let double = program.each(Scalar::Scale(whole(2)), &[one_of(args)?])?;
            let factor = sigmoid(program, double)?;
            let double = program.each(Scalar::Scale(whole(2)), &[factor])?;
            return program.each(Scalar::Offset(whole(-1)), &[double]);
        }
        ("gelu", []) => {
            let x = one_of(args)?;
            let square = program.each(Scalar::Square, &[x])?;
            let cube = program.each(Scalar::Mul, &[square, x])?;
            let small = program.each(Scalar::Scale(Ratio { num: 44_715, den: 1_000_000 }), &[cube])?;
            let sum = program.each(Scalar::Sum, &[x, small])?;
            let exponent = program.each(Scalar::GeluFactor, &[sum])?;
            let factor = sigmoid(program, exponent)?;
            return program.each(Scalar::Mul, &[x, factor]);
        }
        ("rms_norm", [eps]) => {
            let (x, eps) = (one_of(args)?, ratio(eps).map_err(|_| unknown())?);
            let last = program.nodes[x]
                .shape
                .len()
                .checked_sub(1)
                .filter(|&last| last >= prefix)
                .ok_or_else(unknown)?;
            let count = program.extent(x, last).and_then(|count| i64::try_from(count).ok());
            let square = program.each(Scalar::Square, &[x])?;
            let sum = program.push(Op::Reduce(Scalar::Sum, last), &[square])?;
            let mean = Scalar::Scale(Ratio { num: 1, den: count.ok_or("a norm of parts that are uneven")? });
            let mut mean = program.each(mean, &[sum])?;
            if eps.num != 0 {
                mean = program.each(Scalar::Offset(eps), &[mean])?;
            }
            let root = program.each(Scalar::Sqrt, &[mean])?;
            let inverse = program.each(Scalar::Reciprocal, &[root])?;
            return program.each(Scalar::Mul, &[x, inverse]);
        }
        ("scale", [factor]) => {
            return program.each(Scalar::Scale(ratio(factor).map_err(|_| unknown())?), args);
        }
        ("offset", [term]) => return program.each(Scalar::Offset(ratio(term).map_err(|_| unknown())?), args),
        _ => {}
    }
    let is_shape = matches!(name, "reshape" | "broadcast" | "causal" | "below");
    if is_shape && prefix > 0 {
        return Err(format!("{name} may not stand in a block"));
    }
    if let ("causal", [offset, shape @ ..]) = (name, params) {
        let shape = shape.iter().map(|extent| number(extent)).collect::<Result<_, _>>()?;
        return program.push(Op::Causal { offset: offset.parse().map_err(|_| unknown())?, shape }, args);
    }
    let params: Vec<usize> = params.iter().map(|param| number(param)).collect::<Result<_, _>>()?;
    let at = |dim: usize| dim.saturating_add(prefix);
    match (name, &params[..]) {
        ("sum", [dim]) => program.push(Op::Reduce(Scalar::Sum, at(*dim)), args),
        ("largest", [dim]) => program.push(Op::Reduce(Scalar::Largest, at(*dim)), args),
        ("sum" | "largest", [dim, keep]) => {
            let (dim, keep) = (at(*dim), *keep);
            let extent =
                program.extent(one_of(args)?, dim).filter(|extent| keep > 0 && extent.is_multiple_of(keep));
            let extent = extent.ok_or_else(|| format!("{name} of {keep} elements does not suit"))?;
            if keep == 1 {
                return apply(program, name, &[&(dim - prefix).to_string()], args, prefix);
            }
            let mut result = program.push(Op::Slice { dim, start: 0, len: keep }, args)?;
            for start in (keep..extent).step_by(keep) {
                let part = program.push(Op::Slice { dim, start, len: keep }, args)?;
                result = program
                    .each(if name == "sum" { Scalar::Sum } else { Scalar::Largest }, &[result, part])?;
            }
            Ok(result)
        }
        ("transpose", order) => {
            program.push(Op::Transpose((0..prefix).chain(order.iter().map(|&dim| at(dim))).collect()), args)
        }
        ("reshape", _) => program.push(Op::Reshape(params), args),
        ("broadcast", _) => program.push(Op::Broadcast(params), args),
        ("slice", &[dim, start, len]) => program.push(Op::Slice { dim: at(dim), start, len }, args),
        ("repeat", &[dim, times]) => program.push(Op::Repeat { dim: at(dim), times }, args),
        ("rotate", &[dim, len]) => {
            // In each run of two groups the halves (a, b) become (-b, a).
            let (x, dim) = (one_of(args)?, at(dim));
            let run = len.checked_mul(2).filter(|&run| run > 0);
            let runs = program.extent(x, dim).zip(run).filter(|(extent, run)| extent.is_multiple_of(*run));
            let (extent, run) = runs.ok_or_else(|| format!("rotate of {len} elements does not suit"))?;
            let mut parts = Vec::new();
            for start in (0..extent).step_by(run) {
                let second = program.push(Op::Slice { dim, start: start + len, len }, args)?;
                parts.push(program.each(Scalar::Scale(whole(-1)), &[second])?);
                parts.push(program.push(Op::Slice { dim, start, len }, args)?);
            }
            program.push(Op::Concat(dim), &parts)
        }
        ("concat", &[dim]) => program.push(Op::Concat(at(dim)), args),
        ("below", [dim, limit, shape @ ..]) => {
            program.push(Op::Below { shape: shape.to_vec(), dim: *dim, limit: *limit }, args)
        }
        _ => Err(unknown()),
    }
}

/// Functions of elements by their names.
const SCALARS: [(&str, Scalar); 11] = [
    ("exp", Scalar::Exp),
    ("square", Scalar::Square),
    ("sqrt", Scalar::Sqrt),
    ("log", Scalar::Log),
    ("erf", Scalar::Erf),
    ("relu", Scalar::Relu),
    ("guard", Scalar::Guard),
    ("add", Scalar::Sum),
    ("mul", Scalar::Mul),
    ("max", Scalar::Largest),
    ("mask", Scalar::Mask),
];

fn named(text: &str, letter: char, names: &[usize]) -> Result<usize, String> {
    let number = text.strip_prefix(letter).and_then(|number| number.parse::<usize>().ok());
    number
        .and_then(|number| names.get(number).copied())
        .ok_or_else(|| format!("{text} is not defined before"))
}

fn dim(text: &str) -> Result<Option<usize>, String> {
    if text == "-" { Ok(None) } else { number(text).map(Some) }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("expected a number, not {text}"))
}

/// Reads `3`, `-1/8`.
fn ratio(text: &str) -> Result<Ratio, String> {
    let (num, den) = text.split_once('/').unwrap_or((text, "1"));
    let ratio = num.parse().ok().zip(den.parse().ok()).map(|(num, den)| Ratio { num, den });
    ratio
        .filter(|ratio| ratio.den > 0 && ratio.num != i64::MIN)
        .ok_or_else(|| format!("expected a fraction, not {text}"))
}
