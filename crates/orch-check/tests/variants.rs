//! Right variants of right candidates: other numbers of blocks and iterations, and laws of arithmetic applied to some of their statements.
//! Checker and prover accept nearly all; the classes of those that one does not are printed.

mod common;

use common::mutate::{Pair, Random, is_wrong, pairs, seed, setting};
use common::{PLENTY, is_proved};
use orch_check::{check, parse};
use orch_mugraph::{VerifyOptions, verify};
use std::collections::{BTreeMap, HashSet};

/// Variants of a run.
const WANTED: u64 = 1000;

/// The share that is accepted at least.
const LEAST_SHARE: f64 = 0.95;

/// A statement of a block: its line, its number, the operator with its parameters, and the operands' numbers.
struct Statement {
    line: usize,
    number: usize,
    op: String,
    args: Vec<usize>,
}

/// `s3 = mul s1, s2`; `None` of loads, stores and accumulators.
fn statement(line: usize, text: &str) -> Option<Statement> {
    let (name, rest) = text.trim().split_once(" = ")?;
    let number = name.strip_prefix('s')?.parse().ok()?;
    let start = rest.find(" s")?;
    let (op, args) = (rest[..start].to_owned(), &rest[start..]);
    let args: Option<Vec<usize>> =
        args.split(',').map(|arg| arg.trim().strip_prefix('s')?.parse().ok()).collect();
    let is_plain = !["load", "accumulate", "running_max"].iter().any(|word| op.starts_with(word));
    Some(Statement { line, number, op, args: args?.into_iter().collect() }).filter(|_| is_plain)
}

/// A law: what stands in place of a statement `(op, operands)`, given the number of the first new statement. The last one is the result.
type Law = fn(&str, &[usize], usize) -> Option<Vec<String>>;

const LAWS: [(&str, Law); 12] = [
    ("operands exchanged", |op, args, _| {
        ["add", "mul", "max"].contains(&op).then(|| vec![format!("{op} s{}, s{}", args[1], args[0])])
    }),
    ("scaled there and back", |op, args, n| {
        let rest: Vec<String> = args[1..].iter().map(|arg| format!(", s{arg}")).collect();
        Some(vec![
            format!("scale(3) s{}", args[0]),
            format!("scale(1/3) s{n}"),
            format!("{op} s{}{}", n + 1, rest.concat()),
        ])
    }),
    ("difference as sum", |op, args, n| {
        (op == "sub").then(|| vec![format!("scale(-1) s{}", args[1]), format!("add s{}, s{n}", args[0])])
    }),
    ("square as product", |op, args, _| {
        (op == "square").then(|| vec![format!("mul s{}, s{}", args[0], args[0])])
    }),
    ("silu as product", |op, args, n| {
        (op == "silu").then(|| vec![format!("sigmoid s{}", args[0]), format!("mul s{}, s{n}", args[0])])
    }),
    ("fraction extended", |op, args, n| {
        (op == "div").then(|| {
            vec![
                format!("scale(2) s{}", args[0]),
                format!("scale(2) s{}", args[1]),
                format!("div s{n}, s{}", n + 1),
            ]
        })
    }),
    ("added and subtracted", |op, args, n| {
        (op == "mul").then(|| {
            vec![
                format!("mul s{}, s{}", args[0], args[1]),
                format!("add s{n}, s{}", args[0]),
                format!("sub s{}, s{}", n + 1, args[0]),
            ]
        })
    }),
    ("product of halves", |op, args, n| {
        (op == "mul").then(|| {
            vec![
                format!("scale(1/2) s{}", args[0]),
                format!("mul s{n}, s{}", args[1]),
                format!("add s{}, s{}", n + 1, n + 1),
            ]
        })
    }),
    ("matrix product of halves", |op, args, n| {
        (op == "matmul").then(|| {
            vec![
                format!("scale(1/4) s{}", args[0]),
                format!("matmul s{n}, s{}", args[1]),
                format!("scale(4) s{}", n + 1),
            ]
        })
    }),
    ("exponential of a sum", |op, args, n| {
        (op == "exp").then(|| {
            vec![format!("scale(1/2) s{}", args[0]), format!("exp s{n}"), format!("square s{}", n + 1)]
        })
    }),
    ("sum of scaled", |op, args, n| {
        op.starts_with("sum(").then(|| {
            vec![format!("scale(5) s{}", args[0]), format!("{op} s{n}"), format!("scale(1/5) s{}", n + 1)]
        })
    }),
    ("sigmoid from tanh", |op, args, n| {
        (op == "sigmoid").then(|| {
            vec![
                format!("scale(1/2) s{}", args[0]),
                format!("tanh s{n}"),
                format!("offset(1) s{}", n + 1),
                format!("scale(1/2) s{}", n + 2),
            ]
        })
    }),
];

/// The text with a law applied to some statement, and the law's name.
fn rewritten(text: &str, random: &mut Random) -> Option<(String, &'static str)> {
    let lines: Vec<&str> = text.lines().collect();
    let all: Vec<Statement> =
        lines.iter().enumerate().filter_map(|(line, text)| statement(line, text)).collect();
    let one = all.get(random.below(all.len()))?;
    let (name, law) = LAWS[random.below(LAWS.len())];
    let new = law(&one.op, &one.args, one.number)?;
    let more = new.len() - 1;
    let mut out: Vec<String> = lines[..one.line].iter().map(|&line| line.to_owned()).collect();
    out.extend(new.iter().enumerate().map(|(at, op)| format!("  s{} = {op}", one.number + at)));
    // Up to the end of the block later numbers move.
    let mut is_inside = true;
    for line in &lines[one.line + 1..] {
        is_inside &= line.trim() != "}";
        out.push(if is_inside { moved(line, one.number, more) } else { (*line).to_owned() });
    }
    Some((out.join("\n"), name))
}

/// A line whose tiles from `first` on have greater numbers.
fn moved(line: &str, first: usize, more: usize) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('s') {
        let is_word = rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let digits = rest[at + 1..].chars().take_while(char::is_ascii_digit).count();
        let (head, tail) = rest.split_at(at + 1 + digits);
        match rest[at + 1..at + 1 + digits].parse::<usize>() {
            Ok(number) if !is_word && number >= first => {
                out.push_str(&head[..at]);
                out.push_str(&format!("s{}", number + more));
            }
            _ => out.push_str(head),
        }
        rest = tail;
    }
    out + rest
}

/// The text with another number of iterations or blocks.
fn rescheduled(text: &str, random: &mut Random) -> Option<(String, &'static str)> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let blocks: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains("= block [")).collect();
    let at = *blocks.get(random.below(blocks.len()))?;
    let (head, rest) = lines[at].split_once('[')?;
    let (grid, rest) = rest.split_once(']')?;
    let mut grid: Vec<usize> = grid.split(',').map(|extent| extent.trim().parse().unwrap()).collect();
    let loops: usize = rest.strip_prefix(" loop ")?.strip_suffix(" {")?.parse().ok()?;
    let (loops, name) = match random.below(2) {
        0 => (1 + random.below(6), "other iterations"),
        _ => {
            let axis = random.below(grid.len());
            grid[axis] = 1 + random.below(4);
            (loops, "other blocks")
        }
    };
    let extents: Vec<String> = grid.iter().map(usize::to_string).collect();
    lines[at] = format!("{head}[{}] loop {loops} {{", extents.join(", "));
    Some((lines.join("\n"), name))
}

/// Up to three changes, the last of which names the variant; `None` if what was drawn does not apply, or is not right at these numbers of
/// blocks.
fn variant(pair: &Pair, random: &mut Random) -> Option<(String, &'static str)> {
    let (mut text, mut name) = (pair.candidate.clone(), "");
    for _ in 0..1 + random.below(3) {
        (text, name) = match random.below(4) {
            0 => rescheduled(&text, random)?,
            _ => rewritten(&text, random)?,
        };
    }
    let graph = orch_mugraph::parse(&text).ok().filter(|graph| orch_mugraph::validate(graph).is_empty())?;
    let is_same_shape = graph
        .outputs()
        .iter()
        .zip(pair.program.outputs())
        .all(|((_, own), (_, other))| graph.shape(*own) == pair.program.shape(*other));
    (text != pair.candidate && is_same_shape && !is_wrong(&pair.program, &graph, random))
        .then_some((text, name))
}

#[test]
fn right_variants_are_accepted() {
    let pairs = pairs();
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut known = HashSet::new();
    // By class: all, accepted by the checker, by the prover.
    let mut counts: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    let mut tried = 0;
    while tried < setting("VARIANTS", WANTED) {
        let pair = &pairs[random.below(pairs.len())];
        let Some((text, name)) = variant(pair, &mut random) else { continue };
        if !known.insert(text.clone()) {
            continue;
        }
        tried += 1;
        let ours = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let verdict = check(&pair.ours, &ours[0], u128::from(seed) << 32 | u128::from(tried), PLENTY);
        let graph = orch_mugraph::parse(&text).unwrap();
        let proof = verify(&pair.program, &graph, &VerifyOptions::default());
        let count = counts.entry(name).or_default();
        count[0] += 1;
        count[1] += u64::from(is_proved(&verdict));
        count[2] += u64::from(proof.is_ok());
        if !is_proved(&verdict) {
            println!("checker, {name}, {}: {verdict:?}", pair.name);
        }
        if let Err(reason) = proof {
            println!("prover, {name}, {}: {reason}", pair.name);
        }
    }
    println!("| change | variants | checker accepts | prover accepts |\n|---|---|---|---|");
    counts
        .iter()
        .for_each(|(name, [all, checker, prover])| println!("| {name} | {all} | {checker} | {prover} |"));
    let sum = |which: usize| counts.values().map(|count| count[which]).sum::<u64>() as f64;
    assert!(sum(1) >= LEAST_SHARE * sum(0), "the checker accepts {} of {}", sum(1), sum(0));
    assert!(sum(2) >= LEAST_SHARE * sum(0), "the prover accepts {} of {}", sum(2), sum(0));
}
