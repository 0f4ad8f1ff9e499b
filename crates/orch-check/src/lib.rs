//! An independent checker of the statement that a µGraph computes a tensor program. It shares no code with the search, nor
//! with the prover that the search asks: own parser, shapes, tiling, evaluator, primes. It takes two texts and a seed, and
//! answers *proved*, *refuted* or *cannot say*; what a certificate states beside the texts is not read.
//!
//! # What is shown
//!
//! **Statement.** For all real inputs, zeros and ones for masks, at which every division and root of the program is
//! defined, those of the candidate are, and the outputs are equal. Rounding is not considered.
//!
//! **Values.** Over the reals a value is a term over inputs. [`text`] writes sigmoid, tanh, gelu and norms by `e^x`, `+`, `*`,
//! `1 / x` and roots, and a kernel as operators on tensors with dimensions for its blocks and iterations. A *symbol* is a variable in place of a term that has no algebraic form: `sqrt t`, `erf t`, the
//! largest of a set of two or more different terms (nested maxima are one set; `relu x` is that of `{x, 0}`), the constant of
//! gelu, a mask, and an atom as an exponent, below. Equal terms have equal symbols. Then every value is a
//! ratio of polynomials with integer coefficients in inputs, symbols and exponentials of atoms. If an equation holds
//! for all values of symbols it holds for the real ones. The converse fails: see what cannot be shown.
//!
//! **Lemma 1 (indices, [`alike`]).** If both programs treat an index alike (element `i` of every tensor along it is one function,
//! the same for every `i`, of the elements `i` of the inputs), equality at one element is equality at all. Operators
//! refuse an index that is summed, moved, or stored elsewhere than it was loaded from, that meets anything but
//! itself in an operation of several operands (concatenations and rescaled sums among them), that is twice in a tensor, or
//! that is at different places of the two programs' outputs. Along what is not refused the first two elements are computed, of the
//! programs as they are; small programs are computed whole. What holds for all masks that are inputs holds for masks that are formulas:
//! large programs are tried with such masks first ([`Program::append`]), since formulas refuse the indices that they compare.
//!
//! **Masks.** A masked value is a number with a weight, a product of masks, which multiplies its exponential; added to anything it stays
//! masked. Masks are any numbers, but the product of a weight with itself is that weight. The largest of masked values is a symbol of
//! the set of numbers with weights, without a weight: *that holds where the masks leave one of them*, a premise that the proof names
//! ([`Proof::premise`]). Elsewhere floating-point numbers of both programs are compared, with masks that are equal in runs.
//!
//! **Lemma 2 (definedness, `round`).** Each factor of a divisor of the candidate is positive by its sign, for all
//! inputs ([`exponents`]), or has in every round the value of a divisor, or of a factor of one, of the program, or that of its negative;
//! likewise for radicands (not negative). A divisor that is a sum of products of masks and exponentials, with positive
//! factors, is zero where all terms are masked. With all exponentials at one it has the value of such a divisor of the
//! program, so that both are zero for the same masks.
//!
//! **Lemma 3 (exponents, [`exponents`]).** An exponent is a rational combination of *atoms*: values that are moved, added and scaled on
//! the way to the exponential, and the number 1. An atom is a symbol as an exponent: a keyed hash of its number, modulo `q`. So
//! exponentials of different atoms are independent variables, `e^(a + b) = e^a e^b` holds, and nothing has to be shown of what atoms are
//! made of. `e^t` is `w^t` for a random element `w` of order `q` modulo `p = 2q + 1`; `w` is that of the number 1. Whether sums, constant
//! factors, or nothing is taken apart is tried in turn; what is equal in one way is equal.
//!
//! **Lemma 4 (one round, `log2_bound`).** Let an output element differ. The numerator `F` of the difference, a nonzero polynomial of degree
//! `D` in numbers, `E` in exponentials and with coefficients of height `H` ([`degree`]), is zero at the random point with
//! chance at most `(D + 4) / p + E / q + h² (d / p) + vanish(H) + ..` (Schwartz and Zippel, first for exponentials, then
//! for numbers), `h` hashed arguments of degree `d`, of which two different ones may agree; `w` is the square of a number, which has not
//! the order `q` for 0, 1 and -1. Numbers below a prime are
//! made of 64 bits: a residue has a chance of at most 1.25 / q. `vanish(H) = H / 61 / 2^50`: an integer below `2^H` has at most `H / 61`
//! divisors among the primes, of which there are 2^50 pairs. What is counted (`h`) is what one element of an output depends on: that
//! element is one index along what is alike. Exponents have a common denominator, whose multiple `E` is; what has none below 2^128 is not
//! proved.
//!
//! **The bound (`log2_bound`).** Rounds have primes, keys and inputs of their own. With `r` rounds programs that differ are proved
//! with a chance of at most `3 (e^r + c (4 c' d / p)^r)`: `e` of lemma 4, in three ways; then the chance that one of the candidate's `c`
//! conditions has the value of another one of the program's `c'` in each round. A round in which a divisor is zero proves nothing.
//! As many rounds are made as 2^-80 takes; what needs more than twelve is not proved.
//!
//! **Premises.** The seed is not known to who makes the candidate; pseudo-random numbers (Threefry-2x64 of 13 rounds) behave
//! as independent uniform ones; there are 2^50 primes `q` between 2^61 and 2^62 with `2 q + 1` prime (1.4 2^50 by the density
//! that is conjectured for them).
//!
//! **Resources.** A text has at most 1 MiB, a program 100,000 tensors of fewer than 2^64 elements. Operations and elements are counted before
//! a round ([`eval`]); sets of which maxima are taken are counted as they are made; a deadline is looked at every 256 elements.
//!
//! # What cannot be shown
//!
//! Rules of roots (`sqrt x²`, `sqrt (a b)`), of maxima and sums (`max(x + c) = max x + c`), `relu(c x)`, squares of masks that are numbers;
//! exponents that both programs take apart differently, part of them as sums; divisors that
//! are negative for all inputs and not the program's; outputs that may be minus infinity; parts of kernels that are uneven and moved.

mod alike;
mod check;
mod degree;
mod eval;
mod exponents;
mod field;
mod program;
mod real;
mod residue;
mod text;
mod verdict;

pub use check::{MAX_TIME, check, random_seed};
pub use program::Program;
pub use text::parse;
pub use verdict::{Proof, Verdict, Witness};
