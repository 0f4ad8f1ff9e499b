//! Exponents as combinations of values, and conditions for a program to be defined.
//!
//! There are three ways to see an exponent: as a sum of values with signs; as a sum of values with constant factors; as it is.
//! The values are *atoms*. Sums of constants are multiples of one further atom, the number 1. Moved elements are what they were.

use crate::program::{Op, Program, Ratio, Scalar};
use std::collections::BTreeSet;

/// How many ways there are.
pub const WAYS: usize = 3;

/// Whether a tensor, as an exponent, is a combination of the atoms of its operands, seen in one of the ways; otherwise it is an atom.
pub fn keeps_atoms(program: &Program, tensor: usize, way: usize) -> bool {
    match program.nodes[tensor].op {
        Op::Move(_) | Op::Concat(_) => true,
        Op::Each(Scalar::Sum | Scalar::Guard | Scalar::Mask | Scalar::Offset(_)) => way < 2,
        Op::Each(Scalar::Scale(ratio)) => way == 1 || way == 0 && ratio == Ratio { num: -1, den: 1 },
        _ => false,
    }
}

/// Of each tensor, whether it is an atom that an exponent has.
pub fn atoms(program: &Program, way: usize) -> Vec<bool> {
    let mut is_exponent = vec![false; program.nodes.len()];
    let mut is_atom = is_exponent.clone();
    for (at, node) in program.nodes.iter().enumerate().rev() {
        let keeps = keeps_atoms(program, at, way);
        is_atom[at] = is_exponent[at] && !keeps;
        // A mask is no exponent.
        let count = if node.op == Op::Each(Scalar::Mask) { 1 } else { node.args.len() };
        if node.op == Op::Each(Scalar::Exp) || is_exponent[at] && keeps {
            node.args[..count].iter().for_each(|&arg| is_exponent[arg] = true);
        }
    }
    is_atom
}

/// What must hold for a program to be defined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Condition {
    /// A divisor, or a factor of one, is not zero.
    Divisor,
    /// The operand of a root is not negative.
    Radicand,
}

/// True of what is zero exactly where an operand is.
pub fn is_product(op: &Op) -> bool {
    matches!(op, Op::Each(Scalar::Mul)) || matches!(op, Op::Each(Scalar::Scale(ratio)) if ratio.num != 0)
}

/// The factors of divisors, and the operands of roots.
pub fn conditions(program: &Program) -> BTreeSet<(Condition, usize)> {
    let mut found = BTreeSet::new();
    for (at, node) in program.nodes.iter().enumerate().rev() {
        match node.op {
            Op::Each(Scalar::Reciprocal) => _ = found.insert((Condition::Divisor, node.args[0])),
            Op::Each(Scalar::Sqrt) => _ = found.insert((Condition::Radicand, node.args[0])),
            _ => {}
        }
        if found.contains(&(Condition::Divisor, at)) && is_product(&node.op) {
            found.extend(node.args.iter().map(|&arg| (Condition::Divisor, arg)));
        }
    }
    found
}

/// What all elements of a tensor are, for all inputs, by how they are made.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Facts {
    /// Zeros and ones.
    is_mask: bool,
    /// Never minus infinity.
    pub is_finite: bool,
    /// Numbers, or minus infinity, that are not negative.
    pub is_nonnegative: bool,
    /// Positive.
    pub is_positive: bool,
    /// Sums of products of masks and exponentials, with positive factors: zero where all of their terms are masked.
    pub is_masked_sum: bool,
}

/// The facts of every tensor.
///
/// # Errors
/// If something is masked by a tensor that is no mask.
pub fn facts(program: &Program) -> Result<Vec<Facts>, String> {
    let number = Facts { is_finite: true, ..Facts::default() };
    let nonnegative = Facts { is_nonnegative: true, ..number };
    let mask = Facts { is_mask: true, is_masked_sum: true, ..nonnegative };
    let mut known: Vec<Facts> = Vec::new();
    for node in &program.nodes {
        let mut args: Vec<Facts> = node.args.iter().map(|&arg| known[arg]).collect();
        if let Op::Each(Scalar::Offset(ratio)) = node.op {
            args.push(Facts { is_nonnegative: ratio.num >= 0, is_positive: ratio.num > 0, ..number });
        }
        let all = |fact: fn(&Facts) -> bool| args.iter().all(fact);
        let any = |fact: fn(&Facts) -> bool| args.iter().any(fact);
        // Of uneven parts some may have no elements, whose sum is zero.
        let is_some = match node.op {
            Op::Reduce(_, dim) => program.shape(node.args[0])[dim].ragged.is_none(),
            _ => true,
        };
        // What holds for a result if it holds for all operands: of moved elements, products, positive multiples and sums.
        let same = Facts {
            is_mask: all(|x| x.is_mask),
            is_finite: all(|x| x.is_finite),
            is_nonnegative: all(|x| x.is_nonnegative),
            is_positive: all(|x| x.is_positive),
            is_masked_sum: all(|x| x.is_masked_sum),
        };
        // One positive term, of many that are not negative; of products that are added all are.
        let is_term = if node.args.len() == 2 && matches!(node.op, Op::Reduce(..)) {
            same.is_positive
        } else {
            any(|x| x.is_positive)
        };
        known.push(match &node.op {
            Op::Input { is_mask: true, .. } | Op::Compare { .. } => mask,
            Op::Input { .. } => number,
            Op::Each(Scalar::Exp) => {
                Facts { is_positive: same.is_finite, is_masked_sum: true, ..nonnegative }
            }
            Op::Each(Scalar::Sqrt | Scalar::Relu) => nonnegative,
            Op::Each(Scalar::Mul) if node.args[0] == node.args[1] => Facts { is_nonnegative: true, ..same },
            Op::Each(Scalar::Sum | Scalar::Offset(_)) | Op::Reduce(Scalar::Sum, _) => {
                let is_positive = same.is_nonnegative && same.is_finite && is_term && is_some;
                Facts { is_mask: false, is_positive, ..same }
            }
            Op::Each(Scalar::Largest) | Op::Reduce(..) => Facts {
                is_finite: any(|x| x.is_finite) && is_some,
                is_nonnegative: any(|x| x.is_nonnegative && x.is_finite) && is_some,
                is_positive: any(|x| x.is_positive) && is_some,
                is_masked_sum: same.is_mask,
                ..same
            },
            Op::Each(Scalar::Scale(ratio)) if ratio.num > 0 => Facts { is_mask: false, ..same },
            Op::Each(Scalar::Reciprocal) => {
                Facts { is_nonnegative: same.is_nonnegative, is_positive: same.is_nonnegative, ..number }
            }
            Op::Each(Scalar::Guard) => Facts { is_finite: true, is_positive: false, ..same },
            Op::Each(Scalar::Mask) if !args[1].is_mask => {
                return Err("something is masked by what is no mask".into());
            }
            Op::Each(Scalar::Mask) => Facts { is_nonnegative: args[0].is_nonnegative, ..Facts::default() },
            Op::Each(Scalar::Mul) | Op::Move(_) | Op::Concat(_) => same,
            Op::Each(_) => Facts { is_finite: same.is_finite, ..Facts::default() },
        });
    }
    Ok(known)
}

/// The arguments of hashes: of roots and the like, of maxima, and atoms.
pub fn hashed(program: &Program, is_atom: &[bool]) -> BTreeSet<usize> {
    let mut found: BTreeSet<usize> = (0..is_atom.len()).filter(|&at| is_atom[at]).collect();
    for node in &program.nodes {
        if let Op::Each(Scalar::Sqrt | Scalar::Erf | Scalar::Largest | Scalar::Relu)
        | Op::Reduce(Scalar::Largest, _) = node.op
        {
            found.extend(&node.args);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the last tensor: whether it is finite, not negative, positive, a masked sum.
    fn last(statements: &str) -> [bool; 4] {
        let lines = statements.replace(';', "\n");
        let head = "mugraph \"p\" {\nt0 = input \"x\" [2, 3]\nt1 = mask \"m\" [2, 3]";
        let program = crate::parse(&format!("{head}\n{lines}\noutput \"o\" t0\n}}")).unwrap().remove(0);
        let facts = *facts(&program).unwrap().last().unwrap();
        [facts.is_finite, facts.is_nonnegative, facts.is_positive, facts.is_masked_sum]
    }

    #[test]
    fn facts_are_those_of_all_inputs() {
        const NO: bool = false;
        const YES: bool = true;
        for (statements, expected) in [
            ("t2 = scale(1) t0", [YES, NO, NO, NO]),
            ("t2 = scale(1) t1", [YES, YES, NO, YES]),
            ("t2 = scale(-1) t1", [YES, NO, NO, NO]),
            ("t2 = scale(0) t1", [YES, NO, NO, NO]),
            ("t2 = square t0", [YES, YES, NO, NO]),
            ("t2 = exp t0", [YES, YES, YES, YES]),
            ("t2 = exp t0; t3 = sum(1) t2", [YES, YES, YES, YES]),
            ("t2 = exp t0; t3 = add t2, t0", [YES, NO, NO, NO]),
            ("t2 = exp t0; t3 = square t0; t4 = add t2, t3", [YES, YES, YES, NO]),
            ("t2 = exp t0; t3 = mul t2, t1", [YES, YES, NO, YES]),
            ("t2 = exp t0; t3 = mul t2, t0", [YES, NO, NO, NO]),
            ("t2 = exp t0; t3 = transpose(1, 0) t2; t4 = matmul t2, t3", [YES, YES, YES, YES]),
            ("t2 = square t0; t3 = offset(1/9) t2", [YES, YES, YES, NO]),
            ("t2 = square t0; t3 = offset(0) t2", [YES, YES, NO, NO]),
            ("t2 = square t0; t3 = offset(-1/9) t2", [YES, NO, NO, NO]),
            ("t2 = exp t0; t3 = offset(-1) t2", [YES, NO, NO, NO]),
            ("t2 = mask t0, t1", [NO, NO, NO, NO]),
            ("t2 = exp t0; t3 = mask t2, t1", [NO, YES, NO, NO]),
            ("t2 = mask t0, t1; t3 = exp t2", [YES, YES, NO, YES]),
            ("t2 = mask t0, t1; t3 = guard t2", [YES, NO, NO, NO]),
            ("t2 = mask t0, t1; t3 = add t2, t0; t4 = exp t3", [YES, YES, NO, YES]),
            ("t2 = mask t0, t1; t3 = largest(1) t2", [NO, NO, NO, NO]),
            ("t2 = mask t0, t1; t3 = max t2, t0", [YES, NO, NO, NO]),
            ("t2 = exp t0; t3 = max t2, t0", [YES, YES, YES, NO]),
            ("t2 = exp t0; t3 = mask t2, t1; t4 = max t3, t0", [YES, NO, NO, NO]),
            ("t2 = relu t0", [YES, YES, NO, NO]),
            ("t2 = sqrt t0", [YES, YES, NO, NO]),
            ("t2 = square t0; t3 = reciprocal t2", [YES, YES, YES, NO]),
            ("t2 = reciprocal t0", [YES, NO, NO, NO]),
            ("t2 = exp t0; t3 = concat(1) t2, t1", [YES, YES, NO, YES]),
            // The last of four parts of three elements has none.
            (
                "t2 = exp t0; t3 = block [1] loop 1 {; s0 = load t2 [-] -; s1 = sum(1) s0; store s1 [-]; }",
                [YES, YES, YES, YES],
            ),
            (
                "t2 = exp t0; t3 = block [4] loop 1 {; s0 = load t2 [1] -; s1 = sum(1) s0; store s1 [1]; }",
                [YES, YES, NO, YES],
            ),
        ] {
            assert_eq!(last(statements), expected, "{statements}");
        }
    }
}
