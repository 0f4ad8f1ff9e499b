//! What `orchestrion doctor` says of CUDA, on machines without a GPU: with a driver that has no device
//! (`orch-runtime/tests/fake_cuda/driver.c`), and without one. No C compiler is named, so that nothing is measured.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fake library, built anew.
fn fake(source: &str) -> PathBuf {
    let name = format!("fake-{source}-{}.so", std::process::id());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../orch-runtime/tests/fake_cuda").join(source);
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(source).status();
    assert!(built.unwrap().success());
    library
}

/// Output and exit code, without vendor libraries.
fn doctor(driver: &Path, options: &[&str]) -> (String, Option<i32>) {
    doctor_with(driver, ["none"; 2], options)
}

/// Output and exit code.
fn doctor_with(driver: &Path, [cublaslt, cudnn]: [&str; 2], options: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrion"));
    command.args([
        "doctor",
        "--cc",
        "/nonexistent/cc",
        "--nvrtc",
        "/nonexistent/libnvrtc.so",
        "--cublaslt",
        cublaslt,
        "--cudnn",
        cudnn,
        "--cuda-driver",
    ]);
    let output = command.arg(driver).args(options).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn devices_are_listed() {
    let driver = fake("driver.c");
    let (text, code) = doctor(&driver, &[]);
    assert_eq!(code, Some(4), "there is no C compiler");
    for expected in [
        format!("CUDA driver    13.0 ({})\n", driver.display()),
        "GPU            0: Fake 0, compute capability 9.0, 132 SMs at 1980 MHz, ".to_owned(),
        "NVRTC          none\n".to_owned(),
        "cuBLASLt       cuBLASLt (a library of matrix products) is not there: none: ".to_owned(),
        "`pip install nvidia-cublas` or a CUDA toolkit brings it".to_owned(),
        "cuDNN          cuDNN (a library of convolutions) is not there: none: ".to_owned(),
        "CUDA problem   NVRTC (the CUDA compiler's library) is not there: ".to_owned(),
    ] {
        assert!(text.contains(&expected), "no `{expected}` in:\n{text}");
    }

    let (text, _) = doctor(&driver, &["--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let device = &report["cuda"]["devices"][0];
    assert_eq!(report["cuda"]["driver"]["version"], "13.0");
    assert_eq!((&device["name"], &device["capability"]), (&"Fake 0".into(), &"9.0".into()));
    assert_eq!(device["free_bytes"], 1 << 20);
    assert_eq!(report["cuda"]["nvrtc"], Value::Null);
    assert!(report["problem"].as_str().unwrap().contains("/nonexistent/cc"));
    assert_eq!((&report["cuda"]["cublaslt"], &report["cuda"]["cudnn"]), (&Value::Null, &Value::Null));
    std::fs::remove_file(driver).unwrap();
}

#[test]
fn libraries_are_found() {
    let libraries = ["cublaslt.c", "cudnn.c"].map(fake);
    let none = Path::new("/nonexistent/libcuda.so");
    let (text, _) = doctor_with(none, libraries.each_ref().map(|path| path.to_str().unwrap()), &[]);
    for (start, path) in ["cuBLASLt       13.1", "cuDNN          9.28"].iter().zip(&libraries) {
        assert!(text.contains(&format!("{start} ({})\n", path.display())), "{text}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_missing_driver_is_no_failure() {
    let (text, _) = doctor(Path::new("/nonexistent/libcuda.so"), &["--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&report["cuda"]["driver"], &report["cuda"]["devices"]),
        (&Value::Null, &Value::Array(vec![]))
    );
    let problems = report["cuda"]["problems"].as_array().unwrap();
    assert!(
        problems.len() == 2 && problems[1].as_str().unwrap().contains("/nonexistent/libcuda.so"),
        "{problems:?}"
    );
}
