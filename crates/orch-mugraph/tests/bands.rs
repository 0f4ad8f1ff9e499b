//! Masks of primitive graphs that are bands are seen to be, and others are not.

mod common;

use common::regions::graph;
use orch_interp::{EvalOptions, evaluate};
use orch_mugraph::{Band, View, mask_band};

/// The band of tensor `$m` of a graph, seen as `[1, rows, columns]`, after comparing it with the values of the mask.
fn band(text: &str, [rows, columns]: [usize; 2]) -> Option<Band> {
    let graph = graph(&format!("graph \"g\" {{\n{text}\n  output \"m\" $m\n}}"));
    let view = View { tensor: graph.outputs[0].1, strides: vec![0, columns, 1], offset: 0 };
    let band = mask_band(&graph, &view, &[1, rows, columns])?;
    let values = evaluate(&graph, &[], &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}"))[0].to_f64();
    for (at, value) in values.into_iter().enumerate() {
        assert_eq!(band.contains(at / columns, at % columns), value != 0.0, "{band:?} at {at}\n{text}");
    }
    Some(band)
}

/// Row and column numbers of a mask, `[5, 9]`, of a type.
fn indices(dtype: &str) -> String {
    format!("  $i: {dtype}[5, 9] = iota axis=0\n  $j: {dtype}[5, 9] = iota axis=1\n")
}

fn mask(body: &str) -> Option<Band> {
    band(&format!("{}{body}", indices("i64")), [5, 9])
}

const OFFSET: &str = "  const $c: i64[] = [3]\n  $cs: i64[5, 9] = broadcast $c dims=[]\n";

#[test]
fn comparisons_of_indices_are_bands() {
    for (comparison, above, below) in [
        ("le $j, $i", Some(0), None),
        ("lt $j, $i", Some(-1), None),
        ("ge $i, $j", Some(0), None),
        ("gt $i, $j", Some(-1), None),
        ("le $i, $j", None, Some(0)),
        ("gt $j, $i", None, Some(-1)),
    ] {
        assert_eq!(
            mask(&format!("  $m: bool[5, 9] = {comparison}")),
            Some(Band { above, below }),
            "{comparison}"
        );
    }
}

#[test]
fn offsets_windows_and_negations_are_bands() {
    let causal = "  $far: i64[5, 9] = add $i, $cs\n  $a: bool[5, 9] = le $j, $far\n";
    assert_eq!(mask(&format!("{OFFSET}{causal}  $m: bool[5, 9] = and $a, $a")), Some(Band::causal(3)));
    let near = "  $d: i64[5, 9] = sub $i, $j\n  $b: bool[5, 9] = lt $d, $cs\n  $m: bool[5, 9] = and $b, $a";
    let window = Band { above: Some(3), below: Some(2) };
    assert_eq!(mask(&format!("{OFFSET}{causal}{near}")), Some(window));
    let not = "  $b: bool[5, 9] = not $a\n  $m: bool[5, 9] = not $b";
    assert_eq!(mask(&format!("{OFFSET}{causal}{not}")), Some(Band::causal(3)));
    let outside = format!("{OFFSET}{causal}  $m: bool[5, 9] = not $a");
    assert_eq!(mask(&outside), Some(Band { above: None, below: Some(-4) }));
    // 3 i - 3 j >= 2, that is j <= i - 1.
    let scaled = "  const $two: i64[] = [2]\n  $twos: i64[5, 9] = broadcast $two dims=[]\n  \
                  $ii: i64[5, 9] = mul $i, $cs\n  $jj: i64[5, 9] = mul $cs, $j\n  $d: i64[5, 9] = sub $ii, $jj\n  \
                  $m: bool[5, 9] = ge $d, $twos";
    assert_eq!(mask(&format!("{OFFSET}{scaled}")), Some(Band::causal(-1)));
}

#[test]
fn broadcasts_reshapes_and_slices_keep_indices() {
    let rows = "  $i: i64[5] = iota axis=0\n  $j: i32[1, 1, 9] = iota axis=2\n  \
                $row: i64[5, 9] = broadcast $i dims=[0]\n  $flat: i32[9] = reshape $j\n  \
                $wide: i64[9] = cast.i64 $flat\n  $column: i64[5, 9] = broadcast $wide dims=[1]\n  \
                $m: bool[5, 9] = le $column, $row";
    assert_eq!(band(rows, [5, 9]), Some(Band::causal(0)));
    let part = "  $i: i64[9, 9] = iota axis=0\n  $j: i64[9, 9] = iota axis=1\n  $a: bool[9, 9] = le $j, $i\n  \
                $m: bool[5, 9] = slice $a starts=[4, 0] steps=[1, 1]";
    assert_eq!(band(part, [5, 9]), Some(Band::causal(4)));
    let turned = "  $i: i64[9, 5] = iota axis=0\n  $j: i64[9, 5] = iota axis=1\n  $a: bool[9, 5] = le $i, $j\n  \
                  $m: bool[5, 9] = transpose $a perm=[1, 0]";
    assert_eq!(band(turned, [5, 9]), Some(Band::causal(0)));
}

#[test]
fn constants_are_compared_whole() {
    let rows = |values: &str| format!("  const $m: bool[3, 4] = [{values}]");
    let is = |values: &str| band(&rows(values), [3, 4]);
    let (t, f) = ("true", "false");
    let text = |kept: [[&str; 4]; 3]| kept.concat().join(", ");
    assert_eq!(
        is(&text([[t, t, f, f], [t, t, t, f], [f, t, t, t]])),
        Some(Band { above: Some(1), below: Some(1) })
    );
    assert_eq!(is(&text([[t, f, f, f], [t, t, f, f], [t, t, f, f]])), None);
    assert_eq!(is(&text([[f; 4]; 3])), None);
    assert_eq!(is(&text([[t; 4]; 3])), Some(Band { above: None, below: None }));
    let counted = "  const $i: i64[3] = [0, 1, 2]\n  const $j: i64[4] = [0, 1, 2, 3]\n  \
                   $row: i64[3, 4] = broadcast $i dims=[0]\n  $column: i64[3, 4] = broadcast $j dims=[1]\n  \
                   $m: bool[3, 4] = lt $column, $row";
    assert_eq!(band(counted, [3, 4]), Some(Band::causal(-1)));
    assert_eq!(band(&counted.replace("[0, 1, 2]\n", "[0, 1, 3]\n"), [3, 4]), None);
}

#[test]
fn other_masks_are_refused() {
    for body in [
        // Of rows alone, of both in other proportions, of values.
        format!("{OFFSET}  $m: bool[5, 9] = le $i, $cs"),
        "  $twice: i64[5, 9] = add $i, $i\n  $m: bool[5, 9] = le $j, $twice".to_owned(),
        "  $sum: i64[5, 9] = add $i, $j\n  $m: bool[5, 9] = le $sum, $i".to_owned(),
        "  $square: i64[5, 9] = mul $i, $i\n  $m: bool[5, 9] = le $j, $square".to_owned(),
        "  $x: bool[5, 9] = ne $i, $j\n  $a: bool[5, 9] = le $j, $i\n  $m: bool[5, 9] = and $a, $x"
            .to_owned(),
        // What two bands leave out, or keep between them, is none.
        format!(
            "{OFFSET}  $far: i64[5, 9] = add $i, $cs\n  $a: bool[5, 9] = le $j, $far\n  \
                 $b: bool[5, 9] = ge $j, $i\n  $m0: bool[5, 9] = and $a, $b\n  $m: bool[5, 9] = not $m0"
        ),
        "  $a: bool[5, 9] = lt $j, $i\n  $b: bool[5, 9] = lt $i, $j\n  $m: bool[5, 9] = or $a, $b".to_owned(),
    ] {
        assert_eq!(mask(&body), None, "{body}");
    }
    // Reshapes that mix rows and columns.
    let mixed = "  $i: i64[9, 5] = iota axis=0\n  $j: i64[9, 5] = iota axis=1\n  $a: bool[9, 5] = le $j, $i\n  \
                 $m: bool[5, 9] = reshape $a";
    assert_eq!(band(mixed, [5, 9]), None);
}

#[test]
fn integers_that_wrap_around_are_refused() {
    let far = |dtype: &str, value: &str| {
        let body = format!(
            "  const $c: {dtype}[] = [{value}]\n  $cs: {dtype}[5, 9] = broadcast $c dims=[]\n  \
             $far: {dtype}[5, 9] = add $i, $cs\n  $m: bool[5, 9] = le $j, $far"
        );
        band(&format!("{}{body}", indices(dtype)), [5, 9])
    };
    assert_eq!(far("i8", "123"), Some(Band::causal(123)));
    assert_eq!(far("i8", "124"), None);
    assert_eq!(far("i64", "9223372036854775803"), Some(Band::causal(9_223_372_036_854_775_803)));
    assert_eq!(far("i64", "9223372036854775804"), None);
    let below_zero = "  $d: u8[5, 9] = sub $j, $i\n  $m: bool[5, 9] = le $d, $i";
    assert_eq!(band(&format!("{}{below_zero}", indices("u8")), [5, 9]), None);
}
