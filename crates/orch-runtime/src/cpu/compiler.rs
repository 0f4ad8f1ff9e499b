//! The system's C compiler: finding it, asking what it can do, and running it on one source file.
//!
//! Flags keep IEEE semantics except for two liberties that kernels are written for: multiply-adds may be fused
//! (`-ffp-contract=fast`), and floating-point exceptions and `errno` are not observable. Nothing is reassociated.

use super::isa;
use crate::os;
use orch_files::{CacheFolder, FolderError, Scratch};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The CPU that code is generated for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Tuning {
    /// The CPU that the compiler runs on.
    #[default]
    Native,
    /// A name that `-march=` of GCC and Clang knows, like `x86-64-v3`. Zig's compiler spells it with `_`.
    Arch(String),
}

/// How to find and run the compiler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompilerOptions {
    /// The compiler's name or path; `None` tries `cc`, `gcc` and `clang`.
    pub program: Option<PathBuf>,
    /// The CPU to generate code for.
    pub tuning: Tuning,
    /// How long one compilation may take.
    pub timeout: Duration,
    /// Folder in which the flags that a compiler understands are remembered; `None` tries them every time.
    pub memory: Option<PathBuf>,
}

impl Default for CompilerOptions {
    fn default() -> Self {
        Self { program: None, tuning: Tuning::Native, timeout: Duration::from_secs(120), memory: None }
    }
}

/// Why there is no shared object.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    /// No compiler is installed.
    #[error(
        "no C compiler found (tried {}): install one (Debian and Ubuntu: `apt install gcc`; Fedora: `dnf install gcc`; \
         macOS: `xcode-select --install`) or name one with the compiler option (--cc)",
        .tried.join(", ")
    )]
    NoCompiler {
        /// The names tried.
        tried: Vec<String>,
    },
    /// A compiler is there, but does not compile the simplest kernel.
    #[error(
        "the C compiler {} does not work: {reason}\nInstall a compiler with the C library's headers (Debian and Ubuntu: \
         `apt install gcc libc6-dev`), or name another one with the compiler option (--cc)", .program.display()
    )]
    Unusable {
        /// The compiler.
        program: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The compiler refused a generated source: a bug in code generation.
    #[error(
        "internal error: {} does not compile generated source `{name}`, kept at {}:\n{diagnostics}",
        .program.display(), .source_file.display()
    )]
    Rejected {
        /// The compiler.
        program: PathBuf,
        /// The caller's name for the source.
        name: String,
        /// Where the source is kept.
        source_file: PathBuf,
        /// What the compiler said.
        diagnostics: String,
    },
    /// The compiler ended before it was done, through nothing that the source could do.
    #[error("the C compiler {} ended while compiling `{name}`: {reason}; see to that and run the same again", .program.display())]
    Died {
        /// The compiler.
        program: PathBuf,
        /// The caller's name for the source.
        name: String,
        /// What is known about it.
        reason: String,
    },
    /// A compilation took longer than the limit.
    #[error("compiling `{name}` took longer than the limit of {} s", .limit.as_secs_f64())]
    TimedOut {
        /// The caller's name for the source.
        name: String,
        /// The limit.
        limit: Duration,
    },
    /// The caller cancelled the compilation.
    #[error("compilation was cancelled")]
    Cancelled,
    /// The cache's folder is not safe to use.
    #[error("{0}")]
    Folder(String),
    /// The cache's folder cannot be used.
    #[error("cannot write kernels to the cache in {}: {reason}; make room there or choose another folder (--cache-dir)", .folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// There is no room for temporary files.
    #[error("{0}")]
    Scratch(String),
    /// A file could not be read or written.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

impl From<FolderError> for CompileError {
    fn from(error: FolderError) -> Self {
        Self::Folder(error.to_string())
    }
}

impl CompileError {
    /// An [`Io`](Self::Io) error about `path`.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::Io { path: path.to_owned(), reason: error.to_string() }
    }

    /// A [`Cache`](Self::Cache) error about `folder`.
    pub(super) fn cache(folder: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::Cache { folder: folder.to_owned(), reason: error.to_string() }
    }
}

/// A C compiler that works, with the flags that it understands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiler {
    program: PathBuf,
    version: String,
    flags: Vec<String>,
    extensions: Vec<String>,
    timeout: Duration,
}

/// What one compiler run reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// How messages call the source.
    pub name: &'a str,
    /// A header to read before the source, from its compiled form if that lies beside it.
    pub header: Option<&'a Path>,
    /// The C text.
    pub source_file: &'a Path,
    /// The file to write.
    pub output: &'a Path,
}

/// What follows a header's name in that of its compiled form, where compilers look for it.
pub const HEADER_SUFFIX: &str = ".gch";

/// Flags that every supported compiler has.
const BASE_FLAGS: [&str; 8] = [
    "-O2",
    "-fPIC",
    "-shared",
    "-std=gnu11",
    "-w",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
];

/// Flags used where the compiler has them: the first that works of each row.
///
/// GCC's default allocation of registers to nested loops spills the loads of an inner loop to keep what only an outer
/// one uses: `-fira-region=all` regards every loop for itself. GCC makes calls of `memcpy` of loops that copy, which the C library does by
/// `rep movsb`: to a place that does not begin at a cache line a Zen 5 copies 16 MB in 2.4 ms by that, in 1.0 by vectors. What it holds to
/// be costs of Zen 2 and Zen 3 (`-mtune` follows `-march=native`) makes it load a vector again for each multiply-add that reads it: with
/// AVX2 a tile of 4 x 3 vectors then takes 8 cycles instead of 6 a step of K, MobileNet V2 6.4 ms instead of 5.4.
const OPTIONAL_FLAGS: [&[&str]; 5] = [
    &["-mtune=generic"],
    &["-mprefer-vector-width=512"],
    &["-fno-semantic-interposition"],
    &["-fira-region=all"],
    &["-fno-tree-loop-distribute-patterns"],
];

/// Keeps GCC before [`FIRST_GOOD_SLP`] from vectorizing statements side by side: with AVX2 its version 12.2 makes -1, not 1, of
/// comparisons that are stored as integers to the lanes of a vector one by one (`r[l] = (int32_t)(a[l] != 0)`, unrolled).
const NO_SLP_FLAG: &str = "-fno-tree-slp-vectorize";

/// The first version of GCC that was seen to do it right.
const FIRST_GOOD_SLP: u32 = 13;

/// How the compilers of the supported processors spell "this machine", tried in order.
const NATIVE_FLAGS: &[&str] = &["-march=native", "-mcpu=native"];

/// Uses all that generated sources rely on: headers, the mathematical library, vector types.
const PROBE_SOURCE: &str = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n\
    typedef float vec __attribute__((vector_size(16)));\n\
    void probe(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
    for (int64_t i = lo; i < hi; ++i) ((vec *)b[0])[i] *= ((vec *)b[1])[i] + expf((float)i); (void)s; }\n";

const CANDIDATES: [&str; 3] = ["cc", "gcc", "clang"];

impl Compiler {
    /// Finds a compiler and the flags that it understands; takes a few short compiler runs, unless the answers are
    /// remembered.
    ///
    /// # Errors
    /// If there is none, or if it cannot compile the simplest kernel for the requested CPU.
    pub fn find(options: &CompilerOptions) -> Result<Self, CompileError> {
        let folder = options.memory.as_deref().map(CacheFolder::open).transpose()?;
        let (program, version) = find_program(options.program.as_deref())?;
        let record = folder.map(|folder| CapabilityRecord::of(folder, &program, &version, options));
        let known = record.as_ref().and_then(CapabilityRecord::read);
        let Capabilities { flags, extensions } = match known {
            Some(known) => known,
            None => {
                let found = find_capabilities(&program, &options.tuning)?;
                if let Some(record) = record {
                    record.write(&found);
                }
                found
            }
        };
        Ok(Self { program, version, flags, extensions, timeout: options.timeout })
    }

    /// The compiler's name or path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The first line of what it says about its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The flags that kernels are compiled with.
    pub fn flags(&self) -> &[String] {
        &self.flags
    }

    /// The instruction-set extensions that it may use for any source, under these flags: what a machine must have to run its kernels.
    pub fn extensions(&self) -> &[String] {
        &self.extensions
    }

    /// Compiles a source to a shared object. Besides the output, a log file beside it is written and removed.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] if the source is not accepted; it is left where it is. The output may be half
    /// written after any error.
    pub fn compile(&self, job: &Job<'_>, cancel: &AtomicBool) -> Result<(), CompileError> {
        let include = job.header.map(|header| ["-include".as_ref(), header.as_os_str()]);
        let include: &[&OsStr] = include.as_ref().map_or(&[], |flags| flags);
        self.run(
            compile_command(&self.program, &self.flags, include, job.source_file, job.output),
            job,
            cancel,
        )
    }

    /// Compiles a header to what [`HEADER_SUFFIX`] tells of.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_header(&self, job: &Job<'_>, cancel: &AtomicBool) -> Result<(), CompileError> {
        let mut command = Command::new(&self.program);
        // Naming a library would make compilers link.
        command.args(&self.flags).args(["-x", "c-header", "-o"]).arg(job.output).arg(job.source_file);
        self.run(command, job, cancel)
    }

    fn run(&self, mut command: Command, job: &Job<'_>, cancel: &AtomicBool) -> Result<(), CompileError> {
        let folder = job.output.parent().unwrap_or(job.output);
        let limit = Limit { name: job.name, timeout: self.timeout, cancel };
        let Ended { status, messages: diagnostics, .. } = run_limited(&mut command, folder, &limit)?;
        if status.success() {
            return if has_content(job.output) {
                Ok(())
            } else {
                Err(CompileError::Unusable { program: self.program.clone(), reason: NO_OUTPUT.to_owned() })
            };
        }
        if let Some(reason) = outside_cause(status, &diagnostics, job) {
            return Err(CompileError::Died {
                program: self.program.clone(),
                name: job.name.to_owned(),
                reason,
            });
        }
        Err(CompileError::Rejected {
            program: self.program.clone(),
            name: job.name.to_owned(),
            source_file: job.source_file.to_owned(),
            diagnostics: shorten(&diagnostics),
        })
    }
}

/// What is said of a compiler that reports success but writes no file.
const NO_OUTPUT: &str = "it reports success, but writes no shared object";

/// True for a file that is not empty.
fn has_content(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.len() > 0)
}

/// Why a compiler failed, if that has nothing to do with the source.
fn outside_cause(status: ExitStatus, diagnostics: &str, job: &Job<'_>) -> Option<String> {
    // What the C library says in every compiler that meets a full disk. A linker maps its output, and dies of it without a word.
    const FULL_DISK: &str = "No space left on device";
    if diagnostics.contains(FULL_DISK) || job.output.parent().is_some_and(os::is_full) {
        return Some(FULL_DISK.to_owned());
    }
    // GCC's driver passes on that its compiler proper was killed, mostly because memory ran out.
    if status.code().is_none() || diagnostics.contains("Killed signal") {
        return Some("it was killed, perhaps for want of memory".to_owned());
    }
    // What a compiler has against a source it says with the source's name and a line; the rest is about itself, its linker or its
    // files, as is its own failure.
    let source = job.source_file.file_name().unwrap_or_default().to_string_lossy();
    let is_about_source =
        diagnostics.contains(&format!("{source}:")) && !diagnostics.contains("internal compiler error");
    (!is_about_source).then(|| shorten(diagnostics))
}

/// What a compiler can do.
struct Capabilities {
    /// The flags that it understands.
    flags: Vec<String>,
    /// The instruction-set extensions that it uses with these.
    extensions: Vec<String>,
}

/// What a compiler can do, by trial.
fn find_capabilities(program: &Path, tuning: &Tuning) -> Result<Capabilities, CompileError> {
    let dir = Scratch::new().map_err(|error| CompileError::Scratch(error.to_string()))?;
    let probe = Probe { program, dir: dir.path() };
    fs::write(probe.source(), PROBE_SOURCE).map_err(CompileError::io(&probe.source()))?;

    let mut flags: Vec<String> = BASE_FLAGS.map(str::to_owned).into();
    probe.run(&flags)?;
    match tuning {
        Tuning::Native => flags.extend(probe.first_understood(&flags, NATIVE_FLAGS)?),
        Tuning::Arch(name) => {
            let spellings = [name.clone(), name.replace('-', "_")].map(|name| format!("-march={name}"));
            let spellings = spellings.each_ref().map(String::as_str);
            match probe.first_understood(&flags, &spellings)? {
                Some(flag) => flags.push(flag),
                // For the error.
                None => probe.run(&with_flag(&flags, spellings[0]))?,
            }
        }
    }
    for row in OPTIONAL_FLAGS {
        flags.extend(probe.first_understood(&flags, row)?);
    }
    let macros = probe.macros(&flags)?;
    if gcc_version(&macros).is_some_and(|version| version < FIRST_GOOD_SLP) {
        flags.push(NO_SLP_FLAG.to_owned());
    }
    Ok(Capabilities { flags, extensions: isa::of_macros(&macros) })
}

/// What [`CompilerOptions::memory`] knows of one compiler: a file with a flag or an extension in each line.
struct CapabilityRecord {
    folder: CacheFolder,
    name: String,
}

/// GCC's major version, by the macros that it predefines; `None` of another compiler, Clang too, which claims to be an old one.
fn gcc_version(macros: &str) -> Option<u32> {
    let value = |name: &str| {
        let mut words = macros.lines().map(str::split_whitespace);
        words.find_map(|mut words| (words.nth(1) == Some(name)).then(|| words.next().map(str::to_owned)))
    };
    match value("__clang__") {
        Some(_) => None,
        None => value("__GNUC__")??.parse().ok(),
    }
}

impl CapabilityRecord {
    fn of(folder: CacheFolder, program: &Path, version: &str, options: &CompilerOptions) -> Self {
        let mut hasher = blake3::Hasher::new();
        let tuning = format!("{:?}", options.tuning);
        // What "this machine" means depends on the machine.
        let machine = crate::Machine::detect().fingerprint();
        let tried =
            format!("{BASE_FLAGS:?} {OPTIONAL_FLAGS:?} {NO_SLP_FLAG} {NATIVE_FLAGS:?} {PROBE_SOURCE}");
        for fact in [&program.to_string_lossy(), version, &tuning, &machine, &tried] {
            hasher.update(&(fact.len() as u64).to_le_bytes());
            hasher.update(fact.as_bytes());
        }
        Self { folder, name: format!("compiler-{}.txt", hasher.finalize().to_hex()) }
    }

    fn read(&self) -> Option<Capabilities> {
        let text = self.folder.read_sealed(&self.name)?;
        let text = std::str::from_utf8(&text).ok()?;
        let with = |kind: &str| {
            let named = text.lines().filter_map(|line| line.strip_prefix(kind));
            named.map(str::to_owned).collect()
        };
        Some(Capabilities { flags: with(FLAG), extensions: with(EXTENSION) })
    }

    /// Writes the record; without it, all is tried again next time.
    fn write(&self, known: &Capabilities) {
        let lines = |kind: &'static str, names: &[String]| -> String {
            names.iter().map(|name| format!("{kind}{name}\n")).collect()
        };
        let text = lines(FLAG, &known.flags) + &lines(EXTENSION, &known.extensions);
        let _ = self.folder.write_sealed(&self.name, text.as_bytes());
    }
}

/// What lines of a [`CapabilityRecord`] begin with.
const FLAG: &str = "flag ";
const EXTENSION: &str = "extension ";

/// The first candidate that answers `--version`, with the first line of its answer.
fn find_program(explicit: Option<&Path>) -> Result<(PathBuf, String), CompileError> {
    let dir = Scratch::new().map_err(|error| CompileError::Scratch(error.to_string()))?;
    let version = |program: &Path| -> Result<String, String> {
        let mut command = Command::new(program);
        command.arg("--version");
        let ended = run_probe(&mut command, dir.path()).map_err(|error| match error {
            CompileError::Io { reason, .. } => reason,
            other => other.to_string(),
        })?;
        match ended.output.lines().next() {
            Some(line) if ended.status.success() => Ok(line.trim().to_owned()),
            _ => Err("it does not answer `--version`".to_owned()),
        }
    };
    if let Some(program) = explicit {
        return match version(program) {
            Ok(version) => Ok((program.to_owned(), version)),
            Err(reason) => Err(CompileError::Unusable { program: program.to_owned(), reason }),
        };
    }
    CANDIDATES
        .iter()
        .find_map(|name| Some((PathBuf::from(name), version(Path::new(name)).ok()?)))
        .ok_or_else(|| CompileError::NoCompiler { tried: CANDIDATES.map(str::to_owned).into() })
}

/// Trial compilations of [`PROBE_SOURCE`] in a folder of their own.
struct Probe<'a> {
    program: &'a Path,
    dir: &'a Path,
}

impl Probe<'_> {
    fn source(&self) -> PathBuf {
        self.dir.join("probe.c")
    }

    fn run(&self, flags: &[String]) -> Result<(), CompileError> {
        let unusable = |reason| CompileError::Unusable { program: self.program.to_owned(), reason };
        let object = self.dir.join("probe.so");
        let mut command = compile_command(self.program, flags, &[], &self.source(), &object);
        let ended = run_probe(&mut command, self.dir).map_err(|error| match error {
            CompileError::TimedOut { .. } => error,
            other => unusable(other.to_string()),
        })?;
        // Clang accepts some flags of gcc with no more than this warning, which `-w` does not silence.
        let is_understood = !ended.messages.contains("unknown") && !ended.messages.contains("unsupported");
        if ended.status.success() && is_understood {
            return if has_content(&object) { Ok(()) } else { Err(unusable(NO_OUTPUT.to_owned())) };
        }
        Err(unusable(format!("`{}` fails:\n{}", flags.join(" "), shorten(&ended.messages))))
    }

    /// The first flag of a row that the compiler understands beside `flags`.
    fn first_understood(&self, flags: &[String], row: &[&str]) -> Result<Option<String>, CompileError> {
        for flag in row {
            match self.run(&with_flag(flags, flag)) {
                Ok(()) => return Ok(Some((*flag).to_owned())),
                Err(CompileError::Unusable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// What the compiler predefines under these flags: lines `#define NAME VALUE`.
    fn macros(&self, flags: &[String]) -> Result<String, CompileError> {
        let mut command = Command::new(self.program);
        command.args(flags).args(["-dM", "-E"]).arg(self.source());
        Ok(run_probe(&mut command, self.dir)?.output)
    }
}

fn with_flag(flags: &[String], flag: &str) -> Vec<String> {
    flags.iter().cloned().chain([flag.to_owned()]).collect()
}

fn compile_command(
    program: &Path,
    flags: &[String],
    more_flags: &[&OsStr],
    source: &Path,
    output: &Path,
) -> Command {
    let mut command = Command::new(program);
    // Libraries follow the source: linkers resolve from left to right.
    command.args(flags).args(more_flags).arg("-o").arg(output).arg(source).arg("-lm");
    command
}

/// What may end a compiler run early.
struct Limit<'a> {
    name: &'a str,
    timeout: Duration,
    cancel: &'a AtomicBool,
}

/// How a command ended, and what it wrote.
struct Ended {
    status: ExitStatus,
    /// To its standard output.
    output: String,
    /// To its standard error.
    messages: String,
}

/// Runs a short command that only asks the compiler something. The first one for a CPU takes `zig cc` many seconds: it compiles
/// what other compilers have as libraries.
fn run_probe(command: &mut Command, folder: &Path) -> Result<Ended, CompileError> {
    const TIMEOUT: Duration = Duration::from_secs(120);
    let name = command.get_program().to_string_lossy().into_owned();
    let never = AtomicBool::new(false);
    run_limited(command, folder, &Limit { name: &name, timeout: TIMEOUT, cancel: &never })
}

/// Runs a command, and kills it when its time is over or the caller cancels. What it writes goes through files in `folder`: a process
/// that it leaves behind may keep them open, and is not waited for.
fn run_limited(command: &mut Command, folder: &Path, limit: &Limit<'_>) -> Result<Ended, CompileError> {
    const FIRST_POLL: Duration = Duration::from_millis(1);
    const LAST_POLL: Duration = Duration::from_millis(20);
    let program = PathBuf::from(command.get_program());
    let file = || tempfile::tempfile_in(folder).map_err(CompileError::cache(folder));
    let (mut output, mut messages) = (file()?, file()?);
    let duplicate = |file: &File| file.try_clone().map_err(CompileError::cache(folder));
    let mut child = os::in_own_group(command, limit.timeout.as_secs() + 1)
        .stdin(Stdio::null())
        .stdout(duplicate(&output)?)
        .stderr(duplicate(&messages)?)
        .spawn()
        .map_err(CompileError::io(&program))?;
    let start = Instant::now();
    let mut poll = FIRST_POLL;
    let stop = loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                return Ok(Ended { status, output: head(&mut output), messages: head(&mut messages) });
            }
            Ok(None) => {}
            Err(error) => break CompileError::io(&program)(error),
        }
        if limit.cancel.load(Ordering::Relaxed) {
            break CompileError::Cancelled;
        }
        if start.elapsed() > limit.timeout {
            break CompileError::TimedOut { name: limit.name.to_owned(), limit: limit.timeout };
        }
        std::thread::sleep(poll);
        poll = (poll * 2).min(LAST_POLL);
    };
    stop_group(&mut child);
    Err(stop)
}

/// The first part of a file that a command wrote. Templates can make a compiler say very much.
fn head(file: &mut File) -> String {
    const BYTES: u64 = 1 << 20;
    let mut bytes = Vec::new();
    // What cannot be read is missing from a message only.
    let _ = file.rewind();
    let _ = file.take(BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ends a child of [`os::in_own_group`] and whatever it started: a compiler is a driver and several programs. They are
/// asked first, so that they can remove their temporary files.
fn stop_group(child: &mut Child) {
    const GRACE: Duration = Duration::from_millis(300);
    const POLL: Duration = Duration::from_millis(2);
    os::end_group(child.id());
    let signalled = Instant::now();
    while signalled.elapsed() < GRACE {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        std::thread::sleep(POLL);
    }
    // Killing fails only if the child has just ended by itself; waiting collects it either way.
    let _ = child.kill();
    let _ = child.wait();
}

/// The head of a compiler's messages: the first errors matter, and templates can make thousands.
fn shorten(text: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<_> = text.lines().collect();
    match lines.len().checked_sub(LINES) {
        Some(more) if more > 0 => format!("{}\n... {more} more lines", lines[..LINES].join("\n")),
        _ => lines.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{Argument, run_serial};

    #[test]
    fn old_gcc_is_known_by_its_macros() {
        assert_eq!(gcc_version("#define __GNUC__ 12\n#define __x86_64__ 1\n"), Some(12));
        assert_eq!(gcc_version("#define __GNUC__ 4\n#define __clang__ 1\n"), None);
        assert_eq!(gcc_version("#define __x86_64__ 1\n"), None);
    }

    #[test]
    fn comparisons_are_stored_to_lanes_as_zero_and_one() {
        let library = crate::cpu::testing::load(
            "#include <stdint.h>\ntypedef int32_t lanes __attribute__((vector_size(32)));\n\
             __attribute__((noinline)) static lanes flags(lanes a) {\n\
             lanes r = {0}; _Pragma(\"GCC unroll 8\") for (int l = 0; l < 8; l++) r[l] = (int32_t)(a[l] != 0); return r; }\n\
             void test(void *const *b, int64_t lo, int64_t hi, void *s, int64_t before) {\n\
             lanes a, r; __builtin_memcpy(&a, b[0], 32); r = flags(a); __builtin_memcpy(b[1], &r, 32); }\n",
        );
        let input: Vec<u8> = [5i32, 0, -1, 7, 0, 0, 2, 3].into_iter().flat_map(i32::to_le_bytes).collect();
        let mut output = vec![9; 32];
        let arguments = &mut [Argument::Read(&input), Argument::Write(&mut output)];
        run_serial(&library.kernel("test", 1, 0).unwrap(), arguments);
        let expected: Vec<u8> = [1i32, 0, 1, 1, 0, 0, 1, 1].into_iter().flat_map(i32::to_le_bytes).collect();
        assert_eq!(output, expected);
    }

    fn compile(source: &str, options: &CompilerOptions, cancel: bool) -> Result<Vec<u8>, CompileError> {
        let dir = Scratch::new().unwrap();
        let source_file = dir.path().join("test.c");
        let output = dir.path().join("test.so");
        fs::write(&source_file, source).unwrap();
        let compiler = Compiler::find(options).unwrap();
        let job = Job { name: "test", header: None, source_file: &source_file, output: &output };
        compiler.compile(&job, &AtomicBool::new(cancel))?;
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else stays");
        Ok(fs::read(output).unwrap())
    }

    #[test]
    fn a_compiler_is_found() {
        let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
        assert!(!compiler.version().is_empty());
        assert!(compiler.flags().iter().any(|flag| flag.ends_with("=native")));
    }

    /// Objects linked with such flags make the loading thread flush subnormal numbers (decision 48).
    #[test]
    fn no_flag_flushes_subnormal_numbers() {
        let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
        let flushing = ["-Ofast", "-ffast-math", "-funsafe-math-optimizations", "-mdaz-ftz"];
        assert!(!compiler.flags().iter().any(|flag| flushing.contains(&flag.as_str())));
    }

    #[test]
    fn sources_become_shared_objects() {
        assert!(
            !compile("int f(void) { return 1; }", &CompilerOptions::default(), false).unwrap().is_empty()
        );
    }

    #[test]
    fn rejected_sources_are_kept_and_named() {
        let error = compile("int f(void) { return oops; }", &CompilerOptions::default(), false).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("internal error: ") && text.contains("oops") && text.contains("test.c"),
            "{text}"
        );
    }

    #[test]
    fn a_cancelled_compilation_stops() {
        let error = compile("int f(void) { return 1; }", &CompilerOptions::default(), true).unwrap_err();
        assert!(matches!(error, CompileError::Cancelled));
    }

    #[test]
    fn a_slow_compilation_stops() {
        let options = CompilerOptions { timeout: Duration::ZERO, ..Default::default() };
        let error = compile("int f(void) { return 1; }", &options, false).unwrap_err();
        assert!(matches!(error, CompileError::TimedOut { .. }));
    }

    #[test]
    fn bad_options_are_explained() {
        let missing = CompilerOptions { program: Some("/nonexistent/cc".into()), ..Default::default() };
        let text = Compiler::find(&missing).unwrap_err().to_string();
        assert!(text.contains("/nonexistent/cc does not work"), "{text}");
        let arch = CompilerOptions { tuning: Tuning::Arch("pdp11".into()), ..Default::default() };
        let text = Compiler::find(&arch).unwrap_err().to_string();
        assert!(text.contains("-march=pdp11"), "{text}");
    }

    #[test]
    fn long_messages_are_cut() {
        let text = "line\n".repeat(100);
        assert!(shorten(&text).ends_with("... 60 more lines"));
        assert_eq!(shorten("one\ntwo"), "one\ntwo");
    }
}
