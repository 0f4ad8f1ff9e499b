//! Compiles emitted C with the system compiler and runs it as a process on given buffers.

#![allow(dead_code, reason = "each test binary uses a part")]

use orch_codegen::c;
use orch_thread::passes::{PassContext, run_all};
use orch_thread::{BufferData, CpuTarget, Scope, ThreadProgram, target};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A target, how text for it is compiled, and how the result is run.
pub struct Toolchain {
    /// The target.
    pub target: &'static CpuTarget,
    /// The C compiler.
    pub cc: &'static str,
    /// The program that runs binaries of another architecture; empty if they run as they are.
    pub emulator: &'static str,
    /// Arguments of the compiler after the target's.
    args: &'static [&'static str],
}

/// The compiler and the emulator of AArch64 on other machines.
const CROSS_CC: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// Targets for which this machine compiles and runs programs. Says what is left out.
pub fn toolchains() -> Vec<Toolchain> {
    let native = |target| Toolchain { target, cc: "cc", emulator: "", args: &[] };
    let mut toolchains = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            toolchains.push(native(&target::X86_64_V3));
        }
        if is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            toolchains.push(native(&target::X86_64_V4));
            if is_x86_feature_detected!("avx512bf16") {
                toolchains.push(native(&target::X86_64_V4_BF16));
            }
            if grants_tiles() {
                toolchains.push(native(&target::X86_64_AMX));
            }
        }
    }
    if cfg!(target_arch = "aarch64") {
        toolchains.push(native(&target::AARCH64));
    } else if exists(CROSS_CC) && exists(EMULATOR) {
        let args = &["-static"];
        toolchains.push(Toolchain { target: &target::AARCH64, cc: CROSS_CC, emulator: EMULATOR, args });
    }
    for target in target::CPU_TARGETS {
        if !toolchains.iter().any(|toolchain| toolchain.target.name == target.name) {
            println!("skipped {}: this machine does not run it ({CROSS_CC}, {EMULATOR})", target.name);
        }
    }
    toolchains
}

/// True if the system lists matrix tiles. (Run-time detection of AMX is not in stable Rust.)
fn grants_tiles() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("amx_bf16"))
}

/// A compiler for matrix tiles, whether or not this machine runs what it makes; `None` if it does not know them.
pub fn tile_compiler() -> Option<Toolchain> {
    let toolchain = Toolchain { target: &target::X86_64_AMX, cc: "cc", emulator: "", args: &[] };
    let flags = c::flags(toolchain.target);
    let run = Command::new(toolchain.cc).args(flags).args(["-E", "-x", "c", "/dev/null"]).output();
    run.is_ok_and(|run| run.status.success()).then_some(toolchain)
}

/// True if a program is installed.
fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success())
}

impl Toolchain {
    /// A command that runs a compiled program.
    pub fn command(&self, binary: &Path) -> Command {
        if self.emulator.is_empty() {
            return Command::new(binary);
        }
        let mut command = Command::new(self.emulator);
        command.arg(binary);
        command
    }

    /// Compiles `text`; `args` come last.
    pub fn compile(&self, text: &str, directory: &Path, args: &[&str]) -> PathBuf {
        let (source, output) = (directory.join("program.c"), directory.join("program"));
        std::fs::write(&source, text).expect("the test directory is writable");
        let run = Command::new(self.cc)
            .args(c::flags(self.target))
            .args(WARNINGS)
            .arg(&source)
            .args(self.args)
            .args(args)
            .arg("-lm")
            .arg("-o")
            .arg(&output)
            .output()
            .expect("a C compiler is installed");
        assert!(run.status.success(), "{}:\n{}", source.display(), String::from_utf8_lossy(&run.stderr));
        output
    }
}

/// Random programs compare constants and bind what they do not use.
const WARNINGS: [&str; 6] =
    ["-Wall", "-Werror", "-Wno-unused", "-Wno-overflow", "-Wno-tautological-compare", "-Wno-bool-compare"];

/// A fresh directory for a test's files.
pub fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("the build directory is writable");
    path
}

/// A C `main` that runs each program on the buffers in one file and writes the buffers to another.
pub fn driver(programs: &[&ThreadProgram]) -> String {
    let has_tiles = programs.iter().any(|program| !program.tiles.is_empty());
    // Linux gives the right to use tile registers on request.
    let (include, request) = match has_tiles {
        true => (
            "#include <sys/syscall.h>\n#include <unistd.h>\n",
            "    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 4;\n",
        ),
        false => ("", ""),
    };
    let mut text = format!(
        "\n#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n{include}\n\
         int main(int argc, char **argv) {{\n{request}    \
         FILE *in = fopen(argv[1], \"rb\"), *out = fopen(argv[2], \"wb\");\n    if (argc != 3 || !in || !out) return 2;\n",
    );
    for program in programs {
        let globals: Vec<usize> = (program.buffers.iter().filter(|b| b.scope != Scope::Scratch))
            .map(|b| b.elems * b.dtype.size_bytes())
            .collect();
        writeln!(text, "    {{\n        void *buffers[{}];", globals.len().max(1)).unwrap();
        for (index, bytes) in globals.iter().enumerate() {
            // Exactly as long as declared and off the natural alignment of vectors.
            writeln!(
                text,
                "        buffers[{index}] = (char *)malloc({bytes} + 8) + 8;\n        \
                 if (fread(buffers[{index}], 1, {bytes}, in) != {bytes}) return 3;"
            )
            .unwrap();
        }
        // In two calls, of which the second finds scratch as the first one left it.
        let scratch = program.scratch_bytes().max(64);
        let (name, tasks, half) = (&program.name, program.tasks, program.tasks / 2);
        writeln!(
            text,
            "        void *scratch = aligned_alloc(64, {scratch});\n        {name}(buffers, 0, {half}, scratch, -1);\n        \
             {name}(buffers, {half}, {tasks}, scratch, {half} - 1);",
        )
        .unwrap();
        for (index, bytes) in globals.iter().enumerate() {
            writeln!(text, "        fwrite(buffers[{index}], 1, {bytes}, out);").unwrap();
        }
        text.push_str("    }\n");
    }
    text.push_str("    return fclose(out);\n}\n");
    text
}

/// Runs programs as compiled C, each on its global buffers, and returns the buffers afterwards.
pub fn run_compiled(
    programs: &[(&ThreadProgram, &[BufferData])],
    toolchain: &Toolchain,
    directory: &Path,
) -> Vec<Vec<BufferData>> {
    let only: Vec<ThreadProgram> = programs.iter().map(|(program, _)| after_passes(program)).collect();
    let only: Vec<&ThreadProgram> = only.iter().collect();
    let text = c::emit(&only, toolchain.target) + &driver(&only);
    // The sanitizer's library does not exist for every cross compiler.
    let sanitize: &[&str] = match toolchain.emulator {
        "" => &["-fsanitize=undefined", "-fno-sanitize-recover=all"],
        _ => &[],
    };
    let binary = toolchain.compile(&text, directory, sanitize);
    let (input, output) = (directory.join("in.bin"), directory.join("out.bin"));
    let bytes: Vec<u8> = programs
        .iter()
        .flat_map(|(_, buffers)| buffers.iter())
        .flat_map(|b| b.bytes.iter().copied())
        .collect();
    std::fs::write(&input, bytes).expect("the test directory is writable");
    let run =
        toolchain.command(&binary).arg(&input).arg(&output).output().expect("the program was just compiled");
    assert!(
        run.status.success(),
        "{}: {}\n{}",
        binary.display(),
        run.status,
        String::from_utf8_lossy(&run.stderr)
    );
    let result = std::fs::read(&output).expect("the program wrote it");
    let mut rest = &result[..];
    (programs.iter())
        .map(|(_, buffers)| {
            (buffers.iter())
                .map(|buffer| {
                    let (bytes, tail) = rest.split_at(buffer.bytes.len());
                    rest = tail;
                    BufferData { dtype: buffer.dtype, bytes: bytes.to_vec() }
                })
                .collect()
        })
        .collect()
}

/// A program as it is emitted: after all passes.
pub fn after_passes(program: &ThreadProgram) -> ThreadProgram {
    let mut program = program.clone();
    run_all(&mut program, &PassContext::default(), &mut |_, _| {});
    program
}
