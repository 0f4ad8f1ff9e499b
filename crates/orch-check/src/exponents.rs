//! Exponents as combinations of values, and what has to be known of each place of a program.
//!
//! There are three ways to see an exponent: as it is; as a sum of values with signs; as a sum of values with constant factors.
//! The values are *atoms*. Sums of constants are multiples of one further atom, the number 1.

use crate::op::{Op, Ratio};
use crate::program::{Node, Program, Tile};
use crate::residue::{DIVISORS, EXPONENTS, Facts, LOGARITHMS, RADICANDS};
use std::collections::BTreeMap;

/// A node, or a tile of it.
pub type At = (usize, Option<usize>);

/// The most values in one exponent.
const MAX_ATOMS: usize = 1000;

/// The atoms of a program, seen in one way.
#[derive(Clone, Debug, Default)]
pub struct Atoms {
    /// Nodes and tiles that are atoms.
    pub at: Vec<At>,
    /// For each place with exponentials the coefficients of atoms: their sum, in parts of the denominator.
    pub weights: BTreeMap<usize, Vec<(i128, i128)>>,
}

impl Atoms {
    /// The atoms of a program seen in way 0, 1 or 2; `None` if there are too many.
    pub fn new(program: &Program, way: usize) -> Option<Atoms> {
        let mut atoms = Atoms::default();
        for (node, tile) in program.all() {
            let mut exponents: Vec<(At, (i128, i128))> = Vec::new();
            match (program.op_at(node, tile), &program.nodes[node], tile) {
                (Some((Op::Exp, args)), ..) => exponents.push((operand(node, tile, args[0]), (1, 1))),
                (_, Node::Block(block), Some(at)) => {
                    if let Tile::Rescaled { max, degree, .. } = block.tiles[at] {
                        if way == 0 {
                            return None;
                        }
                        let degree = (i128::from(degree.num), i128::from(degree.den));
                        exponents.extend([((node, Some(max)), degree); 2]);
                    }
                }
                _ => {}
            }
            if exponents.is_empty() {
                continue;
            }
            let mut found = Vec::new();
            let mut steps = 0;
            for (at, factor) in exponents {
                walk(program, at, way, factor, &mut found, &mut steps)?;
            }
            atoms.at.extend(found.iter().filter_map(|(at, _)| *at));
            atoms
                .weights
                .insert(program.place(node, tile), found.into_iter().map(|(_, factor)| factor).collect());
        }
        atoms.at.sort_unstable();
        atoms.at.dedup();
        Some(atoms)
    }

    /// A common denominator of all coefficients, and of more.
    pub fn denominator(&self, more: i128) -> Option<i128> {
        let mut all = more;
        for (_, den) in self.weights.values().flatten() {
            all = (all / gcd(all, *den)).checked_mul(*den)?;
        }
        Some(all)
    }

    /// The degree of each exponential, in atoms divided by a denominator.
    pub fn degrees(&self, denominator: i128) -> BTreeMap<usize, f64> {
        let degree = |parts: &[(i128, i128)]| -> f64 {
            parts.iter().map(|(num, den)| num.unsigned_abs() as f64 * (denominator / den) as f64).sum()
        };
        self.weights.iter().map(|(place, parts)| (*place, degree(parts))).collect()
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs().max(1) } else { gcd(b, a % b) }
}

/// An operand of what stands at a node or tile.
fn operand(node: usize, tile: Option<usize>, arg: usize) -> At {
    if tile.is_some() { (node, Some(arg)) } else { (arg, None) }
}

/// The terms of a value: with atom, or constant.
fn walk(
    program: &Program,
    at: At,
    way: usize,
    (num, den): (i128, i128),
    found: &mut Vec<(Option<At>, (i128, i128))>,
    steps: &mut usize,
) -> Option<()> {
    *steps += 1;
    if *steps > MAX_ATOMS {
        return None;
    }
    let times = |ratio: &Ratio, sign: i128| -> Option<(i128, i128)> {
        let (num, den) =
            (num.checked_mul(i128::from(ratio.num) * sign)?, den.checked_mul(i128::from(ratio.den))?);
        let divisor = gcd(num, den);
        Some((num / divisor, den / divisor))
    };
    let mut next = |arg: usize, factor: (i128, i128), found: &mut Vec<_>| {
        walk(program, operand(at.0, at.1, arg), way, factor, found, steps)
    };
    match program.op_at(at.0, at.1).filter(|_| way > 0) {
        Some((Op::Add, args)) => {
            next(args[0], (num, den), found)?;
            next(args[1], (num, den), found)
        }
        Some((Op::Sub, args)) => {
            next(args[0], (num, den), found)?;
            next(args[1], (-num, den), found)
        }
        Some((Op::Guard | Op::Mask | Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_), args)) => {
            next(args[0], (num, den), found)
        }
        Some((Op::Slice { .. } | Op::Repeat { .. }, args)) => next(args[0], (num, den), found),
        Some((Op::Concat { .. }, args)) => args.iter().try_for_each(|&arg| next(arg, (num, den), found)),
        Some((Op::Offset(ratio), args)) => {
            found.push((None, times(ratio, 1)?));
            next(args[0], (num, den), found)
        }
        Some((Op::Scale(ratio), args)) if way == 2 || *ratio == (Ratio { num: -1, den: 1 }) => {
            next(args[0], times(ratio, 1)?, found)
        }
        _ => {
            found.push((Some(at), (num, den)));
            Some(())
        }
    }
}

/// The factors of divisors, and the operands of roots and logarithms: where they are, and which list they belong to.
pub fn conditions(program: &Program) -> Vec<(At, usize)> {
    let mut found = Vec::new();
    for (node, tile) in program.all() {
        let Some((op, args)) = program.op_at(node, tile) else { continue };
        let (arg, list) = match op {
            Op::Div => (args[1], DIVISORS),
            Op::Reciprocal => (args[0], DIVISORS),
            Op::Sqrt => (args[0], RADICANDS),
            Op::Log => (args[0], LOGARITHMS),
            _ => continue,
        };
        let mut open = vec![operand(node, tile, arg)];
        while let Some(at) = open.pop() {
            match program.op_at(at.0, at.1) {
                _ if found.contains(&(at, list)) => {}
                Some((Op::Mul, args)) if list == DIVISORS => {
                    found.push((at, list));
                    open.extend(args.iter().map(|&arg| operand(at.0, at.1, arg)));
                }
                _ => found.push((at, list)),
            }
        }
    }
    found
}

/// Where arguments of hashes are: of roots and the like, of maxima, and exponentials that are part of exponents.
pub fn hashed(program: &Program, atoms: &Atoms) -> Vec<At> {
    let listed: Vec<(At, usize)> = atoms.at.iter().map(|&at| (at, EXPONENTS[0])).collect();
    let facts = facts(program, &listed);
    let mut found = Vec::new();
    for (node, tile) in program.all() {
        match (program.op_at(node, tile), &program.nodes[node], tile) {
            (Some((Op::Exp, _)), ..) if facts[program.place(node, tile)].needs_q => found.push((node, tile)),
            (Some((Op::Sqrt | Op::Log | Op::Erf | Op::Max | Op::Largest { .. } | Op::Relu, args)), ..) => {
                found.extend(args.iter().map(|&arg| operand(node, tile, arg)));
            }
            (None, Node::Block(block), Some(at)) => match block.tiles[at] {
                Tile::Largest(arg) | Tile::RunningMax(arg) => found.push((node, Some(arg))),
                Tile::Rescaled { .. } if facts[program.place(node, tile)].needs_q => found.push((node, tile)),
                _ => {}
            },
            _ => {}
        }
    }
    found
}

/// What is needed of each place of a program, with what is to be listed.
pub fn facts(program: &Program, listed: &[(At, usize)]) -> Vec<Facts> {
    let mut facts = vec![Facts::default(); program.place_count];
    for &((node, tile), list) in listed {
        let own = &mut facts[program.place(node, tile)];
        own.listed[list] = true;
        own.needs_p |= list >= DIVISORS;
        own.needs_q |= list < EXPONENTS.len();
    }
    for (_, id) in &program.outputs {
        facts[program.place(*id, None)].needs_p = true;
    }
    let all = program.all();
    // Tiles stand behind their node: what a kernel stores is asked for before its tiles, and these before what they load.
    let order = |(node, tile): &At| (*node, tile.map_or(0, |tile| tile + 1));
    let mut ordered = all;
    ordered.sort_by_key(order);
    for (node, tile) in ordered.into_iter().rev() {
        let own = facts[program.place(node, tile)];
        let mut ask = |node: usize, tile: Option<usize>, p: bool, q: bool| {
            let asked = &mut facts[program.place(node, tile)];
            asked.needs_p |= p;
            asked.needs_q |= q;
        };
        let (p, q) = (own.needs_p, own.needs_q);
        if let Some((op, args)) = program.op_at(node, tile) {
            for (position, &arg) in args.iter().enumerate() {
                let (p, q) = match op {
                    Op::Exp => (false, p || q),
                    Op::Sqrt | Op::Log | Op::Erf => (p || q, false),
                    Op::Max | Op::Largest { .. } | Op::Relu => (p || q, q),
                    Op::Mask if position == 1 => (p || q, false),
                    _ => (p, q),
                };
                let (node, tile) = operand(node, tile, arg);
                ask(node, tile, p, q);
            }
            continue;
        }
        match (&program.nodes[node], tile) {
            (Node::Stored(kernel, store), _) => {
                if let Node::Block(block) = &program.nodes[*kernel] {
                    ask(*kernel, Some(block.stores[*store].0), p, q);
                }
            }
            (Node::Block(block), Some(tile)) => match &block.tiles[tile] {
                Tile::Load { tensor, .. } => ask(*tensor, None, p, q),
                Tile::Largest(arg) | Tile::RunningMax(arg) => ask(node, Some(*arg), p || q, q),
                Tile::Rescaled { tile, max, .. } => {
                    ask(node, Some(*tile), p, q);
                    ask(node, Some(*max), false, p || q);
                }
                tile => tile.args().into_iter().for_each(|arg| ask(node, Some(arg), p, q)),
            },
            _ => {}
        }
    }
    facts
}
