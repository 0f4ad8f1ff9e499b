//! Documents of ATen calls are models like any other: they are interpreted, compiled and run.

use orch_ir::generate::random_inputs;
use orchestrion::verification::verify;
use orchestrion::{Error, Executable, Model, Options, RunOptions, Tensor};
use serde_json::Value;

/// A traced forward and backward pass of a small convolutional network, with inputs and what eager gives.
const CASES: &str = include_str!("../../orch-aten/tests/files/conv-bn-pool.json");

fn cases() -> Vec<Value> {
    serde_json::from_str(CASES).expect("a list of cases")
}

fn floats(elements: &Value) -> Vec<f64> {
    elements.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

#[test]
fn a_document_is_compiled_and_run() {
    let folder = orch_files::Scratch::new().expect("a folder");
    let options = Options { cache_dir: folder.path().to_owned(), superoptimize: false, ..Options::default() };
    for case in cases() {
        let model = Model::from_aten(case["document"].to_string().as_bytes(), &options).expect("a model");
        let inputs = model.graph.inputs.iter().zip(case["inputs"].as_array().expect("a list"));
        let inputs: Vec<Tensor> = inputs
            .map(|((_, id), elements)| {
                let (dtype, shape) = (model.graph.dtype(*id), model.graph.shape(*id).clone());
                orchestrion::aligned(&Tensor::from_f64(dtype, shape, &floats(elements)))
            })
            .collect();
        let artifact = model.compile(&options).expect("an artifact");
        let executable = Executable::load(artifact, RunOptions::default()).expect("an executable");
        let outputs = executable.run(&inputs).expect("outputs");
        for (output, expected) in outputs.iter().zip(case["outputs"].as_array().expect("a list")) {
            for (got, wanted) in output.to_f64().iter().zip(floats(expected)) {
                assert!((got - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()), "{got} is not {wanted}");
            }
        }
    }
}

/// Gradients of images run on the units that convolutions do, whatever the stride.
#[test]
fn gradients_of_images_are_convolutions() {
    let folder = orch_files::Scratch::new().expect("a folder");
    let path =
        format!("{}/../orch-aten/tests/traces/resnet50-train.backward.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read(path).expect("the file is read");
    for target in ["x86-64-v4", "cuda:sm_90"] {
        let options = Options {
            cache_dir: folder.path().to_owned(),
            target: Some(target.to_owned()),
            superoptimize: false,
            calibrate: false,
            ..Options::default()
        };
        let planned = Model::from_aten(&text, &options).and_then(|model| model.plan(&options));
        let planned = planned.unwrap_or_else(|error| panic!("{target}: {error}"));
        let steps = planned.step_names();
        assert!(steps.iter().any(|name| name.contains("conv")), "{target}: {steps:?}");
        assert!(!steps.iter().any(|name| name.contains("convtranspose")), "{target}: {steps:?}");
    }
}

/// Traces whose results of random inputs say something: no roots or logarithms of what a weight could not be.
const TRACES: [&str; 4] =
    ["bert.inference", "dalle2.inference", "speech-transformer.inference", "deeprecommender-train.backward"];

#[test]
fn traces_of_models_compute_what_the_interpreter_does() {
    let folder = orch_files::Scratch::new().expect("a folder");
    let options = Options { cache_dir: folder.path().to_owned(), superoptimize: false, ..Options::default() };
    for name in TRACES {
        let path = format!("{}/../orch-aten/tests/traces/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read(path).expect("the file is read");
        let model = Model::from_aten(&text, &options).expect("a model");
        let inputs: Vec<Tensor> = random_inputs(&model.graph, 1).iter().map(orchestrion::aligned).collect();
        let artifact = model.compile(&options).expect("an artifact");
        let executable = Executable::load(artifact, RunOptions::default()).expect("an executable");
        let verified =
            verify(&model, &mut executable.context().expect("memory"), &inputs, None).expect("a comparison");
        assert!(verified.verification.pass, "{name}: {:?}", verified.verification.outputs);
    }
}

#[test]
fn what_is_not_supported_is_told_from_what_is_wrong() {
    let with_target = |target: &str, position: usize| {
        let mut document = cases()[0]["document"].clone();
        document["nodes"][position]["target"] = target.into();
        Model::from_aten(document.to_string().as_bytes(), &Options::default()).map(|_| ())
    };
    assert!(matches!(with_target("aten.multinomial.default", 0), Err(Error::Unsupported(_))));
    assert!(matches!(with_target("aten.mm.default", 0), Err(Error::Model(_))));
}
