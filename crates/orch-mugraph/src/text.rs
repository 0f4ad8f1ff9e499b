//! The text form: [`print()`] and [`parse`] are inverse.
//!
//! ```text
//! mugraph "attention" {
//!   t0 = input "q" [2, 8, 64]
//!   t1 = input "k" [2, 64, 4096]
//!   t2 = input "v" [2, 4096, 64]
//!   t3, t4 = block [2, 16] loop 4 {
//!     s0 = load t0 [0, -] -
//!     s1 = load t1 [0, 2] 2
//!     s2 = load t2 [0, 1] 1
//!     s3 = matmul s0, s1
//!     s4 = exp s3
//!     s5 = sum(2) s4
//!     s6 = accumulate sum s5
//!     s7 = matmul s4, s2
//!     s8 = accumulate sum s7
//!     store s6 [0, 2]
//!     store s8 [0, 2]
//!   }
//!   t5 = sum(2) t3
//!   t6 = sum(2, 64) t4
//!   t7 = div t6, t5
//!   output "o" t7
//! }
//! ```
//!
//! One statement per line; `#` starts a comment. A load names the dimension that each grid dimension partitions and the
//! one that the loop partitions; `-` is none. `mask` in place of `input` makes an input of zeros and ones. The parser
//! reports the line of the first problem.

mod op;
mod parse;
mod print;

pub use op::op_text;
pub use parse::{ParseError, parse};
pub use print::print;

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: &str = "\
mugraph \"everything\" {
  t0 = input \"x\" [2, 7, 4]
  t1 = mask \"m\" [2, 7, 7]
  t2 = transpose(0, 2, 1) t0
  t3 = matmul t0, t2
  t4 = scale(-1/8) t3
  t5 = mask t4, t1
  t6 = causal(0, 1, 7, 7)
  t7 = below(2, 5, 1, 1, 7)
  t8 = mask t5, t6
  t9 = mask t8, t7
  t10, t11 = block [2, 3] loop 2 {
    s0 = load t9 [0, 1] 2
    s1 = largest(2) s0
    s2 = running_max s1
    s3 = guard s2
    s4 = sub s0, s3
    s5 = exp s4
    s6 = sum(2) s5
    s7 = accumulate rescaled s2 1 s6
    s8 = accumulate max s1
    s9 = accumulate sum s6
    s10 = load t0 [0, 1] -
    s11 = mul s7, s10
    s12 = slice(2, 0, 1) s11
    s13 = repeat(2, 2) s12
    s14 = concat(2) s13, s8, s9
    s15 = rotate(2, 1) s14
    store s7 [0, 1]
    store s15 [0, 1]
  }
  t12 = reshape(14, 1) t10
  t13 = broadcast(14, 3) t12
  t14 = offset(1/100000) t13
  t15 = rms_norm(0) t14
  t16 = sum(0, 7) t15
  t17 = rotate(0, 7) t15
  t18 = sum(0, 7) t17
  t19 = add t16, t18
  output \"y\" t19
  output \"z\" t11
}
";

    #[test]
    fn printing_inverts_parsing() {
        let graph = parse(EVERYTHING).unwrap();
        assert_eq!(print(&graph), EVERYTHING);
        assert_eq!(crate::validate(&graph), []);
        assert_eq!(graph.shape(crate::graph::TensorId(11)), [2, 7, 4]);
    }

    #[test]
    fn problems_are_reported_with_their_line() {
        let cases = [
            (
                "mugraph \"a\" {\n  t0 = input \"x\" [2]\n  t2 = exp t0\n}\n",
                "line 3: defines t2, expected t1",
            ),
            ("mugraph \"a\" {\n  t0 = exp t0\n}\n", "line 2: t0: t0 is not defined before"),
            (
                "mugraph \"a\" {\n  t0 = input \"x\" [2]\n  t1 = sum(1) t0\n}\n",
                "line 3: t1: no dimension 1 in [2]",
            ),
            ("mugraph \"a\" {\n  t0 = frob\n}\n", "line 2: no operator frob"),
            ("mugraph \"a\" {\n", "line 1: ends before }"),
            ("mugraph \"\u{18}\" {\n}\n", "line 1: expected mugraph"),
            ("mugraph \"a\" {\n  t0 = input \"x\" [99999999999999999999]\n}\n", "line 2: expected a shape"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn extents_near_the_largest_number_are_computed_or_refused() {
        let extent = usize::MAX / 2;
        let repeated = |times: usize| {
            parse(&format!(
                "mugraph \"a\" {{\n  t0 = input \"x\" [{extent}]\n  t1 = block [7] loop 1 {{\n    s0 = load t0 [0] -\n    \
                 s1 = repeat(0, {times}) s0\n    store s1 [0]\n  }}\n}}\n"
            ))
        };
        assert_eq!(repeated(2).unwrap().shape(crate::graph::TensorId(1)), [2 * extent]);
        let message = repeated(3).unwrap_err().to_string();
        assert_eq!(message, "line 7: t1, s1: the blocks' tiles make dimension 0 too long");
    }

    #[test]
    fn rules_of_block_graphs_are_checked() {
        let block = |body: &str| {
            let text = format!(
                "mugraph \"a\" {{\n  t0 = input \"x\" [6, 4]\n  t1 = block [2] loop 2 {{\n{body}  }}\n}}\n"
            );
            parse(&text).map(|_| String::new()).unwrap_or_else(|e| e.to_string())
        };
        let cases = [
            ("s0 = load t0 [0] 1\nstore s0 [0]\n", "line 6: t1, s0: stores a value of the loop"),
            ("s0 = load t0 [0] -\nstore s0 [-]\n", "line 6: t1, s0: grid [None] lets several blocks store"),
            (
                "s0 = load t0 [0, 1] -\nstore s0 [0]\n",
                "line 6: t1, s0: grid [Some(0), Some(1)] has not one entry",
            ),
            (
                "s0 = load t0 [0] 1\ns1 = accumulate sum s0\ns2 = add s0, s1\nstore s2 [0]\n",
                "line 8: t1, s2: mixes a value of the loop",
            ),
            ("s0 = load t0 [1] 0\ns1 = accumulate sum s0\nstore s1 [1]\n", ""),
        ];
        for (body, expected) in cases {
            let given = block(body);
            assert!(given.starts_with(expected) && given.is_empty() == expected.is_empty(), "{given}");
        }
    }
}
