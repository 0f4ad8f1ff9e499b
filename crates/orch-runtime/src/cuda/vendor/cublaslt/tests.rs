//! Tests of loading the library, with one that has no device. What it computes is tested with executables (`library_calls`).

use super::*;
use crate::cuda::SearchPaths;
use crate::cuda::testing::FakeLibrary;

fn load_error(fake: &FakeLibrary) -> String {
    CublasLt::load(&fake.paths).unwrap_err().to_string()
}

#[test]
fn releases_are_told() {
    let fake = FakeLibrary::cublaslt();
    let library = fake.load_cublaslt();
    assert_eq!(library.version(), Version { major: 13, minor: 1 });
    assert_eq!(library.release(), "cuBLASLt 13.1.0");
    assert!(library.path().ends_with("libcublasLt.so.13"));
    fake.set("version", "", 120_804);
    assert_eq!(fake.load_cublaslt().release(), "cuBLASLt 12.8.4");
}

#[test]
fn libraries_that_do_not_serve_are_refused() {
    let text = load_error(&FakeLibrary::cublaslt_without("cublasLtMatmul"));
    assert!(text.contains("has no function `cublasLtMatmul`; install cuBLASLt again (`pip"), "{text}");
    let text = load_error(&FakeLibrary::cublaslt_without("cublasLtGetVersion"));
    assert!(text.contains("has no function `cublasLtGetVersion`"), "{text}");
    // An old one lacks functions too: what is said is that it is old.
    let old = FakeLibrary::cublaslt_without("cublasLtMatmulPreferenceCreate");
    old.set("version", "", 111_103);
    let text = load_error(&old);
    assert!(text.starts_with("cuBLASLt 11.11 (") && text.contains("12.0 or later is needed: `pip"), "{text}");
}

#[test]
fn without_a_library_the_error_says_what_to_do() {
    let paths = SearchPaths { cublaslt: Some("none".into()), ..SearchPaths::default() };
    let text = CublasLt::load(&paths).unwrap_err().to_string();
    assert!(text.starts_with("cuBLASLt (a library of matrix products) is not there: none: "), "{text}");
    assert!(
        text.contains("cuBLASLt is not needed") && text.contains("`pip install nvidia-cublas`"),
        "{text}"
    );
}

#[test]
fn statuses_are_named() {
    let library = FakeLibrary::cublaslt().load_cublaslt();
    let error = |status| library.check(status, || "testing".to_owned()).unwrap_err().to_string();
    assert!(error(15).starts_with("cuBLASLt 13.1.0 reports CUBLAS_STATUS_NOT_SUPPORTED while testing; "));
    assert!(error(99).starts_with("cuBLASLt 13.1.0 reports status 99 while testing"));
}
