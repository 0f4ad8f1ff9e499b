//! Attention whose scores are masked by an input: windows of images, padding, masks that are added.

mod common;

use common::{decide, is_proved, text};
use orch_check::Verdict;

/// Windows `w`, heads `h`, rows `n`, and a mask for each window. Scores get a bias of their head, then what is given.
fn program(masked: &str) -> String {
    text(&format!(
        "t0 = input \"q\" [6, 4, 8, 5]; t1 = input \"k\" [6, 4, 5, 8]; t2 = input \"v\" [6, 4, 8, 5]; t3 = input \"b\" [1, 4, 8, 8]; \
         t4 = mask \"m\" [6, 1, 8, 8]; t5 = matmul t0, t1; t6 = scale(3/7) t5; t7 = add t6, t3; {masked}; \
         t14 = exp t13; t15 = sum(3) t14; t16 = div t14, t15; t17 = matmul t16, t2; output \"o\" t17"
    ))
}

/// The program whose masks are operands of `mask`.
fn masked() -> String {
    program(
        "t8 = broadcast(6, 4, 8, 8) t4; t9 = mask t7, t8; t10 = scale(1) t9; t11 = scale(1) t10; t12 = scale(1) t11; t13 = scale(1) t12",
    )
}

/// The program whose mask is added: zero where it keeps elements, minus infinity elsewhere.
fn added() -> String {
    program(
        "t8 = scale(0) t4; t9 = mask t8, t4; t10 = add t7, t9; t11 = scale(1) t10; t12 = scale(1) t11; t13 = scale(1) t12",
    )
}

/// One block per window and head, two iterations over keys, relative to running maxima. Statements of `change` are put in place of one:
/// what follows reads the last one's result.
fn stable(change: (&str, &str)) -> String {
    let head = "t0 = input \"q\" [6, 4, 8, 5]; t1 = input \"k\" [6, 4, 5, 8]; t2 = input \"v\" [6, 4, 8, 5]; t3 = input \"b\" [1, 4, 8, 8]; \
         t4 = mask \"m\" [6, 1, 8, 8]; t5 = slice(3, 1, 7) t4; t6 = slice(3, 0, 1) t4; t7 = concat(3) t5, t6; \
         t8 = broadcast(6, 4, 8, 8) t4; t9 = broadcast(6, 4, 8, 8) t7; t10 = block [6, 4] loop 2 {";
    let tiles = "s0 = load t0 [0, 1] -; s1 = load t1 [0, 1] 3; s2 = load t2 [0, 1] 2; s3 = load t3 [-, 1] 3; \
         s4 = load t8 [0, 1] 3; s5 = load t9 [0, 1] 3; s6 = matmul s0, s1; s7 = scale(3/7) s6; s8 = add s7, s3; s9 = mask s8, s4; \
         s10 = largest(3) s9; s11 = running_max s10; s12 = guard s11; s13 = sub s9, s12; s14 = exp s13; s15 = sum(3) s14; \
         s16 = accumulate rescaled s11 1 s15; s17 = matmul s14, s2; s18 = accumulate rescaled s11 1 s17; s19 = div s18, s16; store s19 [0, 1]";
    assert!(tiles.contains(change.0), "{change:?}");
    let more = change.1.matches(" = ").count() - change.0.matches(" = ").count();
    let (before, after) = if change.0.is_empty() { (tiles, "") } else { tiles.split_once(change.0).unwrap() };
    let renumbered = renumbered(after, change.0, more);
    text(&format!("{head}; {before}{}{renumbered}; }}; output \"o\" t10", change.1))
}

/// Statements in which tiles from the last of some others on have numbers that are larger.
fn renumbered(statements: &str, replaced: &str, more: usize) -> String {
    let defined =
        replaced.rsplit(" = ").nth(1).and_then(|before| before.rsplit('s').next()?.parse::<usize>().ok());
    let first = defined.unwrap_or(usize::MAX);
    let word = |word: &str| match word
        .strip_prefix('s')
        .and_then(|rest| rest.trim_end_matches([',', ';']).parse::<usize>().ok())
    {
        Some(number) if number >= first => {
            word.replacen(&format!("s{number}"), &format!("s{}", number + more), 1)
        }
        _ => word.to_owned(),
    };
    statements.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn masked_windows_are_proved() {
    let [masked, added] = [masked(), added()];
    for (program, candidate) in [(&masked, &added), (&added, &masked), (&masked, &masked), (&added, &added)] {
        let verdict = decide(program, candidate, 1);
        assert!(matches!(&verdict, Verdict::Proved(proof) if proof.premise.is_none()), "{verdict:?}");
    }
    for change in [
        ("", ""),
        // Masked twice; the mask is added, once or twice.
        ("s9 = mask s8, s4", "s9 = mask s8, s4; s10 = mask s9, s4"),
        ("s9 = mask s8, s4", "s9 = scale(0) s8; s10 = mask s9, s4; s11 = add s8, s10"),
        // The largest of all elements, masked or not, will do for all terms.
        ("s10 = largest(3) s9", "s10 = largest(3) s8"),
    ] {
        for program in [&masked, &added] {
            let verdict = decide(program, &stable(change), 2);
            assert!(is_proved(&verdict), "{change:?}: {verdict:?}");
        }
    }
    // It says what it is worth: where masks leave nothing of a tile it was tested only.
    let Verdict::Proved(proof) = decide(&masked, &stable(("", "")), 3) else { panic!("not proved") };
    assert!(proof.premise.is_some(), "{proof:?}");
}

/// What is almost right.
#[test]
fn masks_that_are_not_those_of_the_program_are_refused() {
    for (change, is_refuted) in [
        // The mask of the next key, in all places; in one of them; none.
        (("s9 = mask s8, s4", "s9 = mask s8, s5"), true),
        (("s8 = add s7, s3; s9 = mask s8, s4", "s8 = mask s7, s4; s9 = mask s3, s5; s10 = add s8, s9"), true),
        (("s9 = mask s8, s4", "s9 = scale(1) s8"), true),
        // Terms of the denominator are not masked.
        (("s15 = sum(3) s14", "s15 = sub s8, s12; s16 = exp s15; s17 = sum(3) s16"), true),
        // The numerator is rescaled by the maxima of elements that the mask of the next key leaves.
        (
            (
                "s18 = accumulate rescaled s11 1 s17",
                "s18 = mask s8, s5; s19 = largest(3) s18; s20 = running_max s19; s21 = accumulate rescaled s20 1 s17",
            ),
            true,
        ),
        (("s18 = accumulate rescaled s11 1 s17", "s18 = accumulate rescaled s11 2 s17"), true),
        (("s18 = accumulate rescaled s11 1 s17", "s18 = accumulate sum s17"), true),
        // Without a guard minus infinity is taken from minus infinity, where a tile has nothing left.
        (("s12 = guard s11", "s12 = scale(1) s11"), false),
        // The mask's number is added, not what it stands for.
        (("s9 = mask s8, s4", "s9 = add s8, s4"), true),
    ] {
        for program in [masked(), added()] {
            let verdict = decide(&program, &stable(change), 4);
            assert!(!is_proved(&verdict), "{change:?}: {verdict:?}");
            assert_eq!(matches!(verdict, Verdict::Refuted(_)), is_refuted, "{change:?}: {verdict:?}");
        }
    }
}
