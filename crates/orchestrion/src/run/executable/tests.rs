//! Tests of executables and contexts: strided tensors of the caller, and several threads at once.

use super::*;
use crate::testing::graph;
use crate::{Model, Options};
use std::sync::atomic::{AtomicBool, Ordering};

/// A row-wise sum that goes through working memory, and a product with a weight.
const TEXT: &str = "graph \"sums\" {
  input \"x\" t0: f32[24, 20]
  const t1: f32[20, 3] = [WEIGHTS]
  t2: f32[24, 20] = exp t0
  t3: f32[24, 3] = contract t2, t1 labels=\"mk,kn->mn\"
  t4: f32[24] = reduce.sum t2 axes=[1]
  output \"y\" t3
  output \"s\" t4
}
";

const ROWS: usize = 24;
const COLUMNS: usize = 20;

fn executable(folder: &orch_files::Scratch, threads: usize) -> Executable {
    let options = Options {
        cache_dir: folder.path().to_owned(),
        calibrate: false,
        superoptimize: false,
        ..Options::default()
    };
    let weights: Vec<String> = (0..COLUMNS * 3).map(|i| format!("{:?}", i as f32 / 16.0)).collect();
    let text = TEXT.replace("WEIGHTS", &weights.join(", "));
    let artifact = Model::from_graph(graph(&text)).compile(&options).unwrap();
    Executable::load(artifact, RunOptions { threads, ..RunOptions::default() }).unwrap()
}

fn input(seed: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + seed * 11) % 64) as f32 / 64.0 - 0.5;
    Tensor::from_vec([ROWS, COLUMNS], (0..ROWS * COLUMNS).map(value).collect())
}

#[test]
fn executables_and_contexts_go_to_other_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Executable>();
    sent::<RunContext>();
}

#[test]
fn many_threads_run_one_executable() {
    let folder = orch_files::Scratch::new().unwrap();
    let executable = executable(&folder, 2);
    let expected: Vec<Vec<Tensor>> = (0..8).map(|seed| executable.run(&[input(seed)]).unwrap()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (executable, stop) = (&executable, &stop);
        // Contexts come and go meanwhile.
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                drop(executable.context().unwrap());
            }
        });
        let workers: Vec<_> = expected
            .iter()
            .enumerate()
            .map(|(seed, expected)| {
                scope.spawn(move || {
                    let input = [input(seed)];
                    let mut context = executable.context().unwrap();
                    for _ in 0..100 {
                        assert_eq!(&executable.run(&input).unwrap(), expected);
                        assert_eq!(&context.run(&input).unwrap(), expected);
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn contexts_outlive_their_executable() {
    let folder = orch_files::Scratch::new().unwrap();
    let executable = executable(&folder, 1);
    let expected = executable.run(&[input(1)]).unwrap();
    let mut context = executable.context().unwrap();
    drop(executable);
    assert_eq!(context.run(&[input(1)]).unwrap(), expected);
}

#[test]
fn tensors_are_read_and_written_where_they_lie() {
    let folder = orch_files::Scratch::new().unwrap();
    let executable = executable(&folder, 2);
    let row_major = input(3);
    let expected = executable.run(std::slice::from_ref(&row_major)).unwrap();
    // The same values, column-major, and outputs in every second column of wider memory.
    let values: Vec<f32> = row_major.to_vec().unwrap();
    let columns: Vec<f32> = (0..ROWS * COLUMNS).map(|i| values[(i % ROWS) * COLUMNS + i / ROWS]).collect();
    let columns = Tensor::from_vec([COLUMNS, ROWS], columns);
    let strides = [1, ROWS as isize];
    let columns = TensorView::strided(DType::F32, &[ROWS, COLUMNS], &strides, 0, columns.bytes()).unwrap();
    let mut sums = vec![0; 4 * ROWS * 2];
    let mut products = vec![0; 4 * ROWS * 3];
    let outputs = &mut [
        TensorViewMut::new(DType::F32, &[ROWS, 3], &mut products).unwrap(),
        TensorViewMut::strided(DType::F32, &[ROWS], &[2], 0, &mut sums).unwrap(),
    ];
    executable.run_views(&[columns], outputs).unwrap();
    assert_eq!(products, expected[0].bytes()[..]);
    let every_second: Vec<u8> = sums.chunks(8).flat_map(|pair| &pair[..4]).copied().collect();
    assert_eq!(every_second, expected[1].bytes()[..]);
    assert!(sums.chunks(8).all(|pair| pair[4..] == [0; 4]));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = orch_files::Scratch::new().unwrap();
    let executable = executable(&folder, 1);
    let text = |inputs: &[Tensor]| executable.run(inputs).unwrap_err().to_string();
    assert_eq!(text(&[]), "0 inputs are given, the model has 1: x");
    assert_eq!(
        text(&[Tensor::zeros(DType::F32, [20, 24])]),
        "input `x` is f32[20, 24], the model was compiled for f32[24, 20]"
    );
    let mut wrong = vec![0; 4 * ROWS];
    let outputs = &mut [TensorViewMut::new(DType::F32, &[ROWS], &mut wrong).unwrap()];
    let error = executable.run_views(&[TensorView::from(&input(0))], outputs).unwrap_err();
    assert_eq!(error.to_string(), "1 outputs are given, the model has 2: y, s");
}
