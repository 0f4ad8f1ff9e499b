//! Calls of a library that is there, is not there any more, is another release, or declines: with a cuBLASLt that multiplies
//! and a cuDNN that convolves on the host (`orch-runtime/tests/fake_cuda`) beside kernels that do nothing, so that results
//! tell who computed them.

use crate::devices;
use crate::support::Session;
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, node};
use orchestrion::npy;
use serde_json::Value;

/// A session whose model is `y = x w + b`, with weights.
fn session(name: &'static str) -> Session {
    let session = devices::session(name);
    let values = |len: usize| (0..len).map(|at| (at * 7 % 11) as f32 / 4.0 - 1.25).collect::<Vec<f32>>();
    let product = GraphBuilder::new("product")
        .input("x", DType::F32, [8, 16])
        .initializer("w", &Tensor::from_vec([16, 12], values(16 * 12)))
        .initializer("b", &Tensor::from_vec([12], values(12)))
        .node(node("Gemm", ["x", "w", "b"], ["y"]))
        .output("y");
    session.write("good.onnx", product.model(17).encode());
    session
}

/// A session whose model is a convolution of an image with channels last, by a window of so many pixels.
fn convolving(name: &'static str, window: usize, is_rectified: bool) -> Session {
    let session = devices::session(name);
    let values = |len: usize| (0..len).map(|at| (at * 7 % 11) as f32 / 4.0 - 1.25).collect::<Vec<f32>>();
    let weights = Tensor::from_vec([12, 8, window, window], values(12 * 8 * window * window));
    let pads = vec![window as i64 / 2; 4];
    let last = if is_rectified { "Relu" } else { "Identity" };
    let model = GraphBuilder::new("convolution")
        .input("x", DType::F32, [2, 5, 6, 8])
        .initializer("w", &weights)
        .initializer("b", &Tensor::from_vec([12], values(12)))
        .node(node("Transpose", ["x"], ["first"]).attr("perm", vec![0, 3, 1, 2]))
        .node(node("Conv", ["first", "w", "b"], ["sums"]).attr("pads", pads))
        .node(node(last, ["sums"], ["last"]))
        .node(node("Transpose", ["last"], ["y"]).attr("perm", vec![0, 2, 3, 1]))
        .output("y");
    session.write("good.onnx", model.model(17).encode());
    session
}

const LIBRARIES: &str = "--cuda-driver ./libcuda.so --nvrtc ./libnvrtc.so --no-superoptimizer -q";
const TUNED: &str = "compile good.onnx --target cuda --tune --libraries cublaslt -o good.orc";
const WITH: &str = "--cublaslt ./libcublasLt.so";
const WITHOUT: &str = "--cublaslt none";

/// What a call prints that succeeds, results and notes, with the fake cuBLASLt told so.
fn told(session: &Session, call: &str, cublaslt: &str) -> [String; 2] {
    both_told(session, call, [cublaslt, ""])
}

/// The same with cuBLASLt and cuDNN told so.
fn both_told(session: &Session, call: &str, [cublaslt, cudnn]: [&str; 2]) -> [String; 2] {
    let mut command = session.command(&format!("{call} {LIBRARIES}"));
    let output = command.env("FAKE_CUBLASLT", cublaslt).env("FAKE_CUDNN", cudnn).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{call}: {}", texts[1]);
    texts
}

fn succeed(session: &Session, call: &str) -> [String; 2] {
    told(session, call, "")
}

/// The output of a run.
fn result(session: &Session, call: &str) -> Vec<f64> {
    succeed(session, &format!("{call} -o out"));
    let bytes = std::fs::read(session.work().join("out/y.npy")).unwrap();
    npy::read(&bytes.into()).unwrap().to_f64()
}

/// The release that an executable's kernel has a call of.
fn release(session: &Session) -> Option<String> {
    let [text, _] = succeed(session, "explain good.orc --json");
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let call = manifest["manifest"]["kernels"][0].get("call")?;
    let release = call["release"].as_str().unwrap();
    let extent =
        if release.starts_with("cuDNN") { &call["convolution"]["maps"] } else { &call["product"]["n"] };
    assert_eq!(extent, &Value::from(12), "{call}");
    Some(release.to_owned())
}

#[test]
fn calls_are_made_where_the_library_is() {
    let session = session("library-calls");
    succeed(&session, "compile good.onnx --target cpu -o cpu.orc");
    let right = result(&session, "run cpu.orc");
    assert!(right.iter().any(|value| *value != 0.0));

    let [_, said] = succeed(&session, &format!("{TUNED} {WITH}"));
    assert_eq!(said, "");
    assert_eq!(release(&session).as_deref(), Some("cuBLASLt 13.1.0"));
    for way in ["", "--check-steps"] {
        let got = result(&session, &format!("run good.orc {way} {WITH}"));
        let is_near = |(got, want): (&f64, &f64)| (got - want).abs() < 1e-5;
        assert!(got.iter().zip(&right).all(is_near), "{got:?} instead of {right:?}");
    }
    let [text, _] = succeed(&session, &format!("explain good.orc --all --measure {WITH}"));
    let line = "a call of cuBLASLt 13.1.0, with the kernel below as fallback, which took 5.0 us; here cuBLASLt 13.1.0 is";
    assert!(text.contains(line), "{text}");
    let [text, _] = succeed(&session, &format!("bench good.orc --steps --seconds 0 {WITH}"));
    assert!(text.contains("(cuBLASLt 13.1.0)"), "{text}");

    // Where it is not, or declines, the kernel runs: of the fake driver's nothing.
    for (way, cublaslt, reason) in [
        (WITHOUT, "", "cuBLASLt (a library of matrix products) is not there"),
        (WITH, "version 110100", "cuBLASLt 11.1 (./libcublasLt.so) is too old"),
        (WITH, "status cublasLtMatmul 15", "cuBLASLt 13.1.0 reports CUBLAS_STATUS_NOT_SUPPORTED"),
    ] {
        let [text, _] = told(&session, &format!("explain good.orc --all --measure {way}"), cublaslt);
        assert!(text.contains(&format!("here the kernel runs: {reason}")), "{text}");
        told(&session, &format!("run good.orc {way}"), cublaslt);
    }
    assert!(result(&session, &format!("run good.orc {WITHOUT}")).iter().all(|value| *value == 0.0));
}

#[test]
fn calls_are_measured_anew_for_each_release() {
    let session = session("library-releases");
    let compile = format!("{TUNED} {WITH}");
    for (cublaslt, expected) in [
        ("status cublasLtMatmulAlgoGetHeuristic 15", None),
        ("", Some("cuBLASLt 13.1.0")),
        ("version 130200", Some("cuBLASLt 13.2.0")),
        // What was measured is known.
        ("status cublasLtMatmulAlgoGetHeuristic 15", Some("cuBLASLt 13.1.0")),
    ] {
        told(&session, &compile, cublaslt);
        assert_eq!(release(&session).as_deref(), expected);
    }
    // What takes as long as the kernel is not called.
    std::fs::rename(session.work().join("../cache"), session.work().join("../other")).unwrap();
    told(&session, &compile, "time 5");
    assert_eq!(release(&session), None);
    std::fs::remove_dir_all(session.work().join("../cache")).unwrap();
    // Without the library, and without having asked for it, there is none.
    let [_, said] = succeed(&session, &format!("{TUNED} {WITHOUT}"));
    assert!(said.starts_with("note: cuBLASLt (a library of matrix products) is not there: none: "), "{said}");
    assert_eq!(release(&session), None);
    succeed(&session, &format!("{} {WITH}", TUNED.replace("--libraries cublaslt", "")));
    assert_eq!(release(&session), None);

    // Records tell of calls where there is neither a GPU nor a library.
    told(&session, &compile, "");
    assert!(session.command("cache export records").output().unwrap().status.success());
    let compile = "compile good.onnx --target cuda:sm_90 --records records -o good.orc";
    let [_, said] = succeed(&session, &format!("{compile} --libraries cublaslt {WITHOUT}"));
    assert_eq!(said, "");
    assert!(release(&session).is_some_and(|release| release.starts_with("cuBLASLt 13.")));
    succeed(&session, compile);
    assert_eq!(release(&session), None);
}

#[test]
fn libraries_without_measured_times_have_no_effect_that_is_told() {
    let session = session("library-notes");
    for target in ["cuda", "cuda:sm_90", "cpu"] {
        let call = format!("compile good.onnx --target {target} --libraries cublaslt -o good.orc {WITH}");
        let [_, said] = succeed(&session, &call);
        assert!(said.starts_with("note: libraries are called where measuring finds them faster"), "{said}");
        assert_eq!(release(&session), None);
    }
    let [_, said] = succeed(&session, &TUNED.replace("--target cuda", "--target cpu"));
    assert_eq!(said, "note: libraries are called on GPUs only\n");
    let output = session.command("compile good.onnx --libraries cudart").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("there is cublaslt, cudnn"), "{said}");
}

#[test]
fn convolutions_are_called_where_the_library_is() {
    let session = convolving("convolution-calls", 3, true);
    succeed(&session, "compile good.onnx --target cpu -o cpu.orc");
    let right = result(&session, "run cpu.orc");
    assert!(right.contains(&0.0) && right.iter().any(|value| *value > 0.0));

    let tuned = TUNED.replace("cublaslt", "cudnn");
    let with = "--cudnn ./libcudnn.so --cublaslt none";
    let [_, said] = succeed(&session, &format!("{tuned} {with}"));
    assert_eq!(said, "");
    assert_eq!(release(&session).as_deref(), Some("cuDNN 9.28.1"));
    for way in ["", "--check-steps"] {
        let got = result(&session, &format!("run good.orc {way} {with}"));
        let is_near = |(got, want): (&f64, &f64)| (got - want).abs() < 1e-4;
        assert!(got.iter().zip(&right).all(is_near), "{got:?} instead of {right:?}");
    }
    let [text, _] = succeed(&session, &format!("explain good.orc --all --measure {with}"));
    let line = "a call of cuDNN 9.28.1, with the kernel below as fallback, which took 5.0 us; here cuDNN 9.28.1 is called";
    assert!(text.contains(line), "{text}");

    // Where it is not, or declines, the kernel runs: of the fake driver's nothing.
    for (way, cudnn, reason) in [
        ("--cudnn none", "", "cuDNN (a library of convolutions) is not there"),
        (with, "version 8907", "cuDNN 8.9 (./libcudnn.so) is too old"),
        (
            with,
            "status cudnnConvolutionBiasActivationForward 3000",
            "cuDNN 9.28.1 reports CUDNN_STATUS_NOT_SUPPORTED",
        ),
    ] {
        let [text, _] = both_told(&session, &format!("explain good.orc --all --measure {way}"), ["", cudnn]);
        assert!(text.contains(&format!("here the kernel runs: {reason}")), "{text}");
        both_told(&session, &format!("run good.orc {way}"), ["", cudnn]);
    }
    assert!(result(&session, "run good.orc --cudnn none").iter().all(|value| *value == 0.0));

    // Without the library, and without having asked for it, there is no call.
    let [_, said] = succeed(&session, &format!("{tuned} --cudnn none"));
    assert!(said.starts_with("note: cuDNN (a library of convolutions) is not there: none: "), "{said}");
    assert_eq!(release(&session), None);
    succeed(&session, &format!("{TUNED} {WITH} --cudnn ./libcudnn.so"));
    assert_eq!(release(&session), None);

    // Records tell of calls where there is neither a GPU nor a library.
    assert!(session.command("cache export records").output().unwrap().status.success());
    let compile = "compile good.onnx --target cuda:sm_90 --records records --libraries cudnn -o good.orc";
    succeed(&session, &format!("{compile} --cudnn none"));
    assert_eq!(release(&session).as_deref(), Some("cuDNN 9.28.1"));
}

#[test]
fn the_fastest_of_several_libraries_is_called() {
    // Single pixels by a matrix are a product and a convolution.
    let session = convolving("several-libraries", 1, false);
    let tuned = TUNED.replace("--libraries cublaslt", "--libraries cudnn,cublaslt");
    let compile = format!("{tuned} {WITH} --cudnn ./libcudnn.so");
    for (steps, expected) in [
        (["time 4", "time 3"], Some("cuDNN 9.28.1")),
        (["time 2", "time 3"], Some("cuBLASLt 13.1.0")),
        (["status cublasLtMatmul 15", "time 4"], Some("cuDNN 9.28.1")),
        (["time 5", "time 6"], None),
    ] {
        both_told(&session, &compile, steps);
        assert_eq!(release(&session).as_deref(), expected, "{steps:?}");
        std::fs::remove_dir_all(session.work().join("../cache")).unwrap();
    }
}
