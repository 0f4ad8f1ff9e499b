//! The equation of an Einsum: `ij,jk->ik`, with `...` for any leading dimensions.

use crate::RuleError;

/// Labels of operands and result. Letters are their ASCII code; dimensions under `...` count up from
/// [`FIRST_ELLIPSIS`], the innermost first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Equation {
    /// One list per operand, which may repeat a label (a diagonal).
    pub operands: Vec<Vec<u8>>,
    /// Distinct labels of the result.
    pub out: Vec<u8>,
}

const FIRST_ELLIPSIS: u8 = 128;

/// Parses an equation for operands of these ranks.
pub(super) fn parse(text: &str, ranks: &[usize]) -> Result<Equation, RuleError> {
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let invalid = |why: String| RuleError::invalid(format!("equation {text:?}: {why}"));
    let (left, right) = match compact.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (compact.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(invalid(format!("{} terms for {} operands", terms.len(), ranks.len())));
    }
    let mut operands = Vec::new();
    let mut widest = 0;
    for (term, &rank) in terms.iter().zip(ranks) {
        let letters = term.replacen("...", "", 1).len();
        let hidden = match (term.contains("..."), rank.checked_sub(letters)) {
            (true, Some(hidden)) if hidden < 128 => hidden,
            (false, Some(0)) => 0,
            _ => return Err(invalid(format!("term {term} for an operand with {rank} dimensions"))),
        };
        widest = widest.max(hidden);
        operands.push(labels(term, hidden).map_err(invalid)?);
    }
    let out = match right {
        Some(right) => labels(right, widest).map_err(invalid)?,
        None => implicit(&operands, widest),
    };
    for (position, label) in out.iter().enumerate() {
        if out[..position].contains(label) || !operands.iter().any(|labels| labels.contains(label)) {
            return Err(invalid("a label of the result occurs twice there, or in no operand".to_owned()));
        }
    }
    Ok(Equation { operands, out })
}

/// The labels of a term whose `...` stands for `hidden` dimensions.
fn labels(term: &str, hidden: usize) -> Result<Vec<u8>, String> {
    let mut labels = Vec::new();
    let mut rest = term;
    let mut seen = false;
    while let Some(letter) = rest.bytes().next() {
        if letter.is_ascii_alphabetic() {
            labels.push(letter);
            rest = &rest[1..];
        } else if let (Some(after), false) = (rest.strip_prefix("..."), seen) {
            labels.extend((0..hidden as u8).rev().map(|position| FIRST_ELLIPSIS + position));
            seen = true;
            rest = after;
        } else {
            return Err(format!("term {term} holds something else than letters and one ..."));
        }
    }
    Ok(labels)
}

/// The result of an equation without `->`: what `...` stands for, then the labels that occur once, sorted.
fn implicit(operands: &[Vec<u8>], widest: usize) -> Vec<u8> {
    let all: Vec<u8> = operands.concat();
    let mut single: Vec<u8> = (all.iter().copied())
        .filter(|&label| label < FIRST_ELLIPSIS && all.iter().filter(|&&other| other == label).count() == 1)
        .collect();
    single.sort_unstable();
    (0..widest as u8).rev().map(|position| FIRST_ELLIPSIS + position).chain(single).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ellipses_align_at_the_end() {
        let equation = parse("...ij, ...jk -> ...ik", &[4, 3]).expect("well formed");
        assert_eq!(equation.operands, [vec![129, 128, b'i', b'j'], vec![128, b'j', b'k']]);
        assert_eq!(equation.out, [129, 128, b'i', b'k']);
    }

    #[test]
    fn the_result_may_be_implied() {
        assert_eq!(parse("ba,c", &[2, 1]).expect("well formed").out, b"abc");
        assert_eq!(parse("ii", &[2]).expect("well formed").out, b"");
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, ranks) in [
            ("i", vec![2]),
            ("i,j", vec![1]),
            ("i->ii", vec![1]),
            ("i->j", vec![1]),
            ("i?", vec![2]),
            ("......", vec![2]),
            ("é", vec![2]),
        ] {
            assert!(parse(text, &ranks).is_err(), "{text}");
        }
    }
}
