//! Files that commands write: none replaces what is read, none lies over another.

use crate::support::{Session, good_model};
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, ModelBuilder, node};
use orch_onnx::encode_tensor;
use orch_onnx::proto::{AttributeProto, StringStringEntryProto};
use std::collections::BTreeSet;

/// What a call prints, and its exit code.
fn said(session: &Session, arguments: &str) -> (i32, String) {
    let output = session.command(arguments).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap_or_else(|| panic!("{arguments}: {}", output.status)), text)
}

/// What a call prints that succeeds.
fn succeeds(session: &Session, arguments: &str) -> String {
    let (code, text) = said(session, arguments);
    assert_eq!(code, 0, "{arguments}: {text}");
    text
}

#[test]
fn nothing_that_is_read_is_replaced() {
    let mut session = Session::new("overwrite");
    let model = good_model().encode();
    let work = session.work();
    std::fs::create_dir(work.join("sub")).unwrap();
    session.write("good.onnx", &model);
    session.write("model.orc", &model);
    session.write("notes", "precious");
    std::fs::hard_link(work.join("good.onnx"), work.join("hard")).unwrap();
    std::os::unix::fs::symlink("good.onnx", work.join("link")).unwrap();
    session.case("the model by its name", "compile good.onnx -o good.onnx");
    session.case("the model by another path", "compile good.onnx -o sub/../good.onnx");
    session.case("the model by a link", "compile good.onnx -o link");
    session.case("the model by another name of it", "compile hard -o good.onnx");
    session.case("a model that is named as an executable", "compile model.orc");
    session.case("a file of another kind", "compile good.onnx -o notes");
    session.case("times that plans are made by", "compile good.onnx --records notes -o ./notes");
    let (code, text) = said(&session, "cache export ../cache/measured");
    assert!(code == 2 && text.contains("lies in the cache"), "{code}: {text}");
    for name in ["good.onnx", "model.orc", "hard", "link"] {
        assert_eq!(std::fs::read(work.join(name)).unwrap(), model, "{name}");
    }
    assert_eq!(std::fs::read(work.join("notes")).unwrap(), b"precious");

    succeeds(&session, "compile good.onnx --no-calibration");
    succeeds(&session, "compile good.onnx --no-calibration");
    succeeds(&session, "run good.orc -o out");
    std::fs::rename(work.join("out/y.npy"), work.join("out/x.npy")).unwrap();
    succeeds(&session, "run good.orc -i x=out/x.npy -o out");
    session.case("an input as an output", "run good.orc -i x=out/y.npy -o out");
    session.case("an input as a reference", "verify good.orc -i x=out/y.npy --save-reference sub/../out");
    std::fs::create_dir_all(work.join("taken/y.npy")).unwrap();
    session.case("a folder in the place of an output", "run good.orc -o taken");
    session.finish();
}

/// A model with these outputs: `x`, `x + 1`, ..
fn with_outputs(names: &[&str]) -> ModelBuilder {
    let mut graph = GraphBuilder::new("g").input("x", DType::F32, [2]);
    for (number, name) in names.iter().enumerate() {
        let constant = format!("c{number}");
        graph = graph
            .initializer(&constant, &Tensor::scalar(number as f32))
            .node(node("Add", ["x", constant.as_str()], [*name]))
            .output(name);
    }
    graph.model(17)
}

#[test]
fn every_output_has_a_file() {
    let session = Session::new("file-names");
    let long = "n".repeat(300);
    let names = ["a/b", "a_b", "A_B", "a:b", ".hidden", "../../up", &long, &format!("{long}2")];
    session.write("model.onnx", with_outputs(&names).encode());
    session.write("x.pb", encode_tensor("x", &Tensor::zeros(DType::F32, [2])));
    for (call, folder) in [("run", "-o run"), ("verify", "--save-reference verify")] {
        let arguments = format!("{call} model.onnx -i x=x.pb --no-calibration --no-superoptimizer {folder}");
        let text = succeeds(&session, &arguments);
        assert!(text.contains("note: `a/b` is written to "), "{text}");
        let mut firsts = BTreeSet::new();
        for entry in std::fs::read_dir(session.work().join(call)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert!(!name.starts_with('.') && name.len() <= 200 && name.ends_with(".npy"), "{name}");
            let bytes = std::fs::read(entry.path()).unwrap();
            let first = match call {
                "run" => f64::from(f32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap())),
                _ => f64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap()),
            };
            firsts.insert(first as usize);
        }
        assert_eq!(firsts, (0..names.len()).collect::<BTreeSet<_>>(), "{call}");
    }
}

#[test]
fn verify_takes_dimensions_from_the_executable() {
    let session = Session::new("dims");
    let graph = GraphBuilder::new("g")
        .symbolic_input("x", DType::F32, &["n", "", "3"])
        .symbolic_input("z", DType::F32, &["n", "m", "3"])
        .node(node("Add", ["x", "z"], ["y"]))
        .output("y");
    session.write("model.onnx", graph.model(17).encode());
    succeeds(&session, "compile model.onnx --dim n=2 --dim m=4 --dim x.1=1 --no-calibration");
    assert!(succeeds(&session, "verify model.orc").starts_with("pass y"));
    assert!(succeeds(&session, "verify model.orc --dim n=2").starts_with("pass y"));
    let (code, text) = said(&session, "verify model.orc --dim n=3");
    assert_eq!(code, 1, "{text}");
}

#[test]
fn verify_says_what_says_little() {
    let session = Session::new("little");
    let graph = GraphBuilder::new("g")
        .input("x", DType::F32, [4])
        .initializer("none", &Tensor::scalar(0f32))
        .node(node("Mul", ["x", "none"], ["zero"]))
        .node(node("Relu", ["x"], ["y"]))
        .output("zero")
        .output("y");
    session.write("model.onnx", graph.model(17).encode());
    let lines = succeeds(&session, "verify model.onnx --no-calibration");
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].ends_with("; this says little: the reference is zero throughout"), "{lines:?}");
    assert!(lines[1].starts_with("pass y") && lines[1].ends_with("mismatched"), "{lines:?}");
    let loose = succeeds(&session, "verify model.onnx --no-calibration --tolerance 1");
    let little = "this says little: an error of 100 % of the largest magnitude is allowed";
    assert!(loose.contains(little), "{loose}");
}

#[test]
fn steps_on_the_host_are_named() {
    let session = Session::new("host");
    let pooling = GraphBuilder::new("g")
        .input("x", DType::F32, [1, 1, 8, 8])
        .input("rois", DType::F32, [6, 4])
        .input("images", DType::I64, [6])
        .node(node("RoiAlign", ["x", "rois", "images"], ["pooled"]).name("crop"))
        .node(node("Relu", ["pooled"], ["y"]))
        .output("y");
    session.write("pooling.onnx", pooling.model(17).encode());
    let text = succeeds(&session, "compile pooling.onnx --no-calibration");
    let note = text
        .lines()
        .find(|line| line.starts_with("note: ") && line.contains("on the host"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(note.starts_with("note: 1 step runs on the host, without a kernel (modelled "), "{note}");
    assert!(note.contains("crop (RoiAlign)"), "{note}");
    let (_, modelled) = note.split_once("(modelled ").unwrap();
    let (host_us, _) = modelled.split_once(" us of ").unwrap();
    assert!((1.0..100.0).contains(&host_us.parse::<f64>().unwrap()), "{note}");
    session.write("good.onnx", good_model().encode());
    let text = succeeds(&session, "compile good.onnx --no-calibration");
    assert!(!text.contains("note: ") && text.contains("nothing runs on the host"), "{text}");
}

#[test]
fn times_of_other_numbers_of_threads_are_told() {
    let session = Session::new("threads");
    session.write("good.onnx", good_model().encode());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (asked, is_told) in [(threads, false), (threads + 1, true)] {
        let arguments = format!("bench good.onnx --no-calibration --steps --seconds 0 --threads {asked}");
        let text = succeeds(&session, &arguments);
        let told = format!("modelled times are for {threads} threads, measured ones of {asked}");
        assert_eq!(text.contains(&told), is_told, "{text}");
        // What explain plans for, it measures with.
        let text =
            succeeds(&session, &format!("explain good.onnx --no-calibration --measure --threads {asked}"));
        assert!(!text.contains("modelled times are for"), "{text}");
    }
}

/// A megabyte wherever a model has a text or a list.
#[test]
fn messages_are_short_whatever_the_model_says() {
    let session = Session::new("long");
    let long = "n\u{1b}".repeat(1 << 19);
    let operands = || GraphBuilder::new("g").input("x", DType::F32, [2, 3]);
    let perm = AttributeProto::from(vec![7i64; 1 << 20]);
    let mut elsewhere = operands().initializer(&long, &Tensor::zeros(DType::F32, [3])).node(node(
        "Add",
        ["x", long.as_str()],
        ["y"],
    ));
    let constant = &mut elsewhere.proto.initializer[0];
    constant.raw_data = None;
    constant.data_location = Some(1);
    constant.external_data =
        vec![StringStringEntryProto { key: Some("location".to_owned()), value: Some(long.clone()) }];
    let mut many = operands();
    for number in 0..30 {
        let kind = format!("{number}{long}");
        many =
            many.node(node(&kind[..1 << 16], ["x"], [format!("t{number}").as_str()]).name(&kind[..1 << 16]));
    }
    let models = [
        ("an operator", operands().node(node(&long, ["x"], ["y"]))),
        ("a name", operands().node(node("Frobnicate", ["x"], ["y"]).name(&long))),
        ("an equation", operands().node(node("Einsum", ["x"], ["y"]).attr("equation", long.as_str()))),
        ("a permutation", operands().node(node("Transpose", ["x"], ["y"]).attr("perm", perm))),
        ("an operand", operands().node(node("Relu", [long.as_str()], ["y"]))),
        (
            "a dimension",
            operands().symbolic_input("z", DType::F32, &[&long]).node(node("Relu", ["z"], ["y"])),
        ),
        ("a path", elsewhere),
        ("many operators", many.node(node("Relu", ["x"], ["y"]))),
    ];
    for (title, graph) in models {
        session.write("model.onnx", graph.output("y").model(17).encode());
        let (code, text) = said(&session, "compile model.onnx");
        assert!([1, 3].contains(&code), "{title}: {code}");
        assert!(text.len() < 4096 && text.lines().count() <= 20, "{title}: {} bytes: {text}", text.len());
        assert!(!text.contains('\u{1b}'), "{title}: {text:?}");
    }
    let named =
        GraphBuilder::new("g").input(&long, DType::F32, [2, 3]).node(node("Relu", [long.as_str()], ["y"]));
    session.write("model.onnx", named.output("y").model(17).encode());
    session.write("x.pb", encode_tensor("x", &Tensor::zeros(DType::F32, [2, 4])));
    let (code, text) = said(&session, "run model.onnx -i z=x.pb --no-calibration");
    assert!(code == 1 && text.len() < 4096, "{} bytes", text.len());
}
