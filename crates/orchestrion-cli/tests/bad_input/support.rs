//! Calls of the command in a folder of their own, and the transcript of them.

use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, ModelBuilder, node};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The exit code of a panic.
const PANIC: i32 = 101;

/// The exit code of an internal error.
const INTERNAL: i32 = 70;

/// A sum of squares that a product is divided by.
pub const NORM: &str = "mugraph \"norm\" {
  t0 = input \"x\" [8, 64]
  t1 = input \"w\" [64, 32]
  t2 = mul t0, t0
  t3 = sum(1) t2
  t4 = matmul t0, t1
  t5 = div t4, t3
  output \"o\" t5
}
";

/// A folder with the files of some cases, and what the command said about them.
pub struct Session {
    name: &'static str,
    folder: PathBuf,
    transcript: String,
}

impl Session {
    /// An empty folder; `name` is also that of the file with the expected transcript.
    pub fn new(name: &'static str) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-input-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("work")).unwrap();
        Self { name, folder, transcript: String::new() }
    }

    /// The folder in which the command runs.
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// The folder of kernels that commands use if they are not told another one.
    pub fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// Writes a file for the command to read.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.work().join(name), content).unwrap();
    }

    /// Writes a shell script that can be called.
    pub fn write_script(&self, name: &str, content: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.write(name, content);
        std::fs::set_permissions(self.work().join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Makes a named pipe, to which nobody writes.
    pub fn make_pipe(&self, name: &str) {
        let made = Command::new("mkfifo").arg(self.work().join(name)).status().unwrap();
        assert!(made.success());
    }

    /// The command with these arguments, not started yet. Its kernels are cached beside the folder it runs in.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrion"));
        command.args(arguments.split_whitespace()).current_dir(self.work()).stdin(Stdio::null());
        command.env_remove("ORCHESTRION_CC").env("ORCHESTRION_CACHE", self.folder.join("cache"));
        for name in ["NVRTC", "CUDA_DRIVER", "CUBLASLT", "CUDNN", "NVTX"] {
            command.env_remove(format!("ORCHESTRION_{name}"));
        }
        command.env_remove("NVTX_INJECTION64_PATH");
        command.env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX");
        command.env("RUST_BACKTRACE", "0");
        command
    }

    /// Calls the command with these arguments and notes what it says.
    pub fn case(&mut self, title: &str, arguments: &str) {
        let command = self.command(arguments);
        self.observe(title, arguments, command);
    }

    /// Calls `command`, which differs from that of `arguments` in a way that the title tells, and notes what it says.
    pub fn observe(&mut self, title: &str, arguments: &str, command: Command) {
        let code = self.note(title, arguments, command);
        assert_ne!(code, INTERNAL, "{title}");
    }

    /// As `observe`, of a call that must end as an internal error.
    pub fn observe_internal(&mut self, title: &str, arguments: &str, command: Command) {
        let code = self.note(title, arguments, command);
        assert_eq!(code, INTERNAL, "{title}");
    }

    fn note(&mut self, title: &str, arguments: &str, mut command: Command) -> i32 {
        let before = self.files();
        let output = command.output().unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{title}: {} by a signal", output.status));
        let said = said(&output);
        assert_ne!(code, PANIC, "{title}:\n{said}");
        if code != 0 {
            // What is finished stays in the cache.
            let cache = arguments.split_once("--cache-dir ").and_then(|(_, rest)| rest.split(' ').next());
            let cache = cache.map(|name| self.work().join(name));
            let is_cached = |path: &&PathBuf| cache.as_ref().is_some_and(|cache| path.starts_with(cache));
            let files = self.files();
            let left: Vec<_> = files.difference(&before).filter(|path| !is_cached(path)).collect();
            assert!(left.is_empty(), "{title}: leaves {left:?}");
        }
        writeln!(self.transcript, "# {title}\n$ orchestrion {arguments}\nexit {code}\n{said}").unwrap();
        code
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.work()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                }
                found.insert(entry.path());
            }
        }
        found
    }

    /// Compares the transcript with the expected one, case by case.
    pub fn finish(self) {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_input").join(format!("{}.txt", self.name));
        if std::env::var_os("ORCH_BLESS").is_some() {
            std::fs::write(&path, &self.transcript).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        let (mut given, mut wanted) = (self.transcript.split("\n# "), expected.split("\n# "));
        loop {
            match (given.next(), wanted.next()) {
                (None, None) => break,
                (given, wanted) => {
                    assert_eq!(given, wanted, "set ORCH_BLESS=1 to rewrite {}", path.display())
                }
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What cannot be removed stays in the build folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// All that a call printed, without spaces at line ends.
fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A model that is fine: `y = relu(x * w) + x` for `x` of type `f32[2, 3]`.
pub fn good_model() -> ModelBuilder {
    let weights: Vec<f32> = (0..3).map(|at| at as f32 + 0.25).collect();
    GraphBuilder::new("good")
        .input("x", DType::F32, [2, 3])
        .initializer("w", &Tensor::from_vec([3], weights))
        .node(node("Mul", ["x", "w"], ["scaled"]))
        .node(node("Relu", ["scaled"], ["positive"]))
        .node(node("Add", ["positive", "x"], ["y"]))
        .output("y")
        .model(17)
}
