//! Reads the text form of programs, a line at a time. Brackets and commas only separate tokens. Composite functions and kernels are
//! written by fewer operators:
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
const SCALARS: [(&str, Scalar); 12] = [
    ("exp", Scalar::Exp),
    ("square", Scalar::Square),
    ("sqrt", Scalar::Sqrt),
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

/// Name, number of operands, and what it is: operators on values, of which the first are operands of the function and each
/// further one is the result of the next operator. `$` is the parameter.
const COMPOSITES: [(&str, usize, &str); 7] = [
    ("sub", 2, "scale(-1) v1; add v0 v2"),
    ("div", 2, "reciprocal v1; mul v0 v2"),
    ("sigmoid", 1, "scale(-1) v0; exp v1; offset(1) v2; reciprocal v3"),
    ("silu", 1, "sigmoid v0; mul v0 v1"),
    ("tanh", 1, "scale(2) v0; sigmoid v1; scale(2) v2; offset(-1) v3"),
    (
        "gelu",
        1,
        "square v0; mul v0 v1; scale(44715/1000000) v2; add v0 v3; gelu_factor v4; sigmoid v5; mul v0 v6",
    ),
    ("rms_norm", 1, "square v0; mean v1; offset($) v2; sqrt v3; div v0 v4"),
];

/// The programs of a text, one after the other.
///
/// # Errors
/// The line of the first problem, and what it is.
pub fn parse(text: &str) -> Result<Vec<Program>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("a text of {} bytes; at most {MAX_BYTES} are read", text.len()));
    }
    let mut lines = Lines { rest: text.lines(), number: 0 };
    programs(&mut lines).map_err(|problem| format!("line {}: {problem}", lines.number))
}

fn programs(lines: &mut Lines<'_>) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    while let Some(tokens) = lines.next()? {
        let ["mugraph", name, "{"] = tokens[..] else { return Err("expected mugraph \"name\" {".into()) };
        quoted(name)?;
        programs.push(program(lines)?);
    }
    Ok(programs)
}

/// What is left of a text.
struct Lines<'a> {
    rest: std::str::Lines<'a>,
    /// Of the last line that was read.
    number: usize,
}

impl<'a> Lines<'a> {
    /// The tokens of the next line that has some.
    fn next(&mut self) -> Result<Option<Vec<&'a str>>, String> {
        for line in self.rest.by_ref() {
            self.number += 1;
            let tokens = tokens(line)?;
            if !tokens.is_empty() {
                return Ok(Some(tokens));
            }
        }
        Ok(None)
    }

    /// The tokens of the next line of what is closed by a line of its own; `None` of that one.
    fn inner(&mut self) -> Result<Option<Vec<&'a str>>, String> {
        let tokens = self.next()?.ok_or("the text ends before }")?;
        Ok(Some(tokens).filter(|tokens| *tokens != ["}"]))
    }
}

/// The tokens of a line up to a comment; what stands in quotes is one.
fn tokens(line: &str) -> Result<Vec<&str>, String> {
    let is_separator = |c: char| c.is_whitespace() || "[](),".contains(c);
    let (mut rest, mut tokens) =
        (line.split('#').next().unwrap_or("").trim_start_matches(is_separator), Vec::new());
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(inner) => inner.find('"').ok_or("a quote is not closed")? + 2,
            None => rest.find(|c| is_separator(c) || c == '"').unwrap_or(rest.len()),
        };
        tokens.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_separator);
    }
    Ok(tokens)
}

/// An operator, its parameters, and the values that it takes, which are called by a letter and a number.
fn split<'a>(
    definition: &'a [&'a str],
    letter: char,
    values: &[usize],
) -> Result<(&'a str, &'a [&'a str], Vec<usize>), String> {
    let (name, rest) = definition.split_first().ok_or("expected a definition")?;
    let params = rest.iter().take_while(|token| !token.starts_with(letter)).count();
    let operands = rest[params..].iter().map(|token| named(token, letter, values));
    Ok((name, &rest[..params], operands.collect::<Result<_, _>>()?))
}

/// The program whose first line was read.
fn program(lines: &mut Lines<'_>) -> Result<Program, String> {
    let (mut program, mut tensors, mut kernels) = (Program::default(), Vec::new(), 0);
    while let Some(tokens) = lines.inner()? {
        if let ["output", name, tensor] = tokens[..] {
            let name = quoted(name)?;
            if program.outputs.iter().any(|(known, _)| *known == name) {
                return Err(format!("a second output {name}"));
            }
            program.outputs.push((name, named(tensor, 't', &tensors)?));
            continue;
        }
        let at = tokens.iter().position(|token| *token == "=").ok_or("expected a definition")?;
        let made = match &tokens[at + 1..] {
            ["block", blocks @ .., "loop", iterations, "{"] => {
                kernels += 1;
                let kernel = OpenKernel::new(kernels, numbers(blocks)?, number(iterations)?)?;
                kernel.read(&mut program, &tensors, lines)?
            }
            [kind @ ("input" | "mask"), name, shape @ ..] if name.starts_with('"') => {
                let (name, is_mask, shape) = (quoted(name)?, *kind == "mask", numbers(shape)?);
                if program.inputs().any(|(_, known, ..)| known == name) {
                    return Err(format!("a second input {name}"));
                }
                vec![program.push(Op::Input { name, is_mask, shape }, &[])?]
            }
            definition => {
                let (name, params, args) = split(definition, 't', &tensors)?;
                vec![apply(&mut program, (name, params), &args, 0)?]
            }
        };
        let expected: Vec<String> = (tensors.len()..).take(made.len()).map(|at| format!("t{at}")).collect();
        if tokens[..at] != expected {
            return Err(format!("defines {}, expected {}", tokens[..at].join(", "), expected.join(", ")));
        }
        tensors.extend(made);
    }
    if program.outputs.is_empty() { Err("no output".into()) } else { Ok(program) }
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

/// A kernel, as far as it was read.
struct OpenKernel {
    number: usize,
    /// Along each axis of the grid. These are the first dimensions of a tile's tensor, then comes that of the loop.
    blocks: Vec<usize>,
    iterations: usize,
    /// Tensors: of all blocks and iterations.
    tiles: Vec<usize>,
    stages: BTreeMap<usize, Stage>,
    /// Of running maxima those of each iteration.
    running: BTreeMap<usize, Vec<usize>>,
}

impl OpenKernel {
    fn new(number: usize, blocks: Vec<usize>, iterations: usize) -> Result<OpenKernel, String> {
        let all = blocks.iter().try_fold(1usize, |product, &blocks| product.checked_mul(blocks));
        if !all.is_some_and(|all| (1..=MAX_BLOCKS).contains(&all))
            || !(1..=3).contains(&blocks.len())
            || !(1..=MAX_ITERATIONS).contains(&iterations)
        {
            return Err(format!("a grid of {blocks:?} with a loop of {iterations}"));
        }
        let (tiles, stages, running) = Default::default();
        Ok(OpenKernel { number, blocks, iterations, tiles, stages, running })
    }

    /// Dimensions that stand before those of a tile.
    fn prefix(&self) -> usize {
        self.blocks.len() + 1
    }

    /// Reads the lines of the kernel, and gives what it stores.
    fn read(
        mut self,
        program: &mut Program,
        tensors: &[usize],
        lines: &mut Lines<'_>,
    ) -> Result<Vec<usize>, String> {
        let mut stored = Vec::new();
        while let Some(tokens) = lines.inner()? {
            match &tokens[..] {
                ["store", tile, dims @ ..] => stored.push(self.store(program, tile, dims)?),
                [name, "=", definition @ ..] if *name == format!("s{}", self.tiles.len()) => {
                    let (tile, stage) = self.tile(program, tensors, definition)?;
                    self.tiles.push(tile);
                    self.stages.insert(tile, stage);
                }
                _ => return Err(format!("expected a store or the definition of s{}", self.tiles.len())),
            }
        }
        Ok(stored)
    }

    fn tile(
        &mut self,
        program: &mut Program,
        tensors: &[usize],
        definition: &[&str],
    ) -> Result<(usize, Stage), String> {
        Ok(match definition {
            ["load", tensor, dims @ .., along] => {
                let (tensor, along) = (named(tensor, 't', tensors)?, dim(along)?);
                let rank = program.nodes[tensor].shape.len();
                let tiling = self.tiling(rank, dims).filter(|_| along.is_none_or(|dim| dim < rank));
                let tiling = tiling.ok_or("a load like this may not stand in a block")?;
                let op = Op::Split { tiling, along, iterations: self.iterations };
                (program.push(op, &[tensor])?, if along.is_some() { Stage::Loop } else { Stage::Fixed })
            }
            ["running_max", tile] => (self.running_max(program, tile)?, Stage::Loop),
            ["accumulate", how, of @ .., tile] => (self.accumulated(program, how, of, tile)?, Stage::After),
            _ => {
                let (name, params, args) = split(definition, 's', &self.tiles)?;
                let stages: Vec<Stage> = args.iter().map(|tile| self.stages[tile]).collect();
                let stage = stages.iter().copied().max().unwrap_or(Stage::Fixed);
                if stage == Stage::After && stages.contains(&Stage::Loop) {
                    return Err("it mixes values of the loop with values after it".into());
                }
                (apply(program, (name, params), &args, self.prefix())?, stage)
            }
        })
    }

    /// How the grid cuts a tensor, if it can.
    fn tiling(&self, rank: usize, dims: &[&str]) -> Option<Tiling> {
        let dims: Vec<Option<usize>> = dims.iter().map(|token| dim(token)).collect::<Result<_, _>>().ok()?;
        let is_first = |(at, dim): (usize, &Option<usize>)| {
            dim.is_none_or(|inner| inner < rank && !dims[..at].contains(dim))
        };
        let is_map = dims.len() == self.blocks.len() && dims.iter().enumerate().all(is_first);
        is_map.then(|| Tiling { kernel: self.number, blocks: self.blocks.clone(), dims })
    }

    fn store(&self, program: &mut Program, tile: &str, dims: &[&str]) -> Result<usize, String> {
        let tensor = named(tile, 's', &self.tiles)?;
        let tiling = self.tiling(program.nodes[tensor].shape.len() - self.prefix(), dims);
        let is_once = |tiling: &Tiling| {
            tiling.dims.iter().zip(&self.blocks).all(|(dim, &blocks)| dim.is_some() || blocks == 1)
        };
        let tiling = tiling.filter(|tiling| self.stages[&tensor] != Stage::Loop && is_once(tiling));
        let op = Op::Merge(tiling.ok_or_else(|| format!("{tile} is stored by {}", dims.join(", ")))?);
        let stored = program.push(op, &[tensor]);
        stored.map_err(|problem| format!("what is stored is too long, or uneven: {problem}"))
    }

    /// A tile that is known in the loop.
    fn in_loop(&self, name: &str) -> Result<usize, String> {
        let tile = named(name, 's', &self.tiles)?;
        let is_known = self.stages[&tile] != Stage::After;
        is_known.then_some(tile).ok_or_else(|| format!("{name} is known after the loop only"))
    }

    fn iteration(&self, program: &mut Program, tile: usize, start: usize) -> Result<usize, String> {
        match self.stages[&tile] {
            Stage::Loop => program.push(Op::Slice { dim: self.blocks.len(), start, len: 1 }, &[tile]),
            _ => Ok(tile),
        }
    }

    /// The largest over this and earlier iterations.
    fn running_max(&mut self, program: &mut Program, name: &str) -> Result<usize, String> {
        let all = self.in_loop(name)?;
        let mut maxima = vec![self.iteration(program, all, 0)?];
        for at in 1..self.iterations {
            let next = self.iteration(program, all, at)?;
            maxima.push(program.push(Op::Each(Scalar::Largest), &[maxima[at - 1], next])?);
        }
        let tile = program.push(Op::Concat(self.blocks.len()), &maxima)?;
        self.running.insert(tile, maxima);
        Ok(tile)
    }

    /// A sum or maximum over iterations. A rescaled sum is multiplied by `e^(degree (before - now))` as a running maximum changes.
    fn accumulated(
        &self,
        program: &mut Program,
        how: &str,
        of: &[&str],
        tile: &str,
    ) -> Result<usize, String> {
        let (all, prefix) = (self.in_loop(tile)?, self.prefix());
        match (how, of) {
            ("sum", []) if self.stages[&all] == Stage::Fixed => {
                apply(program, ("scale", &[&self.iterations.to_string()]), &[all], prefix)
            }
            ("sum", []) => program.push(Op::Reduce(Scalar::Sum, prefix - 1), &[all]),
            ("max", []) => program.push(Op::Reduce(Scalar::Largest, prefix - 1), &[all]),
            ("rescaled", [max, degree]) => {
                let maxima = self.running.get(&named(max, 's', &self.tiles)?);
                let maxima = maxima.ok_or_else(|| format!("{max} may not stand in a block like this"))?;
                // A tensor of its own, even if all iterations are alike.
                let first = self.iteration(program, all, 0)?;
                let mut sum = apply(program, ("scale", &["1"]), &[first], prefix)?;
                for at in 1..self.iterations {
                    let now = apply(program, ("guard", &[]), &[maxima[at]], prefix)?;
                    let change = apply(program, ("sub", &[]), &[maxima[at - 1], now], prefix)?;
                    let exponent = apply(program, ("scale", &[degree]), &[change], prefix)?;
                    let factor = apply(program, ("exp", &[]), &[exponent], prefix)?;
                    let before = apply(program, ("mul", &[]), &[sum, factor], prefix)?;
                    is_like(program, before, sum, prefix)?;
                    let next = self.iteration(program, all, at)?;
                    sum = apply(program, ("add", &[]), &[before, next], prefix)?;
                }
                Ok(sum)
            }
            _ => Err(format!("accumulate {how} may not stand in a block like this")),
        }
    }
}

/// Adds what an operator computes of tensors that have some dimensions before those that the text knows.
fn apply(
    program: &mut Program,
    (name, params): (&str, &[&str]),
    args: &[usize],
    prefix: usize,
) -> Result<usize, String> {
    let unknown = || format!("no operator {name}({}) of {} operands", params.join(", "), args.len());
    if let Some((_, count, steps)) = COMPOSITES.iter().find(|(known, ..)| *known == name) {
        if args.len() != *count || params.len() != usize::from(steps.contains('$')) {
            return Err(unknown());
        }
        let mut values = args.to_vec();
        for step in steps.replace('$', &params.concat()).split("; ") {
            let step = tokens(step)?;
            let (name, params, args) = split(&step, 'v', &values)?;
            values.push(apply(program, (name, params), &args, prefix)?);
        }
        return values.last().copied().ok_or_else(unknown);
    }
    let ratio = || match params {
        [param] => ratio(param).ok_or_else(unknown),
        _ => Err(unknown()),
    };
    let at = |dim: usize| dim.saturating_add(prefix);
    let dims = |params: &[&str]| numbers(params).map_err(|_| unknown());
    let op = match (name, params) {
        ("matmul", []) => Op::Matmul,
        ("scale", _) => Op::Each(Scalar::Scale(ratio()?)),
        ("offset", _) => Op::Each(Scalar::Offset(ratio()?)),
        ("mean", []) => {
            let x = *args.first().ok_or_else(unknown)?;
            let last = program.nodes[x].shape.len().checked_sub(1).filter(|&last| last >= prefix);
            let last = last.ok_or_else(unknown)?;
            let count = program.extent(x, last).ok_or("a mean of parts that are uneven")?;
            let sum = program.push(Op::Reduce(Scalar::Sum, last), args)?;
            return apply(program, ("scale", &[&format!("1/{count}")]), &[sum], prefix);
        }
        ("transpose", order) => Op::Transpose((0..prefix).chain(dims(order)?.into_iter().map(at)).collect()),
        ("causal" | "reshape" | "broadcast" | "below", _) if prefix > 0 => {
            return Err(format!("{name} may not stand in a block"));
        }
        ("causal", [offset, shape @ ..]) => {
            let (offset, shape) = (offset.parse::<i64>().map_err(|_| unknown())?.into(), dims(shape)?);
            let row = shape.len().checked_sub(2).ok_or_else(unknown)?;
            Op::Compare { dim: row + 1, with: Some(row), offset, shape }
        }
        ("reshape", shape) => Op::Reshape(dims(shape)?),
        ("broadcast", shape) => Op::Broadcast(dims(shape)?),
        (_, []) => {
            let (_, scalar) = SCALARS.iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
            Op::Each(*scalar)
        }
        _ => match (name, &dims(params)?[..]) {
            ("sum", &[dim] | &[dim, 1]) => Op::Reduce(Scalar::Sum, at(dim)),
            ("largest", &[dim] | &[dim, 1]) => Op::Reduce(Scalar::Largest, at(dim)),
            ("sum", &[dim, keep]) => return kept(program, Scalar::Sum, args, (at(dim), keep)),
            ("largest", &[dim, keep]) => return kept(program, Scalar::Largest, args, (at(dim), keep)),
            ("rotate", &[dim, len]) => return rotated(program, args, (at(dim), len)),
            ("slice", &[dim, start, len]) => Op::Slice { dim: at(dim), start, len },
            ("repeat", &[dim, times]) => Op::Repeat { dim: at(dim), times },
            ("concat", &[dim]) => Op::Concat(at(dim)),
            ("below", &[dim, limit, ref shape @ ..]) => {
                Op::Compare { dim, with: None, offset: limit as i128 - 1, shape: shape.to_vec() }
            }
            _ => return Err(unknown()),
        },
    };
    let result = program.push(op, args)?;
    let like = match &program.nodes[result].op {
        Op::Each(Scalar::Mask) => &args[..1],
        Op::Concat(_) => args,
        _ => &[],
    };
    like.iter().try_for_each(|&arg| is_like(program, result, arg, prefix))?;
    Ok(result)
}

/// That a result is not larger than an operand, but for the dimension along which operands are put side by side.
fn is_like(program: &Program, result: usize, operand: usize, prefix: usize) -> Result<(), String> {
    let [result, operand] = [result, operand].map(|tensor| &program.nodes[tensor]);
    let differs = |&at: &usize| result.op != Op::Concat(at) && result.shape[at] != operand.shape[at];
    match (prefix..result.shape.len()).find(differs) {
        Some(_) => Err("an operand is larger than what it is applied to".into()),
        None => Ok(()),
    }
}

/// The parts of a dimension.
fn parts(program: &mut Program, args: &[usize], dim: usize, len: usize) -> Result<Vec<usize>, String> {
    let extent = args.first().and_then(|&arg| program.extent(arg, dim));
    let extent = extent.filter(|extent| args.len() == 1 && len > 0 && extent.is_multiple_of(len));
    let starts = (0..extent.ok_or_else(|| format!("a part of {len} elements does not suit"))?).step_by(len);
    starts.map(|start| program.push(Op::Slice { dim, start, len }, args)).collect()
}

/// Element `j` of the result combines elements `j, j + keep, ..`.
fn kept(
    program: &mut Program,
    scalar: Scalar,
    args: &[usize],
    (dim, keep): (usize, usize),
) -> Result<usize, String> {
    let parts = parts(program, args, dim, keep)?;
    let (first, others) = parts.split_first().ok_or("nothing is combined")?;
    others.iter().try_fold(*first, |sum, &part| program.push(Op::Each(scalar), &[sum, part]))
}

/// In each run of two groups the halves (a, b) become (-b, a).
fn rotated(program: &mut Program, args: &[usize], (dim, len): (usize, usize)) -> Result<usize, String> {
    let mut halves = parts(program, args, dim, len)?;
    if !halves.len().is_multiple_of(2) {
        return Err(format!("groups of {len} elements do not suit"));
    }
    for pair in halves.chunks_mut(2) {
        pair.swap(0, 1);
        pair[0] = apply(program, ("scale", &["-1"]), &[pair[0]], 0)?;
    }
    program.push(Op::Concat(dim), &halves)
}

fn named(text: &str, letter: char, names: &[usize]) -> Result<usize, String> {
    let number = text.strip_prefix(letter).and_then(|number| number.parse::<usize>().ok());
    let found = number.and_then(|number| names.get(number).copied());
    found.ok_or_else(|| format!("{text} is not defined before"))
}

fn dim(text: &str) -> Result<Option<usize>, String> {
    if text == "-" { Ok(None) } else { number(text).map(Some) }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("expected a number, not {text}"))
}

fn numbers(tokens: &[&str]) -> Result<Vec<usize>, String> {
    tokens.iter().map(|token| number(token)).collect()
}

/// Reads `3`, `-1/8`.
fn ratio(text: &str) -> Option<Ratio> {
    let (num, den) = text.split_once('/').unwrap_or((text, "1"));
    let (num, den) = (num.parse().ok()?, den.parse().ok()?);
    (den > 0 && num != i64::MIN).then_some(Ratio { num, den })
}

/// A name in quotes, without escapes.
fn quoted(token: &str) -> Result<String, String> {
    let inner = token.strip_prefix('"').and_then(|token| token.strip_suffix('"'));
    let inner = inner.filter(|inner| format!("{inner:?}") == token);
    inner.map(str::to_owned).ok_or_else(|| "expected a name in quotes".into())
}
