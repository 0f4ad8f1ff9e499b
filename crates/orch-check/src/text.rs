//! Reads the text form of programs, a line at a time. Brackets and commas only separate tokens. Composite functions and kernels are
//! written by fewer operators:
//!
//! - [`COMPOSITES`] says what functions are; `rotate`, and reductions that keep more than one element, are slices of their operand.
//! - In a kernel all blocks and iterations are computed at once. What an iteration takes from the one before, a running maximum and
//!   a rescaled sum, is written out.

use crate::program::{ONE, Op, Program, Result, Scalar, ensure};
use itertools::Itertools;
use std::collections::BTreeSet;
use std::mem::take;

/// The longest text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The largest grid.
const MAX_BLOCKS: usize = 1 << 20;
/// The longest loop.
const MAX_ITERATIONS: usize = 1 << 16;

/// Name, number of operands, and what it is: operators on values, of which the first are operands of the function and each
/// further one is the result of the next operator. `$` is the parameter.
const COMPOSITES: [(&str, usize, &str); 11] = [
    ("scale", 1, "constant($) v0; mul v0 v1"),
    ("offset", 1, "constant($) v0; add v0 v1"),
    ("relu", 1, "constant(0) v0; max v0 v1"),
    ("square", 1, "mul v0 v0"),
    ("sub", 2, "scale(-1) v1; add v0 v2"),
    ("div", 2, "reciprocal v1; mul v0 v2"),
    ("sigmoid", 1, "scale(-1) v0; exp v1; offset(1) v2; reciprocal v3"),
    ("silu", 1, "sigmoid v0; mul v0 v1"),
    ("tanh", 1, "scale(2) v0; sigmoid v1; scale(2) v2; offset(-1) v3"),
    (
        "gelu",
        1,
        "square v0; mul v0 v1; scale(44715/1000000) v2; add v0 v3; gelu_factor v4; mul v4 v5; sigmoid v6; mul v0 v7",
    ),
    ("rms_norm", 1, "square v0; mean v1; offset($) v2; sqrt v3; div v0 v4"),
];

/// The programs of a text, one after the other.
///
/// # Errors
/// The line of the first problem, and what it is.
pub fn parse(text: &str) -> Result<Vec<Program>> {
    ensure!(text.len() <= MAX_BYTES, "a text of {} bytes; at most {MAX_BYTES} are read", text.len());
    let mut reader = Reader::default();
    for (number, line) in (1..).zip(text.lines()) {
        let read = tokens(line).and_then(|tokens| reader.line(&tokens));
        read.map_err(|problem| format!("line {number}: {problem}"))?;
    }
    ensure!(!reader.is_open, "line {}: the text ends before }}", text.lines().count());
    Ok(reader.programs)
}

/// The tokens of a line up to a comment; what stands in quotes is one.
fn tokens(line: &str) -> Result<Vec<&str>> {
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
    /// Set if the end of a program was not read: of that one is what follows.
    is_open: bool,
    program: Program,
    /// Names of its inputs.
    inputs: BTreeSet<String>,
    tensors: Vec<usize>,
    /// Along each axis of the grid of the kernel whose end was not read; of no axes if there is none. These are the first dimensions of a
    /// tile's tensor, then comes that of the loop, in which a tile that is the same in all iterations has one element.
    blocks: Vec<usize>,
    iterations: usize,
    /// What it defines.
    names: String,
    /// Tensors: of all blocks and iterations.
    tiles: Vec<usize>,
    /// Those that are running maxima, and those that are known after the loop only.
    running: BTreeSet<usize>,
    after: BTreeSet<usize>,
    stored: Vec<usize>,
}

impl Reader {
    /// Dimensions that stand before those that the text knows.
    fn prefix(&self) -> usize {
        if self.blocks.is_empty() { 0 } else { self.blocks.len() + 1 }
    }

    fn line(&mut self, tokens: &[&str]) -> Result<()> {
        let is_kernel = self.prefix() > 0;
        let at = tokens.iter().position(|token| *token == "=");
        let (names, definition) = at.map_or((&[][..], tokens), |at| (&tokens[..at], &tokens[at + 1..]));
        match (names, definition) {
            ([], []) => {}
            ([], ["mugraph", name, "{"]) if !self.is_open => quoted(name).map(|_| self.is_open = true)?,
            _ if !self.is_open => return Err("expected mugraph \"name\" {".into()),
            ([], ["}"]) if is_kernel => {
                let (names, stored) = (take(&mut self.names), take(&mut self.stored));
                (self.blocks, self.tiles, self.after) = Default::default();
                self.define(&names, stored)?;
            }
            ([], ["}"]) => {
                ensure!(!self.program.outputs.is_empty(), "no output");
                let Reader { mut programs, program, .. } = take(self);
                programs.push(program);
                *self = Reader { programs, ..Reader::default() };
            }
            (_, ["block", blocks @ .., "loop", iterations, "{"]) if !is_kernel => {
                (self.blocks, self.iterations) = (numbers(blocks)?, number(iterations)?);
                self.names = names.join(", ");
                let all = self.blocks.iter().try_fold(1usize, |product, &blocks| product.checked_mul(blocks));
                let is_grid = (1..=3).contains(&self.blocks.len())
                    && (1..=MAX_BLOCKS).contains(&all.unwrap_or(0))
                    && (1..=MAX_ITERATIONS).contains(&self.iterations);
                ensure!(is_grid, "a grid of {:?} with a loop of {iterations}", self.blocks);
            }
            _ => {
                let is_tile = is_kernel && definition.first() != Some(&"load");
                let (letter, known) = if is_tile { ('s', &self.tiles) } else { ('t', &self.tensors) };
                let (name, params, args) = split(definition, letter, known)?;
                let value = self.value(name, &params, &args)?;
                match (names, name, &params[..]) {
                    ([], "store", _) => self.stored.push(value),
                    ([], "output", [output]) => {
                        let is_new = self.program.outputs.insert(quoted(output)?, value).is_none();
                        ensure!(is_new, "a second output {}", quoted(output)?);
                    }
                    _ => self.define(&names.join(", "), vec![value])?,
                }
            }
        }
        Ok(())
    }

    /// Gives names to values.
    fn define(&mut self, names: &str, made: Vec<usize>) -> Result<()> {
        let (letter, known) = match self.blocks[..] {
            [] => ('t', &mut self.tensors),
            _ => ('s', &mut self.tiles),
        };
        let expected = (known.len()..).take(made.len()).map(|at| format!("{letter}{at}")).join(", ");
        ensure!(names == expected, "defines {names}, expected {expected}");
        known.extend(made);
        Ok(())
    }

    /// What is defined.
    fn value(&mut self, name: &str, params: &[&str], args: &[usize]) -> Result<usize> {
        let (is_after, dim) = (args.iter().any(|arg| self.after.contains(arg)), self.blocks.len());
        let is_in_loop = matches!(name, "accumulate" | "running_max")
            || args.iter().any(|&arg| is_after && self.program.shape(arg)[dim].len > 1);
        ensure!(!is_after || !is_in_loop, "it mixes values of the loop with values after it");
        let value = self.apply(name, params, args)?;
        if is_after || name == "accumulate" {
            self.after.insert(value);
        }
        Ok(value)
    }

    /// How the axes of the grid, and then the loop, cut a tensor behind its first dimensions, if they can: an axis cuts a dimension that no
    /// other one does.
    fn grid(&self, x: usize, skipped: usize, dims: &[&str]) -> Option<Vec<(usize, Option<usize>)>> {
        let dims: Vec<Option<usize>> = dims.iter().map(|token| dim(token).ok()).collect::<Option<_>>()?;
        let rank = self.program.shape(x).len() - skipped;
        let are_there = dims.iter().flatten().all(|&dim| dim < rank);
        let is_grid = are_there && dims.iter().take(self.blocks.len()).flatten().all_unique();
        let counts = self.blocks.iter().copied().chain([self.iterations]);
        is_grid.then(|| counts.zip(dims).collect())
    }

    /// What a tile is in an iteration.
    fn iteration(&mut self, tile: usize, at: usize) -> Result<usize> {
        let dim = self.blocks.len();
        let last = self.program.shape(tile)[dim].len - 1;
        self.program.slice(tile, dim, (at.min(last), 1))
    }

    /// Adds what operators compute, each of values before it.
    fn apply_all(&mut self, steps: &str, mut values: Vec<usize>) -> Result<usize> {
        for step in steps.split("; ") {
            let step = tokens(step)?;
            let (name, params, args) = split(&step, 'v', &values)?;
            values.push(self.apply(name, &params, &args)?);
        }
        values.pop().ok_or_else(|| "no operators".into())
    }

    /// Adds what an operator computes.
    fn apply(&mut self, name: &str, params: &[&str], args: &[usize]) -> Result<usize> {
        let unknown = || format!("no operator {name}({}) of {} operands", params.join(", "), args.len());
        if let Some((_, count, steps)) = COMPOSITES.iter().find(|(known, ..)| *known == name) {
            ensure!((args.len(), params.len()) == (*count, steps.matches('$').count()), "{}", unknown());
            return self.apply_all(&steps.replace('$', &params.concat()), args.to_vec());
        }
        let (prefix, loops, program) = (self.prefix(), self.blocks.len(), &mut self.program);
        let is_kernel = prefix > 0;
        let at = |dim: usize| dim.saturating_add(prefix);
        let numbers = numbers(params).ok();
        match (name, params, numbers.as_deref(), args) {
            ("input" | "mask", [token, shape @ ..], _, []) if !is_kernel => {
                let (input, shape) = (quoted(token)?, self::numbers(shape)?);
                ensure!(self.inputs.insert(input.clone()), "a second input {input}");
                program.given(Op::Input { name: input, is_mask: name == "mask" }, &shape)
            }
            ("output", [_], _, &[x]) if !is_kernel => Ok(x),
            ("causal", [offset, shape @ ..], _, []) if !is_kernel && shape.len() > 1 => {
                let (offset, shape) = (offset.parse::<i64>().map_err(|_| unknown())?, self::numbers(shape)?);
                let row = shape.len() - 2;
                program.given(Op::Compare { dim: row + 1, with: Some(row), offset: offset.into() }, &shape)
            }
            ("below", _, Some(&[dim, limit, ref shape @ ..]), []) if !is_kernel && dim < shape.len() => {
                program.given(Op::Compare { dim, with: None, offset: limit as i128 - 1 }, shape)
            }
            ("load", dims, _, &[x]) if is_kernel && dims.len() == prefix => {
                let grid = self.grid(x, 0, dims);
                self.program.load(x, &grid.ok_or("a load like this may not stand in a block")?)
            }
            ("store", dims, _, &[tile]) if is_kernel && dims.len() == loops => {
                let is_whole = program.shape(tile)[loops].len == 1;
                let is_cut = |&(blocks, dim): &(usize, Option<usize>)| dim.is_some() || blocks == 1;
                let grid = self.grid(tile, prefix, dims).filter(|grid| is_whole && grid.iter().all(is_cut));
                self.program.store(tile, &grid.ok_or_else(|| format!("a tile is stored by {dims:?}"))?)
            }
            ("running_max", [], _, &[tile]) if is_kernel => {
                let mut maxima = vec![self.iteration(tile, 0)?];
                for at in 1..self.iterations {
                    let both = [maxima[at - 1], self.iteration(tile, at)?];
                    maxima.push(self.program.each(Scalar::Max, &both)?);
                }
                let tile = self.program.concat(loops, &maxima)?;
                self.running.insert(tile);
                Ok(tile)
            }
            ("accumulate", ["sum"], _, &[tile]) if is_kernel && program.shape(tile)[loops].len == 1 => {
                self.apply("scale", &[&self.iterations.to_string()], args)
            }
            ("accumulate", ["sum"], _, &[_]) if is_kernel => program.reduce(Scalar::Add, loops, args),
            ("accumulate", ["max"], _, &[_]) if is_kernel => program.reduce(Scalar::Max, loops, args),
            ("accumulate", ["rescaled", degree], _, &[maxima, tile]) if self.running.contains(&maxima) => {
                // The sum before is multiplied by `e^(degree (before - now))`.
                let steps = format!("guard v2; sub v1 v4; scale({degree}) v5; exp v6; mul v0 v7; add v8 v3");
                let mut sum = self.iteration(tile, 0)?;
                for at in 1..self.iterations {
                    let maxima = [self.iteration(maxima, at - 1)?, self.iteration(maxima, at)?];
                    let values = vec![sum, maxima[0], maxima[1], self.iteration(tile, at)?];
                    sum = self.apply_all(&steps, values)?;
                }
                self.is_like(sum, tile)?;
                // A tensor of its own, even if there is one iteration.
                self.apply("scale", &["1"], &[sum])
            }
            ("constant", [number], _, &[x]) => {
                let (num, den) = ratio(number)?;
                let shape = vec![ONE; program.shape(x).len()];
                program.push(Op::Constant(num, den), &[], Some(shape))
            }
            ("matmul", [], ..) => program.matmul(args),
            ("mean", [], _, &[x]) if program.shape(x).len() > prefix => {
                let last = program.shape(x).len() - 1;
                let count = program.extent(x, last).ok_or("a mean of parts that are uneven")?;
                let sum = program.reduce(Scalar::Add, last, args)?;
                self.apply("scale", &[&format!("1/{count}")], &[sum])
            }
            ("transpose", _, Some(order), &[x])
                if at(order.len()) == program.shape(x).len()
                    && (0..order.len()).all(|dim| order.contains(&dim)) =>
            {
                let order = (0..prefix).chain(order.iter().map(|&dim| at(dim)));
                program.arrange(x, &order.map(|dim| vec![dim]).collect::<Vec<_>>())
            }
            ("reshape", _, Some(shape), &[x]) if !is_kernel => program.reshape(x, shape),
            ("broadcast", _, Some(shape), &[x]) if !is_kernel => program.broadcast(x, shape),
            ("sum", _, Some(&[dim] | &[dim, 1]), &[_]) => program.reduce(Scalar::Add, at(dim), args),
            ("largest", _, Some(&[dim] | &[dim, 1]), &[_]) => program.reduce(Scalar::Max, at(dim), args),
            ("sum" | "largest", _, Some(&[dim, keep]), &[x]) => {
                // Element `j` of the result combines elements `j, j + keep, ..`.
                let parts = parts(program, x, at(dim), keep)?;
                let scalar = if name == "sum" { Scalar::Add } else { Scalar::Max };
                parts[1..].iter().try_fold(parts[0], |sum, &part| program.each(scalar, &[sum, part]))
            }
            ("rotate", _, Some(&[dim, len]), &[x]) => {
                // In each run of two groups the halves (a, b) become (-b, a).
                let mut halves = parts(program, x, at(dim), len)?;
                ensure!(halves.len().is_multiple_of(2), "groups of {len} elements do not suit");
                for pair in halves.chunks_mut(2) {
                    pair.swap(0, 1);
                    pair[0] = self.apply("scale", &["-1"], &pair[..1])?;
                }
                self.program.concat(at(dim), &halves)
            }
            ("slice", _, Some(&[dim, start, len]), &[x]) => program.slice(x, at(dim), (start, len)),
            ("repeat", _, Some(&[dim, times]), &[x]) => program.repeat(x, at(dim), times),
            ("concat", _, Some(&[dim]), _) => {
                let result = program.concat(at(dim), args)?;
                args.iter().try_for_each(|&arg| self.is_like(result, arg)).map(|()| result)
            }
            (_, [], ..) => {
                let scalar: Scalar = serde_json::from_value(name.into()).map_err(|_| unknown())?;
                let result = program.each(scalar, args)?;
                if scalar == Scalar::Mask {
                    self.is_like(result, args[0])?;
                }
                Ok(result)
            }
            _ => Err(unknown()),
        }
    }

    /// That a result is not larger than an operand, but for the dimension along which operands are put side by side.
    fn is_like(&self, result: usize, operand: usize) -> Result<()> {
        let [result, operand] = [result, operand].map(|tensor| &self.program.nodes[tensor]);
        let is_same =
            |at: usize| result.op == Op::Concat(at) || result.shape[at].size() == operand.shape[at].size();
        let is_like = (self.prefix()..result.shape.len()).all(is_same);
        ensure!(is_like, "an operand is larger than what it is applied to");
        Ok(())
    }
}

/// The parts of a dimension, one at least.
fn parts(program: &mut Program, x: usize, dim: usize, len: usize) -> Result<Vec<usize>> {
    let extent = program.extent(x, dim).filter(|extent| len > 0 && extent.is_multiple_of(len));
    let starts = (0..extent.ok_or_else(|| format!("a part of {len} elements does not suit"))?).step_by(len);
    starts.map(|start| program.slice(x, dim, (start, len))).collect()
}

/// An operator, its parameters, and the values that it takes, which are called by a letter and a number.
fn split<'a>(
    definition: &[&'a str],
    letter: char,
    values: &[usize],
) -> Result<(&'a str, Vec<&'a str>, Vec<usize>)> {
    let (name, rest) = definition.split_first().ok_or("expected a definition")?;
    let number = |token: &str| token.strip_prefix(letter)?.parse::<usize>().ok();
    let (params, args): (Vec<&str>, Vec<&str>) = rest.iter().partition(|token| number(token).is_none());
    let value = |token: &&str| number(token).and_then(|number| values.get(number).copied());
    let value = |token| value(token).ok_or_else(|| format!("{token} is not defined before"));
    Ok((name, params, args.iter().map(value).collect::<Result<_>>()?))
}

fn dim(text: &str) -> Result<Option<usize>> {
    if text == "-" { Ok(None) } else { number(text).map(Some) }
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|_| format!("expected a number, not {text}"))
}

fn numbers(tokens: &[&str]) -> Result<Vec<usize>> {
    tokens.iter().map(|token| number(token)).collect()
}

/// Reads `3`, `-1/8`.
fn ratio(text: &str) -> Result<(i64, i64)> {
    let (num, den) = text.split_once('/').unwrap_or((text, "1"));
    let ratio = num.parse().ok().zip(den.parse().ok());
    ratio.filter(|(num, den)| *den > 0 && *num != i64::MIN).ok_or_else(|| format!("no number {text}"))
}

/// A name in quotes, without escapes.
fn quoted(token: &str) -> Result<String> {
    let inner = token.strip_prefix('"').and_then(|token| token.strip_suffix('"'));
    let inner = inner.filter(|inner| format!("{inner:?}") == token);
    inner.map(str::to_owned).ok_or_else(|| "expected a name in quotes".into())
}
