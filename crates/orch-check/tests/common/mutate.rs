//! Candidates with something changed, and whether an interpreter of floating-point numbers, which shares no code with the checker,
//! shows that they are wrong.

use super::{PLENTY, is_proved};
use orch_check::{Program, check, parse};
use orch_mugraph::array::Array;
use orch_mugraph::eval::{Domain, EvalError, Site, outputs};
use orch_mugraph::floats::Floats;
use orch_mugraph::{MuGraph, Op, Precision, UnaryFn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A program and a right candidate.
pub struct Pair {
    /// The name of its file.
    pub name: String,
    /// What of its values is special.
    pub values: &'static str,
    /// The program, as the checker reads it.
    pub ours: Program,
    /// The program.
    pub program: MuGraph,
    /// The text of the candidate.
    pub candidate: String,
}

/// What is special of the values of each file of `tests/small`.
const VALUES: [(&str, &str); 11] = [
    ("attention_split", "split exponential"),
    ("attention_stable", "exponential"),
    ("causal", "computed mask"),
    ("gated_gelu", "tanh"),
    ("gated_relu", "case"),
    ("gated_silu", "sigmoid"),
    ("lora", "linear"),
    ("masked", "mask"),
    ("ntrans", "roots"),
    ("rmsnorm", "root"),
    ("rope", "rotation"),
];

/// The pairs of `tests/small`, each of which is proved.
pub fn pairs() -> Vec<Pair> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let pair = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let (program, candidate) = text.split_at(text.rfind("mugraph").unwrap());
        let both = [parse(program).unwrap(), parse(candidate).unwrap()].concat();
        let verdict = check(&both[0], &both[1], 1, PLENTY);
        assert!(is_proved(&verdict), "{}: {verdict:?}", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let (_, values) = VALUES.iter().find(|(known, _)| *known == name).unwrap();
        let program = orch_mugraph::parse(program).unwrap();
        Pair { name, values, ours: both[0].clone(), program, candidate: candidate.to_owned() }
    };
    paths.iter().map(pair).collect()
}

/// The number that an environment variable holds, or another.
pub fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// What random numbers are drawn by: each change of the checker or the prover changes it. `MUTANTS_SEED` sets another.
pub fn seed() -> u64 {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "../orch-mugraph/src/verify", "../orch-mugraph/src/stabilise"] {
        files.extend(std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in files.iter().flat_map(|file| std::fs::read(file).unwrap()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    setting("MUTANTS_SEED", hash)
}

/// A linear congruential generator.
pub struct Random(pub u64);

impl Random {
    /// A number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }
}

/// Words that may stand for each other.
const WORDS: [(&str, &[&str]); 5] = [
    ("function", &["exp", "square", "sqrt", "silu", "sigmoid", "tanh", "gelu", "relu", "erf", "guard"]),
    ("arithmetic", &["add", "sub", "mul", "div", "max"]),
    ("reduction", &["sum", "largest"]),
    ("accumulation", &["accumulate sum", "accumulate max"]),
    ("maximum", &["running_max", "scale(1)"]),
];

/// All texts with something changed in one line, by the class of the change.
pub fn mutations(text: &str) -> BTreeMap<&'static str, Vec<String>> {
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().skip(1) {
        if line.contains("input") || line.contains(" = mask \"") {
            continue;
        }
        for (class, new) in changes(line).into_iter().filter(|(_, new)| new != line) {
            let changed = [&lines[..at], &[new.as_str()], &lines[at + 1..]].concat().join("\n");
            all.entry(class).or_default().insert(changed);
        }
    }
    all.into_iter().map(|(class, texts)| (class, texts.into_iter().collect())).collect()
}

/// One of the texts with something changed, and its class. Half of the time the class is drawn first, so that classes of few changes are
/// met.
pub fn one_of<'a>(
    all: &'a BTreeMap<&'static str, Vec<String>>,
    random: &mut Random,
) -> Option<(&'a str, &'static str)> {
    let drawn = match random.below(2) == 0 {
        true => all.iter().nth(random.below(all.len())),
        false => None,
    };
    let count = drawn.map_or_else(|| all.values().map(Vec::len).sum(), |(_, texts)| texts.len());
    let of_class = |(class, texts): (&&'static str, &'a Vec<String>)| {
        let class = *class;
        texts.iter().map(move |text| (text.as_str(), class))
    };
    let at = random.below(count);
    match drawn {
        Some(class) => of_class(class).nth(at),
        None => all.iter().flat_map(of_class).nth(at),
    }
}

/// What a line may become, with the classes of the changes.
fn changes(line: &str) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for (class, words) in WORDS {
        let is_there =
            |word: &&&str| line.contains(&format!(" {word} ")) || line.contains(&format!(" {word}("));
        if let Some(known) = words.iter().find(is_there) {
            all.extend(words.iter().map(|word| (class, line.replacen(known, word, 1))));
        }
    }
    for (class, letter) in [("operand", 's'), ("tensor", 't')] {
        for (start, end) in operands(line, letter) {
            let other = |number: usize| format!("{}{letter}{number}{}", &line[..start], &line[end..]);
            all.extend((0..OPERANDS).map(|number| (class, other(number))));
        }
    }
    // A digit in parentheses, of a degree, a loop or a grid.
    for (place, _) in line.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        let before = line[..place].chars().last();
        if !before.is_some_and(|c| matches!(c, 's' | 't') || c.is_ascii_digit()) {
            let other = |digit: usize| format!("{}{digit}{}", &line[..place], &line[place + 1..]);
            all.extend((0..10).map(|digit| ("number", other(digit))));
        }
    }
    if let Some((head, (inside, tail))) =
        line.split_once('[').and_then(|(head, rest)| Some((head, rest.split_once(']')?)))
    {
        let items: Vec<&str> = inside.split(',').map(str::trim).collect();
        for (a, b) in (0..items.len()).flat_map(|a| (0..items.len()).map(move |b| (a, b))) {
            let mut swapped = items.clone();
            swapped.swap(a, b);
            for other in [swapped[a], "-", "0", "1", "2"] {
                swapped[a] = other;
                all.push(("map", format!("{head}[{}]{tail}", swapped.join(", "))));
            }
        }
    }
    if let Some((head, _)) = line.rsplit_once(' ').filter(|_| line.contains("load")) {
        all.extend(["-", "0", "1", "2"].map(|other| ("loop", format!("{head} {other}"))));
    }
    all
}

/// Numbers of operands that are tried.
const OPERANDS: usize = 20;

/// Where the operands after the `=` stand.
fn operands(line: &str, letter: char) -> Vec<(usize, usize)> {
    let first = line.find(" = ").map_or(line.len(), |at| at + 3);
    let places = line[first..].match_indices(letter).map(|(at, _)| first + at);
    let end = |at: usize| at + 1 + line[at + 1..].chars().take_while(char::is_ascii_digit).count();
    let is_operand = |&at: &usize| end(at) > at + 1 && !line[..at].ends_with(char::is_alphanumeric);
    places.filter(is_operand).map(|at| (at, end(at))).collect()
}

fn inputs(graph: &MuGraph, random: &mut Random, scale: f64) -> Vec<Array<f64>> {
    let mut inputs = Vec::new();
    for (id, _, kind) in graph.inputs() {
        let is_mask = kind == orch_mugraph::InputKind::Mask;
        inputs.push(Array::from_fn(graph.shape(id), |_| {
            let x = random.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0;
            if is_mask { f64::from(u8::from(x > -0.5)) } else { scale * x }
        }));
    }
    inputs
}

/// Floating-point numbers, which note where one is so small that a product of two such may be zero.
struct Watched {
    floats: Floats,
    underflows: bool,
}

/// Of what is smaller the product with itself is not exact.
const SMALL: f64 = 1e-150;

impl Domain for Watched {
    type Value = Array<f64>;

    fn apply(&mut self, site: Site, op: &Op, args: &[&Array<f64>]) -> Result<Array<f64>, EvalError> {
        let result = self.floats.apply(site, op, args)?;
        let is_exp = *op == Op::Unary(UnaryFn::Exp);
        let is_small = |(at, x): (usize, &f64)| match is_exp {
            true => x.abs() < SMALL && args[0].data[at].is_finite(),
            false => *x != 0.0 && x.abs() < SMALL,
        };
        self.underflows |= result.data.iter().enumerate().any(is_small);
        Ok(result)
    }

    fn slice(&self, value: &Array<f64>, ranges: &[(usize, usize)]) -> Array<f64> {
        self.floats.slice(value, ranges)
    }

    fn concat(&self, parts: &[Array<f64>], dim: usize) -> Array<f64> {
        self.floats.concat(parts, dim)
    }
}

/// True if floating-point numbers show that the outputs differ by more than rounding, where the program's are finite. What
/// is not finite in the candidate counts where numbers are small: elsewhere it may have overflowed. Where numbers of one underflow nothing
/// counts: `e^(x - e^m)` loses what `x` is where `e^m` is large, and cancels in a quotient whatever `m` is.
pub fn is_wrong(program: &MuGraph, candidate: &MuGraph, random: &mut Random) -> bool {
    [0.3, 1.0, 3.0].into_iter().any(|magnitude| {
        let inputs = inputs(program, random, magnitude);
        let run = |graph| {
            let mut domain = Watched { floats: Floats { precision: Precision::F64 }, underflows: false };
            outputs(&mut domain, graph, &inputs).ok().filter(|_| !domain.underflows)
        };
        let (Some(expected), Some(given)) = (run(program), run(candidate)) else { return false };
        expected.iter().zip(&given).any(|(expected, given)| {
            let finite = expected.data.iter().filter(|x| x.is_finite());
            let scale = finite.fold(1e-3, |scale: f64, x| scale.max(x.abs()));
            let differs = |a: f64, b: f64| {
                b.is_finite() && (a - b).abs() > 1e-6 * scale || magnitude < 1.0 && !b.is_finite()
            };
            expected.data.iter().zip(&given.data).any(|(&a, &b)| a.is_finite() && differs(a, b))
        })
    })
}
