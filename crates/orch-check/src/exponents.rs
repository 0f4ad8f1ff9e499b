//! Exponents as combinations of values, conditions for a program to be defined, and what has to be known of each tensor.
//!
//! There are three ways to see an exponent: as a sum of values with signs; as a sum of values with constant factors; as it is.
//! The values are *atoms*. Sums of constants are multiples of one further atom, the number 1. Moved elements are what they were.

use crate::program::{Op, Program, Ratio, Scalar};
use crate::residue::Needs;
use std::collections::BTreeSet;

/// How many ways there are.
pub const WAYS: usize = 3;
/// The most steps that the parts of one exponent are looked for.
const MAX_STEPS: usize = 1000;

/// The atoms of a program, seen in one way.
#[derive(Clone, Debug)]
pub struct Atoms {
    /// Tensors of atoms.
    pub tensors: BTreeSet<usize>,
    /// By tensor of exponentials: the sum of the absolute values of coefficients.
    pub sizes: Vec<f64>,
    /// A common denominator of coefficients.
    pub denominator: i128,
}

impl Atoms {
    /// The atoms of a program seen in one of the ways, by number; `None` if there are too many.
    pub fn new(program: &Program, way: usize) -> Option<Atoms> {
        let mut atoms =
            Atoms { tensors: BTreeSet::new(), sizes: vec![0.0; program.nodes.len()], denominator: 1 };
        for (at, node) in program.nodes.iter().enumerate() {
            if node.op == Op::Each(Scalar::Exp) {
                atoms.sizes[at] = atoms.add(program, node.args[0], way, (1, 1), &mut 0)?;
            }
        }
        Some(atoms)
    }

    /// Adds the atoms of a multiple of a value, and gives the sum of their coefficients.
    fn add(
        &mut self,
        program: &Program,
        at: usize,
        way: usize,
        (num, den): (i128, i128),
        steps: &mut usize,
    ) -> Option<f64> {
        *steps += 1;
        if *steps > MAX_STEPS {
            return None;
        }
        let times = |ratio: &Ratio| -> Option<(i128, i128)> {
            let (num, den) = (num.checked_mul(ratio.num.into())?, den.checked_mul(ratio.den.into())?);
            let divisor = gcd(num, den);
            Some((num / divisor, den / divisor))
        };
        let node = &program.nodes[at];
        let mut next = |atoms: &mut Atoms, arg: usize, factor| atoms.add(program, arg, way, factor, steps);
        match &node.op {
            Op::Each(Scalar::Sum) if way < 2 => {
                Some(next(self, node.args[0], (num, den))? + next(self, node.args[1], (num, den))?)
            }
            Op::Each(Scalar::Guard | Scalar::Mask) if way < 2 => next(self, node.args[0], (num, den)),
            op if op.moves() => node
                .args
                .iter()
                .try_fold(0.0, |most, &arg| Some(f64::max(most, next(self, arg, (num, den))?))),
            Op::Each(Scalar::Offset(ratio)) if way < 2 => {
                let rest = next(self, node.args[0], (num, den))?;
                Some(rest + self.part(times(ratio)?)?)
            }
            Op::Each(Scalar::Scale(ratio))
                if way == 1 || way == 0 && *ratio == (Ratio { num: -1, den: 1 }) =>
            {
                next(self, node.args[0], times(ratio)?)
            }
            _ => {
                self.tensors.insert(at);
                self.part((num, den))
            }
        }
    }

    /// The size of a coefficient.
    fn part(&mut self, (num, den): (i128, i128)) -> Option<f64> {
        self.denominator = common(self.denominator, den)?;
        Some(num.unsigned_abs() as f64 / den as f64)
    }
}

/// The least common multiple.
pub fn common(a: i128, b: i128) -> Option<i128> {
    (a / gcd(a, b)).checked_mul(b)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs().max(1) } else { gcd(b, a % b) }
}

/// What must hold for a program to be defined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Condition {
    /// A divisor, or a factor of one, is not zero.
    Divisor,
    /// The operand of a root is not negative.
    Radicand,
}

/// True of what is zero exactly where an operand is.
pub fn is_product(op: &Op) -> bool {
    match op {
        Op::Each(Scalar::Mul | Scalar::Square) => true,
        Op::Each(Scalar::Scale(ratio)) => ratio.num != 0,
        _ => false,
    }
}

/// The factors of divisors, and the operands of roots.
pub fn conditions(program: &Program) -> BTreeSet<(Condition, usize)> {
    let mut found = BTreeSet::new();
    for node in &program.nodes {
        let condition = match node.op {
            Op::Each(Scalar::Reciprocal) => Condition::Divisor,
            Op::Each(Scalar::Sqrt) => Condition::Radicand,
            _ => continue,
        };
        let mut open = vec![node.args[0]];
        while let Some(at) = open.pop() {
            let has_factors = condition == Condition::Divisor && is_product(&program.nodes[at].op);
            if found.insert((condition, at)) && has_factors {
                open.extend(&program.nodes[at].args);
            }
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
    let mut known: Vec<Facts> = Vec::new();
    for node in &program.nodes {
        let args: Vec<Facts> = node.args.iter().map(|&arg| known[arg]).collect();
        let all = |fact: fn(&Facts) -> bool| args.iter().all(fact);
        let any = |fact: fn(&Facts) -> bool| args.iter().any(fact);
        // Of uneven parts some may have no elements, whose sum is zero.
        let reduced = match &node.op {
            Op::Reduce(_, dim) => program.nodes[node.args[0]].shape.get(*dim),
            Op::Matmul => program.nodes[node.args[0]].shape.last(),
            _ => None,
        };
        let is_some = reduced.is_none_or(|extent| extent.ragged.is_none());
        // What holds for a result if it holds for all operands: of moved elements, products, positive multiples and sums.
        let same = Facts {
            is_mask: all(|x| x.is_mask),
            is_finite: all(|x| x.is_finite),
            is_nonnegative: all(|x| x.is_nonnegative),
            is_positive: all(|x| x.is_positive),
            is_masked_sum: all(|x| x.is_masked_sum),
        };
        let number = Facts { is_finite: true, ..Facts::default() };
        let nonnegative = Facts { is_nonnegative: true, ..number };
        let mask = Facts { is_mask: true, is_masked_sum: true, ..nonnegative };
        let is_positive = same.is_nonnegative && any(|x| x.is_positive) && same.is_finite && is_some;
        known.push(match &node.op {
            Op::Input { is_mask: true, .. } | Op::Compare { .. } => mask,
            Op::Input { .. } => number,
            Op::Each(Scalar::Exp) => {
                Facts { is_positive: same.is_finite, is_masked_sum: true, ..nonnegative }
            }
            Op::Each(Scalar::Square | Scalar::Sqrt | Scalar::Relu) => nonnegative,
            Op::Each(Scalar::Sum) | Op::Reduce(Scalar::Sum, _) => {
                Facts { is_mask: false, is_positive, ..same }
            }
            Op::Each(Scalar::Mul) => same,
            Op::Matmul => Facts { is_mask: false, is_positive: same.is_positive && is_some, ..same },
            Op::Each(Scalar::Largest) | Op::Reduce(_, _) => Facts {
                is_finite: any(|x| x.is_finite) && is_some,
                is_nonnegative: any(|x| x.is_nonnegative && x.is_finite) && is_some,
                is_positive: any(|x| x.is_positive) && is_some,
                is_masked_sum: same.is_mask,
                ..same
            },
            Op::Each(Scalar::Scale(ratio)) if ratio.num > 0 => Facts { is_mask: false, ..same },
            Op::Each(Scalar::Offset(ratio)) if ratio.num >= 0 && same.is_nonnegative => {
                let is_positive = same.is_finite && (ratio.num > 0 || same.is_positive);
                Facts { is_finite: same.is_finite, is_positive, ..nonnegative }
            }
            Op::Each(Scalar::Reciprocal) => {
                Facts { is_nonnegative: same.is_nonnegative, is_positive: same.is_nonnegative, ..number }
            }
            Op::Each(Scalar::Guard) => Facts { is_finite: true, is_positive: false, ..same },
            Op::Each(Scalar::Mask) if !args[1].is_mask => {
                return Err("something is masked by what is no mask".into());
            }
            Op::Each(Scalar::Mask) => Facts { is_nonnegative: args[0].is_nonnegative, ..Facts::default() },
            Op::Each(_) => Facts { is_finite: same.is_finite, ..Facts::default() },
            _ => same,
        });
    }
    Ok(known)
}

/// The arguments of hashes: of roots and the like, of maxima, and atoms.
pub fn hashed(program: &Program, atoms: &Atoms) -> BTreeSet<usize> {
    let mut found = atoms.tensors.clone();
    for node in &program.nodes {
        if let Op::Each(Scalar::Sqrt | Scalar::Erf | Scalar::Largest | Scalar::Relu)
        | Op::Reduce(Scalar::Largest, _) = node.op
        {
            found.extend(&node.args);
        }
    }
    found
}

/// What is needed of each tensor, where numbers of some are.
pub fn needs<'a>(
    program: &Program,
    atoms: &Atoms,
    numbers: impl IntoIterator<Item = &'a usize>,
) -> Vec<Needs> {
    let mut needs = vec![Needs::default(); program.nodes.len()];
    numbers.into_iter().for_each(|&at| needs[at].number = true);
    for (at, node) in program.nodes.iter().enumerate().rev() {
        needs[at].is_atom = needs[at].exponent && atoms.tensors.contains(&at);
        let Needs { number, exponent, is_atom } = needs[at];
        let (number, exponent) = (number || is_atom, exponent && !is_atom);
        needs[at].number = number;
        for (position, &arg) in node.args.iter().enumerate() {
            let (number, exponent) = match node.op {
                Op::Each(Scalar::Exp) => (false, number),
                Op::Each(Scalar::Mask) if position == 1 => (number || exponent, false),
                _ => (number, exponent),
            };
            needs[arg].number |= number;
            needs[arg].exponent |= exponent;
        }
    }
    needs
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
