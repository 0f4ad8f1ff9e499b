//! Ctrl-C: no file is left, the compiler is stopped, and the next call goes on where this one was.

use crate::support::Session;
use orch_ir::DType;
use orch_onnx::builder::{GraphBuilder, node};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A compiler that notes each kernel it is given (headers are none), and takes its time for all but the first while a
/// file `slow` exists.
const COMPILER: &str = "#!/bin/sh
case \"$*\" in
*--version*|*probe*|*c-header*) exec cc \"$@\" ;;
esac
echo kernel >> compiled
if [ -e slow ] && [ \"$(wc -l < compiled)\" -gt 1 ]; then
    sleep 1000 &
    echo $! > sleeping
    wait
fi
exec cc \"$@\"
";

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends the signal of Ctrl-C to the process alone, as to the foreground of a terminal.
fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_interrupted_compilation_resumes() {
    let session = Session::new("interrupt");
    let model = GraphBuilder::new("g")
        .input("a", DType::F32, [2, 3])
        .input("b", DType::F32, [7])
        .input("c", DType::F32, [5, 5, 5])
        .node(node("Relu", ["a"], ["x"]))
        .node(node("Exp", ["b"], ["y"]))
        .node(node("Neg", ["c"], ["z"]))
        .output("x")
        .output("y")
        .output("z");
    session.write("model.onnx", model.model(17).encode());
    session.write_script("slow-cc", COMPILER);
    session.write("slow", "");
    let arguments =
        "compile model.onnx --no-fusion --no-calibration --jobs 1 --cc ./slow-cc --cache-dir cache";
    let kernels: PathBuf = session.work().join("cache/kernels");
    let sleeping = session.work().join("sleeping");
    let compiled = || fs::read_to_string(session.work().join("compiled")).unwrap_or_default().lines().count();

    let mut first = session.command(arguments);
    let mut first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the second kernel is being compiled", || {
        fs::read_to_string(&sleeping).is_ok_and(|text| text.ends_with('\n'))
    });
    let asked = Instant::now();
    interrupt(&first);
    wait_until("the command ends", || first.try_wait().unwrap().is_some());
    assert!(asked.elapsed() < Duration::from_secs(10), "it took {:?}", asked.elapsed());
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: interrupted; finished kernels stay in the cache, so the same command resumes\n"
    );
    assert_eq!(compiled(), 2);
    let helper = Path::new("/proc").join(fs::read_to_string(&sleeping).unwrap().trim());
    wait_until("what the compiler started has ended", || !helper.join("exe").exists());
    assert_eq!(names(&session.work()), ["cache", "compiled", "model.onnx", "sleeping", "slow", "slow-cc"]);
    let finished = names(&kernels);
    // The headers that all kernels share are finished before the first.
    let (headers, objects): (Vec<_>, Vec<_>) = finished.iter().partition(|name| name.starts_with("headers-"));
    assert!(objects.len() == 1 && objects[0].ends_with(".so"), "{objects:?}");
    let kinds = [".h", ".h.gch", ".h.sum"];
    assert!(headers.iter().all(|name| kinds.iter().any(|kind| name.ends_with(kind))), "{headers:?}");

    fs::remove_file(session.work().join("slow")).unwrap();
    let second = session.command(arguments).output().unwrap();
    assert_eq!(second.status.code(), Some(0), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(
        compiled(),
        4,
        "one kernel was there; the one that was interrupted and the third are compiled"
    );
    assert_eq!(names(&kernels).iter().filter(|name| name.ends_with(".so")).count(), 3);
    assert!(session.work().join("model.orc").exists());
}
