//! Classifies handwritten digits: a small trained network, compiled and run on images it has not seen in training.
//!
//! `cargo run --release -p orchestrion --example digits` prints which operators became one kernel, how long compiling
//! took, how many of the images in `examples/digits` are classified right, and the time per image.

use orchestrion::manifest::{ActionInfo, Manifest};
use orchestrion::{Error, Executable, Model, Options, RunOptions, Tensor, map_file, npy};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() -> Result<(), Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let images = load(folder.join("images.npy"))?;
    let labels = load(folder.join("labels.npy"))?;

    let options = Options::default();
    let start = Instant::now();
    let artifact = Model::load(&folder.join("digits_cnn.onnx"), &options)?.compile(&options)?;
    print_plan(&artifact.manifest, start.elapsed());

    let executable = Executable::load(artifact, RunOptions { threads: 1, ..RunOptions::default() })?;
    let mut right = 0;
    let mut times = Vec::new();
    let labels = labels.to_i64().ok_or_else(|| Error::Input("the labels are not integers".to_owned()))?;
    for (image, label) in rows(&images)?.into_iter().zip(labels) {
        let start = Instant::now();
        let outputs = executable.run(&[image])?;
        times.push(start.elapsed());
        right += usize::from(largest(&outputs[0]) == usize::try_from(label).ok());
    }
    times.sort();
    println!("\n{right} of {} images classified right", times.len());
    println!("median {:.1} us per image on one thread", times[times.len() / 2].as_secs_f64() * 1e6);
    Ok(())
}

/// One line per step: its name and the operators of the model that it computes.
fn print_plan(manifest: &Manifest, elapsed: Duration) {
    println!(
        "{} operators -> {} primitives -> {} steps, compiled in {:.2} s for {}",
        manifest.report.operators,
        manifest.report.primitives,
        manifest.steps.len(),
        elapsed.as_secs_f64(),
        manifest.target
    );
    for step in &manifest.steps {
        let kind = match step.action {
            ActionInfo::Kernel(_) => "kernel",
            ActionInfo::Copy => "copy",
            ActionInfo::Host { .. } => "host",
        };
        println!("  {kind} {:26} {}", step.name, step.origins.join(", "));
    }
}

fn load(path: PathBuf) -> Result<Tensor, Error> {
    let bytes = map_file(&path).map_err(|source| Error::File { path: path.clone(), source })?;
    npy::read(&bytes).map_err(|error| Error::Input(format!("{}: {error}", path.display())))
}

/// The rows of `[n, ...]` as tensors `[1, ...]`, sharing its memory.
fn rows(tensor: &Tensor) -> Result<Vec<Tensor>, Error> {
    let mut shape = tensor.shape().to_vec();
    let count = std::mem::replace(&mut shape[0], 1);
    let row_bytes = shape.iter().product::<usize>() * tensor.dtype().size_bytes();
    (0..count)
        .map(|row| {
            let bytes = tensor.bytes().slice(row * row_bytes..(row + 1) * row_bytes);
            Tensor::from_bytes(tensor.dtype(), shape.clone().into(), bytes)
                .map_err(|error| Error::Input(error.to_string()))
        })
        .collect()
}

/// The position of the largest element.
fn largest(scores: &Tensor) -> Option<usize> {
    let scores = scores.to_f64();
    (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
}
