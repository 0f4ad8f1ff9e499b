//! The bound that a proof states is that of the crate's documentation.

mod common;

use common::{decide, text};
use orch_check::Verdict;

/// Degree in numbers, degree in exponentials, height: of a difference of two values.
type Difference = [f64; 3];

/// What the bound is made of.
#[derive(Clone, Copy)]
struct Parts {
    output: Difference,
    /// The common denominator of exponents.
    denominator: f64,
    /// How many arguments of hashes an element of an output depends on, and the difference of two of them.
    arguments: (f64, Difference),
    /// Conditions of program and candidate, and the difference of two of them.
    conditions: ([f64; 2], Difference),
}

/// Nothing but an output.
const PLAIN: Parts = Parts {
    output: [0.0; 3],
    denominator: 1.0,
    arguments: (0.0, [0.0; 3]),
    conditions: ([0.0; 2], [0.0; 3]),
};

/// The difference of two inputs.
const INPUTS: Difference = [1.0, 0.0, 1.0];

impl Parts {
    fn log2_bound(&self, rounds: usize) -> f64 {
        let chance = |[numbers, exponentials, height]: Difference| {
            let residue = 1.25 / f64::powi(2.0, 61);
            (4.0 + numbers + exponentials * self.denominator) * residue + height / 61.0 / f64::powi(2.0, 50)
        };
        // A set of arguments is hashed, too.
        let arguments = 2.0 * self.arguments.0;
        let single = chance(self.output) + arguments * arguments * chance(self.arguments.1);
        let ([own, other], difference) = self.conditions;
        let rounds = rounds as i32;
        (3.0 * (single.powi(rounds) + other * (4.0 * own * chance(difference)).powi(rounds))).log2()
    }
}

#[test]
fn bounds_are_those_of_the_lemma() {
    let log2 = f64::log2;
    // `e^x` has the degree of `x` above and below.
    let exp = Parts { output: [0.0, 2.0, 1.0], arguments: (1.0, INPUTS), ..PLAIN };
    for (statements, expected) in [
        ("t0 = input \"x\" [4, 6]; output \"o\" t0", Parts { output: INPUTS, ..PLAIN }),
        // Products add degrees; constants have heights.
        (
            "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = mul t0, t1; t3 = scale(5/3) t2; output \"o\" t3",
            Parts { output: [2.0, 0.0, log2(5.0) + log2(3.0) + 1.0], ..PLAIN },
        ),
        (
            "t0 = input \"x\" [4, 6]; t1 = offset(5/3) t0; output \"o\" t1",
            Parts { output: [1.0, 0.0, log2(5.0).max(log2(3.0)) + 1.0 + log2(3.0) + 1.0], ..PLAIN },
        ),
        // Sums have a height.
        (
            "t0 = input \"x\" [4, 6]; t1 = input \"y\" [6, 5]; t2 = matmul t0, t1; output \"o\" t2",
            Parts { output: [2.0, 0.0, log2(6.0) + 1.0], ..PLAIN },
        ),
        // `x / y` and a sum of six reciprocals, each with a denominator of its own.
        (
            "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = div t0, t1; output \"o\" t2",
            Parts { output: [2.0, 0.0, 1.0], conditions: ([24.0, 24.0], INPUTS), ..PLAIN },
        ),
        (
            "t0 = input \"x\" [4, 6]; t1 = reciprocal t0; t2 = sum(1) t1; output \"o\" t2",
            Parts { output: [12.0, 0.0, log2(6.0) + 1.0], conditions: ([24.0, 24.0], INPUTS), ..PLAIN },
        ),
        // Exponentials, whose arguments are of one element along what is alike, and of all elsewhere.
        ("t0 = input \"x\" [4, 6]; t1 = exp t0; output \"o\" t1", exp),
        (
            "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = sum(1) t1; output \"o\" t2",
            Parts { output: [0.0, 7.0 + 6.0, log2(6.0) + 1.0], arguments: (6.0, INPUTS), ..exp },
        ),
        (
            "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = scale(2/3) t0; t3 = scale(1/2) t2; t4 = exp t3; t5 = mul t1, t4; output \"o\" t5",
            // As it is: `2/3 x / 2` is an argument of its own, with a height, in both programs.
            Parts { output: [0.0, 4.0, 1.0], arguments: (3.0, [1.0, 0.0, log2(3.0) + 3.0]), ..exp },
        ),
        // Exponentials of sums, taken apart.
        (
            "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = add t0, t1; t3 = exp t2; t4 = scale(-1) t0; t5 = exp t4; t6 = mul t3, t5; output \"o\" t6",
            Parts { output: [0.0, 6.0, 1.0], arguments: (2.0, INPUTS), ..exp },
        ),
        // Functions and maxima are numbers.
        (
            "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = erf t1; output \"o\" t2",
            Parts { output: INPUTS, arguments: (2.0, [2.0, 0.0, 1.0]), ..PLAIN },
        ),
        (
            "t0 = input \"x\" [4, 6]; t1 = square t0; t2 = largest(1) t1; output \"o\" t2",
            Parts { output: [2.0, 0.0, 1.0], arguments: (12.0, [2.0, 0.0, 1.0]), ..PLAIN },
        ),
        // A mask is the weight of a number, which is hashed with it.
        (
            "t0 = input \"x\" [4, 6]; t1 = mask \"m\" [4, 6]; t2 = mask t0, t1; t3 = exp t2; t4 = sum(1) t3; output \"o\" t4",
            Parts { output: [1.0, 13.0, log2(6.0) + 1.0], arguments: (18.0, [3.0, 0.0, 1.0]), ..exp },
        ),
        (
            "t0 = input \"x\" [4, 6]; t1 = mask \"m\" [4, 6]; t2 = mask t0, t1; t3 = sum(1) t2; t4 = exp t3; output \"o\" t4",
            Parts { output: [6.0, 2.0, 1.0], arguments: (16.0, [13.0, 0.0, log2(6.0) + 1.0]), ..exp },
        ),
        // The largest of exponentials is a number, or one of them.
        (
            "t0 = input \"x\" [4, 6]; t1 = exp t0; t2 = largest(1) t1; output \"o\" t2",
            Parts { output: [1.0, 2.0, 1.0], arguments: (18.0, [1.0, 2.0, 1.0]), ..PLAIN },
        ),
        (
            "t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = add t0, t1; t3 = exp t2; output \"o\" t3 \
             | t0 = input \"x\" [4, 6]; t1 = input \"y\" [4, 6]; t2 = scale(1/4) t0; t3 = exp t2; t4 = square t3; t5 = square t4; \
             t6 = scale(1/6) t1; t7 = exp t6; t8 = square t7; t9 = mul t7, t8; t10 = square t9; t11 = mul t5, t10; output \"o\" t11",
            Parts { output: [0.0, 4.0, 1.0], denominator: 12.0, arguments: (2.0, INPUTS), ..PLAIN },
        ),
        // Half of an exponent, squared: `e^(x/2)` is the variable.
        (
            "t0 = input \"x\" [4, 6]; t1 = exp t0; output \"o\" t1 | t0 = input \"x\" [4, 6]; t1 = scale(1/2) t0; t2 = exp t1; t3 = square t2; output \"o\" t3",
            Parts { denominator: 2.0, ..exp },
        ),
    ] {
        let (program, candidate) = statements.split_once('|').unwrap_or((statements, statements));
        let Verdict::Proved(proof) = decide(&text(program), &text(candidate), 1) else {
            panic!("{statements}")
        };
        let wanted = expected.log2_bound(proof.rounds.len()).max(-120.0);
        assert!((proof.log2_bound - wanted).abs() < 1e-9, "{statements}: {} for {wanted}", proof.log2_bound);
        assert!(proof.log2_bound <= -80.0, "{statements}");
        let fewer = proof.rounds.len() - 1;
        assert!(fewer == 0 || expected.log2_bound(fewer) > -80.0, "{statements}: too many rounds");
    }
}
