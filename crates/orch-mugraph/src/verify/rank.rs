//! Joint uniformity of the exponentials that one output element reads.
//!
//! The bound of a proof needs exponentials that are independent and uniform. That holds if, with the other inputs fixed,
//! their exponents are affine in one input and the matrix of that dependence has full row rank modulo `q`. The check is
//! made on the program at small extents in the same order ([`shrink`](super::shrink)), for the first and the last element
//! of each output; equal exponents are one exponential.

use super::field::{Modulus, Primes, Stream};
use super::lax::{LaxFacts, lax};
use super::residues::{Exponents, INFINITE, MaxMode, Residues, TestBase};
use super::sample::sample;
use super::table::Table;
use crate::array::Array;
use crate::eval::{EvalError, Site, evaluate};
use crate::graph::{InputKind, MuGraph};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankCheck {
    /// Shapes of the inputs at which it was made.
    pub shapes: Vec<Vec<usize>>,
    /// Distinct exponentials that an output element reads, the most of any.
    pub exponentials: usize,
    /// The input that their exponents are affine in, if there are any.
    pub input: Option<String>,
}

/// More exponentials than this are not checked.
const MOST: usize = 256;

/// Checks that the exponentials are jointly uniform.
///
/// # Errors
/// If they are not, or could not be shown to be.
pub fn check_rank(small: &MuGraph, seed: u64) -> Result<RankCheck, EvalError> {
    let facts = lax(small, MaxMode::Lattice).map_err(EvalError::Unsupported)?;
    let base = TestBase::new(Primes::FULL, seed);
    let mut stream = Stream::new(seed ^ 1);
    let shapes = small.inputs().map(|(id, _, _)| small.shape(id).to_vec()).collect();
    let mut check = RankCheck { shapes, exponentials: 0, input: None };
    let probe = Probe { small, facts: &facts, base: &base };
    let (inputs, kept) = probe.defined_sample(&mut stream)?;
    let (_, other) = probe.defined_sample(&mut stream)?;
    for (name, id) in small.outputs() {
        let elements = crate::op::elems(small.shape(*id));
        for element in [0, elements.saturating_sub(1)] {
            let atoms = probe.atoms(&inputs, &kept, (*id, element))?;
            // Two samples tell different exponents apart.
            let distinct: BTreeMap<(u64, u64), (Site, usize)> = atoms
                .into_iter()
                .map(|(site, at)| ((kept[&site].data[at], other[&site].data[at]), (site, at)))
                .filter(|((a, _), _)| *a != INFINITE)
                .collect();
            let atoms: Vec<(Site, usize)> = distinct.into_values().collect();
            if atoms.is_empty() {
                continue;
            }
            if atoms.len() > MOST {
                let problem =
                    format!("output {name} reads {} exponentials, {MOST} are checked at most", atoms.len());
                return Err(EvalError::Unsupported(problem));
            }
            let input = probe.full_rank_input(&inputs, &atoms, &mut stream).ok_or_else(|| {
                EvalError::Unsupported(format!("exponents that output {name} reads are not jointly uniform"))
            })?;
            check.exponentials = check.exponentials.max(atoms.len());
            check.input = Some(input);
        }
    }
    Ok(check)
}

/// Exponents by site.
type Kept = BTreeMap<Site, Arc<Array<u64>>>;

struct Probe<'a> {
    small: &'a MuGraph,
    facts: &'a Table<LaxFacts>,
    base: &'a TestBase,
}

impl Probe<'_> {
    fn defined_sample(&self, stream: &mut Stream) -> Result<(Vec<Residues>, Kept), EvalError> {
        let needs = vec![(true, true); self.small.inputs().count()];
        for _ in 0..super::ATTEMPTS {
            let inputs = sample(self.small, self.facts, &needs, self.base, stream)?;
            match self.exponents(&inputs) {
                Err(EvalError::Undefined(_)) => {}
                result => return result.map(|kept| (inputs, kept)),
            }
        }
        Err(EvalError::Unsupported("no inputs were found for which the program is defined".into()))
    }

    fn exponents(&self, inputs: &[Residues]) -> Result<Kept, EvalError> {
        let mut domain = self.base.domain(self.facts, MaxMode::Lattice);
        domain.exponents = Exponents::Kept(BTreeMap::new());
        evaluate(&mut domain, self.small, inputs)?;
        match domain.exponents {
            Exponents::Kept(kept) => Ok(kept),
            _ => Ok(BTreeMap::new()),
        }
    }

    /// The exponentials that an element depends on: those whose replacement changes it.
    fn atoms(
        &self,
        inputs: &[Residues],
        kept: &Kept,
        (output, element): (crate::TensorId, usize),
    ) -> Result<Vec<(Site, usize)>, EvalError> {
        let value = |replaced| -> Result<Option<u64>, EvalError> {
            let mut domain = self.base.domain(self.facts, MaxMode::Lattice);
            domain.replaced = replaced;
            let values = evaluate(&mut domain, self.small, inputs)?;
            let p = values[output.index()].as_ref().and_then(|value| value.p.clone());
            Ok(p.and_then(|p| p.data.get(element).copied()))
        };
        let usual = value(None)?;
        let mut atoms = Vec::new();
        for (site, exponents) in kept {
            for at in 0..exponents.data.len() {
                match value(Some((*site, at, 5))) {
                    Ok(changed) if changed == usual => {}
                    Ok(_) | Err(EvalError::Undefined(_)) => atoms.push((*site, at)),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(atoms)
    }

    /// The name of an input that all exponents are affine in, with full rank.
    fn full_rank_input(
        &self,
        inputs: &[Residues],
        atoms: &[(Site, usize)],
        stream: &mut Stream,
    ) -> Option<String> {
        let q = self.base.q();
        let names = self.small.inputs().enumerate().filter(|(_, (_, _, kind))| *kind == InputKind::Real);
        let exponents_of = |inputs: &[Residues]| -> Option<Vec<u64>> {
            let kept = self.exponents(inputs).ok()?;
            atoms.iter().map(|(site, at)| kept.get(site).map(|array| array.data[*at])).collect()
        };
        let usual = exponents_of(inputs)?;
        for (at, (_, name, _)) in names {
            let Some(own) = inputs[at].q.clone() else { continue };
            let moved = |by: &dyn Fn(usize, u64) -> u64| -> Option<Vec<u64>> {
                let mut inputs = inputs.to_vec();
                let data = own.data.iter().enumerate().map(|(i, &x)| by(i, x)).collect();
                inputs[at].q = Some(Arc::new(Array { shape: own.shape.clone(), data }));
                let after = exponents_of(&inputs)?;
                Some(after.iter().zip(&usual).map(|(&a, &b)| q.sub(a, b)).collect())
            };
            let direction: Vec<u64> = own.data.iter().map(|_| stream.below(q.prime)).collect();
            let (Some(once), Some(twice)) = (
                moved(&|i, x| q.add(x, direction[i])),
                moved(&|i, x| q.add(x, q.add(direction[i], direction[i]))),
            ) else {
                continue;
            };
            if !once.iter().zip(&twice).all(|(&once, &twice)| q.add(once, once) == twice) {
                continue;
            }
            let columns: Option<Vec<Vec<u64>>> = (0..own.data.len())
                .map(|unit| moved(&|i, x| if i == unit { q.add(x, 1) } else { x }))
                .collect();
            if columns.is_some_and(|columns| rank(q, columns) == atoms.len()) {
                return Some(name.to_owned());
            }
        }
        None
    }
}

/// The rank of a matrix given by its rows.
fn rank(modulus: Modulus, mut rows: Vec<Vec<u64>>) -> usize {
    let width = rows.first().map_or(0, Vec::len);
    let mut rank = 0;
    for column in 0..width {
        let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let Some(inverse) = modulus.inverse(rows[rank][column]) else { continue };
        let (above, below) = rows.split_at_mut(rank + 1);
        let pivot = &above[rank];
        for row in below.iter_mut().filter(|row| row[column] != 0) {
            let factor = modulus.mul(row[column], inverse);
            for (x, &y) in row[column..].iter_mut().zip(&pivot[column..]) {
                *x = modulus.sub(*x, modulus.mul(factor, y));
            }
        }
        rank += 1;
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_linear_algebra() {
        let modulus = Modulus::new(Primes::FULL.q);
        assert_eq!(rank(modulus, vec![vec![1, 2, 3], vec![2, 4, 6], vec![0, 1, 1]]), 2);
        assert_eq!(rank(modulus, vec![vec![0, 1], vec![1, 0]]), 2);
        assert_eq!(rank(modulus, vec![]), 0);
    }
}
