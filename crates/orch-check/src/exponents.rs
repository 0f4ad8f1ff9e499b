//! Exponents as combinations of values, and conditions for a program to be defined.
//!
//! There are three ways to see an exponent: as a sum of values with signs; as a sum of values with constant factors; as it is.
//! The values are *atoms*. Sums of constants are multiples of one further atom, the number 1. Moved elements are what they were.

use crate::program::{Op, Program, Result, Scalar, ensure};
use std::collections::BTreeSet;

/// How many ways there are.
pub const WAYS: usize = 3;

/// Whether a tensor, as an exponent, is a combination of the atoms of its operands, seen in one of the ways; otherwise it is an atom.
pub fn keeps_atoms(program: &Program, tensor: usize, way: usize) -> bool {
    let node = &program.nodes[tensor];
    match node.op {
        Op::Move(_) | Op::Concat(_) | Op::Constant(..) | Op::Compare { .. } => true,
        Op::Each(Scalar::Add | Scalar::Guard | Scalar::Mask) => way < 2,
        Op::Each(Scalar::Scale { .. }) => {
            let is_sign = matches!(program.nodes[node.args[1]].op, Op::Constant(-1 | 1, 1));
            way == 1 || way == 0 && is_sign
        }
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
        if node.op == Op::Each(Scalar::Exp) || is_exponent[at] && keeps {
            // A mask is no exponent.
            let count = if node.op == Op::Each(Scalar::Mask) { 1 } else { node.args.len() };
            node.args[..count].iter().for_each(|&arg| is_exponent[arg] = true);
        }
    }
    is_atom
}

/// The arguments of hashes: of roots and the like, of maxima, and atoms.
pub fn hashed(program: &Program, is_atom: &[bool]) -> BTreeSet<usize> {
    let mut found: BTreeSet<usize> = (0..is_atom.len()).filter(|&at| is_atom[at]).collect();
    for node in &program.nodes {
        if let Op::Each(Scalar::Sqrt | Scalar::Erf | Scalar::Max) | Op::Reduce(Scalar::Max, _) = node.op {
            found.extend(&node.args);
        }
    }
    found
}

/// What must hold for a program to be defined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    /// Whether the candidate needs it. What the program needs is sorted before.
    pub is_candidates: bool,
    /// The operand of a root is not negative; otherwise a divisor, or a factor of one, is not zero.
    pub is_root: bool,
    /// What it is about.
    pub tensor: usize,
}

/// The factors of divisors, and the operands of roots; of the candidate, whose tensors are from a first one on, those of which
/// neither facts nor conditions for factors show that they hold.
pub fn conditions(both: &Program, facts: &[u8], first: usize) -> BTreeSet<Condition> {
    let is_product = |op: &Op| matches!(op, Op::Each(Scalar::Mul | Scalar::Scale { .. }));
    let mut found = BTreeSet::new();
    for (at, node) in both.nodes.iter().enumerate().rev() {
        let divisor = Condition { is_candidates: at >= first, is_root: false, tensor: at };
        let is_root = match &node.op {
            Op::Each(Scalar::Sqrt) => true,
            Op::Each(Scalar::Reciprocal) => false,
            // What is zero exactly where an operand is.
            op if is_product(op) && found.contains(&divisor) => false,
            _ => continue,
        };
        found.extend(node.args.iter().map(|&tensor| Condition { is_root, tensor, ..divisor }));
    }
    let holds = |condition: &Condition| match (&both.nodes[condition.tensor].op, facts[condition.tensor]) {
        (_, facts) if condition.is_root => facts & (NONNEGATIVE | FINITE) == NONNEGATIVE | FINITE,
        (Op::Constant(num, _), _) => *num != 0,
        (op, facts) => is_product(op) || facts & POSITIVE != 0,
    };
    found.retain(|condition| !condition.is_candidates || !holds(condition));
    found
}

/// Of all elements of a tensor, for all inputs: they are zeros and ones.
const MASK: u8 = 1;
/// They are never minus infinity.
const FINITE: u8 = 2;
/// They are not negative, or minus infinity.
const NONNEGATIVE: u8 = 4;
/// They are positive.
const POSITIVE: u8 = 8;
/// They are sums of products of masks and exponentials, with positive factors: zero where all of their terms are masked.
pub const MASKED_SUM: u8 = 16;

/// The facts of every tensor, by how it is made.
///
/// # Errors
/// If something is masked by a tensor that is no mask.
pub fn facts(program: &Program) -> Result<Vec<u8>> {
    let mut known: Vec<u8> = Vec::new();
    for node in &program.nodes {
        let args = || node.args.iter().map(|&arg| known[arg]);
        // What holds for all operands holds for moved elements, products, positive multiples and, but for masks, sums.
        let (all, any) = (args().fold(!0, |all, own| all & own), args().fold(0, |any, own| any | own));
        let when = |holds: bool, facts: u8| if holds { facts } else { 0 };
        // Of uneven parts some may have no elements, whose sum is zero.
        let is_some =
            !matches!(node.op, Op::Reduce(_, dim) if program.shape(node.args[0])[dim].ragged.is_some());
        let is_product = node.args.len() == 2 && matches!(node.op, Op::Reduce(..));
        known.push(match &node.op {
            Op::Input { is_mask: true, .. } | Op::Compare { .. } => MASK | FINITE | NONNEGATIVE | MASKED_SUM,
            Op::Input { .. } | Op::Each(Scalar::GeluFactor) => FINITE,
            Op::Constant(num, _) => {
                FINITE | when(*num >= 0, NONNEGATIVE) | when(*num > 0, POSITIVE | MASKED_SUM)
            }
            Op::Each(Scalar::Exp) => FINITE | NONNEGATIVE | MASKED_SUM | when(all & FINITE != 0, POSITIVE),
            Op::Each(Scalar::Sqrt) => FINITE | NONNEGATIVE,
            Op::Each(Scalar::Reciprocal) => FINITE | when(all & NONNEGATIVE != 0, NONNEGATIVE | POSITIVE),
            Op::Each(Scalar::Mul) if node.args[0] == node.args[1] => all | NONNEGATIVE,
            Op::Each(Scalar::Mul) | Op::Move(_) | Op::Concat(_) => all,
            Op::Each(Scalar::Scale { is_positive: true }) => all & !MASK,
            Op::Each(Scalar::Add) | Op::Reduce(Scalar::Add, _) => {
                // One positive term of many that are not negative; of products all factors are.
                let terms = if is_product { all } else { any };
                let is_positive =
                    all & FINITE != 0 && all & NONNEGATIVE != 0 && terms & POSITIVE != 0 && is_some;
                all & !(MASK | POSITIVE) | when(is_positive, POSITIVE)
            }
            Op::Each(Scalar::Max) | Op::Reduce(..) => {
                let is_nonnegative = args().any(|own| own & (FINITE | NONNEGATIVE) == FINITE | NONNEGATIVE);
                all & MASK
                    | when(all & MASK != 0, MASKED_SUM)
                    | when(is_some, any & (FINITE | POSITIVE) | when(is_nonnegative, NONNEGATIVE))
            }
            Op::Each(Scalar::Guard) => all & !POSITIVE | FINITE,
            Op::Each(Scalar::Mask) => {
                ensure!(known[node.args[1]] & MASK != 0, "something is masked by what is no mask");
                known[node.args[0]] & NONNEGATIVE
            }
            Op::Each(Scalar::Erf | Scalar::Scale { .. }) => all & FINITE,
        });
    }
    Ok(known)
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
        [FINITE, NONNEGATIVE, POSITIVE, MASKED_SUM].map(|fact| facts & fact != 0)
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
            ("t2 = exp t0; t3 = square t0; t4 = transpose(1, 0) t3; t5 = matmul t2, t4", [YES, YES, NO, NO]),
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
