//! That the atoms of a program's exponents are independent and uniform: lemma 3 of the crate's documentation.

use crate::alike::Walk;
use crate::eval::Stop;
use crate::program::{Op, Program, Scalar};
use crate::residue::{Round, canonical};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Exponents of tensors.
pub type Values = BTreeMap<usize, Vec<u64>>;

/// The most tensors of atoms that are ordered.
const MAX_SITES: usize = 64;

/// A program whose atoms are to be independent.
pub struct Sites<'a> {
    /// The program at its full extents.
    pub program: &'a Program,
    /// For each dimension of a tensor, whether an output element depends on one index along it only.
    pub is_single: &'a dyn Fn(usize) -> Vec<bool>,
    /// The values of all atoms, and those after a tensor got other exponents.
    pub values: &'a Values,
    /// See `values`.
    pub changed: &'a mut dyn FnMut(usize) -> Result<Values, Stop>,
}

impl Sites<'_> {
    /// How many of some atoms there are, or why they are not shown to be independent.
    pub fn independent(
        &mut self,
        atoms: &BTreeSet<usize>,
        round: &Round,
    ) -> Result<Result<usize, String>, Stop> {
        let (sites, count) = self.distinct(atoms, round);
        let order = match self.order(&sites, &round.shared) {
            Ok(order) => order,
            Err(reason) => return Ok(Err(reason)),
        };
        for (site, source) in order {
            let (own, changed) = (&self.values[&site], (self.changed)(source)?);
            let changed = changed.get(&site).map_or(&[][..], Vec::as_slice);
            if own.len() != changed.len() || own.iter().zip(changed).any(|(a, b)| a == b) {
                return Ok(Err(format!(
                    "an exponent at tensor {site} does not depend on what it is made of alone"
                )));
            }
        }
        Ok(Ok(count))
    }

    /// The tensors whose atoms are not all those of others or their negatives, or largest numbers; and how many atoms there are.
    fn distinct(&self, atoms: &BTreeSet<usize>, round: &Round) -> (Vec<usize>, usize) {
        let mut sites: Vec<usize> =
            atoms.iter().copied().filter(|site| self.values.contains_key(site)).collect();
        sites.sort_by_key(|site| std::cmp::Reverse(self.values[site].len()));
        let mut known: HashSet<u64> = HashSet::new();
        sites.retain(|site| {
            let own: Vec<u64> = self.values[site].iter().map(|&x| canonical(round.q, x)).collect();
            let is_new = own.iter().any(|x| !known.contains(x) && !round.symbols.contains(x));
            known.extend(own);
            is_new
        });
        (sites, known.len())
    }

    /// Sites and their sources, in an order in which no later site is made of a source.
    fn order(&self, sites: &[usize], shared: &HashSet<usize>) -> Result<Vec<(usize, usize)>, String> {
        if sites.len() > MAX_SITES {
            return Err(format!("more than {MAX_SITES} tensors are parts of exponents"));
        }
        let mut left: Vec<(usize, BTreeSet<usize>, Vec<usize>)> = Vec::new();
        for &site in sites {
            let cone = self.cone(site);
            let sources = self.sources(site, &cone, shared)?;
            left.push((site, cone, sources));
        }
        let mut order = Vec::new();
        while !left.is_empty() {
            let own = |at: usize| {
                let is_free = |source: &&usize| {
                    (0..left.len()).all(|other| other == at || !left[other].1.contains(source))
                };
                left[at].2.iter().find(is_free).copied()
            };
            let found = (0..left.len()).find_map(|at| Some((at, own(at)?)));
            let (at, source) = found.ok_or("exponents share all that they are made of")?;
            order.push((left.remove(at).0, source));
        }
        Ok(order)
    }

    /// The tensors that one is made of, itself among them.
    fn cone(&self, site: usize) -> BTreeSet<usize> {
        let (mut cone, mut open) = (BTreeSet::new(), vec![site]);
        while let Some(at) = open.pop() {
            if cone.insert(at) {
                open.extend(&self.program.nodes[at].args);
            }
        }
        cone
    }

    /// Inputs and symbols that have all the indices of a site's elements.
    fn sources(
        &self,
        site: usize,
        cone: &BTreeSet<usize>,
        shared: &HashSet<usize>,
    ) -> Result<Vec<usize>, String> {
        let mut walk = Walk::default();
        walk.program(self.program, |at| cone.contains(&at));
        walk.finish();
        let mut wanted = BTreeSet::new();
        let dims = walk
            .classes(0, site)
            .into_iter()
            .zip((self.is_single)(site))
            .zip(&self.program.nodes[site].shape);
        for ((class, _), _) in dims.filter(|((_, is_single), extent)| !is_single && extent.len > 1) {
            wanted.insert(
                class
                    .ok_or_else(|| format!("the exponents at tensor {site} are not alike along an index"))?,
            );
        }
        let is_source = |at: &usize| match self.program.nodes[*at].op {
            Op::Input { .. } => true,
            Op::Each(Scalar::Exp | Scalar::Sqrt | Scalar::Erf) => !shared.contains(at),
            _ => false,
        };
        let has_all = |at: &usize| {
            let own: BTreeSet<usize> = walk.classes(0, *at).into_iter().flatten().collect();
            wanted.is_subset(&own)
        };
        Ok(cone.iter().copied().filter(|at| is_source(at) && has_all(at)).collect())
    }
}
