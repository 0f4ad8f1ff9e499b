//! Two plans side by side: which steps compute the same operators, and what changed most.

use super::data::Report;
use crate::manifest::StepInfo;
use orch_ir::message;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

/// Two plans side by side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// True if all times are measured; modelled ones are compared otherwise.
    pub is_measured: bool,
    /// Time of all steps of the first plan.
    pub first_us: f64,
    /// Time of all steps of the second one.
    pub second_us: f64,
    /// Steps that compute the same operators, those whose times differ most first.
    pub rows: Vec<ComparedSteps>,
}

/// Steps of two plans that compute the same operators.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ComparedSteps {
    /// Steps of the first plan; none if only the second one has such.
    pub first: Vec<usize>,
    /// Steps of the second plan.
    pub second: Vec<usize>,
    /// Time of the first plan's steps.
    pub first_us: f64,
    /// Time of the second plan's steps.
    pub second_us: f64,
}

impl ComparedSteps {
    /// How much longer the second plan takes for them.
    pub fn change_us(&self) -> f64 {
        self.second_us - self.first_us
    }
}

/// Two steps compute the same if they share at least this part of the operators of the one that has fewer.
const SHARED: f64 = 0.5;

/// Compares two plans of a model. Steps belong together that share operators by name, directly or by others.
pub fn compare(first: &Report, second: &Report) -> Comparison {
    let is_measured = first.is_measured() && second.is_measured();
    let us = |report: &Report, step: usize| match is_measured {
        true => report.step_us(step),
        false => report.manifest.steps[step].cost_us,
    };
    let of_first: Vec<BTreeSet<&str>> = origins(first);
    let of_second: Vec<BTreeSet<&str>> = origins(second);
    let mut groups = Groups::new(of_first.len() + of_second.len());
    let mut steps_of: HashMap<&str, Vec<usize>> = HashMap::new();
    for (step, names) in of_second.iter().enumerate() {
        names.iter().for_each(|&name| steps_of.entry(name).or_default().push(step));
    }
    for (step, names) in of_first.iter().enumerate() {
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        for other in names.iter().filter_map(|name| steps_of.get(name)).flatten() {
            *shared.entry(*other).or_default() += 1;
        }
        for (other, count) in shared {
            let fewer = names.len().min(of_second[other].len());
            if count as f64 >= SHARED * fewer as f64 {
                groups.join(step, of_first.len() + other);
            }
        }
    }
    let mut rows: BTreeMap<usize, ComparedSteps> = BTreeMap::new();
    let empty = || ComparedSteps { first: Vec::new(), second: Vec::new(), first_us: 0.0, second_us: 0.0 };
    for step in 0..of_first.len() {
        let row = rows.entry(groups.of(step)).or_insert_with(empty);
        row.first.push(step);
        row.first_us += us(first, step);
    }
    for step in 0..of_second.len() {
        let row = rows.entry(groups.of(of_first.len() + step)).or_insert_with(empty);
        row.second.push(step);
        row.second_us += us(second, step);
    }
    let mut rows: Vec<ComparedSteps> = rows.into_values().collect();
    rows.sort_by(|a, b| b.change_us().abs().total_cmp(&a.change_us().abs()));
    Comparison {
        is_measured,
        first_us: rows.iter().map(|row| row.first_us).sum(),
        second_us: rows.iter().map(|row| row.second_us).sum(),
        rows,
    }
}

/// Operators in more steps than this tell little about which steps belong together: what each layer computes again, such as a mask.
const FEW_STEPS: usize = 2;

/// The operators of each step, without those of many steps where it has others.
fn origins(report: &Report) -> Vec<BTreeSet<&str>> {
    let steps = &report.manifest.steps;
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for origin in steps.iter().flat_map(|step| &step.origins) {
        *counts.entry(origin).or_default() += 1;
    }
    steps.iter().map(|step| origins_of(step, &counts)).collect()
}

fn origins_of<'a>(step: &'a StepInfo, counts: &HashMap<&str, usize>) -> BTreeSet<&'a str> {
    let all = || step.origins.iter().map(String::as_str);
    let own: BTreeSet<&str> = all().filter(|origin| counts[origin] <= FEW_STEPS).collect();
    if own.is_empty() { all().collect() } else { own }
}

/// Disjoint sets.
struct Groups(Vec<usize>);

impl Groups {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    fn of(&self, mut member: usize) -> usize {
        while self.0[member] != member {
            member = self.0[member];
        }
        member
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// Names of steps that a line lists.
const LISTED: usize = 3;

/// The comparison in words, with at most so many rows.
pub fn text(comparison: &Comparison, [first, second]: [&Report; 2], most_rows: usize) -> String {
    let mut text = String::new();
    let write = |text: &mut String| -> std::fmt::Result {
        let basis = if comparison.is_measured { "measured" } else { "modelled" };
        for (report, which) in [(first, "first"), (second, "second")] {
            let manifest = &report.manifest;
            let (target, precision) = (message::name(&manifest.target), manifest.precision.name());
            let steps = manifest.steps.len();
            writeln!(
                text,
                "{which:>6}: {} for {target} in {precision}, {steps} steps",
                message::name(&manifest.model.name)
            )?;
        }
        let Comparison { first_us, second_us, rows, .. } = comparison;
        let ratio = second_us / first_us;
        let ratio = if ratio.is_finite() { format!(" ({ratio:.2} times)") } else { String::new() };
        writeln!(text, "{basis}: {first_us:.1} us, {second_us:.1} us{ratio}")?;
        writeln!(text, "{:>12}  {:>12}  {:>12}  steps", "change", "first", "second")?;
        for row in rows.iter().take(most_rows) {
            let (change, a, b) = (row.change_us(), row.first_us, row.second_us);
            let (from, to) = (names(first, &row.first), names(second, &row.second));
            writeln!(text, "{change:+9.1} us  {a:9.1} us  {b:9.1} us  {from} -> {to}")?;
        }
        if rows.len() > most_rows {
            writeln!(text, "{} other rows change less (--all)", rows.len() - most_rows)?;
        }
        Ok(())
    };
    write(&mut text).expect("a string takes all text");
    text
}

fn names(report: &Report, steps: &[usize]) -> String {
    let name = |&step: &usize| message::shortened(&report.manifest.steps[step].name, 40);
    let shown: Vec<String> = steps.iter().take(LISTED).map(name).collect();
    match steps.len() {
        0 => "nothing".to_owned(),
        count if count > LISTED => format!("{} and {} more", shown.join(" "), count - LISTED),
        _ => shown.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::manifest;
    use crate::tools::report;

    #[test]
    fn steps_of_the_same_operators_stand_beside_each_other() {
        let of = |origins: &[(&[&str], f64)]| {
            let mut plan = manifest(&vec![&[][..]; origins.len()]);
            for (step, (names, us)) in plan.steps.iter_mut().zip(origins) {
                step.origins = names.iter().map(|&name| name.to_owned()).collect();
                step.cost_us = *us;
            }
            report::report(&plan, &report::Measurements::default())
        };
        let first = of(&[(&["a"], 5.0), (&["conv", "relu", "shared"], 10.0), (&["gone"], 1.0)]);
        let second =
            of(&[(&["conv"], 7.0), (&["relu"], 8.0), (&["a"], 5.5), (&["b", "c", "d", "shared"], 2.0)]);
        let found = compare(&first, &second);
        let rows: Vec<_> = found.rows.iter().map(|row| (row.first.clone(), row.second.clone())).collect();
        assert_eq!(rows, [(vec![1], vec![0, 1]), (vec![], vec![3]), (vec![2], vec![]), (vec![0], vec![2])]);
        assert_eq!((found.first_us, found.second_us, found.is_measured), (16.0, 22.5, false));
        let said = text(&found, [&first, &second], 2);
        assert!(
            said.contains("+5.0 us") && said.contains("k1 -> k0 k1") && said.contains("2 other rows"),
            "{said}"
        );
    }
}
