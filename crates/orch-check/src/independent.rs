//! That the atoms of a program's exponents are independent and uniform; see the argument in the crate's documentation.

use crate::alike::{Dim, Walk};
use crate::eval::{Stop, outputs};
use crate::exponents::{Atoms, facts, hashed};
use crate::op::Op;
use crate::program::{Node, Program};
use crate::residue::{EXPONENTS, Residues, Round, canonical};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Values of places.
pub type Values = BTreeMap<usize, Vec<u64>>;

/// A program whose parallel indices have one element, with the atoms of its exponents seen in each way.
pub struct Single<'a> {
    /// The program at its full extents.
    pub whole: &'a Program,
    /// The program with one element along each index that is cut.
    pub program: &'a Program,
    /// By way.
    pub atoms: &'a [Option<Atoms>],
    /// At the place of an input its number.
    pub inputs: &'a [u64],
}

impl Single<'_> {
    /// The values of all atoms, by place.
    pub fn values(&self, round: &mut Round, changed: Option<usize>) -> Result<Values, Stop> {
        let of_way = |(way, atoms): (usize, &'_ Option<Atoms>)| -> Vec<_> {
            atoms.iter().flat_map(|atoms| atoms.at.iter().map(|&at| (at, EXPONENTS[way]))).collect()
        };
        let listed: Vec<_> = self.atoms.iter().enumerate().flat_map(of_way).collect();
        if listed.is_empty() && changed.is_none() && !self.is_hashed() {
            return Ok(Values::new());
        }
        let facts = facts(self.program, &listed);
        let mut domain = Residues::new(round, &facts, self.inputs);
        domain.changed = changed;
        outputs(&mut domain, self.program)?;
        Ok(domain.exponents)
    }

    fn is_hashed(&self) -> bool {
        self.atoms.iter().flatten().any(|atoms| !hashed(self.program, atoms).is_empty())
    }

    /// For each way how many atoms there are, or why they are not shown to be independent. `base` are their values.
    pub fn independent(&self, round: &mut Round, base: &Values) -> Result<Vec<Result<usize, String>>, Stop> {
        let shared = round.shared.clone();
        let mut changes: BTreeMap<usize, Values> = BTreeMap::new();
        let mut results = Vec::new();
        for atoms in self.atoms {
            let Some(atoms) = atoms else {
                results.push(Err("exponents are not seen in this way".into()));
                continue;
            };
            if atoms.at.iter().any(|(_, tile)| tile.is_some()) {
                results.push(Err("the program has exponentials in blocks".into()));
                continue;
            }
            let sites: Vec<usize> = atoms.at.iter().map(|(node, _)| *node).collect();
            let (sites, count) = distinct(self.program, &sites, base, round);
            let order = match self.order(&sites, &shared) {
                Ok(order) => order,
                Err(reason) => {
                    results.push(Err(reason));
                    continue;
                }
            };
            let mut result = Ok(count);
            for (site, source) in order {
                let source = self.program.place(source, None);
                if let std::collections::btree_map::Entry::Vacant(entry) = changes.entry(source) {
                    entry.insert(self.values(round, Some(source))?);
                }
                let place = self.program.place(site, None);
                let all_differ =
                    |a: &Vec<u64>, b: &Vec<u64>| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a != b);
                let changed = changes.get(&source).and_then(|changed| changed.get(&place));
                if !changed.zip(base.get(&place)).is_some_and(|(a, b)| all_differ(a, b)) {
                    result = Err(format!(
                        "an exponent at node {site} does not depend on what it is made of alone"
                    ));
                }
            }
            results.push(result);
        }
        Ok(results)
    }

    /// The nodes that a node is made of, itself among them.
    fn cone(&self, node: usize) -> BTreeSet<usize> {
        let mut cone = BTreeSet::new();
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            if cone.insert(node) {
                open.extend(self.program.reads(node));
            }
        }
        cone
    }

    /// The sites in an order in which each is made of something that no later one is made of, of which each of its elements
    /// has elements of its own.
    fn order(&self, sites: &[usize], shared: &HashSet<usize>) -> Result<Vec<(usize, usize)>, String> {
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
                    left.iter().enumerate().all(|(other, (_, cone, _))| other == at || !cone.contains(source))
                };
                left[at].2.iter().find(is_free).copied()
            };
            let found = (0..left.len()).find_map(|at| Some((at, own(at)?)));
            let (at, source) = found.ok_or("exponents share all that they are made of")?;
            order.push((left.remove(at).0, source));
        }
        Ok(order)
    }

    /// Inputs and symbols that have all the indices of a site's elements.
    fn sources(
        &self,
        site: usize,
        cone: &BTreeSet<usize>,
        shared: &HashSet<usize>,
    ) -> Result<Vec<usize>, String> {
        let mut walk = Walk::default();
        walk.program(self.whole, &mut BTreeMap::new(), |node| cone.contains(&node));
        walk.finish();
        let dims = walk.dims(site).to_vec();
        let mut wanted = BTreeSet::new();
        for (&dim, &extent) in dims.iter().zip(&self.program.shapes[site]) {
            if extent > 1 {
                let class = walk
                    .alike(dim)
                    .ok_or_else(|| format!("the exponents at node {site} are not alike along an index"))?;
                wanted.insert(class);
            }
        }
        let has_all = |node: &usize| {
            let own: BTreeSet<usize> =
                walk.dims(*node).iter().filter_map(|&dim: &Dim| walk.alike(dim)).collect();
            wanted.is_subset(&own)
        };
        let is_source = |node: &usize| match &self.program.nodes[*node] {
            Node::Input(..) => true,
            Node::Op(op, _) => {
                let is_hash = matches!(op, Op::Exp | Op::Sqrt | Op::Log | Op::Erf);
                is_hash && !shared.contains(&self.program.place(*node, None))
            }
            _ => false,
        };
        Ok(cone.iter().copied().filter(|node| is_source(node) && has_all(node)).collect())
    }
}

/// The sites whose values are not all those of others or their negatives, or largest numbers; and how many values there are.
fn distinct(program: &Program, sites: &[usize], values: &Values, round: &Round) -> (Vec<usize>, usize) {
    let of = |site: &usize| values.get(&program.place(*site, None)).map_or(&[][..], Vec::as_slice);
    let mut sites = sites.to_vec();
    sites.sort_by_key(|site| std::cmp::Reverse(of(site).len()));
    let mut known: HashSet<u64> = HashSet::new();
    let mut kept = Vec::new();
    for site in sites {
        let own: Vec<u64> = of(&site).iter().map(|&x| canonical(round.q, x)).collect();
        if !own.iter().all(|x| known.contains(x) || round.symbols.contains(x)) {
            kept.push(site);
        }
        known.extend(own);
    }
    (kept, known.len())
}
