//! From a program to proved µGraphs: search, stable forms, proofs.

use crate::graph::{MuGraph, Node};
use crate::search::{Found, Outcome, Progress, SearchOptions, SearchReport, resume};
use crate::stabilise::{Unstable, check_maxima, stabilise, unstable};
use crate::verify::{Certificate, VerifyOptions, verify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How to superoptimize.
#[derive(Clone, Copy, Debug)]
pub struct SuperoptimizeOptions {
    /// How to search.
    pub search: SearchOptions,
    /// How to prove.
    pub verify: VerifyOptions,
    /// States after which the search is given up, and nothing is found.
    pub states: u64,
    /// µGraphs that are to be proved, the cheapest ones.
    pub proofs: usize,
    /// Of how many numbers of blocks what was found is proved.
    pub schedules: usize,
    /// True if exponentials have to be relative to maxima: a program whose maxima were taken out is not to overflow.
    /// Otherwise a µGraph without a stable form is kept as it is, and overflows where the program does.
    pub must_be_stable: bool,
}

impl Default for SuperoptimizeOptions {
    fn default() -> Self {
        let (search, verify) = (SearchOptions::default(), VerifyOptions::default());
        SuperoptimizeOptions {
            search,
            verify,
            states: u64::MAX,
            proofs: 2,
            schedules: 1,
            must_be_stable: false,
        }
    }
}

/// A µGraph that computes the program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proved {
    /// The proof; the µGraph is its candidate.
    pub certificate: Certificate,
    /// Exponentials that are relative to a running maximum.
    pub maxima: usize,
    /// Why its exponentials may overflow where the program's result is finite; `None` if they cannot.
    #[serde(default)]
    pub unstable: Option<String>,
    /// Its cost, without maxima.
    pub cost_us: f64,
}

/// What superoptimizing a program came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Superoptimized {
    /// The cheapest first.
    pub proved: Vec<Proved>,
    /// Why cheaper candidates are not among them.
    pub refused: Vec<String>,
    /// What the search did.
    pub report: SearchReport,
}

/// The cost of a µGraph, in microseconds, by what becomes of it; `None` if nothing does. It is told the modelled time.
pub type Rank<'a> = dyn Fn(&MuGraph, f64) -> Option<f64> + 'a;

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperoptimizeError {
    /// The search does not cover the program.
    #[error("the program is outside what is searched: {0}")]
    Outside(String),
    /// The caller said so.
    #[error("interrupted")]
    Interrupted,
}

/// States between two looks at whether to go on.
const STATES: u64 = 200_000;

impl Proved {
    /// The µGraph.
    ///
    /// # Errors
    /// If the certificate was damaged.
    pub fn graph(&self) -> Result<MuGraph, crate::ParseError> {
        crate::parse(&self.certificate.candidate)
    }

    /// Proves anew that the µGraph computes a program, and, if it says so or has to, that its exponentials are relative to maxima:
    /// for what somebody else may have written.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, program: &MuGraph, must_be_stable: bool) -> Result<(), String> {
        if self.certificate.program != crate::print(program) {
            return Err("the proof is of another program".to_owned());
        }
        self.certificate.check().map_err(|error| error.to_string())?;
        if self.unstable.is_some() && !must_be_stable {
            return Ok(());
        }
        let graph = self.graph().map_err(|error| error.to_string())?;
        check_maxima(&graph).map_err(|refusal| refusal.to_string())?;
        match unstable(&graph) {
            Some((kernel, _)) => Err(format!("an exponential of {kernel} is not relative to a maximum")),
            None => Ok(()),
        }
    }
}

/// Finds the cheapest µGraphs of a program, by `rank`, and proves them. `goes_on` is asked now and then.
///
/// # Errors
/// If the search does not cover the program, or `goes_on` says no.
pub fn superoptimize(
    program: &MuGraph,
    options: &SuperoptimizeOptions,
    rank: &Rank<'_>,
    goes_on: &dyn Fn() -> bool,
) -> Result<Superoptimized, SuperoptimizeError> {
    let (found, report) = search(program, options, goes_on)?;
    let mut result = Superoptimized { report, ..Superoptimized::default() };
    for (cost_us, graph) in ranked(found, options.schedules, rank) {
        if result.proved.len() >= options.proofs {
            break;
        }
        if !goes_on() {
            return Err(SuperoptimizeError::Interrupted);
        }
        let (certificate, maxima, unstable) = match prove(program, &graph, options) {
            Ok(proof) => proof,
            Err(reason) => {
                result.refused.push(reason.to_string());
                continue;
            }
        };
        let proved = Proved { certificate, maxima, unstable, cost_us };
        // A stable form has operators that the candidate has not.
        let becomes_kernels = proved.graph().is_ok_and(|stable| rank(&stable, cost_us).is_some());
        match becomes_kernels {
            true => result.proved.push(proved),
            false => result.refused.push("its stable form does not become kernels".to_owned()),
        }
    }
    Ok(result)
}

/// Of what was found the cheapest numbers of blocks and iterations, at most `schedules` of different numbers of blocks; the
/// cheapest first.
fn ranked(found: Vec<Found>, schedules: usize, rank: &Rank<'_>) -> Vec<(f64, MuGraph)> {
    let best = |found: Found| {
        let all = std::iter::once((found.cost_us, found.graph)).chain(found.alternatives);
        let costs = all.filter_map(|(modelled_us, graph)| Some((rank(&graph, modelled_us)?, graph)));
        let mut costs: Vec<(f64, MuGraph)> = costs.collect();
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut kept: Vec<(f64, MuGraph)> = Vec::new();
        for (cost_us, graph) in costs {
            if kept.len() < schedules && kept.iter().all(|(_, other)| grids(other) != grids(&graph)) {
                kept.push((cost_us, graph));
            }
        }
        kept
    };
    let mut ranked: Vec<(f64, MuGraph)> = found.into_iter().flat_map(best).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    if schedules > 1 {
        same_blocks_last(&mut ranked);
        kernels_in_turns(&mut ranked);
    }
    ranked
}

/// Moves all but the cheapest of the same numbers of blocks behind the others, which differ more from each other in truth. The
/// last of several kernels has little to do.
fn same_blocks_last(ranked: &mut Vec<(f64, MuGraph)>) {
    let mut seen: Vec<Vec<Vec<usize>>> = Vec::new();
    let mut is_again = |graph: &MuGraph| {
        let all = grids(graph);
        let first = all.len().saturating_sub(1).max(1);
        let own: Vec<Vec<usize>> = all.into_iter().take(first).map(<[usize]>::to_vec).collect();
        let is_known = seen.contains(&own);
        seen.push(own);
        is_known
    };
    let (again, first): (Vec<_>, Vec<_>) = ranked.drain(..).partition(|(_, graph)| is_again(graph));
    ranked.extend(first.into_iter().chain(again));
}

/// Alternates between the numbers of kernels, that of the first one first: modelled times are least comparable between these.
fn kernels_in_turns(ranked: &mut [(f64, MuGraph)]) {
    let Some(first) = ranked.first().map(|(_, graph)| grids(graph).len()) else { return };
    let mut ranks = BTreeMap::<usize, usize>::new();
    ranked.sort_by_cached_key(|(_, graph)| {
        let kernels = grids(graph).len();
        let rank = ranks.entry(kernels).or_default();
        *rank += 1;
        (*rank, kernels != first)
    });
}

/// The blocks of each kernel.
fn grids(graph: &MuGraph) -> Vec<&[usize]> {
    let blocks = graph.nodes().filter_map(|(_, node)| match node {
        Node::Block(block) => Some(block.grid.as_slice()),
        Node::Input { .. } | Node::Op { .. } => None,
    });
    blocks.collect()
}

fn search(
    program: &MuGraph,
    options: &SuperoptimizeOptions,
    goes_on: &dyn Fn() -> bool,
) -> Result<(Vec<Found>, SearchReport), SuperoptimizeError> {
    let (mut progress, mut left) = (Progress::default(), options.states);
    while goes_on() {
        let states = left.min(STATES);
        let outcome = resume(program, &options.search, &mut progress, states);
        match outcome.map_err(SuperoptimizeError::Outside)? {
            Outcome::Finished(found, report) => return Ok((found, report)),
            Outcome::Paused if left <= states => {
                let stopped = format!("{} states were not enough", options.states);
                return Ok((Vec::new(), SearchReport { stopped, ..SearchReport::default() }));
            }
            Outcome::Paused => left -= states,
        }
    }
    Err(SuperoptimizeError::Interrupted)
}

/// A proof, if possible of the stable form, the number of maxima in it, and why it is not stable.
fn prove(
    program: &MuGraph,
    candidate: &MuGraph,
    options: &SuperoptimizeOptions,
) -> Result<(Certificate, usize, Option<String>), Unstable> {
    match stabilise(program, candidate, &options.verify) {
        Ok(stable) => Ok((stable.certificate, stable.groups.len(), None)),
        Err(reason @ (Unstable::Refused(_) | Unstable::NotInvariant(_))) if !options.must_be_stable => {
            Ok((verify(program, candidate, &options.verify)?, 0, Some(reason.to_string())))
        }
        Err(reason) => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::{Proved, SuperoptimizeOptions, kernels_in_turns, same_blocks_last, superoptimize};
    use crate::{MuGraph, VerifyOptions, parse, print, verify};

    /// Stable forms have maxima, which candidates have not: a kernel is wanted for what is proved.
    #[test]
    fn a_stable_form_without_kernels_is_refused() {
        let softmax = "mugraph \"p\" {\n t0 = input \"x\" [8, 64]\n t1 = exp t0\n t2 = sum(1) t1\n \
                       t3 = div t1, t2\n output \"o\" t3\n}\n";
        let program = parse(softmax).unwrap_or_else(|error| panic!("{error}"));
        let options = SuperoptimizeOptions { must_be_stable: true, ..SuperoptimizeOptions::default() };
        let found = |rank: &dyn Fn(&MuGraph, f64) -> Option<f64>| {
            superoptimize(&program, &options, rank, &|| true).unwrap_or_else(|error| panic!("{error}"))
        };
        let any = found(&|_, cost| Some(cost));
        assert!(any.proved.iter().any(|proved| proved.certificate.candidate.contains("largest")));
        let without = found(&|graph, cost| (!print(graph).contains("largest")).then_some(cost));
        assert!(without.proved.is_empty());
        assert!(without.refused.iter().any(|reason| reason.contains("does not become kernels")));
    }

    #[test]
    fn what_is_checked_is_proved_anew() {
        let text = |body: &str| format!("mugraph \"p\" {{\n t0 = input \"x\" [8, 64]\n {body}\n}}\n");
        let parsed = |body: &str| parse(&text(body)).unwrap_or_else(|error| panic!("{error}"));
        let softmax = parsed("t1 = exp t0\n t2 = sum(1) t1\n t3 = div t1, t2\n output \"o\" t3");
        let options = SuperoptimizeOptions { must_be_stable: true, ..SuperoptimizeOptions::default() };
        let found = superoptimize(&softmax, &options, &|_, cost| Some(cost), &|| true);
        let found = found.unwrap_or_else(|error| panic!("{error}")).proved;
        assert!(!found.is_empty());
        for proved in &found {
            assert_eq!(proved.check(&softmax, true), Ok(()));
            assert_eq!(proved.check(&softmax, false), Ok(()));
            let is_refused = |proved: &Proved, what: &str| {
                let reason = proved.check(&softmax, true).err().unwrap_or_default();
                assert!(reason.contains(what), "{what}: {reason}");
            };
            let mut wrong = proved.clone();
            wrong.certificate.candidate = wrong.certificate.candidate.replacen(" div ", " mul ", 1);
            is_refused(&wrong, "differs");
            let other = parsed("t1 = exp t0\n output \"o\" t1");
            let reason = proved.check(&other, true).err().unwrap_or_default();
            assert!(reason.contains("another program"), "{reason}");
            let verified = verify(&softmax, &softmax, &VerifyOptions::default());
            let certificate = verified.unwrap_or_else(|error| panic!("{error}"));
            let unstable = Proved { certificate, ..proved.clone() };
            is_refused(&unstable, "relative to a maximum");
            assert!(unstable.check(&softmax, false).is_err(), "it states that it is stable");
            let stated = Proved { unstable: Some("it overflows".to_owned()), ..unstable };
            assert_eq!(stated.check(&softmax, false), Ok(()));
            is_refused(&stated, "relative to a maximum");
        }
    }

    #[test]
    fn numbers_of_kernels_and_of_blocks_take_turns() {
        let one = "t1 = block [4] loop 1 {\n s0 = load t0 [0] -\n s1 = square s0\n store s1 [0]\n }";
        let two = "t1 = block [4] loop 1 {\n s0 = load t0 [0] -\n s1 = square s0\n store s1 [0]\n }\n \
                   t2 = block [4] loop 1 {\n s0 = load t1 [0] -\n s1 = square s0\n store s1 [0]\n }";
        let graph = |body: &str, last: &str| {
            let text =
                format!("mugraph \"g\" {{\n t0 = input \"x\" [64]\n {body}\n output \"o\" {last}\n}}\n");
            parse(&text).unwrap_or_else(|error| panic!("{error}"))
        };
        let costs = |kernels: [usize; 4]| {
            let of = |count: usize| if count == 1 { graph(one, "t1") } else { graph(two, "t2") };
            let mut ranked: Vec<_> = (0..4).map(|at| (at as f64, of(kernels[at]))).collect();
            kernels_in_turns(&mut ranked);
            ranked.into_iter().map(|(cost, _)| cost).collect::<Vec<f64>>()
        };
        assert_eq!(costs([2, 2, 2, 1]), [0.0, 3.0, 1.0, 2.0]);
        assert_eq!(costs([2, 1, 2, 2]), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(costs([1, 1, 1, 1]), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(costs([1, 1, 2, 2]), [0.0, 2.0, 1.0, 3.0]);
        let mut ranked = vec![
            (0.0, graph(one, "t1")),
            (1.0, graph(one, "t1")),
            (2.0, graph(&one.replace("[4]", "[8]"), "t1")),
        ];
        same_blocks_last(&mut ranked);
        assert_eq!(ranked.into_iter().map(|(cost, _)| cost).collect::<Vec<f64>>(), [0.0, 2.0, 1.0]);
    }
}
