//! Programs in C against the library as it is installed: the example, the one in `docs/c.md`, and those of `tests/c`.

use orch_onnx::builder::{GraphBuilder, node};
use orchestrion::{Artifact, DType, Executable, Model, Options, RunOptions, Tensor};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const STRICT: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-g"];

/// They end a program at its first wrong access, undefined operation or, at its end, leak.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A program of `tests/c`.
fn own_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// A folder of this test's own, empty at first.
fn fresh_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("cargo's folder is writable");
    folder
}

/// Where the library is installed, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = fresh_folder("installed");
        // This test lies in `deps` of its profile's folder.
        let own = std::env::current_exe().expect("a test has a path");
        let profile = own.ancestors().nth(2).expect("a test lies in a folder of its profile");
        let target = profile.parent().expect("profiles lie in the target folder");
        let name = profile.file_name().and_then(|name| name.to_str()).expect("profiles have names");
        let mut install = Command::new(root().join("scripts/install-c.sh"));
        install.arg(&prefix).arg(if name == "debug" { "dev" } else { name });
        install.env("CARGO_TARGET_DIR", target).env("CARGO", env!("CARGO"));
        passed(&mut install);
        prefix
    })
}

/// What a command prints; it must end with success.
fn passed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// What pkg-config says of the installed library, or what it would say.
fn flags() -> Vec<String> {
    let lib = prefix().join("lib");
    let known = Command::new("pkg-config")
        .args(["--cflags", "--libs", "orchestrion"])
        .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
        .output();
    let text = match known {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        Err(error) => {
            eprintln!("pkg-config does not run ({error}): its file is not checked");
            format!("-I{0}/include -L{0}/lib -lorchestrion", prefix().display())
        }
    };
    text.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program in C to `folder`.
fn build(source: &Path, folder: &Path) -> PathBuf {
    build_with(&[], source, &folder.join(source.file_stem().expect("a source has a name")))
}

fn build_with(more_flags: &[&str], source: &Path, program: &Path) -> PathBuf {
    let mut cc = Command::new("cc");
    cc.args(STRICT).args(more_flags).arg(source).args(flags()).arg("-pthread").arg("-o").arg(program);
    cc.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display()));
    passed(&mut cc);
    program.to_owned()
}

/// `y = x w + b` and its softmax, of `x: f32[rows, 3]`.
fn model(rows: &str) -> GraphBuilder {
    let weights = (0..12).map(|i| (i * 7 % 12) as f32 / 4.0 - 1.0).collect();
    GraphBuilder::new("small")
        .symbolic_input("x", DType::F32, &[rows, "3"])
        .input("b", DType::F32, [4])
        .initializer("w", &Tensor::from_vec([3, 4], weights))
        .node(node("MatMul", ["x", "w"], ["product"]))
        .node(node("Add", ["product", "b"], ["y"]))
        .node(node("Softmax", ["y"], ["s"]).attr("axis", -1))
        .output("y")
        .output("s")
}

fn compiled(folder: &Path, options: &Options) -> Artifact {
    let options = Options { cache_dir: folder.join("cache"), calibrate: false, ..options.clone() };
    let bytes = model("2").model(17).encode();
    Model::parse(bytes, "small", None, &options)
        .and_then(|model| model.compile(&options))
        .expect("it compiles")
}

/// Builds a program with the sanitizers of the compiler and runs it.
fn run_sanitized(source: &Path, folder: &Path, arguments: &[&Path]) {
    let program = build_with(&SANITIZERS, source, &folder.join("sanitized"));
    passed(Command::new(program).args(arguments).env("ASAN_OPTIONS", "detect_leaks=1"));
}

/// Runs a program sanitized and, if valgrind is there, under that, which also sees what the library and kernels do. It knows AVX2, but
/// not AVX-512.
fn run_checked(source: &Path, folder: &Path, arguments: &[&Path]) {
    run_sanitized(source, folder, arguments);
    let program = build(source, folder);
    passed(Command::new(&program).args(arguments));
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind is not there: {} ran without it", program.display());
        return;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite", "--quiet"]);
    passed(valgrind.arg(&program).args(arguments));
}

/// An executable that valgrind can run.
fn plain_artifact(folder: &Path) -> PathBuf {
    let target = cfg!(target_arch = "x86_64").then(|| "x86-64-v3".to_owned());
    let path = folder.join("model.orc");
    compiled(folder, &Options { target, ..Options::default() }).save(&path).expect("it is written");
    path
}

#[test]
fn the_example_prints_what_executables_compute() {
    let folder = fresh_folder("example");
    let source = root().join("examples/c/run.c");
    let program = build(&source, &folder);
    let onnx = folder.join("model.onnx");
    std::fs::write(&onnx, model("2").model(17).encode()).expect("the model is written");
    let mut run = Command::new(&program);
    run.arg(&onnx).args(["calibrate", "off", "threads", "2", "cache-dir"]).arg(folder.join("cache"));
    let printed = passed(&mut run);

    let executable = Executable::load(compiled(&folder, &Options::default()), RunOptions::default()).unwrap();
    let eighths = |count: usize| (0..count).map(|i| (i % 8) as f32 / 8.0).collect::<Vec<_>>();
    let inputs = [Tensor::from_vec([2, 3], eighths(6)), Tensor::from_vec([4], eighths(4))];
    let outputs = executable.run(&inputs).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "two threads, two outputs: {printed}");
    for (line, name, tensor) in (0..4).map(|i| (lines[i], ["y", "s"][i % 2], &outputs[i % 2])) {
        let (found, values) = line.split_once(':').expect("a name");
        let values: Vec<f64> =
            values.split_whitespace().map(|value| value.parse().expect("a number")).collect();
        assert_eq!(found, name);
        assert!(values.iter().zip(tensor.to_f64()).all(|(&a, b)| a as f32 == b as f32), "{line}: {tensor:?}");
    }
    run_checked(&source, &folder, &[&plain_artifact(&folder)]);
    let unknown = Command::new(&program).arg(&onnx).args(["tone", "on"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{}", String::from_utf8_lossy(&unknown.stderr));
    let missing = Command::new(&program).arg(folder.join("none.onnx")).output().unwrap();
    assert_eq!(missing.status.code(), Some(1), "{}", String::from_utf8_lossy(&missing.stderr));
}

#[test]
fn wrong_calls_are_refused() {
    let folder = fresh_folder("errors");
    let unsupported = GraphBuilder::new("unsupported")
        .input("x", DType::F32, [2])
        .node(node("Nothing", ["x"], ["y"]).domain("nowhere"))
        .output("y")
        .model(17)
        .opset("nowhere", 1);
    let models = [
        ("model", model("2").model(17)),
        ("symbolic", model("batch").model(17)),
        ("unsupported", unsupported),
    ];
    for (name, model) in models {
        std::fs::write(folder.join(format!("{name}.onnx")), model.encode()).unwrap();
    }
    run_sanitized(&own_source("errors.c"), &folder, &[&folder]);
}

#[test]
fn tensors_lie_anyhow() {
    let folder = fresh_folder("strides");
    run_checked(&own_source("strides.c"), &folder, &[&plain_artifact(&folder)]);
}

#[test]
fn threads_share_an_executable() {
    let folder = fresh_folder("threads");
    run_checked(&own_source("threads.c"), &folder, &[&plain_artifact(&folder)]);
}

/// The driver of the test has no device: its memory is the host's.
#[test]
fn tensors_are_on_a_gpu() {
    let folder = fresh_folder("device");
    let stand_ins = root().join("crates/orch-runtime/tests/fake_cuda");
    for (source, library) in [("driver.c", "libcuda.so"), ("nvrtc.c", "libnvrtc.so")] {
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.join(library));
        passed(compiler.arg(stand_ins.join(source)));
    }
    // The kernel of `z` is one that the driver does not run.
    let model = GraphBuilder::new("passing")
        .input("x", DType::F32, [3, 8])
        .node(node("Identity", ["x"], ["y"]))
        .node(node("Exp", ["x"], ["z"]))
        .output("y")
        .output("z");
    std::fs::write(folder.join("model.onnx"), model.model(17).encode()).unwrap();
    // The driver does not free nodes of graphs, and libraries of NVIDIA stay loaded.
    let program = build_with(&SANITIZERS, &own_source("device.c"), &folder.join("sanitized"));
    passed(Command::new(program).arg(&folder).env("ASAN_OPTIONS", "detect_leaks=0"));
}

#[test]
fn the_program_of_the_page_runs() {
    let folder = fresh_folder("page");
    let page = include_str!("../../../docs/c.md");
    let block = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let source = folder.join("page.c");
    std::fs::write(&source, block).expect("the program is written");
    let program = build(&source, &folder);
    plain_artifact(&folder);
    let printed = passed(Command::new(program).current_dir(&folder));
    let executable = Executable::load(compiled(&folder, &Options::default()), RunOptions::default()).unwrap();
    let inputs = [
        Tensor::from_vec([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]),
        Tensor::from_vec([4], vec![0.0f32; 4]),
    ];
    let expected = executable.run(&inputs).unwrap()[1].to_f64()[0];
    let printed: f64 = printed.trim().parse().expect("a number");
    assert!((printed - expected).abs() < 1e-5, "{printed} {expected}");
}

#[test]
fn the_header_is_cpp_too() {
    let folder = fresh_folder("cpp");
    let source = folder.join("header.c");
    std::fs::write(
        &source,
        "#include <orchestrion.h>\nint main(void) { return orc_abi_version() != ORC_ABI_VERSION; }\n",
    )
    .unwrap();
    build(&source, &folder);
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("there is no C++ compiler: the header was compiled as C only");
        return;
    }
    let mut cpp = Command::new("c++");
    cpp.args(["-x", "c++", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
    passed(cpp.arg("-I").arg(prefix().join("include")).arg(&source));
}

/// The library exports the functions of the header and nothing else, with a version.
#[test]
fn symbols_are_those_of_the_header() {
    let header = include_str!("../include/orchestrion.h");
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut declared: Vec<String> = code
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("orc_"))
        .map(|name| format!("{name}@@ORCHESTRION_0.1"))
        .collect();
    declared.sort();
    assert!(declared.len() > 15, "{declared:?}");
    let library = prefix().join("lib/liborchestrion.so");
    let listed = passed(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
    let mut exported: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    exported.retain(|name| !name.starts_with("ORCHESTRION_0.1"));
    exported.sort_unstable();
    assert_eq!(exported, declared);
    let dynamic = passed(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("[liborchestrion.so.0]"), "{dynamic}");
}
