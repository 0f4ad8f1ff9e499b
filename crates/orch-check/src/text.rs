//! Reads the text form of programs, a line at a time. Brackets and commas only separate tokens. Composite functions and kernels are
//! written by fewer operators:
//!
//! - [`COMPOSITES`] says what functions are; `rotate`, and reductions that keep more than one element, are slices of their operand.
//! - In a kernel all blocks and iterations are computed at once. What an iteration takes from the one before, a running maximum and
//!   a rescaled sum, is written out.

use crate::program::{Op, Program, Ratio, Scalar, Tiling, extents};

/// The longest text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The largest grid.
const MAX_BLOCKS: usize = 1 << 20;
/// The longest loop.
const MAX_ITERATIONS: usize = 1 << 16;

/// Functions of numbers by their names.
const SCALARS: [(&str, Scalar); 11] = [
    ("exp", Scalar::Exp),
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
const COMPOSITES: [(&str, usize, &str); 8] = [
    ("square", 1, "mul v0 v0"),
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
    let (mut reader, mut number) = (Reader::default(), 0);
    for line in text.lines() {
        number += 1;
        let read = tokens(line).and_then(|tokens| reader.line(&tokens));
        read.map_err(|problem| format!("line {number}: {problem}"))?;
    }
    match reader.program {
        Some(_) => Err(format!("line {number}: the text ends before }}")),
        None => Ok(reader.programs),
    }
}

/// The tokens of a line up to a comment; what stands in quotes is one.
fn tokens(line: &str) -> Result<Vec<&str>, String> {
    let is_separator = |c: char| c.is_whitespace() || "[](),".contains(c);
    let mut rest = line.split('#').next().unwrap_or("").trim_start_matches(is_separator);
    let mut tokens = Vec::new();
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

/// What was read of a text.
#[derive(Default)]
struct Reader {
    programs: Vec<Program>,
    /// The program whose end was not read, and its tensors.
    program: Option<Program>,
    tensors: Vec<usize>,
    /// The kernel whose end was not read, and the names of what it stores.
    kernel: Option<(Kernel, Vec<String>)>,
}

impl Reader {
    fn line(&mut self, tokens: &[&str]) -> Result<(), String> {
        let Some(program) = &mut self.program else {
            match tokens {
                [] => return Ok(()),
                ["mugraph", name, "{"] => quoted(name)?,
                _ => return Err("expected mugraph \"name\" {".into()),
            };
            (self.program, self.tensors) = (Some(Program::default()), Vec::new());
            return Ok(());
        };
        if let Some((kernel, names)) = &mut self.kernel {
            if tokens != ["}"] {
                return kernel.line(program, &self.tensors, tokens);
            }
            let (made, names) = (std::mem::take(&mut kernel.stored), std::mem::take(names));
            self.kernel = None;
            return self.define(&names, made);
        }
        let at = tokens.iter().position(|token| *token == "=").unwrap_or(0);
        let names: Vec<String> = tokens[..at].iter().map(|&name| name.to_owned()).collect();
        let made = match tokens {
            [] => return Ok(()),
            ["}"] => {
                if program.outputs.is_empty() {
                    return Err("no output".into());
                }
                self.programs.extend(self.program.take());
                return Ok(());
            }
            ["output", name, tensor] => {
                let output = (quoted(name)?, named(tensor, 't', &self.tensors)?);
                if program.outputs.iter().any(|(known, _)| *known == output.0) {
                    return Err(format!("a second output {}", output.0));
                }
                program.outputs.push(output);
                return Ok(());
            }
            _ if at == 0 => return Err("expected a definition".into()),
            [.., "{"] if tokens[at + 1] == "block" => {
                self.kernel = Some((Kernel::new(&tokens[at + 2..tokens.len() - 1])?, names));
                return Ok(());
            }
            [_, "=", kind @ ("input" | "mask"), name, shape @ ..] if name.starts_with('"') => {
                let (name, is_mask) = (quoted(name)?, *kind == "mask");
                if program.inputs().any(|(known, _)| known == name) {
                    return Err(format!("a second input {name}"));
                }
                program.push(Op::Input { name, is_mask }, &[], Some(extents(&numbers(shape)?)))?
            }
            _ => {
                let (name, params, args) = split(&tokens[at + 1..], 't', &self.tensors)?;
                apply(program, (name, params), &args, 0)?
            }
        };
        self.define(&names, vec![made])
    }

    fn define(&mut self, names: &[String], made: Vec<usize>) -> Result<(), String> {
        let expected: Vec<String> =
            (self.tensors.len()..).take(made.len()).map(|at| format!("t{at}")).collect();
        if *names != expected {
            return Err(format!("defines {}, expected {}", names.join(", "), expected.join(", ")));
        }
        self.tensors.extend(made);
        Ok(())
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

/// A kernel, as far as it was read.
struct Kernel {
    /// Along each axis of the grid. These are the first dimensions of a tile's tensor, then comes that of the loop.
    blocks: Vec<usize>,
    iterations: usize,
    /// Tensors: of all blocks and iterations.
    tiles: Vec<(usize, Stage)>,
    /// Those tensors that are running maxima.
    running: Vec<usize>,
    /// What is stored.
    stored: Vec<usize>,
}

impl Kernel {
    fn new(tokens: &[&str]) -> Result<Kernel, String> {
        let [blocks @ .., "loop", iterations] = tokens else {
            return Err("expected a grid and a loop".into());
        };
        let (blocks, iterations) = (numbers(blocks)?, number(iterations)?);
        let all = blocks.iter().try_fold(1usize, |product, &blocks| product.checked_mul(blocks));
        if !all.is_some_and(|all| (1..=MAX_BLOCKS).contains(&all))
            || !(1..=3).contains(&blocks.len())
            || !(1..=MAX_ITERATIONS).contains(&iterations)
        {
            return Err(format!("a grid of {blocks:?} with a loop of {iterations}"));
        }
        let (tiles, running, stored) = Default::default();
        Ok(Kernel { blocks, iterations, tiles, running, stored })
    }

    /// Dimensions that stand before those of a tile.
    fn prefix(&self) -> usize {
        self.blocks.len() + 1
    }

    fn line(&mut self, program: &mut Program, tensors: &[usize], tokens: &[&str]) -> Result<(), String> {
        match tokens {
            [] => {}
            ["store", tile, dims @ ..] => {
                let stored = self.store(program, tile, dims)?;
                self.stored.push(stored);
            }
            [name, "=", definition @ ..] if *name == format!("s{}", self.tiles.len()) => {
                let tile = self.tile(program, tensors, definition)?;
                self.tiles.push(tile);
            }
            _ => return Err(format!("expected a store or the definition of s{}", self.tiles.len())),
        }
        Ok(())
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
                let rank = program.shape(tensor).len();
                let tiling = self.tiling(rank, dims).filter(|_| along.is_none_or(|dim| dim < rank));
                let tiling = tiling.ok_or("a load like this may not stand in a block")?;
                let tile = program.split(tensor, &tiling, along, self.iterations)?;
                (tile, if along.is_some() { Stage::Loop } else { Stage::Fixed })
            }
            ["running_max", tile] => (self.running_max(program, tile)?, Stage::Loop),
            ["accumulate", how, of @ .., tile] => (self.accumulated(program, how, of, tile)?, Stage::After),
            _ => {
                let (name, params, args) = split(definition, 's', &self.tiles)?;
                let (args, stages): (Vec<usize>, Vec<Stage>) = args.into_iter().unzip();
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
        is_map.then(|| Tiling { blocks: self.blocks.clone(), dims })
    }

    fn store(&self, program: &mut Program, tile: &str, dims: &[&str]) -> Result<usize, String> {
        let (tensor, stage) = named(tile, 's', &self.tiles)?;
        let tiling = self.tiling(program.shape(tensor).len() - self.prefix(), dims);
        let is_once = |tiling: &Tiling| {
            tiling.dims.iter().zip(&self.blocks).all(|(dim, &blocks)| dim.is_some() || blocks == 1)
        };
        let tiling = tiling.filter(|tiling| stage != Stage::Loop && is_once(tiling));
        let stored =
            program.merge(tensor, &tiling.ok_or_else(|| format!("{tile} is stored by {}", dims.join(", ")))?);
        stored.map_err(|problem| format!("what is stored is too long, or uneven: {problem}"))
    }

    /// A tile that is known in the loop.
    fn in_loop(&self, name: &str) -> Result<(usize, Stage), String> {
        let (tile, stage) = named(name, 's', &self.tiles)?;
        (stage != Stage::After)
            .then_some((tile, stage))
            .ok_or_else(|| format!("{name} is known after the loop only"))
    }

    /// What a tile is in an iteration.
    fn iteration(&self, program: &mut Program, tile: usize, at: usize) -> Result<usize, String> {
        let count = program.shape(tile)[self.blocks.len()].len;
        if count == 1 { Ok(tile) } else { program.slice(tile, self.blocks.len(), (at, 1)) }
    }

    /// The largest over this and earlier iterations.
    fn running_max(&mut self, program: &mut Program, name: &str) -> Result<usize, String> {
        let (all, _) = self.in_loop(name)?;
        let mut maxima = vec![self.iteration(program, all, 0)?];
        for at in 1..self.iterations {
            let next = self.iteration(program, all, at)?;
            maxima.push(program.each(Scalar::Largest, &[maxima[at - 1], next])?);
        }
        let tile = program.concat(self.blocks.len(), &maxima)?;
        self.running.push(tile);
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
        let ((all, stage), prefix) = (self.in_loop(tile)?, self.prefix());
        match (how, of) {
            ("sum", []) if stage == Stage::Fixed => {
                apply(program, ("scale", &[&self.iterations.to_string()]), &[all], prefix)
            }
            ("sum", []) => program.reduce(Scalar::Sum, prefix - 1, &[all]),
            ("max", []) => program.reduce(Scalar::Largest, prefix - 1, &[all]),
            ("rescaled", [max, degree]) => {
                let (maxima, _) = named(max, 's', &self.tiles)?;
                if !self.running.contains(&maxima) {
                    return Err(format!("{max} may not stand in a block like this"));
                }
                // A tensor of its own, even if all iterations are alike.
                let first = self.iteration(program, all, 0)?;
                let mut sum = apply(program, ("scale", &["1"]), &[first], prefix)?;
                for at in 1..self.iterations {
                    let [before, now] = [at - 1, at].map(|at| self.iteration(program, maxima, at));
                    let mut values = vec![sum, before?, now?, self.iteration(program, all, at)?];
                    let steps =
                        format!("guard v2; sub v1 v4; scale({degree}) v5; exp v6; mul v0 v7; add v8 v3");
                    let rescaled = apply_all(program, &steps, &mut values, prefix)?;
                    is_like(program, values[values.len() - 2], sum, prefix)?;
                    sum = rescaled;
                }
                Ok(sum)
            }
            _ => Err(format!("accumulate {how} may not stand in a block like this")),
        }
    }
}

/// An operator, its parameters, and the values that it takes, which are called by a letter and a number.
fn split<'a, T: Copy>(
    definition: &'a [&'a str],
    letter: char,
    values: &[T],
) -> Result<(&'a str, &'a [&'a str], Vec<T>), String> {
    let (name, rest) = definition.split_first().ok_or("expected a definition")?;
    let params = rest.iter().take_while(|token| !token.starts_with(letter)).count();
    let operands = rest[params..].iter().map(|token| named(token, letter, values));
    Ok((name, &rest[..params], operands.collect::<Result<_, _>>()?))
}

/// Adds what operators compute, each of values before it.
fn apply_all(
    program: &mut Program,
    steps: &str,
    values: &mut Vec<usize>,
    prefix: usize,
) -> Result<usize, String> {
    for step in steps.split("; ") {
        let step = tokens(step)?;
        let (name, params, args) = split(&step, 'v', values)?;
        values.push(apply(program, (name, params), &args, prefix)?);
    }
    values.last().copied().ok_or_else(|| "no operators".into())
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
        return apply_all(program, &steps.replace('$', &params.concat()), &mut args.to_vec(), prefix);
    }
    if prefix > 0 && matches!(name, "causal" | "reshape" | "broadcast" | "below") {
        return Err(format!("{name} may not stand in a block"));
    }
    let one = || if let [x] = args { Ok(*x) } else { Err(unknown()) };
    let ratio = || if let [param] = params { ratio(param).ok_or_else(unknown) } else { Err(unknown()) };
    let at = |dim: usize| dim.saturating_add(prefix);
    let numbers = numbers(params).ok();
    match (name, numbers.as_deref()) {
        ("matmul", Some([])) => program.matmul(args),
        ("scale", _) => program.each(Scalar::Scale(ratio()?), args),
        ("offset", _) => program.each(Scalar::Offset(ratio()?), args),
        ("mean", Some([])) => {
            let last = program
                .shape(one()?)
                .len()
                .checked_sub(1)
                .filter(|&last| last >= prefix)
                .ok_or_else(unknown)?;
            let count = program.extent(one()?, last).ok_or("a mean of parts that are uneven")?;
            let sum = program.reduce(Scalar::Sum, last, args)?;
            apply(program, ("scale", &[&format!("1/{count}")]), &[sum], prefix)
        }
        ("causal", _) => {
            let (offset, shape) = params.split_first().ok_or_else(unknown)?;
            let (offset, shape) = (offset.parse::<i64>().map_err(|_| unknown())?, self::numbers(shape)?);
            let row = shape.len().checked_sub(2).ok_or_else(unknown)?;
            program.compare((row + 1, Some(row)), offset.into(), &shape, args)
        }
        ("below", Some(&[dim, limit, ref shape @ ..])) => {
            program.compare((dim, None), limit as i128 - 1, shape, args)
        }
        ("transpose", Some(order)) if prefix + order.len() == program.shape(one()?).len() => program.select(
            one()?,
            &(0..prefix).chain(order.iter().map(|&dim| at(dim))).map(Some).collect::<Vec<_>>(),
        ),
        ("reshape", Some(shape)) => program.reshape(one()?, shape),
        ("broadcast", Some(shape)) => program.broadcast(one()?, shape),
        ("sum" | "largest", Some(&[dim] | &[dim, 1])) => {
            one()?;
            program.reduce(if name == "sum" { Scalar::Sum } else { Scalar::Largest }, at(dim), args)
        }
        // Element `j` of the result combines elements `j, j + keep, ..`.
        ("sum" | "largest", Some(&[dim, keep])) => {
            let scalar = if name == "sum" { Scalar::Sum } else { Scalar::Largest };
            let parts = parts(program, one()?, at(dim), keep)?;
            let (first, others) = parts.split_first().ok_or("nothing is combined")?;
            others.iter().try_fold(*first, |sum, &part| program.each(scalar, &[sum, part]))
        }
        ("rotate", Some(&[dim, len])) => {
            // In each run of two groups the halves (a, b) become (-b, a).
            let mut halves = parts(program, one()?, at(dim), len)?;
            if !halves.len().is_multiple_of(2) {
                return Err(format!("groups of {len} elements do not suit"));
            }
            for pair in halves.chunks_mut(2) {
                pair.swap(0, 1);
                pair[0] = apply(program, ("scale", &["-1"]), &[pair[0]], 0)?;
            }
            program.concat(at(dim), &halves)
        }
        ("slice", Some(&[dim, start, len])) => program.slice(one()?, at(dim), (start, len)),
        ("repeat", Some(&[dim, times])) => program.repeat(one()?, at(dim), times),
        ("concat", Some(&[dim])) => {
            let result = program.concat(at(dim), args)?;
            args.iter().try_for_each(|&arg| is_like(program, result, arg, prefix)).map(|()| result)
        }
        (_, Some([])) => {
            let (_, scalar) = SCALARS.iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
            let result = program.each(*scalar, args)?;
            if *scalar == Scalar::Mask {
                is_like(program, result, args[0], prefix)?;
            }
            Ok(result)
        }
        _ => Err(unknown()),
    }
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
fn parts(program: &mut Program, x: usize, dim: usize, len: usize) -> Result<Vec<usize>, String> {
    let extent = program.extent(x, dim).filter(|extent| len > 0 && extent.is_multiple_of(len));
    let starts = (0..extent.ok_or_else(|| format!("a part of {len} elements does not suit"))?).step_by(len);
    starts.map(|start| program.slice(x, dim, (start, len))).collect()
}

fn named<T: Copy>(text: &str, letter: char, names: &[T]) -> Result<T, String> {
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
