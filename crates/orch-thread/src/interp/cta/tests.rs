//! Tests of CTAs in the interpreter.

use crate::{BufferData, ExecError, ExecOptions, interpret, parse_thread, validate_thread};
use orch_ir::{DType, Tensor};

const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  cta 64 threads thread: i64 [0..=63], clusters of 2\n  \
                      input x: f32[128]\n  output y: f32[128]\n  shared s: f32[64]\n";

fn run(header: &str, body: &str, buffers: &mut [BufferData]) -> Result<(), ExecError> {
    let text = format!("{header}{{\n{body}}}\n");
    let program = parse_thread(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(validate_thread(&program), Vec::<String>::new());
    let printed = program.to_string();
    assert_eq!(parse_thread(&printed).unwrap().to_string(), printed);
    interpret(&program, buffers, &ExecOptions::default()).map(|_| ())
}

fn floats(values: impl IntoIterator<Item = f64>, dtype: DType) -> BufferData {
    let values: Vec<f64> = values.into_iter().collect();
    BufferData::from_tensor(&Tensor::from_f64(dtype, [values.len()], &values))
}

/// The output of 128 threads in two CTAs for the input `0, 1, 2, ..`.
fn result(body: &str) -> Result<Vec<f64>, ExecError> {
    let mut buffers = [floats((0..128).map(f64::from), DType::F32), BufferData::zeros(DType::F32, 128)];
    run(HEADER, body, &mut buffers).map(|()| buffers[1].to_tensor([128]).unwrap().to_f64())
}

const COPY: &str =
    "  cp_async s[thread], x[((task * 64) + thread)], 1\n  cp_async_commit\n  cp_async_wait 0\n";

#[test]
fn threads_exchange_values_through_shared_memory() {
    let body = format!("{COPY}  barrier\n  y[((task * 64) + thread)] = s[(63 - thread)]\n");
    let expected: Vec<f64> =
        (0..2).flat_map(|task| (0..64).rev().map(move |t| f64::from(64 * task + t))).collect();
    assert_eq!(result(&body).unwrap(), expected);
}

#[test]
fn threads_of_a_warp_exchange_values_behind_its_barrier() {
    let other = "s[(((thread // 32) * 32) + (31 - (thread % 32)))]";
    let store = format!("  y[((task * 64) + thread)] = {other}\n");
    let write = "  s[thread] = x[((task * 64) + thread)]\n";
    let expected: Vec<f64> =
        (0..4).flat_map(|warp| (0..32).rev().map(move |lane| f64::from(32 * warp + lane))).collect();
    assert_eq!(result(&format!("{write}  warp_barrier\n{store}")).unwrap(), expected);
    // Again, behind the reads.
    let again = format!(
        "{write}  warp_barrier\n  let v: f32 = {other}\n  warp_barrier\n{write}  warp_barrier\n{store}"
    );
    assert_eq!(result(&again).unwrap(), expected);
    for (body, problem) in [
        (format!("{write}{store}"), "also accessed by"),
        (format!("{write}  warp_barrier\n  let v: f32 = {other}\n{write}"), "also accessed by"),
        // Threads of the other warp.
        (
            format!("{write}  warp_barrier\n  y[((task * 64) + thread)] = s[(63 - thread)]\n"),
            "also accessed by",
        ),
        (format!("  if (thread < 16) {{\n{write}  warp_barrier\n  }}\n"), "warp"),
    ] {
        let error = result(&body).unwrap_err();
        assert!(error.to_string().contains(problem), "{body}: {error}");
    }
}

/// Four CTAs in two barrier groups, each of which reads what the other CTA of its group has written.
#[test]
fn ctas_of_a_barrier_group_read_each_others_outputs() {
    const HEADER: &str = "program k, 4 tasks task: i64 [0..=3]\n  cta 32 threads thread: i64 [0..=31], clusters of 1, \
                          barrier groups of 2\n  output z: f32[128]\n  updated y: f32[128]\n  updated arrived: i32[2]\n";
    let run = |body: &str, counters: [i32; 2]| {
        let counters = BufferData::from_tensor(&Tensor::from_vec([2], counters.to_vec()));
        let [y, z] = [0, 1].map(|_| BufferData::zeros(DType::F32, 128));
        let mut buffers = [z, y, counters];
        run(HEADER, body, &mut buffers)
            .map(|()| [0, 2].map(|at| buffers[at].to_tensor([buffers[at].elems()]).unwrap().to_f64()))
    };
    let write = "  y[((task * 32) + thread)] = f32(task)\n";
    let meet = "  grid_barrier arrived[(task // 2)]\n";
    let other = "((((task // 2) * 64) + ((1 - (task % 2)) * 32)) + thread)";
    let read = format!("  load_relaxed v: f32 = y[{other}]\n  z[((task * 32) + thread)] = v\n");
    let flipped = f64::from(i32::MIN);
    let expected: Vec<f64> = [1, 0, 3, 2].iter().flat_map(|&task| [f64::from(task); 32]).collect();
    let once = format!("{write}{meet}{read}");
    let again = format!("{write}{meet}  load_relaxed w: f32 = y[{other}]\n");
    assert_eq!(run(&once, [0, 0]).unwrap(), [expected.clone(), vec![flipped; 2]]);
    // A run may start from what the last one has left, and meet again.
    let twice = format!("{write}{meet}{read}{meet}");
    assert_eq!(run(&twice, [i32::MIN, 0]).unwrap(), [expected.clone(), vec![flipped, 0.0]]);
    // What others have read is written again behind another barrier.
    assert_eq!(run(&format!("{again}{meet}{write}{meet}{read}"), [0, 0]).unwrap()[0], expected);
    for (body, counters, problem) in [
        (format!("{write}{read}"), [0, 0], "also accessed by"),
        (format!("{write}  barrier\n{read}"), [0, 0], "also accessed by"),
        (format!("{meet}{read}"), [0, 0], "read before it is written"),
        (format!("{again}{write}"), [0, 0], "also accessed by"),
        (once, [0, 7], "counter of a grid barrier"),
        (format!("  if (thread < 16) {{\n{meet}  }}\n"), [0, 0], "grid barrier"),
        ("  grid_barrier arrived[task]\n".to_owned(), [0, 0], "same for all"),
    ] {
        let error = run(&body, counters).unwrap_err();
        assert!(error.to_string().contains(problem), "{body}: {error}");
    }
}

#[test]
fn ctas_of_a_cluster_load_from_each_other() {
    let body = format!(
        "{COPY}  cluster_barrier\n  load_dsmem v: f32 = s[thread], (1 - task)\n  y[((task * 64) + thread)] = v\n"
    );
    let expected: Vec<f64> = (64..128).chain(0..64).map(f64::from).collect();
    assert_eq!(result(&body).unwrap(), expected);
}

#[test]
fn ctas_of_a_cluster_store_to_each_other() {
    let store = "  y[((task * 64) + thread)] = s[(63 - thread)]\n";
    let put = "  store_dsmem s[thread], (1 - task) = x[((task * 64) + thread)]\n";
    let expected: Vec<f64> = (64..128).rev().chain((0..64).rev()).map(f64::from).collect();
    for before in [
        "  cluster_arrive\n  cluster_wait\n",
        "  cluster_arrive\n  barrier\n  cluster_wait\n",
        "  cluster_barrier\n",
    ] {
        assert_eq!(result(&format!("{before}{put}  cluster_barrier\n{store}")).unwrap(), expected);
    }
    for (body, problem) in [
        // The other CTA may not have started.
        (format!("{put}  cluster_barrier\n{store}"), "may not have started"),
        (format!("  cluster_arrive\n{put}  cluster_wait\n"), "may not have started"),
        // A barrier of the CTA does not order what the other one stores.
        (format!("  cluster_arrive\n  cluster_wait\n{put}  barrier\n{store}"), "also accessed by"),
        (
            format!("  cluster_arrive\n  cluster_wait\n  s[thread] = 0.0\n  barrier\n{put}"),
            "also accessed by",
        ),
        // The hardware counts arrivals of one barrier at a time.
        (
            "  cluster_arrive\n  cluster_barrier\n  cluster_wait\n".to_owned(),
            "between cluster_arrive and cluster_wait",
        ),
        ("  cluster_wait\n".to_owned(), "once, by all threads"),
        ("  cluster_arrive\n  cluster_arrive\n".to_owned(), "once, by all threads"),
        ("  cluster_arrive\n".to_owned(), "ends between cluster_arrive and cluster_wait"),
        (
            "  cluster_barrier\n  store_dsmem s[thread], 2 = 1.0\n".to_owned(),
            "rank that the cluster does not have",
        ),
    ] {
        let error = result(&body).unwrap_err();
        assert!(error.to_string().contains(problem), "{body}: {error}");
    }
}

#[test]
fn lanes_are_shuffled() {
    let body = "  shuffle v: f32 = x[((task * 64) + thread)], 5\n  y[((task * 64) + thread)] = v\n";
    let expected: Vec<f64> = (0..128).map(|at| f64::from(at ^ 5)).collect();
    assert_eq!(result(body).unwrap(), expected);
}

/// `exceeds` is true for a warp with an accumulator above the limit of its row, or with a negative limit.
#[test]
fn accumulators_exceed_limits() {
    let header = format!("{HEADER}  scratch acc: f32[8]\n  scratch limits: f32[2]\n");
    let answers = |sum: &str, [place, low, high]: [&str; 3]| {
        let body = format!(
            "  for i: i64 [0..=7] = 0 to 8 step 1 unroll {{\nacc[i] = 1.0\n}}\n  acc[{place}] = {sum}\n  \
             limits[0] = {low}\n  limits[1] = {high}\n  exceeds is_above: bool = acc[0], 8, limits[0]\n  \
             y[((task * 64) + thread)] = select(is_above, 1.0, 0.0)\n"
        );
        let mut buffers = [floats((0..128).map(f64::from), DType::F32), BufferData::zeros(DType::F32, 128)];
        run(&header, &body, &mut buffers).unwrap_or_else(|error| panic!("{error}"));
        let answers = buffers[1].to_tensor([128]).unwrap().to_f64();
        [0, 32, 64, 96].map(|warp| {
            assert!(answers[warp..warp + 32].iter().all(|lane| *lane == answers[warp]));
            answers[warp] == 1.0
        })
    };
    // One lane of the second warp of the second CTA.
    let sum = "x[((task * 64) + thread)]";
    let last = [false, false, false, true];
    for (place, limits, expected) in [
        ("0", ["126.5", "1.0"], last),
        ("5", ["126.5", "1.0"], last),
        ("2", ["1.0", "126.5"], last),
        ("7", ["1.0", "126.5"], last),
        // Of the other row, equal to the limit, and below zero.
        ("2", ["1.0", "127.0"], [false; 4]),
        ("2", ["1.0", "-1.0"], [true; 4]),
    ] {
        assert_eq!(answers(sum, [place, limits[0], limits[1]]), expected, "{place}: {limits:?}");
    }
}

#[test]
fn what_is_not_ordered_is_a_race() {
    let store = "  y[((task * 64) + thread)] = s[(63 - thread)]\n";
    for body in [
        // No barrier between the copy and the reads.
        format!("{COPY}{store}"),
        // The copy is not waited for.
        format!(
            "  cp_async s[thread], x[thread], 1\n  cp_async_commit\n  barrier\n{store}  cp_async_wait 0\n"
        ),
        // A barrier of the CTA does not order what other CTAs read.
        format!("{COPY}  barrier\n  load_dsmem v: f32 = s[thread], (1 - task)\n"),
        // Written again while other threads may still read.
        format!("{COPY}  barrier\n{store}  s[thread] = 0.0\n"),
        "  s[0] = 0.0\n".to_owned(),
    ] {
        let error = result(&body).unwrap_err();
        assert!(error.to_string().contains("also accessed by"), "{body}: {error}");
    }
}

#[test]
fn reductions_in_shared_memory_have_no_order() {
    let header = HEADER.replace("shared s: f32", "shared s: i32");
    let run = |body: &str| {
        let mut buffers = [floats((0..128).map(f64::from), DType::F32), BufferData::zeros(DType::F32, 128)];
        run(&header, body, &mut buffers).map(|()| buffers[1].to_tensor([128]).unwrap().to_f64()[63])
    };
    let zero = "  s[thread] = 0_i32\n  barrier\n";
    let store = "  y[((task * 64) + thread)] = f32(s[7])\n";
    for (red, expected) in [
        ("add s[7], 2_i32", 128.0),
        ("max s[7], i32(thread)", 63.0),
        ("min s[7], 5_i32, if (thread < 3)", 0.0),
    ] {
        assert_eq!(run(&format!("{zero}  red {red}\n  barrier\n{store}")).unwrap(), expected);
        // Other accesses are not ordered.
        for body in [
            format!("{zero}  red {red}\n{store}"),
            format!("  s[thread] = 0_i32\n  red {red}\n"),
            format!("  red {red}\n"),
            format!("{zero}  red {red}\n  s[thread] = 0_i32\n"),
        ] {
            assert!(run(&body).is_err(), "{body}");
        }
    }
}

#[test]
fn shared_memory_is_reused_once_no_thread_uses_it() {
    let header = HEADER.replace("  shared s", "  shared s: f32[64]\n  reused_shared r");
    let run = |body: &str| {
        let mut buffers = [floats((0..128).map(f64::from), DType::F32), BufferData::zeros(DType::F32, 128)];
        run(&header, body, &mut buffers).map(|()| buffers[1].to_tensor([128]).unwrap().to_f64())
    };
    let store = "  r[thread] = 1.0\n  barrier\n  y[((task * 64) + thread)] = r[(63 - thread)]\n";
    assert_eq!(run(&format!("{COPY}  reuse_shared\n{store}")).unwrap(), [1.0; 128]);
    for body in [
        format!("{COPY}{store}"),
        format!("{COPY}  reuse_shared\n  y[((task * 64) + thread)] = s[thread]\n"),
        format!(
            "  cp_async s[thread], x[thread], 1\n  cp_async_commit\n  reuse_shared\n{store}  cp_async_wait 0\n"
        ),
    ] {
        assert!(run(&body).is_err(), "{body}");
    }
}

#[test]
fn all_threads_reach_barriers() {
    for body in [
        "  if (thread < 32) {\n    barrier\n  }\n",
        "  if (thread < 8) {\n    shuffle v: f32 = 0.0, 1\n  }\n",
        "  for i: i64 [0..=63] = 0 to thread step 1 {\n    barrier\n  }\n",
    ] {
        assert!(matches!(result(body), Err(ExecError::Divergence { .. })), "{body}");
    }
    assert!(result("  if (thread < 32) {\n    shuffle v: f32 = 0.0, 1\n  }\n").is_ok());
}

#[test]
fn fragments_are_matrices() {
    let header = "program k, 1 tasks task: i64 [0..=0]\n  cta 32 threads thread: i64 [0..=31], clusters of 1\n  \
                  input a: f16[256]\n  input b: f16[128]\n  output y: f32[128]\n  shared sa: f16[256]\n  \
                  shared sb: f16[128]\n  scratch fa: f16[8]\n  scratch fb: f16[4]\n  scratch fc: f32[4]\n";
    // `a` is [16, 16] and `b` is [16, 8], both row-major; `b` is read transposed.
    let body = "  cp_async sa[(thread * 8)], a[(thread * 8)], 8\n  if (thread < 16) {\n    \
                cp_async sb[(thread * 8)], b[(thread * 8)], 8\n  }\n  cp_async_commit\n  cp_async_wait 0\n  barrier\n  \
                ldmatrix fa[0], sa[(((thread % 16) * 16) + ((thread // 16) * 8))], 4\n  \
                ldmatrix fb[0], sb[((thread % 16) * 8)], 2, transposed\n  \
                for i: i64 [0..=3] = 0 to 4 step 1 unroll {\n    fc[i] = 1.0\n  }\n  \
                mma f16, fc[0], fa[0], fb[0]\n  \
                for j: i64 [0..=3] = 0 to 4 step 1 unroll {\n    \
                y[(((((thread // 4) + ((j // 2) * 8)) * 8) + ((thread % 4) * 2)) + (j % 2))] = fc[j]\n  }\n";
    let a = |row: usize, k: usize| ((3 * row + 5 * k) % 7) as f64 - 3.0;
    let b = |k: usize, column: usize| ((2 * k + column) % 5) as f64 - 2.0;
    let mut buffers = [
        floats((0..256).map(|at| a(at / 16, at % 16)), DType::F16),
        floats((0..128).map(|at| b(at / 8, at % 8)), DType::F16),
        BufferData::zeros(DType::F32, 128),
    ];
    run(header, body, &mut buffers).unwrap();
    let expected: Vec<f64> =
        (0..128).map(|at| 1.0 + (0..16).map(|k| a(at / 8, k) * b(k, at % 8)).sum::<f64>()).collect();
    assert_eq!(buffers[2].to_tensor([128]).unwrap().to_f64(), expected);
}

/// Copies a row-major tile `[rows, elems]` of `from` to a swizzled one at `to`.
fn copied_tile(from: &str, [rows, elems]: [usize; 2], to: usize) -> String {
    let (parts, chunks) = (elems / 8, rows * elems / 8);
    let (row, part) = (format!("({from}_chunk // {parts})"), format!("({from}_chunk % {parts})"));
    // Part `p` of row `r` goes to place `p xor r % 8`: bit by bit, for there is no `xor`.
    let differs = |bit: usize| format!("((({row} // {bit}) + ({part} // {bit})) % 2)");
    let place = format!("(({} + ({} * 2)) + ({} * 4))", differs(1), differs(2), differs(4));
    let to = format!("(((((({part} // 8) * {rows}) + {row}) * 64) + ({place} * 8)) + {to})");
    format!(
        "for {from}_i: i64 [0..={last}] = 0 to {rounds} step 1 {{\nlet {from}_chunk: i64 = (({from}_i * 128) + thread)\nif ({from}_chunk < {chunks}) {{\n\
         cp_async s[{to}], {from}[({from}_chunk * 8)], 8\n}}\n}}\n",
        last = chunks.div_ceil(128) - 1,
        rounds = chunks.div_ceil(128),
    )
}

/// Shape and operands of a `wgmma`.
#[derive(Clone, Copy, Debug)]
struct WgmmaCase {
    n: usize,
    k: usize,
    /// Whether operand A is in fragments.
    a_in_fragments: bool,
    a_transposed: bool,
    b_transposed: bool,
}

impl WgmmaCase {
    /// A case of K-major operands in shared memory.
    fn k_major(n: usize, k: usize) -> Self {
        Self { n, k, a_in_fragments: false, a_transposed: false, b_transposed: false }
    }

    /// The head of a program that multiplies `a[64, k]`, or `[k, 64]` if it is transposed, by `b`.
    fn header(&self) -> String {
        let Self { n, k, .. } = self;
        format!(
            "program k, 1 tasks task: i64 [0..=0]\n  cta 128 threads thread: i64 [0..=127], clusters of 1\n  \
             input a: f16[{}]\n  input b: f16[{}]\n  output y: f32[{}]\n  shared s: f16[{}]\n  \
             scratch acc: f32[{}]\n  scratch f: f16[{}]\n",
            64 * k,
            n * k,
            64 * n,
            (64 + n) * k,
            n / 2,
            k / 2,
        )
    }

    /// The body, `b` at a place of shared memory.
    fn body(&self, b_at: usize) -> String {
        let Self { n, k, a_in_fragments, a_transposed, b_transposed } = *self;
        let row = "(((thread // 32) * 16) + ((thread % 32) // 4))";
        let acc = n / 2;
        let [a_shape, b_shape] = [(64, a_transposed), (n, b_transposed)]
            .map(|(rows, is_turned)| if is_turned { [k, rows] } else { [rows, k] });
        let mut text = copied_tile("b", b_shape, b_at);
        text += &match a_in_fragments {
            true => format!(
                "for e: i64 [0..={last}] = 0 to {elems} step 1 unroll {{\nf[e] = a[((({row} + (((e // 2) % 2) * 8)) * {k}) \
                 + ((((e // 8) * 16) + (((e % 8) // 4) * 8)) + (((thread % 4) * 2) + (e % 2))))]\n}}\n",
                elems = k / 2,
                last = k / 2 - 1,
            ),
            false => copied_tile("a", a_shape, 0),
        };
        let a = if a_in_fragments { "f" } else { "s" };
        let [a_qualifier, b_qualifier] = [(a_transposed, ", transposed_a"), (b_transposed, ", transposed_b")]
            .map(|(is_turned, word)| if is_turned { word } else { "" });
        text + &format!(
            "cp_async_commit\ncp_async_wait 0\nbarrier\nfor j: i64 [0..={last}] = 0 to {acc} step 1 unroll {{\nacc[j] = 1.0\n}}\n\
             wgmma f16, acc[0], {a}[0], s[{b_at}], {n}, {k}{a_qualifier}{b_qualifier}\n\
             for j: i64 [0..={last}] = 0 to {acc} step 1 unroll {{\n\
             y[(((({row} + (((j // 2) % 2) * 8)) * {n}) + ((j // 4) * 8)) \
             + (((thread % 4) * 2) + (j % 2)))] = acc[j]\n}}\n",
            last = acc - 1,
        )
    }

    fn a(row: usize, k: usize) -> f64 {
        ((3 * row + 5 * k) % 7) as f64 - 3.0
    }

    fn b(column: usize, k: usize) -> f64 {
        ((2 * k + 3 * column) % 5) as f64 - 2.0
    }

    fn buffers(&self) -> [BufferData; 3] {
        let Self { n, k, a_transposed, b_transposed, .. } = *self;
        let a = |at: usize| match a_transposed {
            true => Self::a(at % 64, at / 64),
            false => Self::a(at / k, at % k),
        };
        let b = |at: usize| match b_transposed {
            true => Self::b(at % n, at / n),
            false => Self::b(at / k, at % k),
        };
        [
            floats((0..64 * k).map(a), DType::F16),
            floats((0..n * k).map(b), DType::F16),
            BufferData::zeros(DType::F32, 64 * n),
        ]
    }

    fn expected(&self) -> Vec<f64> {
        let Self { n, k, .. } = *self;
        let sum = |row, column| (0..k).map(|k| Self::a(row, k) * Self::b(column, k)).sum::<f64>();
        (0..64 * n).map(|at| 1.0 + sum(at / n, at % n)).collect()
    }
}

#[test]
fn wgmma_multiplies_swizzled_tiles() {
    // N, K, whether A is in fragments, and whether A and B are transposed.
    for (n, k, a_in_fragments, a_transposed, b_transposed) in [
        (24, 64, false, false, false),
        (64, 128, false, false, false),
        (128, 64, false, false, true),
        (24, 64, false, true, false),
        (64, 48, false, true, true),
        (128, 128, false, true, true),
        (64, 192, true, false, false),
        (8, 64, true, false, false),
        (64, 16, true, false, true),
        (128, 48, true, false, true),
    ] {
        let case = WgmmaCase { n, k, a_in_fragments, a_transposed, b_transposed };
        let mut results = case.buffers();
        run(&case.header(), &case.body(64 * k), &mut results).unwrap();
        assert_eq!(results[2].to_tensor([64 * n]).unwrap().to_f64(), case.expected(), "{case:?}");
    }
}

#[test]
fn tiles_are_aligned_and_warp_groups_whole() {
    let case = WgmmaCase::k_major(24, 64);
    // Rows are swizzled by their number from the start of a tile.
    let header = case.header().replace("5632", "5696");
    let error = run(&header, &case.body(4096 + 64), &mut case.buffers()).unwrap_err();
    assert!(error.to_string().contains("does not start at a multiple of 1024 bytes"), "{error}");
    let half = case.body(4096).replace("wgmma", "if (thread < 64) {\nwgmma");
    let half = half.replace(", 24, 64\n", ", 24, 64\n}\n");
    let error = run(&header, &half, &mut case.buffers()).unwrap_err();
    assert!(error.to_string().contains("some warps of a warp group do not reach"), "{error}");
}

#[test]
fn asynchronous_wgmma_is_waited_for() {
    let case = WgmmaCase::k_major(24, 64);
    let run = |body: &str| {
        let mut results = case.buffers();
        run(&case.header(), body, &mut results).map(|()| results[2].to_tensor([64 * 24]).unwrap().to_f64())
    };
    let body = case.body(4096);
    let running = |after: &str| body.replace(", 24, 64\n", &format!(", 24, 64, async\n{after}"));
    assert_eq!(run(&running("wgmma_wait\n")).unwrap(), case.expected());
    let error = run(&running("")).unwrap_err();
    assert!(error.to_string().contains("before it is written"), "{error}");
    // The barrier does not wait for the `wgmma`, which still reads what is overwritten.
    let error = run(&running("barrier\ns[thread] = b[thread]\nwgmma_wait\n")).unwrap_err();
    assert!(error.to_string().contains("also accessed by"), "{error}");
    assert!(run(&running("wgmma_wait\nbarrier\ns[thread] = b[thread]\n")).is_ok());
    let end = body.find("for j: i64 [0..=11] = 0 to 12 step 1 unroll {\ny[").expect("the stores");
    let error = run(&running("")[..end + ", async".len()]).unwrap_err();
    assert!(error.to_string().contains("a CTA ends before its wgmma"), "{error}");
}

#[test]
fn fragments_are_kept_while_wgmma_is_in_flight() {
    let case = WgmmaCase { a_in_fragments: true, ..WgmmaCase::k_major(24, 64) };
    let run = |after: &str| {
        let body = case.body(4096).replace(", 24, 64\n", &format!(", 24, 64, async\n{after}"));
        run(&case.header(), &body, &mut case.buffers())
    };
    assert!(run("wgmma_wait\nf[0] = f16(0.25)\n").is_ok());
    let error = run("f[0] = f16(77.0)\nwgmma_wait\n").unwrap_err();
    assert!(error.to_string().contains("overwritten"), "{error}");
}

#[test]
fn places_of_swizzled_tiles_are_taken_once() {
    use crate::cta::{swizzled, swizzled_offset};
    use orch_compute::{Exprs, Simplifier};
    let (rows, elems) = (24, 128);
    let mut places: Vec<usize> = (0..rows * elems).map(|at| swizzled(rows, at / elems, at % elems)).collect();
    for (at, &place) in places.iter().enumerate() {
        let mut exprs = Exprs::default();
        let [row, at] = [at / elems, at % elems].map(|value| exprs.index(value as i64));
        let expr = swizzled_offset(&mut exprs, rows, row, at);
        let expr = Simplifier::new().simplify(&mut exprs, expr);
        assert_eq!(exprs.as_int(expr), Some(place as i64));
    }
    places.sort_unstable();
    assert!(places.into_iter().eq(0..rows * elems));
}
