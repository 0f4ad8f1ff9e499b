//! From a program to proved µGraphs: search, stable forms, proofs.

use crate::graph::{MuGraph, Node};
use crate::print;
use crate::search::chains::Chains;
use crate::search::limits::{Allowance, Counts};
use crate::search::{Found, Outcome, Progress, Search, SearchOptions, SearchReport};
use crate::stabilise::{Unstable, check_maxima, stabilise, unstable};
use crate::verify::{Certificate, VerifyOptions, verify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How to superoptimize.
#[derive(Clone, Copy, Debug)]
pub struct SuperoptimizeOptions {
    /// How to search.
    pub search: SearchOptions,
    /// How to prove.
    pub verify: VerifyOptions,
    /// States after which a search is given up, and nothing is found.
    pub states: u64,
    /// Time for further searches: of the program with its elementwise chains as one value, and of more operators, until something is
    /// found. The search that it ends is given up. `None` searches once, and results depend on no clock.
    pub budget: Option<Duration>,
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
            budget: None,
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
    /// What was found and does not become kernels, the cheapest of each reason; the cheapest first.
    #[serde(default)]
    pub not_lowered: Vec<NotLowered>,
    /// What the search did.
    pub report: SearchReport,
}

/// µGraphs that were found and do not become kernels for the same reason.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NotLowered {
    /// Why not, for the first of their numbers of blocks.
    pub reason: String,
    /// How many there are.
    pub count: usize,
    /// Modelled microseconds of the cheapest, by the search.
    pub cost_us: f64,
    /// The text of the cheapest. It passed the screening of the search, and is not proved.
    pub candidate: String,
}

/// The cost of a µGraph, in microseconds, by what becomes of it, or why nothing does. It is told the modelled time.
pub type Rank<'a> = dyn Fn(&MuGraph, f64) -> Result<f64, String> + 'a;

/// Whether to go on.
pub type GoesOn<'a> = dyn Fn() -> bool + Sync + 'a;

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

/// Candidates that are looked at for a stable form after as many without one as are to be proved.
const STABLE_TRIES: usize = 16;

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
        if self.certificate.program != print(program) {
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

/// Finds the cheapest µGraphs of a program, by `rank`, and proves them: those whose exponentials may overflow only if none is
/// found that has a stable form. `goes_on` is asked now and then, by several threads.
///
/// # Errors
/// If the search does not cover the program, or `goes_on` says no.
pub fn superoptimize(
    program: &MuGraph,
    options: &SuperoptimizeOptions,
    rank: &Rank<'_>,
    goes_on: &GoesOn<'_>,
) -> Result<Superoptimized, SuperoptimizeError> {
    let start = Instant::now();
    let has_time = || options.budget.is_none_or(|budget| start.elapsed() < budget);
    let (found, report) = search(program, options, goes_on, &has_time)?;
    let Ranked { lowered, not_lowered } = ranked(found, options.schedules, rank);
    let mut result = Superoptimized { report, not_lowered, ..Superoptimized::default() };
    let try_one = |cost_us, graph: &MuGraph, must_be_stable| {
        let options = SuperoptimizeOptions { must_be_stable, ..*options };
        let proof = prove(program, graph, &options).map_err(|reason| reason.to_string())?;
        let Proof { certificate, maxima, unstable } = proof;
        let proved = Proved { certificate, maxima, unstable, cost_us };
        // A stable form has operators that the candidate has not.
        let stable = proved.graph().map_err(|error| error.to_string())?;
        let lowered = rank(&stable, cost_us);
        lowered.map_err(|reason| format!("its stable form does not become kernels: {reason}"))?;
        Ok(proved)
    };
    let mut choice = StableFirst { wanted: options.proofs, ..StableFirst::default() };
    for (cost_us, graph) in lowered {
        if choice.is_done() {
            break;
        }
        if !goes_on() {
            return Err(SuperoptimizeError::Interrupted);
        }
        let must_be_stable = options.must_be_stable || choice.needs_stable();
        choice.add(try_one(cost_us, &graph, must_be_stable));
    }
    (result.proved, result.refused) = choice.finish();
    Ok(result)
}

/// Chooses the first µGraphs that are proved: of those without a stable form none, if another has one.
#[derive(Default)]
struct StableFirst {
    /// How many are wanted.
    wanted: usize,
    stable: Vec<Proved>,
    unstable: Vec<Proved>,
    /// µGraphs that were looked at after as many without a stable form as are wanted.
    tries: usize,
    refused: Vec<String>,
}

impl StableFirst {
    /// True if more µGraphs change nothing, or are not worth it.
    fn is_done(&self) -> bool {
        self.stable.len() >= self.wanted || self.tries >= STABLE_TRIES
    }

    /// True if one without a stable form is of no use any more.
    fn needs_stable(&self) -> bool {
        !self.stable.is_empty() || self.unstable.len() >= self.wanted
    }

    fn add(&mut self, proved: Result<Proved, String>) {
        self.tries += usize::from(self.unstable.len() >= self.wanted);
        match proved {
            Ok(proved) if proved.unstable.is_some() => self.unstable.push(proved),
            Ok(proved) => self.stable.push(proved),
            Err(reason) => self.refused.push(reason),
        }
    }

    /// What is taken, and why others are not.
    fn finish(mut self) -> (Vec<Proved>, Vec<String>) {
        if self.stable.is_empty() {
            return (self.unstable, self.refused);
        }
        let reasons = self.unstable.into_iter().filter_map(|proved| proved.unstable);
        self.refused.extend(reasons.map(|reason| format!("not stable, and others are: {reason}")));
        (self.stable, self.refused)
    }
}

/// What was found, by whether it becomes kernels.
struct Ranked {
    /// µGraphs by their costs.
    lowered: Vec<(f64, MuGraph)>,
    /// The others by reason.
    not_lowered: Vec<NotLowered>,
}

/// Of what was found the cheapest numbers of blocks and iterations, at most `schedules` of different numbers of blocks; the
/// cheapest first.
fn ranked(found: Vec<Found>, schedules: usize, rank: &Rank<'_>) -> Ranked {
    let mut not_lowered: Vec<NotLowered> = Vec::new();
    let mut best = |found: Found| {
        let preferred = (found.cost_us, found.graph.clone());
        let mut failure = None;
        let mut costs: Vec<(f64, MuGraph)> = Vec::new();
        for (modelled_us, graph) in std::iter::once((found.cost_us, found.graph)).chain(found.alternatives) {
            match rank(&graph, modelled_us) {
                Ok(cost_us) => costs.push((cost_us, graph)),
                Err(reason) => failure = failure.or(Some(reason)),
            }
        }
        if let Some(reason) = failure.filter(|_| costs.is_empty()) {
            add_not_lowered(&mut not_lowered, reason, preferred);
        }
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut kept: Vec<(f64, MuGraph)> = Vec::new();
        for (cost_us, graph) in costs {
            if kept.len() < schedules && kept.iter().all(|(_, other)| grids(other) != grids(&graph)) {
                kept.push((cost_us, graph));
            }
        }
        kept
    };
    let mut lowered: Vec<(f64, MuGraph)> = found.into_iter().flat_map(&mut best).collect();
    lowered.sort_by(|a, b| a.0.total_cmp(&b.0));
    if schedules > 1 {
        same_blocks_last(&mut lowered);
        kernels_in_turns(&mut lowered);
    }
    not_lowered.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
    Ranked { lowered, not_lowered }
}

/// Counts a µGraph that does not become kernels.
fn add_not_lowered(all: &mut Vec<NotLowered>, reason: String, (cost_us, graph): (f64, MuGraph)) {
    match all.iter_mut().find(|known| known.reason == reason) {
        None => all.push(NotLowered { reason, count: 1, cost_us, candidate: print(&graph) }),
        Some(known) => {
            known.count += 1;
            if cost_us < known.cost_us {
                (known.cost_us, known.candidate) = (cost_us, print(&graph));
            }
        }
    }
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

/// Operators of a block, one after the other, where nothing was found with fewer.
const DEEPER_OPS: [usize; 3] = [17, 21, 26];

/// How many times as many states each of them may visit for a structure.
const DEEPER_STATES: usize = 2;

/// What was found by all searches, and the report of the last one that found something, with the counts of all. Further searches end
/// at the first `false` of `has_time`.
fn search(
    program: &MuGraph,
    options: &SuperoptimizeOptions,
    goes_on: &GoesOn<'_>,
    has_time: &GoesOn<'_>,
) -> Result<(Vec<Found>, SearchReport), SuperoptimizeError> {
    let Some(budget) = options.budget else {
        let stopped = || format!("{} states were not enough", options.states);
        return Ok(search_once(program, options, goes_on)?.unwrap_or_else(|| {
            (Vec::new(), SearchReport { stopped: stopped(), ..SearchReport::default() })
        }));
    };
    let further = || goes_on() && has_time();
    let mut counts = Counts::default();
    let mut found = Vec::new();
    let mut report = SearchReport { stopped: "no search ended".into(), ..SearchReport::default() };
    let mut take = |outcome: Option<(Vec<Found>, SearchReport)>, found: &mut Vec<Found>| {
        let Some((more, own)) = outcome else { return };
        counts.add(&own.counts);
        if found.is_empty() || !more.is_empty() {
            report = own;
        }
        found.extend(more);
    };
    let chains = Chains::of(program);
    let contracted = |chains: &Chains<'_>, options: &SuperoptimizeOptions| {
        let outcome = search_once(&chains.contracted, options, &further)?;
        Ok(outcome.map(|(found, report)| (expanded(chains, found, options), report)))
    };
    if let Some(chains) = &chains {
        take(contracted(chains, options).or_else(given_up)?, &mut found);
    }
    // Without smaller program, this is the only search that finds small things: it ends when it is done.
    let is_alone = found.is_empty() && chains.is_none();
    let whole = search_once(program, options, if is_alone { goes_on } else { &further });
    take(whole.or_else(given_up)?, &mut found);
    for ops in DEEPER_OPS {
        if !found.is_empty() || !further() {
            break;
        }
        let mut deeper = *options;
        deeper.search.limits.ops = ops;
        deeper.search.limits.states *= DEEPER_STATES;
        let more = match &chains {
            Some(chains) => contracted(chains, &deeper),
            None => search_once(program, &deeper, &further),
        };
        take(more.or_else(given_up)?, &mut found);
    }
    if !goes_on() {
        return Err(SuperoptimizeError::Interrupted);
    }
    report.counts = counts;
    if !has_time() {
        report.stopped += &format!("; further searches ended after {:.0} s", budget.as_secs_f64());
    }
    Ok((found, report))
}

/// A search that time ended has no result.
fn given_up<T>(error: SuperoptimizeError) -> Result<Option<T>, SuperoptimizeError> {
    match error {
        SuperoptimizeError::Interrupted => Ok(None),
        SuperoptimizeError::Outside(_) => Err(error),
    }
}

/// What was found for a smaller program, with its chains.
fn expanded(chains: &Chains<'_>, found: Vec<Found>, options: &SuperoptimizeOptions) -> Vec<Found> {
    let machine = &options.search.machine;
    let further_us = (chains.further_elems() * machine.element_bytes) as f64 / machine.memory_bytes_per_us;
    let whole = |found: Found| {
        let alternatives = found
            .alternatives
            .into_iter()
            .filter_map(|(cost_us, graph)| Some((cost_us + further_us, chains.expand(&graph).ok()?)));
        let alternatives = alternatives.collect();
        Some(Found {
            graph: chains.expand(&found.graph).ok()?,
            cost_us: found.cost_us + further_us,
            alternatives,
        })
    };
    found.into_iter().filter_map(whole).collect()
}

/// One search; `None` if its states are not enough.
fn search_once(
    program: &MuGraph,
    options: &SuperoptimizeOptions,
    goes_on: &GoesOn<'_>,
) -> Result<Option<(Vec<Found>, SearchReport)>, SuperoptimizeError> {
    let search = Search::new(program, &options.search).map_err(SuperoptimizeError::Outside)?;
    let outcome = search.resume(&mut Progress::default(), Allowance { states: options.states, goes_on });
    match outcome.map_err(SuperoptimizeError::Outside)? {
        Outcome::Finished(found, report) => Ok(Some((found, report))),
        Outcome::Paused if !goes_on() => Err(SuperoptimizeError::Interrupted),
        Outcome::Paused => Ok(None),
    }
}

/// A proof, if possible of the stable form.
struct Proof {
    certificate: Certificate,
    /// Exponentials that are relative to maxima.
    maxima: usize,
    /// Why it is not stable.
    unstable: Option<String>,
}

fn prove(program: &MuGraph, candidate: &MuGraph, options: &SuperoptimizeOptions) -> Result<Proof, Unstable> {
    match stabilise(program, candidate, &options.verify) {
        Ok(stable) => {
            Ok(Proof { certificate: stable.certificate, maxima: stable.groups.len(), unstable: None })
        }
        Err(reason @ (Unstable::Refused(_) | Unstable::NotInvariant(_))) if !options.must_be_stable => {
            let certificate = verify(program, candidate, &options.verify)?;
            Ok(Proof { certificate, maxima: 0, unstable: Some(reason.to_string()) })
        }
        Err(reason) => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Proved, Rank, STABLE_TRIES, StableFirst, SuperoptimizeOptions, kernels_in_turns, same_blocks_last,
        search, superoptimize,
    };
    use crate::search::SearchOptions;
    use crate::search::limits::STATES_BETWEEN_LOOKS;
    use crate::{VerifyOptions, parse, print, verify};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Stable forms have maxima, which candidates have not: a kernel is wanted for what is proved.
    #[test]
    fn a_stable_form_without_kernels_is_refused() {
        let softmax = "mugraph \"p\" {\n t0 = input \"x\" [8, 64]\n t1 = exp t0\n t2 = sum(1) t1\n \
                       t3 = div t1, t2\n output \"o\" t3\n}\n";
        let program = parse(softmax).unwrap_or_else(|error| panic!("{error}"));
        let options = SuperoptimizeOptions { must_be_stable: true, ..SuperoptimizeOptions::default() };
        let found = |rank: &Rank<'_>| {
            superoptimize(&program, &options, rank, &|| true).unwrap_or_else(|error| panic!("{error}"))
        };
        let any = found(&|_, cost| Ok(cost));
        assert!(any.proved.iter().any(|proved| proved.certificate.candidate.contains("largest")));
        let without = found(&|graph, cost| match print(graph).contains("largest") {
            true => Err("maxima are not lowered here".to_owned()),
            false => Ok(cost),
        });
        assert!(without.proved.is_empty() && without.not_lowered.is_empty());
        assert!(without.refused.iter().any(|reason| reason.ends_with("maxima are not lowered here")));
        let nothing = found(&|_, _| Err("nothing is lowered here".to_owned()));
        let [all] = &nothing.not_lowered[..] else { panic!("{:?}", nothing.not_lowered) };
        assert!(nothing.proved.is_empty() && all.count >= any.proved.len());
        assert_eq!(all.reason, "nothing is lowered here");
        assert!(parse(&all.candidate).is_ok() && all.cost_us > 0.0);
    }

    /// A clock that counts how often it is looked at, in place of one of seconds.
    #[test]
    fn searches_end_at_the_first_look_after_their_time() {
        // It is found with more operators than the first searches have.
        let text = "mugraph \"p\" {\n t0 = input \"x\" [8, 64]\n t1 = input \"w\" [64, 32]\n t2 = input \"g\" [8, 64]\n \
                    t3 = input \"r\" [8, 32]\n t4 = silu t2\n t5 = mul t0, t4\n t6 = rms_norm(1/1000) t5\n t7 = matmul t6, t1\n \
                    t8 = add t7, t3\n t9 = rms_norm(1/1000) t8\n output \"o\" t9\n}\n";
        let program = parse(text).unwrap_or_else(|error| panic!("{error}"));
        let mut options = SuperoptimizeOptions {
            search: SearchOptions { kernels: 1, ..SearchOptions::default() },
            budget: Some(Duration::from_secs(1)),
            ..SuperoptimizeOptions::default()
        };
        options.search.limits.ops = 5;
        let run = |limit: u64| {
            let looks = AtomicU64::new(0);
            let has_time = || looks.fetch_add(1, Ordering::Relaxed) < limit;
            let (found, report) =
                search(&program, &options, &|| true, &has_time).unwrap_or_else(|error| panic!("{error}"));
            (found.len(), report, looks.into_inner())
        };
        let (found, report, looks) = run(u64::MAX);
        assert!(found > 0 && report.counts.states > 4 * STATES_BETWEEN_LOOKS, "{looks} looks: {report:?}");
        assert!(report.counts.states <= looks * STATES_BETWEEN_LOOKS, "{looks} looks: {report:?}");
        for limit in [0, 1, 10, looks / 2] {
            let (found, report, looks) = run(limit);
            assert_eq!(found, 0, "{limit} looks: {report:?}");
            assert!(report.stopped.ends_with("ended after 1 s"), "{}", report.stopped);
            // Those that say no: two of each of both first searches, one before further ones, and one for the report.
            assert!(looks <= limit + 6, "{looks} looks after {limit}");
        }
    }

    #[test]
    fn what_is_checked_is_proved_anew() {
        let text = |body: &str| format!("mugraph \"p\" {{\n t0 = input \"x\" [8, 64]\n {body}\n}}\n");
        let parsed = |body: &str| parse(&text(body)).unwrap_or_else(|error| panic!("{error}"));
        let softmax = parsed("t1 = exp t0\n t2 = sum(1) t1\n t3 = div t1, t2\n output \"o\" t3");
        let options = SuperoptimizeOptions { must_be_stable: true, ..SuperoptimizeOptions::default() };
        let found = superoptimize(&softmax, &options, &|_, cost| Ok(cost), &|| true);
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
    fn what_may_overflow_is_taken_only_where_nothing_stable_is_found() {
        let text = "mugraph \"p\" {\n t0 = input \"x\" [8]\n t1 = square t0\n output \"o\" t1\n}\n";
        let program = parse(text).unwrap_or_else(|error| panic!("{error}"));
        let certificate = verify(&program, &program, &VerifyOptions::default());
        let certificate = certificate.unwrap_or_else(|error| panic!("{error}"));
        let one = |cost_us: usize, is_stable: bool| Proved {
            certificate: certificate.clone(),
            maxima: 0,
            unstable: (!is_stable).then(|| "it overflows".to_owned()),
            cost_us: cost_us as f64,
        };
        // The costs that are taken, and how many are looked at.
        let taken = |stable: &[bool]| {
            let mut choice = StableFirst { wanted: 2, ..StableFirst::default() };
            let mut looked_at = 0;
            for (cost, &is_stable) in stable.iter().enumerate() {
                if choice.is_done() {
                    break;
                }
                looked_at += 1;
                match choice.needs_stable() && !is_stable {
                    true => choice.add(Err("it must be stable".to_owned())),
                    false => choice.add(Ok(one(cost, is_stable))),
                }
            }
            let (proved, refused) = choice.finish();
            assert_eq!(proved.len() + refused.len(), looked_at);
            (proved.into_iter().map(|proved| proved.cost_us).collect::<Vec<f64>>(), looked_at)
        };
        assert_eq!(taken(&[true, true, true]), (vec![0.0, 1.0], 2));
        assert_eq!(taken(&[false, true, false, true]), (vec![1.0, 3.0], 4));
        assert_eq!(taken(&[false, false, false, true]), (vec![3.0], 4));
        assert_eq!(taken(&[false; 64]), (vec![0.0, 1.0], 2 + STABLE_TRIES));
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
