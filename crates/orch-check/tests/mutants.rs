//! Mutants of right candidates that an interpreter of floating-point numbers shows to be wrong: neither the checker nor the prover
//! accepts one.
//!
//! `MUTANTS` sets how many, `MUTANTS_SEED` by which numbers. `MUTANTS_PER_CELL` asks for as many distinct ones of each kind of change and
//! each kind of values instead, half of them with a second change. Mutants are distinct if their µGraphs are printed differently. All with
//! one change are made, so that it is known how many there are.

mod common;

use common::mutate::{Pair, Random, is_wrong, mutations, one_of, pairs, seed, setting};
use common::{PLENTY, is_proved};
use orch_check::{Verdict, check, parse};
use orch_mugraph::{MuGraph, VerifyOptions, verify};
use std::collections::{BTreeMap, HashSet};

/// How many wrong ones a run tries.
const WANTED: u64 = 2000;

/// Draws in a row that give no mutant with two changes which a cell does not have yet, after which it counts as exhausted: with 95 %
/// fewer than one of 600 draws would give one.
const DRAWS_IN_VAIN: usize = 2000;

/// A wrong candidate.
struct Mutant {
    /// The kind of its first change.
    class: &'static str,
    text: String,
    graph: MuGraph,
    /// True if it has a second change.
    is_second: bool,
}

/// A text as a wrong mutant of a pair; `None` if it is not valid, or right.
fn mutant(
    pair: &Pair,
    (text, class, is_second): (String, &'static str, bool),
    random: &mut Random,
) -> Option<Mutant> {
    let graph = orch_mugraph::parse(&text).ok()?;
    let shapes =
        |graph: &MuGraph| graph.outputs().iter().map(|(_, id)| graph.shape(*id).to_vec()).collect::<Vec<_>>();
    let is_mutant = shapes(&graph) == shapes(&pair.program) && is_wrong(&pair.program, &graph, random);
    is_mutant.then_some(Mutant { class, text, graph, is_second })
}

/// A text with a second change.
fn again(text: &str, random: &mut Random) -> Option<String> {
    orch_mugraph::parse(text).ok()?;
    let all = mutations(text);
    let mut again = (0..100).filter_map(|_| one_of(&all, random));
    Some(again.find(|(text, _)| orch_mugraph::parse(text).is_ok())?.0.to_owned())
}

/// What both say of the mutants of a cell.
#[derive(Default)]
struct Cell {
    /// With one change, as many as there are.
    existing: usize,
    first: u64,
    second: u64,
    refuted: u64,
    cannot_say: u64,
    unread: u64,
}

impl Cell {
    /// Asks both; the test fails if one accepts.
    fn judge(&mut self, pair: &Pair, mutant: &Mutant, seed: u128) {
        let Mutant { class, text, graph, is_second } = mutant;
        match parse(text).map(|read| check(&pair.ours, &read[0], seed, PLENTY)) {
            Ok(verdict) if is_proved(&verdict) => panic!("checker, {class}: {verdict:?}\n{text}"),
            Ok(Verdict::Refuted(_)) => self.refuted += 1,
            Ok(_) => self.cannot_say += 1,
            // Programs of the checker have no empty tensors.
            Err(_) => self.unread += 1,
        }
        let proof = verify(&pair.program, graph, &VerifyOptions::default());
        assert!(proof.is_err(), "prover, {class}:\n{text}");
        *if *is_second { &mut self.second } else { &mut self.first } += 1;
    }
}

#[test]
fn no_wrong_mutant_is_accepted() {
    let pairs = pairs();
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut cells: BTreeMap<(&str, &str), Cell> = BTreeMap::new();
    let per_cell = setting("MUTANTS_PER_CELL", 0);
    let mut tried = 0;
    if per_cell == 0 {
        let wanted = setting("MUTANTS", WANTED);
        let mutations: Vec<_> = pairs.iter().map(|pair| mutations(&pair.candidate)).collect();
        while tried < wanted {
            let at = random.below(pairs.len());
            let pair = &pairs[at];
            let is_second = random.below(2) == 0;
            let Some((text, class)) = one_of(&mutations[at], &mut random) else { continue };
            let text = if is_second { again(text, &mut random) } else { Some(text.to_owned()) };
            let drawn = text.and_then(|text| mutant(pair, (text, class, is_second), &mut random));
            let Some(mutant) = drawn else { continue };
            tried += 1;
            let cell = cells.entry((mutant.class, pair.values)).or_default();
            cell.judge(pair, &mutant, u128::from(seed) << 32 | u128::from(tried));
        }
    }
    for pair in pairs.iter().filter(|_| per_cell > 0) {
        fill(pair, per_cell, &mut cells, (seed, &mut tried), &mut random);
    }
    println!("| change | values | one change | of | two | refuted | cannot say | not read |");
    println!("|---|---|---|---|---|---|---|---|");
    for ((class, values), Cell { existing, first, second, refuted, cannot_say, unread }) in &cells {
        let existing = if per_cell > 0 { existing.to_string() } else { String::new() };
        println!(
            "| {class} | {values} | {first} | {existing} | {second} | {refuted} | {cannot_say} | {unread} |"
        );
    }
    println!("{tried} mutants, none accepted by checker or prover");
    let unread: u64 = cells.values().map(|cell| cell.unread).sum();
    assert!(unread * 50 < tried, "{unread} of {tried} are not read by the checker");
    assert!(cells.len() >= 40, "{}", cells.len());
}

/// In a quotient `e^(x - e^m)` is as good as `e^(x - m)`, but underflows where `m` is a little larger than usual.
#[test]
fn what_underflows_is_not_wrong() {
    let pairs = pairs();
    let pair = pairs.iter().find(|pair| pair.name.contains("attention_split")).expect("a pair of the folder");
    let text = pair.candidate.replace("s3 = guard s2", "s3 = exp s2");
    assert_ne!(text, pair.candidate);
    let graph = orch_mugraph::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let read = parse(&text).unwrap_or_else(|error| panic!("{error}"));
    assert!(is_proved(&check(&pair.ours, &read[0], 1, PLENTY)));
    let mut random = Random(1);
    assert!((0..500).all(|_| !is_wrong(&pair.program, &graph, &mut random)));
}

/// Fills the cells of a pair, as far as there are distinct mutants: half with one change, half with two; where there are not as many with
/// one, with more of two.
fn fill<'a>(
    pair: &'a Pair,
    per_cell: u64,
    cells: &mut BTreeMap<(&'static str, &'a str), Cell>,
    (seed, tried): (u64, &mut u64),
    random: &mut Random,
) {
    let mut known: HashSet<String> = HashSet::new();
    for (class, texts) in mutations(&pair.candidate) {
        let cell = cells.entry((class, pair.values)).or_default();
        let mut judge = |cell: &mut Cell, mutant: &Mutant| {
            *tried += 1;
            cell.judge(pair, mutant, u128::from(seed) << 32 | u128::from(*tried));
        };
        let mut first: Vec<Mutant> = Vec::new();
        for text in &texts {
            let mutant = mutant(pair, (text.clone(), class, false), random);
            first.extend(mutant.filter(|mutant| known.insert(orch_mugraph::print(&mutant.graph))));
        }
        cell.existing = first.len();
        while cell.first < per_cell / 2 && !first.is_empty() {
            judge(cell, &first.swap_remove(random.below(first.len())));
        }
        // Only what parses has a second change.
        let parsed: Vec<&String> = texts.iter().filter(|text| orch_mugraph::parse(text).is_ok()).collect();
        let mut seen: HashSet<String> = HashSet::new();
        let mut in_vain = 0;
        while cell.first + cell.second < per_cell && in_vain < DRAWS_IN_VAIN && !parsed.is_empty() {
            in_vain += 1;
            let text = again(parsed[random.below(parsed.len())], random);
            let text = text.filter(|text| seen.insert(text.clone()));
            let mutant = text.and_then(|text| mutant(pair, (text, class, true), random));
            if let Some(mutant) = mutant.filter(|mutant| known.insert(orch_mugraph::print(&mutant.graph))) {
                in_vain = 0;
                judge(cell, &mutant);
            }
        }
        println!("{}, {class}: {} + {}", pair.values, cell.first, cell.second);
    }
}
