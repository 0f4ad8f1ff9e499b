//! Models that break the rules, or ask for what there is not.

use crate::support::{Session, good_model};
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{FunctionBuilder, GraphBuilder, ModelBuilder, node};
use orch_onnx::proto::{StringStringEntryProto, TensorProto};

/// A session that calls the compiler on models.
struct Compiler(Session);

impl Compiler {
    /// Compiles the content of a file.
    fn bytes(&mut self, title: &str, content: impl AsRef<[u8]>) {
        self.bytes_with(title, content, "");
    }

    /// Compiles the content of a file with more arguments.
    fn bytes_with(&mut self, title: &str, content: impl AsRef<[u8]>, arguments: &str) {
        self.0.write("model.onnx", content);
        self.0.case(title, format!("compile model.onnx {arguments}").trim_end());
    }

    /// Compiles a model.
    fn model(&mut self, title: &str, model: &ModelBuilder) {
        self.bytes(title, model.encode());
    }

    /// Compiles a graph.
    fn graph(&mut self, title: &str, graph: GraphBuilder) {
        self.model(title, &graph.output("y").model(17));
    }

    /// Compiles a graph of one operator on `x: f32[2, 3]`, `i: i64[2]` and `w: f32[4]`, of which the last is constant.
    fn node(&mut self, title: &str, node: orch_onnx::builder::NodeBuilder) {
        self.graph(title, operands().node(node));
    }
}

fn operands() -> GraphBuilder {
    GraphBuilder::new("g")
        .input("x", DType::F32, [2, 3])
        .input("i", DType::I64, [2])
        .initializer("w", &Tensor::from_vec([4], vec![1.0f32; 4]))
}

#[test]
fn files() {
    let mut compiler = Compiler(Session::new("files"));
    let good = good_model().encode();
    compiler.0.case("no such file", "compile missing.onnx");
    std::fs::create_dir(compiler.0.work().join("folder")).unwrap();
    compiler.0.case("a folder", "compile folder");
    compiler.bytes("an empty file", b"");
    compiler.bytes("text", "not a model");
    compiler.bytes("a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    compiler.bytes("an image", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    compiler.bytes("a zip archive", b"PK\x03\x04\x14\0\0\0\x08\0archive/data.pkl");
    compiler.bytes("bytes without a meaning", [0xffu8; 100]);
    compiler.bytes("a model that is cut off", &good[..good.len() / 2]);
    compiler.bytes("a model without its first byte", &good[1..]);
    compiler.bytes("a message without a graph", [0x08, 0x08, 0x12, 0x01, b'p']);
    compiler.bytes("a length beyond the end", [0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0]);
    compiler
        .bytes("a length beyond any memory", [0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    compiler.bytes("messages in messages without end", nested_messages());
    let mut version = good_model();
    version.proto.ir_version = Some(999);
    compiler.model("a file format of the future", &version);
    compiler.model(
        "an operator set of the future",
        &operands().node(node("Relu", ["x"], ["y"])).output("y").model(999),
    );
    compiler.model("operator set 0", &operands().node(node("Relu", ["x"], ["y"])).output("y").model(0));
    let mut without = good_model();
    without.proto.opset_import.clear();
    compiler.model("no operator set", &without);
    compiler.0.finish();
}

/// A graph in an attribute in a node in a graph, and so on.
fn nested_messages() -> Vec<u8> {
    let field = |tag: u8, inner: Vec<u8>| {
        let mut message = vec![tag << 3 | 2];
        let mut length = inner.len();
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend(inner);
        message
    };
    let mut message = Vec::new();
    for _ in 0..1000 {
        message = field(1, field(5, field(6, message)));
    }
    field(7, message)
}

#[test]
fn names() {
    let mut compiler = Compiler(Session::new("names"));
    let cycle = operands().node(node("Add", ["x", "b"], ["a"]).name("first"));
    compiler.graph(
        "a cycle",
        cycle.node(node("Relu", ["a"], ["b"]).name("second")).node(node("Relu", ["a"], ["y"])),
    );
    compiler.node("a node that reads its own output", node("Add", ["x", "y"], ["y"]).name("itself"));
    compiler.node("a name that nothing produces", node("Add", ["x", "nowhere"], ["y"]));
    compiler.node("an output that nothing produces", node("Relu", ["x"], ["z"]));
    let twice =
        operands().node(node("Relu", ["x"], ["y"]).name("a")).node(node("Neg", ["x"], ["y"]).name("b"));
    compiler.graph("a value that is produced twice", twice);
    let input = operands().input("x", DType::F32, [7]).node(node("Relu", ["x"], ["y"]));
    compiler.graph("two inputs of one name", input);
    let constant = operands().initializer("w", &Tensor::scalar(1.0f32)).node(node("Add", ["x", "w"], ["y"]));
    compiler.graph("two constants of one name", constant);
    compiler.node("an operator without a name", node("", ["x"], ["y"]));
    compiler.graph(
        "an input without a name",
        operands().input("", DType::F32, [1]).node(node("Relu", ["x"], ["y"])),
    );
    compiler.node("an unknown operator", node("Frobnicate", ["x"], ["y"]).name("odd"));
    compiler
        .node("a domain that the model does not import", node("Relu", ["x"], ["y"]).domain("com.example"));
    let domain = operands().node(node("Swish", ["x"], ["y"]).domain("com.example")).output("y");
    compiler.model("an unknown domain", &domain.model(17).opset("com.example", 1));
    let several = operands()
        .node(node("Frobnicate", ["x"], ["a"]).name("odd"))
        .node(node("Add", ["x", "w"], ["b"]).name("mismatch"))
        .node(node("Concat", ["a", "b"], ["y"]).name("consequence"));
    compiler.graph("several problems, without their consequences", several);
    compiler.0.finish();
}

#[test]
fn shapes() {
    let mut compiler = Compiler(Session::new("shapes"));
    compiler.node("shapes that do not broadcast", node("Add", ["x", "w"], ["y"]));
    compiler.node("matrices that do not fit", node("MatMul", ["x", "w"], ["y"]));
    let reshape = operands().initializer("to", &Tensor::from_vec([2], vec![4i64, 2]));
    compiler.graph("a reshape to more elements", reshape.node(node("Reshape", ["x", "to"], ["y"])));
    let reshape = operands().initializer("to", &Tensor::from_vec([2], vec![-1i64, -1]));
    compiler.graph("a reshape with two open dimensions", reshape.node(node("Reshape", ["x", "to"], ["y"])));
    let image = GraphBuilder::new("g").input("x", DType::F32, [1, 3, 8, 8]);
    let weights = Tensor::from_vec([2, 4, 3, 3], vec![0.0f32; 72]);
    compiler.graph(
        "a convolution over other channels",
        image.initializer("w", &weights).node(node("Conv", ["x", "w"], ["y"])),
    );
    let image = || GraphBuilder::new("g").input("x", DType::F32, [1, 3, 8, 8]);
    let pool = |name: &str, values: Vec<i64>| {
        node("MaxPool", ["x"], ["y"]).attr("kernel_shape", vec![2i64, 2]).attr(name, values)
    };
    compiler.graph("a stride of 0", image().node(pool("strides", vec![0, 0])));
    compiler.graph("padding beyond all bounds", image().node(pool("pads", vec![i64::MAX; 4])));
    compiler.graph("negative dilations", image().node(pool("dilations", vec![-1, 1])));
    compiler.node("concatenated shapes that differ", node("Concat", ["x", "w"], ["y"]).attr("axis", 0));
    compiler.node("an axis out of range", node("Softmax", ["x"], ["y"]).attr("axis", 5));
    compiler.node("a permutation that is none", node("Transpose", ["x"], ["y"]).attr("perm", vec![0i64, 0]));
    let integer = operands().initializer("one", &Tensor::from_vec([], vec![1i64]));
    compiler.graph("types that differ", integer.node(node("Add", ["x", "one"], ["y"])));
    compiler.node("too few operands", node("Add", ["x"], ["y"]));
    compiler.node("an operand that is needed left out", node("Add", ["x", ""], ["y"]));
    compiler.node("more results than there are", node("Relu", ["x"], ["y", "z"]));
    compiler.node("an attribute of another kind", node("Softmax", ["x"], ["y"]).attr("axis", "last"));
    compiler.node("an attribute that is needed left out", node("Concat", ["x", "x"], ["y"]));
    compiler.node("a shape that depends on values", node("NonZero", ["x"], ["y"]));
    let mut kind = node("Softmax", ["x"], ["y"]).attr("axis", 1);
    kind.proto.attribute[0].r#type = Some(99);
    compiler.node("an attribute of an unknown kind", kind);
    let mut value = node("Softmax", ["x"], ["y"]).attr("axis", 1);
    value.proto.attribute[0].i = None;
    value.proto.attribute[0].r#type = Some(4);
    compiler.node("an attribute without its value", value);
    compiler.0.finish();
}

#[test]
fn dimensions() {
    let mut compiler = Compiler(Session::new("dimensions"));
    let of = |dims: &[&str]| {
        let graph = GraphBuilder::new("g").symbolic_input("x", DType::F32, dims);
        graph.node(node("Relu", ["x"], ["y"])).output("y").model(17).encode()
    };
    compiler.bytes("symbols without a size", of(&["batch", "3", "length"]));
    compiler.bytes("a dimension without symbol and size", of(&["?", "3"]));
    compiler.bytes("a negative dimension", of(&["-1", "3"]));
    compiler.bytes_with("a size for an unknown symbol", of(&["batch", "3"]), "--dim batch=1 --dim bach=1");
    compiler.bytes_with("a size that is negative", of(&["batch", "3"]), "--dim batch=-1");
    compiler.bytes_with("a size that is no number", of(&["batch", "3"]), "--dim batch=many");
    compiler.bytes_with("a size without a symbol", of(&["batch", "3"]), "--dim 3");
    compiler.bytes_with("a size beyond 64 bits", of(&["batch", "3"]), "--dim batch=99999999999999999999");
    compiler.bytes_with("a size beyond all memory", of(&["batch", "3"]), "--dim batch=9999999999999");
    compiler.bytes("sizes whose product overflows", of(&["4294967296", "4294967296", "4294967296"]));
    compiler.bytes("sizes whose product overflows, and a 0", of(&["9223372036854775807", "3", "0"]));
    let untyped = GraphBuilder::new("g").untyped_input("x").node(node("Relu", ["x"], ["y"]));
    compiler.graph("an input without a type", untyped);
    let mut unshaped = GraphBuilder::new("g").input("x", DType::F32, [1]).node(node("Relu", ["x"], ["y"]));
    let Some(orch_onnx::proto::type_proto::Value::TensorType(tensor)) =
        unshaped.proto.input[0].r#type.as_mut().and_then(|t| t.value.as_mut())
    else {
        panic!("a tensor is declared")
    };
    tensor.shape = None;
    compiler.graph("an input without a shape", unshaped.clone());
    let Some(orch_onnx::proto::type_proto::Value::TensorType(tensor)) =
        unshaped.proto.input[0].r#type.as_mut().and_then(|t| t.value.as_mut())
    else {
        panic!("a tensor is declared")
    };
    tensor.elem_type = Some(8);
    compiler.graph("an input of strings", unshaped);
    compiler.0.write("empty.onnx", of(&["batch", "3"]));
    compiler.0.case("a size of 0, which is fine", "run empty.onnx --dim batch=0");
    compiler.0.finish();
}

#[test]
fn sizes() {
    let mut compiler = Compiler(Session::new("sizes"));
    let fill = |title: &str, compiler: &mut Compiler, dims: Vec<i64>| {
        let shape = Tensor::from_vec([dims.len()], dims);
        let graph = GraphBuilder::new("g").initializer("shape", &shape);
        compiler.graph(title, graph.node(node("ConstantOfShape", ["shape"], ["y"])));
    };
    fill("a constant beyond all memory", &mut compiler, vec![1 << 30, 1 << 30]);
    fill("a constant of negative size", &mut compiler, vec![-5]);
    let expand = operands().initializer("to", &Tensor::from_vec([3], vec![1i64 << 40, 2, 3]));
    compiler.graph("an expansion beyond all memory", expand.node(node("Expand", ["x", "to"], ["y"])));
    let tile = operands().initializer("times", &Tensor::from_vec([2], vec![i64::MAX, i64::MAX]));
    compiler.graph("repetitions beyond all memory", tile.node(node("Tile", ["x", "times"], ["y"])));
    let pad = operands().initializer("by", &Tensor::from_vec([4], vec![i64::MAX, 0, i64::MAX, 0]));
    compiler.graph("margins beyond all memory", pad.node(node("Pad", ["x", "by"], ["y"])));
    let scalar = |value: i64| Tensor::from_vec([], vec![value]);
    let range = GraphBuilder::new("g").initializer("a", &scalar(0)).initializer("b", &scalar(i64::MAX));
    compiler.graph(
        "a range beyond all memory",
        range.initializer("c", &scalar(1)).node(node("Range", ["a", "b", "c"], ["y"])),
    );
    let resize = GraphBuilder::new("g")
        .input("x", DType::F32, [1, 1, 4, 4])
        .initializer("by", &Tensor::from_vec([4], vec![1.0f32, 1.0, 1e30, 1e30]));
    compiler.graph("an image beyond all memory", resize.node(node("Resize", ["x", "", "by"], ["y"])));
    let one_hot = operands().initializer("depth", &scalar(1 << 50));
    let one_hot = one_hot.initializer("values", &Tensor::from_vec([2], vec![0.0f32, 1.0]));
    compiler.graph("one of very many", one_hot.node(node("OneHot", ["i", "depth", "values"], ["y"])));

    let claim = |title: &str, compiler: &mut Compiler, change: &dyn Fn(&mut TensorProto)| {
        let mut graph = operands().node(node("Add", ["x", "w"], ["y"]));
        change(&mut graph.proto.initializer[0]);
        compiler.graph(title, graph);
    };
    claim("a constant of few bytes that claims many", &mut compiler, &|w| w.dims = vec![1 << 38]);
    claim("a constant of more elements than there can be", &mut compiler, &|w| {
        w.dims = vec![1 << 62, 1 << 62]
    });
    claim("a constant with a negative dimension", &mut compiler, &|w| w.dims = vec![-4]);
    claim("a constant with a byte missing", &mut compiler, &|w| w.raw_data = Some(vec![0u8; 15].into()));
    claim("a constant of strings", &mut compiler, &|w| w.data_type = Some(8));
    claim("a constant without a type", &mut compiler, &|w| w.data_type = None);
    let large =
        GraphBuilder::new("g").input("a", DType::F32, [1 << 19, 1]).input("b", DType::F32, [1, 1 << 19]);
    let large = large.node(node("MatMul", ["a", "b"], ["y"])).output("y").model(17);
    compiler.0.write("model.onnx", large.encode());
    compiler.0.case("a result beyond the memory of the machine", "run model.onnx");
    compiler.0.finish();
}

#[test]
fn external_data() {
    let mut compiler = Compiler(Session::new("external"));
    compiler.0.write("weights.bin", [0u8; 20]);
    compiler.0.make_pipe("pipe");
    let cases: [(&str, &[(&str, &str)]); 10] = [
        ("a file that is missing", &[("location", "absent.bin")]),
        ("a folder", &[("location", ".")]),
        ("a path out of the folder", &[("location", "../../weights.bin")]),
        ("an absolute path", &[("location", "/etc/passwd")]),
        ("no path", &[]),
        ("a range behind the end", &[("location", "weights.bin"), ("offset", "8")]),
        ("an offset beyond all memory", &[("location", "weights.bin"), ("offset", "18446744073709551615")]),
        ("an offset that is no number", &[("location", "weights.bin"), ("offset", "0x10")]),
        ("a length that differs from the shape", &[("location", "weights.bin"), ("length", "20")]),
        ("a pipe", &[("location", "pipe")]),
    ];
    for (title, entries) in cases {
        compiler.graph(title, located(entries));
    }
    compiler.0.finish();
}

/// A graph with a constant in another file, by these entries.
fn located(entries: &[(&str, &str)]) -> GraphBuilder {
    let mut graph = operands().input("v", DType::F32, [4]).node(node("Add", ["v", "w"], ["y"]));
    let constant = &mut graph.proto.initializer[0];
    constant.raw_data = None;
    constant.data_location = Some(1);
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    constant.external_data = entries.iter().map(entry).collect();
    graph
}

/// Archives can carry links to any file of who unpacks them.
#[test]
fn external_data_behind_links() {
    let session = Session::new("links");
    let model = located(&[("location", "weights.bin")]).output("y").model(17);
    std::fs::create_dir(session.work().join("model")).unwrap();
    session.write("model/model.onnx", model.encode());
    session.write("secret.bin", [0u8; 16]);
    std::os::unix::fs::symlink("../secret.bin", session.work().join("model/weights.bin")).unwrap();
    for arguments in ["compile", "run", "bench --seconds 0", "explain", "verify", "superoptimize"] {
        let arguments = format!("{arguments} model/model.onnx --no-calibration --no-superoptimizer");
        let output = session.command(&arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {text}");
        for part in
            ["initializer `w`", "\"weights.bin\"", "secret.bin", "is expected", "--external-data-root DIR"]
        {
            assert!(text.contains(part), "{arguments}: {text}");
        }
        assert!(!session.work().join("model.orc").exists());
    }
    let arguments = "run model/model.onnx --external-data-root . --no-calibration --no-superoptimizer";
    let output = session.command(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn subgraphs() {
    let mut compiler = Compiler(Session::new("subgraphs"));
    let condition = || operands().input("p", DType::Bool, []);
    let branch =
        |name: &str, value: &str| GraphBuilder::new(name).node(node("Neg", [value], ["r"])).output("r");
    let only = node("If", ["p"], ["y"]).name("choice").attr("then_branch", branch("then", "x"));
    compiler.graph("a branch that is missing", condition().node(only.clone()));
    compiler.graph(
        "branches of different shapes",
        condition().node(only.clone().attr("else_branch", branch("else", "w"))),
    );
    compiler.graph(
        "a branch that reads what nothing produces",
        condition().node(only.clone().attr("else_branch", branch("else", "nowhere"))),
    );
    compiler.graph(
        "a branch without its output",
        condition().node(only.clone().attr("else_branch", GraphBuilder::new("else"))),
    );
    compiler.graph(
        "a condition that is no truth value",
        operands().node(
            node("If", ["x"], ["y"])
                .attr("then_branch", branch("a", "x"))
                .attr("else_branch", branch("b", "x")),
        ),
    );
    let body = GraphBuilder::new("body").untyped_input("step").untyped_input("go").output("go");
    compiler.node("a loop whose body lacks a state", node("Loop", ["i", "", "x"], ["y"]).attr("body", body));
    compiler.node("a loop without a body", node("Loop", ["i", "", "x"], ["y"]));
    let mut deep = branch("innermost", "x");
    for _ in 0..40 {
        let inner =
            node("If", ["p"], ["r"]).attr("then_branch", deep.clone()).attr("else_branch", branch("e", "x"));
        deep = GraphBuilder::new("inner").node(inner).output("r");
    }
    let deep = node("If", ["p"], ["y"]).attr("then_branch", deep).attr("else_branch", branch("e", "x"));
    compiler.graph("branches in branches without end", condition().node(deep));

    let call = || operands().node(node("f", ["x"], ["y"]).domain("local").name("call")).output("y").model(17);
    let function = |name: &str, calls: &str| {
        let inner = node(calls, ["a"], ["b"]).domain(if calls == "Relu" { "" } else { "local" });
        FunctionBuilder::new("local", name, 17).signature(["a"], ["b"]).node(inner)
    };
    let with = |model: ModelBuilder| model.opset("local", 1);
    compiler.model("a function that calls itself", &with(call()).function(function("f", "f")));
    let mutual = with(call()).function(function("f", "g")).function(function("g", "f"));
    compiler.model("functions that call each other", &mutual);
    let arity =
        operands().node(node("f", ["x", "x"], ["y"]).domain("local").name("call")).output("y").model(17);
    compiler.model("a function with too many arguments", &with(arity).function(function("f", "Relu")));
    compiler.model(
        "two functions of one name",
        &with(call()).function(function("f", "Relu")).function(function("f", "Relu")),
    );
    compiler.0.finish();
}
