//! Tensors and arguments that do not fit the model, and outputs that have no place.

use crate::support::{Session, good_model};
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, node};
use orch_onnx::encode_tensor;

/// A session with an executable `good.orc` of [`good_model`] and a right input `x.npy`.
fn session(name: &'static str) -> Session {
    let session = Session::new(name);
    session.write("good.onnx", good_model().encode());
    let output = session.command("compile good.onnx").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    session.write("x.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", &[0; 24]));
    session
}

/// A `.npy` file with this header.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn tensors() {
    let mut session = session("tensors");
    session.case("the right input, for comparison", "run good.orc -i x=x.npy");
    session.case("an input that the model does not have", "run good.orc -i z=x.npy");
    session.case("an input that is given twice", "run good.orc -i x=x.npy -i x=x.npy");
    session.case("an argument without a name", "run good.orc -i x.npy");
    session.case("an input without a file", "run good.orc -i x=");
    session.case("a file without an input", "run good.orc -i =x.npy");
    session.case("no such file", "run good.orc -i x=missing.npy");
    std::fs::create_dir(session.work().join("folder")).unwrap();
    session.case("a folder", "run good.orc -i x=folder");
    session.make_pipe("pipe");
    session.case("a pipe as an input", "run good.orc -i x=pipe");
    session.case("a pipe as an executable", "run pipe");
    session.case("a pipe as times of kernels", "compile good.onnx --records pipe -o new.orc");
    session.case("a pipe as measurements", "cache import pipe");
    session.case("a pipe as NVRTC", "compile good.onnx --target cuda:sm_90 --nvrtc ./pipe -o new.orc");
    let case = session.work().join("case");
    std::fs::create_dir_all(case.join("test_data_set_0")).unwrap();
    session.write("case/model.onnx", good_model().encode());
    session.make_pipe("case/test_data_set_0/input_0.pb");
    session.case("a pipe as data of a case", "conformance case --all");
    session.case("a device as a model", "run /dev/zero");
    session.case("a folder of inputs that lacks one", "run good.orc --input-dir folder");

    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let of =
        |from: &str, to: &str| npy(&header.replace(from, to), &[0; 48][..if to == "<f8" { 48 } else { 24 }]);
    let arrays = [
        ("an empty array file", Vec::new()),
        ("an array file that is cut off in its header", npy(header, &[])[..40].to_vec()),
        ("an array file that is cut off in its elements", npy(header, &[0; 23])),
        ("an array file with more than its elements", npy(header, &[0; 25])),
        ("an array file of another kind", b"PK\x03\x04 an archive of arrays".to_vec()),
        ("an array file of a version of the future", [b"\x93NUMPY\x09\0", &[0u8; 40][..]].concat()),
        ("an array file whose header is no text", npy("\u{0}", &[0xff; 40])),
        ("an array file whose header lacks the shape", of("'shape'", "'form'")),
        ("an array file whose header lacks the type", of("'descr'", "'type'")),
        ("an array with another shape", of("(2, 3)", "(3, 2)")),
        ("an array with more dimensions", of("(2, 3)", "(2, 3, 1)")),
        ("an array of another type", of("<f4", "<f8")),
        ("an array of objects", of("<f4", "|O")),
        ("an array of big-endian numbers", of("<f4", ">f4")),
        ("an array of records", of("'<f4'", "[('a', '<f4')]")),
        ("an array with a shape beyond all memory", of("(2, 3)", "(4294967296, 4294967296, 4294967296)")),
        ("an array with a negative dimension", of("(2, 3)", "(2, -3)")),
        ("an array whose shape is no tuple", of("(2, 3)", "two, three")),
    ];
    for (title, content) in arrays {
        session.write("bad.npy", content);
        session.case(title, "run good.orc -i x=bad.npy");
    }
    let good = encode_tensor("x", &Tensor::zeros(DType::F32, [2, 3]));
    let tensors = [
        ("a tensor file that is cut off", good[..good.len() - 3].to_vec()),
        ("a tensor file that is text", b"not a tensor".to_vec()),
        ("a tensor file that is empty", Vec::new()),
        ("a tensor file with another shape", encode_tensor("x", &Tensor::zeros(DType::F32, [2, 4]))),
        ("a tensor file of another type", encode_tensor("x", &Tensor::zeros(DType::I64, [2, 3]))),
    ];
    for (title, content) in tensors {
        session.write("bad.pb", content);
        session.case(title, "run good.orc -i x=bad.pb");
    }
    session.finish();
}

#[test]
fn values() {
    let mut session = Session::new("values");
    let list = |values: &[i64]| encode_tensor("i", &Tensor::from_vec([values.len()], values.to_vec()));
    let gather = GraphBuilder::new("g")
        .initializer("table", &Tensor::from_vec([4, 2], (0..8).map(|at| at as f32).collect::<Vec<_>>()))
        .input("i", DType::I64, [3])
        .node(node("Gather", ["table", "i"], ["y"]))
        .output("y");
    session.write("gather.onnx", gather.model(17).encode());
    session.write("far.pb", list(&[0, 4, 1 << 40]));
    session.case("indices out of range, which are clamped", "run gather.onnx -i i=far.pb");
    session.write("negative.pb", list(&[-1, -5, i64::MIN]));
    session.case("negative indices out of range, which are clamped", "run gather.onnx -i i=negative.pb");
    let divide = GraphBuilder::new("g")
        .input("i", DType::I64, [3])
        .input("j", DType::I64, [3])
        .node(node("Div", ["i", "j"], ["y"]))
        .node(node("Mod", ["i", "j"], ["z"]))
        .output("y")
        .output("z");
    session.write("divide.onnx", divide.model(17).encode());
    session.write("numbers.pb", list(&[7, i64::MIN, i64::MIN]));
    session.write("zeros.pb", list(&[0, -1, 0]));
    session.case(
        "integers divided by 0, and the quotient that overflows",
        "run divide.onnx -i i=numbers.pb -i j=zeros.pb",
    );
    session.finish();
}

#[test]
fn outputs() {
    let mut session = session("outputs");
    session.case("an output folder that is a file", "run good.orc -o x.npy");
    session.case("an output folder below a file", "run good.orc -o x.npy/out");
    session.case("an output folder where none can be", "run good.orc -o /proc/out");
    std::fs::create_dir(session.work().join("folder")).unwrap();
    session.case("an executable in place of a folder", "compile good.onnx -o folder");
    session.case("an executable in a folder that is missing", "compile good.onnx -o missing/good.orc");
    session.case("an executable below a file", "compile good.onnx -o x.npy/good.orc");
    session.case("an executable where none can be", "compile good.onnx -o /proc/good.orc");
    session.case("an executable on a full disk", "compile good.onnx -o /dev/full");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = session.command("run good.orc");
    command.stdout(full());
    session.observe("results on a full disk", "run good.orc", command);
    let mut command = session.command("run missing.orc");
    command.stderr(full());
    session.observe("messages on a full disk", "run missing.orc", command);
    session.finish();
}

#[test]
fn arguments() {
    let mut session = session("arguments");
    session.case("no such command", "compose good.onnx");
    session.case("no such option", "run good.orc --quick");
    session.case("a target that there is not", "compile good.onnx --target pdp-11");
    session.case("a GPU that there is not", "compile good.onnx --target cuda:sm_20");
    session.case("a precision that there is not", "compile good.onnx --precision f8");
    session.case("no schedule to time", "compile good.onnx --tune --tune-schedules 0");
    session.case("schedules where nothing is timed", "compile good.onnx --tune-schedules 16");
    session.case("times of here and of elsewhere", "compile good.onnx --tune --records records");
    session.case("a number of threads that is none", "run good.orc --threads some");
    session.case("inputs for no run", "explain good.orc -i x=x.npy");
    session.case("a time that is none", "bench good.orc --seconds NaN");
    session.case("a time without end", "bench good.orc --seconds 1e300");
    session.case("no runs in a row", "bench good.orc --device-only --in-a-row 0");
    session.case("runs in a row on a CPU", "bench good.orc --device-only --in-a-row 3");
    session.case("a model for verification that is another", "verify good.orc --onnx x.npy");
    session.case("cases that are missing", "conformance missing");
    session.case("measurements that are none", "cache import x.npy");
    session.case("measurements that are missing", "cache import missing");
    session.finish();
}
