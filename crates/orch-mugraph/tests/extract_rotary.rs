//! Rotary position embeddings in primitive graphs are parts of regions, in the forms that exporters write.

mod common;

use common::regions::{checked, ops, programs, softmax};
use orch_mugraph::search::{SearchOptions, search};
use orch_mugraph::{VerifyOptions, print, stabilise};

const CORE: &str = "matmul exp sum(2) div matmul";

/// Primitives that rotate pairs of `x` `[2, rows, 8]` by angles.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// `x * cos + concat(-x2, x1) * sin`, an angle for each element.
    Rotated,
    /// The same with interleaved pairs, `x * cos + flatten(stack(-x2, x1)) * sin`.
    RotatedInterleaved,
    /// Halves `a cos - b sin` and `a sin + b cos`, an angle for each pair.
    Halves,
    /// The same with interleaved pairs.
    Interleaved,
}

impl Form {
    const ALL: [Form; 4] = [Form::Rotated, Form::RotatedInterleaved, Form::Halves, Form::Interleaved];

    fn angles(self) -> usize {
        if matches!(self, Form::Rotated | Form::RotatedInterleaved) { 8 } else { 4 }
    }

    /// Statements that rotate `$x` to `$xr`, by `$cx` and `$sx` `[rows, angles]`.
    fn rotate(self, x: &str, rows: usize) -> String {
        let (size, angles) = (format!("[2, {rows}, 8]"), self.angles());
        let half = format!("[2, {rows}, 4]");
        let (second, step) = if matches!(self, Form::Rotated | Form::Halves) { (4, 1) } else { (1, 2) };
        let mut text = format!(
            "  ${x}c: f32[2, {rows}, {angles}] = broadcast $c{x} dims=[1, 2]
  ${x}s: f32[2, {rows}, {angles}] = broadcast $s{x} dims=[1, 2]
  ${x}1: f32{half} = slice ${x} starts=[0, 0, 0] steps=[1, 1, {step}]
  ${x}2: f32{half} = slice ${x} starts=[0, 0, {second}] steps=[1, 1, {step}]\n"
        );
        text += &match self {
            Form::Rotated | Form::RotatedInterleaved => format!("  ${x}n: f32{half} = neg ${x}2\n"),
            Form::Halves | Form::Interleaved => format!(
                "  ${x}1c: f32{half} = mul ${x}1, ${x}c
  ${x}2s: f32{half} = mul ${x}2, ${x}s
  ${x}1s: f32{half} = mul ${x}1, ${x}s
  ${x}2c: f32{half} = mul ${x}2, ${x}c
  ${x}a: f32{half} = sub ${x}1c, ${x}2s
  ${x}b: f32{half} = add ${x}1s, ${x}2c\n"
            ),
        };
        let joined = |first: &str, second: &str, to: &str| match self {
            Form::Rotated | Form::Halves => {
                format!("  ${to}: f32{size} = concat ${first}, ${second} axis=2\n")
            }
            Form::RotatedInterleaved | Form::Interleaved => format!(
                "  ${first}u: f32[2, {rows}, 4, 1] = reshape ${first}
  ${second}u: f32[2, {rows}, 4, 1] = reshape ${second}
  ${to}p: f32[2, {rows}, 4, 2] = concat ${first}u, ${second}u axis=3
  ${to}: f32{size} = reshape ${to}p\n"
            ),
        };
        match self {
            Form::Rotated | Form::RotatedInterleaved => {
                text += &joined(&format!("{x}n"), &format!("{x}1"), &format!("{x}t"));
                text + &format!(
                    "  ${x}tc: f32{size} = mul ${x}, ${x}c
  ${x}ts: f32{size} = mul ${x}t, ${x}s
  ${x}r: f32{size} = add ${x}tc, ${x}ts\n"
                )
            }
            Form::Halves | Form::Interleaved => {
                text + &joined(&format!("{x}a"), &format!("{x}b"), &format!("{x}r"))
            }
        }
    }

    /// The operators of an embedding.
    fn ops(self) -> &'static str {
        match self {
            Form::Rotated => "mul rotate(2, 4) mul add",
            Form::RotatedInterleaved => "mul rotate(2, 1) mul add",
            Form::Halves => "concat(2) mul rotate(2, 4) concat(2) mul add",
            Form::Interleaved => "repeat(2, 2) mul rotate(2, 1) repeat(2, 2) mul add",
        }
    }
}

/// Attention of two heads, three queries and seven keys, all rotated, with other statements before.
fn attention(form: Form, before: &str) -> String {
    let angles = form.angles();
    format!(
        "graph \"attention\" {{
  input \"q\" $q0: f32[2, 3, 8]
  input \"k\" $k: f32[2, 7, 8]
  input \"v\" $v: f32[2, 7, 4]
  input \"cos_q\" $cq: f32[3, {angles}]
  input \"sin_q\" $sq: f32[3, {angles}]
  input \"cos_k\" $ck: f32[7, {angles}]
  input \"sin_k\" $sk: f32[7, {angles}]
{before}{}{}  $scores: f32[2, 3, 7] = contract $qr, $kr labels=\"bmk,bnk->bmn\"
{}
  $o: f32[2, 3, 4] = contract $p, $v labels=\"bmk,bkn->bmn\"
  output \"o\" $o
}}",
        form.rotate("q", 3),
        form.rotate("k", 7),
        softmax(&[2, 3, 7])
    )
}

#[test]
fn queries_and_keys_are_rotated_within_attention() {
    for form in Form::ALL {
        let text = attention(form, "").replace("$q0", "$q");
        let found = checked(&text);
        let programs: Vec<String> = found.iter().map(|region| ops(&region.program)).collect();
        let (query, key) = (form.ops(), form.ops().replace("(2", "(1"));
        assert_eq!(
            programs,
            [
                CORE.to_owned(),
                format!("{query} {CORE}"),
                format!("{key} {CORE}"),
                format!("{query} {key} {CORE}")
            ],
            "{form:?}"
        );
        // The largest region is searched: angles do not count as inputs.
        let program = &found[3].program;
        assert_eq!(program.inputs().count(), 7);
        let (candidates, report) =
            search(program, &SearchOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.counts.truncated, 0, "{form:?}");
        let best =
            &candidates.first().unwrap_or_else(|| panic!("{form:?}: {report:?}\n{}", print(program))).graph;
        let stable = stabilise(program, best, &VerifyOptions::default());
        assert!(stable.is_ok_and(|stable| stable.certificate.log2_bound < -80.0), "{form:?}");
    }
}

/// A norm before the rotation, and heads that lie within rows, as networks have them.
#[test]
fn what_is_computed_before_is_rotated() {
    let norm = "  const $eps: f32[] = [0.01]
  const $n: f32[] = [0.125]
  $square: f32[2, 3, 8] = mul $q0, $q0
  $all: f32[2, 3] = reduce.sum $square axes=[2]
  $ns: f32[2, 3] = broadcast $n dims=[]
  $mean: f32[2, 3] = mul $all, $ns
  $epses: f32[2, 3] = broadcast $eps dims=[]
  $more: f32[2, 3] = add $mean, $epses
  $root: f32[2, 3] = sqrt $more
  $roots: f32[2, 3, 8] = broadcast $root dims=[0, 1]
  $q: f32[2, 3, 8] = div $q0, $roots\n";
    for form in Form::ALL {
        let programs = programs(&attention(form, norm));
        let rest = format!("{} {CORE}", form.ops());
        let is_found = |program: &String| program.starts_with("rms_norm(") && program.ends_with(&rest);
        assert!(programs.iter().any(is_found), "{form:?}: {programs:#?}");
    }
    let heads = "  $q4: f32[1, 3, 2, 8] = reshape $q0
  $qh: f32[1, 2, 3, 8] = transpose $q4 perm=[0, 2, 1, 3]
  $q: f32[2, 3, 8] = reshape $qh\n";
    for form in Form::ALL {
        let text = attention(form, heads).replace("$q0: f32[2, 3, 8]", "$q0: f32[1, 3, 16]");
        let found = checked(&text);
        let rotated = found.iter().find(|region| ops(&region.program) == format!("{} {CORE}", form.ops()));
        let rotated = rotated.unwrap_or_else(|| panic!("{form:?}: {:#?}", programs(&text)));
        assert_eq!(rotated.inputs[0].strides.len(), 3, "{form:?}");
    }
}

/// Queries and keys of the same positions read the same angles, through the same views.
#[test]
fn angles_may_be_shared() {
    for form in Form::ALL {
        let text =
            attention(form, "").replace("$q0", "$q").replace("[2, 7, ", "[2, 3, ").replace(", 7]", ", 3]");
        let text = text.replace("f32[7, ", "f32[3, ");
        let shared = |text: String, name: &str| {
            let angles = format!("f32[2, 3, {}]", form.angles());
            text.replace(&format!("  $k{name}: {angles} = broadcast ${name}k dims=[1, 2]\n"), "")
                .replace(&format!(", $k{name}\n"), &format!(", $q{name}\n"))
        };
        let text = shared(shared(text, "c"), "s");
        assert!(!text.contains("broadcast $ck"), "{text}");
        let key = form.ops().replace("(2", "(1");
        let both = format!("{} {key} {CORE}", form.ops());
        let found = programs(&text);
        assert!(found.contains(&both), "{form:?}: {found:#?}");
    }
}

/// A projection whose result is rotated, and stored for several readers.
#[test]
fn projections_are_rotated_before_they_are_stored() {
    for form in Form::ALL {
        let angles = form.angles();
        let text = format!(
            "graph \"projection\" {{
  input \"x\" $x: f32[3, 12]
  input \"w\" $w: f32[12, 16]
  input \"cos\" $cq: f32[3, {angles}]
  input \"sin\" $sq: f32[3, {angles}]
  const $eps: f32[] = [0.01]
  const $n: f32[] = [0.0833333358168602]
  $square: f32[3, 12] = mul $x, $x
  $all: f32[3] = reduce.sum $square axes=[1]
  $ns: f32[3] = broadcast $n dims=[]
  $mean: f32[3] = mul $all, $ns
  $epses: f32[3] = broadcast $eps dims=[]
  $more: f32[3] = add $mean, $epses
  $root: f32[3] = sqrt $more
  $roots: f32[3, 12] = broadcast $root dims=[0]
  $y: f32[3, 12] = div $x, $roots
  $all_heads: f32[3, 16] = contract $y, $w labels=\"ac,cb->ab\"
  $heads: f32[3, 2, 8] = reshape $all_heads
  $q: f32[2, 3, 8] = transpose $heads perm=[1, 0, 2]
{}  output \"q\" $qr
}}",
            form.rotate("q", 3)
        );
        let found = programs(&text);
        let is_whole = |program: &String| {
            program.starts_with("rms_norm(") && program.ends_with(&format!("matmul {}", form.ops()))
        };
        assert!(found.iter().any(is_whole), "{form:?}: {found:#?}");
    }
}

/// Attention as exported from models with 16-bit weights: inputs are cast to `dtype`, rotated in it, and cast back;
/// softmax is in f32.
fn in_half_precision(form: Form, half: &str, dtype: &str) -> String {
    let (of_queries, of_keys) = (format!("[3, {}]", form.angles()), format!("[7, {}]", form.angles()));
    let inputs = [
        ("q", "[2, 3, 8]"),
        ("k", "[2, 7, 8]"),
        ("cq", &of_queries),
        ("sq", &of_queries),
        ("ck", &of_keys),
        ("sk", &of_keys),
    ];
    let given = inputs.map(|(name, shape)| format!("  input \"{name}\" ${name}0: {half}{shape}\n"));
    let cast = inputs.map(|(name, shape)| format!("  ${name}: {dtype}{shape} = cast.{dtype} ${name}0\n"));
    format!(
        "graph \"attention\" {{
{}  input \"v\" $v: {half}[2, 7, 4]
{}{}  $q1h: {half}[2, 3, 8] = cast.{half} $qr
  $k1h: {half}[2, 7, 8] = cast.{half} $kr
  $s: {half}[2, 3, 7] = contract $q1h, $k1h labels=\"bmk,bnk->bmn\"
  $scores: f32[2, 3, 7] = cast.f32 $s
{}
  $ph: {half}[2, 3, 7] = cast.{half} $p
  $o: {half}[2, 3, 4] = contract $ph, $v labels=\"bmk,bkn->bmn\"
  output \"o\" $o
}}",
        given.concat(),
        cast.concat(),
        (form.rotate("q", 3) + &form.rotate("k", 7)).replace("f32", dtype),
        softmax(&[2, 3, 7])
    )
}

/// Regions do not round intermediate values.
#[test]
fn casts_are_passed_over() {
    for form in Form::ALL {
        for (half, dtype) in [("f16", "f16"), ("bf16", "bf16"), ("f16", "f32"), ("bf16", "f32")] {
            let text = in_half_precision(form, half, dtype);
            let both = format!("{} {} {CORE}", form.ops(), form.ops().replace("(2", "(1"));
            let found = programs(&text);
            assert!(found.contains(&both), "{form:?} in {half}: {found:#?}\n{text}");
        }
    }
}

/// Attention of one new position, whose key and value are concatenated to those of a cache, followed by a projection.
#[test]
fn cached_keys_are_read_as_they_are() {
    for form in Form::ALL {
        let angles = form.angles();
        let (query, key) = (form.rotate("q", 1), form.rotate("k", 1));
        let text = format!(
            "graph \"decode\" {{
  input \"q\" $q: f32[2, 1, 8]
  input \"k\" $k: f32[2, 1, 8]
  input \"v\" $v: f32[2, 1, 4]
  input \"past_key\" $past_key: f32[2, 47, 8]
  input \"past_value\" $past_value: f32[2, 47, 4]
  input \"cos\" $cq: f32[1, {angles}]
  input \"sin\" $sq: f32[1, {angles}]
  input \"w\" $w: f32[8, 6]
{query}{}  $keys: f32[2, 48, 8] = concat $past_key, $kr axis=1
  $values: f32[2, 48, 4] = concat $past_value, $v axis=1
  $scores: f32[2, 1, 48] = contract $qr, $keys labels=\"bmk,bnk->bmn\"
{}
  $o: f32[1, 2, 4] = contract $p, $values labels=\"bmk,bkn->mbn\"
  $row: f32[1, 8] = reshape $o
  $y: f32[1, 6] = contract $row, $w labels=\"ac,cb->ab\"
  output \"y\" $y
  output \"key\" $keys
  output \"value\" $values
}}",
            key.replace("$ck", "$cq").replace("$sk", "$sq"),
            softmax(&[2, 1, 48])
        );
        assert_eq!(programs(&text), [CORE.to_owned(), format!("{} {CORE}", form.ops())], "{form:?}");
    }
}

/// Where the elements that a partial embedding does not rotate lie: after or before the rotated ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    After,
    Before,
}

/// Statements that rotate 8 of the 12 elements of `$x12`, `[2, rows, 12]`, to `$x12r`, with slices as rewriting leaves
/// them.
fn rotate_part(form: Form, kept: Kept, x: &str, rows: usize) -> String {
    let (turned, rest) = if kept == Kept::After { (0, 8) } else { (4, 0) };
    let mut text = form.rotate(x, rows);
    for start in [0, 1, 4] {
        let moved = format!("slice ${x}12 starts=[0, 0, {}]", start + turned);
        text = text.replace(&format!("slice ${x} starts=[0, 0, {start}]"), &moved);
    }
    let parts = if kept == Kept::After { format!("${x}r, ${x}p") } else { format!("${x}p, ${x}r") };
    let slice = format!("  ${x}: f32[2, {rows}, 8] = slice ${x}12 starts=[0, 0, {turned}]\n");
    let is_read = form.angles() == 8;
    format!(
        "{}{text}  ${x}p: f32[2, {rows}, 4] = slice ${x}12 starts=[0, 0, {rest}]
  ${x}12r: f32[2, {rows}, 12] = concat {parts} axis=2\n",
        if is_read { slice } else { String::new() },
    )
}

/// Attention with partially rotated queries and keys.
fn partial_attention(form: Form, kept: Kept) -> String {
    let angles = form.angles();
    format!(
        "graph \"partial\" {{
  input \"q\" $q12: f32[2, 3, 12]
  input \"k\" $k12: f32[2, 7, 12]
  input \"v\" $v: f32[2, 7, 4]
  input \"cos_q\" $cq: f32[3, {angles}]
  input \"sin_q\" $sq: f32[3, {angles}]
  input \"cos_k\" $ck: f32[7, {angles}]
  input \"sin_k\" $sk: f32[7, {angles}]
{}{}  $scores: f32[2, 3, 7] = contract $q12r, $k12r labels=\"bmk,bnk->bmn\"
{}
  $o: f32[2, 3, 4] = contract $p, $v labels=\"bmk,bkn->bmn\"
  output \"o\" $o
}}",
        rotate_part(form, kept, "q", 3),
        rotate_part(form, kept, "k", 7),
        softmax(&[2, 3, 7])
    )
}

/// The rotated part is concatenated with the rest within attention.
#[test]
fn part_of_a_head_is_rotated() {
    for form in Form::ALL {
        for kept in [Kept::After, Kept::Before] {
            let text = partial_attention(form, kept);
            let query = format!("{} concat(2)", form.ops());
            let key = query.replace("(2", "(1");
            let wanted = [
                CORE.to_owned(),
                format!("{query} {CORE}"),
                format!("{key} {CORE}"),
                format!("{query} {key} {CORE}"),
            ];
            let found = checked(&text);
            let programs: Vec<String> = found.iter().map(|region| ops(&region.program)).collect();
            assert_eq!(programs, wanted, "{form:?} {kept:?}");
            let program = &found[3].program;
            let (candidates, _) =
                search(program, &SearchOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            let best = &candidates.first().unwrap_or_else(|| panic!("{form:?}\n{}", print(program))).graph;
            let stable = stabilise(program, best, &VerifyOptions::default());
            assert!(stable.is_ok_and(|stable| stable.certificate.log2_bound < -80.0), "{form:?} {kept:?}");
        }
    }
}

/// One concatenation may join both rotated halves and the rest.
#[test]
fn three_parts_are_joined() {
    let text = partial_attention(Form::Halves, Kept::After);
    let mut joined = text.clone();
    for (x, rows) in [("q", 3), ("k", 7)] {
        let two = format!("  ${x}r: f32[2, {rows}, 8] = concat ${x}a, ${x}b axis=2\n");
        assert!(joined.contains(&two));
        joined = joined.replace(&two, "").replace(&format!("${x}r, ${x}p"), &format!("${x}a, ${x}b, ${x}p"));
    }
    assert_eq!(programs(&joined), programs(&text));
}

/// Queries, keys and values of one projection: the rotated tensors are slices of it.
#[test]
fn slices_of_one_tensor_are_rotated() {
    for form in Form::ALL {
        let mut text = attention(form, "").replace("[2, 7, ", "[2, 3, ").replace(", 7]", ", 3]");
        text = text.replace("f32[7, ", "f32[3, ");
        let inputs = "  input \"q\" $q0: f32[2, 3, 8]\n  input \"k\" $k: f32[2, 3, 8]\n";
        assert!(text.contains(inputs));
        text = text.replace(inputs, "  input \"qkv\" $all: f32[2, 3, 20]\n");
        let is_read = form.angles() == 8;
        for (x, first) in [("q", 0), ("k", 8)] {
            for start in [0, 1, 4] {
                let of = format!("slice $all starts=[0, 0, {}]", start + first);
                text = text.replace(&format!("slice ${x} starts=[0, 0, {start}]"), &of);
            }
            if is_read {
                let slice = format!("  ${x}: f32[2, 3, 8] = slice $all starts=[0, 0, {first}]\n");
                text = text.replacen(&format!("  ${x}c:"), &format!("{slice}  ${x}c:"), 1);
            }
        }
        let found = programs(&text);
        let both = format!("{} {} {CORE}", form.ops(), form.ops().replace("(2", "(1"));
        assert!(found.contains(&both), "{form:?}: {found:#?}");
    }
}

/// Parts of different tensors, or parts that are not concatenated along the axis of the pairs, are not in a region.
#[test]
fn other_parts_are_left_outside() {
    let text = partial_attention(Form::Rotated, Kept::After);
    for (what, other) in [
        (
            "elements of another half",
            text.replace("slice $q12 starts=[0, 0, 4]", "slice $q12 starts=[0, 0, 3]"),
        ),
        ("half of another tensor", text.replace("slice $q12 starts=[0, 0, 4]", "slice $q starts=[0, 0, 4]")),
        (
            "another part is weighted",
            text.replace("= mul $q, $qc", "= mul $other, $qc")
                .replace("  $qc:", "  $other: f32[2, 3, 8] = slice $q12 starts=[0, 0, 1]\n  $qc:"),
        ),
    ] {
        assert_ne!(text, other, "{what}");
        let programs = programs(&other);
        assert!(
            programs.iter().all(|program| program.matches("rotate").count() < 2),
            "{what}: {programs:#?}"
        );
        assert!(programs.contains(&CORE.to_owned()), "{what}: {programs:#?}");
    }
}

/// Patterns that differ slightly from a rotation are not recognised as one.
#[test]
fn other_joins_are_left_outside() {
    let rotated = attention(Form::Rotated, "").replace("$q0", "$q");
    let halves = attention(Form::Halves, "").replace("$q0", "$q");
    for (what, text) in [
        ("both signs", rotated.replace("concat $qn, $q1", "concat $q1, $q1")),
        ("the other order", rotated.replace("concat $qn, $q1", "concat $q1, $qn")),
        ("the first half negated", rotated.replace("neg $q2", "neg $q1")),
        ("another tensor's half", rotated.replace("slice $q starts=[0, 0, 0]", "slice $qc starts=[0, 0, 0]")),
        ("both parts added", halves.replace("sub $q1c, $q2s", "add $q1c, $q2s")),
        ("both parts subtracted", halves.replace("add $q1s, $q2c", "sub $q1s, $q2c")),
        ("one angle twice", halves.replace("mul $q2, $qc", "mul $q2, $qs")),
        ("quarters", halves.replace("slice $q starts=[0, 0, 4]", "slice $q starts=[0, 0, 3]")),
    ] {
        assert_ne!(text, rotated, "{what}");
        assert_ne!(text, halves, "{what}");
        let programs = programs(&text);
        assert!(
            programs.iter().all(|program| program.matches("rotate").count() < 2),
            "{what}: {programs:#?}"
        );
        assert!(programs.contains(&CORE.to_owned()), "{what}: {programs:#?}");
    }
}

/// A concatenation may have no operand that a primitive computes.
#[test]
fn joined_positions_are_no_rotation() {
    let text = "graph \"positions\" {
  input \"x\" $x: f32[3, 1]
  $i: f32[3, 1] = iota axis=0
  $o: f32[3, 2] = concat $i, $x axis=1
  output \"o\" $o
}";
    assert!(programs(text).is_empty());
}
