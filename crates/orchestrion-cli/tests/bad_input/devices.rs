//! GPUs that fail, compilers for them, what profilers see, and what is remembered of runs: with a driver that has no device and an NVRTC that
//! compiles nothing (`orch-runtime/tests/fake_cuda`).

use crate::support::{Session, good_model};
use orch_ir::{DType, Tensor};
use orch_onnx::builder::{GraphBuilder, ModelBuilder, node};
use std::path::Path;
use std::process::Command;

/// Driver, NVRTC, cuBLASLt and cuDNN in the session's folder, and an executable for the driver's device.
pub fn session(name: &'static str) -> Session {
    let session = Session::new(name);
    for (source, library) in [
        ("driver.c", "libcuda.so"),
        ("nvrtc.c", "libnvrtc.so"),
        ("cublaslt.c", "libcublasLt.so"),
        ("cudnn.c", "libcudnn.so"),
        ("nvtx.c", "libnvtx.so"),
    ] {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../orch-runtime/tests/fake_cuda").join(source);
        let mut compiler = Command::new("cc");
        let compiler = compiler.args(["-shared", "-fPIC", "-w", "-o"]).arg(session.work().join(library));
        assert!(compiler.arg(source).status().unwrap().success());
    }
    session.write("good.onnx", good_model().encode());
    let output = session.command(COMPILE).arg("-q").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = session.command(RUN).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    session
}

/// Compiles without a device.
pub const COMPILE: &str = "compile good.onnx --target cuda:sm_90 --nvrtc ./libnvrtc.so -o good.orc";
const RUN: &str = "run good.orc --cuda-driver ./libcuda.so";
/// Compiles with measurements on the device.
pub const TUNED: &str =
    "compile good.onnx --target cuda --tune --nvrtc ./libnvrtc.so --cuda-driver ./libcuda.so -o good.orc";
const IN_A_ROW: &str = "bench good.orc --cuda-driver ./libcuda.so --device-only --in-a-row 3 --seconds 0";
const CHECKED: &str = "run good.orc --cuda-driver ./libcuda.so --check-steps";

/// A call for which the driver is steered so.
fn steered(session: &Session, arguments: &str, steps: &str) -> Command {
    let mut command = session.command(arguments);
    command.env("FAKE_CUDA", steps);
    command
}

#[test]
fn devices() {
    let mut session = session("devices");
    for (title, steps) in [
        ("a driver that is too old", "set driver_version 11080"),
        ("a driver without a device", "set device_count 0"),
        ("a driver that is not the one of the system's kernel", "fail cuInit 803 0"),
        (
            "a driver's library that is there for linking only",
            "fail cuDriverGetVersion 34 0\nfail cuInit 34 0",
        ),
        ("a device that is taken", "fail cuDevicePrimaryCtxRetain 46 0"),
        ("a device whose memory is taken", "fail cuDevicePrimaryCtxRetain 2 0"),
        ("a device with too little memory for the model", "set memory_total 300"),
        ("a device with too little memory for a graph", "fail cuGraphLaunch 2 0"),
        ("a device of another generation", "set capability 80"),
        ("a driver older than the compiler", "fail cuModuleLoadDataEx 222 0"),
        ("a launch that the device refuses", "fail cuLaunchKernelEx 1 0"),
        ("a device that is lost", "fail cuStreamSynchronize 214 2"),
    ] {
        let command = steered(&session, RUN, steps);
        session.observe(title, RUN, command);
    }
    // The waits before are for constants, and for what is prepared.
    let fault = "fail cuStreamSynchronize 700 2";
    let command = steered(&session, RUN, fault);
    session.observe_internal("an illegal address", RUN, command);
    let command = steered(&session, CHECKED, fault);
    session.observe_internal("an illegal address, looked for", CHECKED, command);

    let command = steered(&session, IN_A_ROW, "set memory_total 400");
    session.observe("a device with too little memory for runs in a row", IN_A_ROW, command);
    let output = session.command(IN_A_ROW).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.starts_with("median 5.0 us, best 5.0 us of "), "{said}");

    // A plan that is made by measured times needs the memory of each kernel alone.
    let command = steered(&session, TUNED, "set memory_total 300");
    session.observe("a device with too little memory to measure kernels", TUNED, command);
    let command = steered(&session, TUNED, "fail cuDevicePrimaryCtxRetain 214 0");
    session.observe("a device that is lost before kernels are measured", TUNED, command);
    let output = session.command(TUNED).arg("-q").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let other = "compile good.onnx --target cuda:sm_80 --nvrtc ./libnvrtc.so";
    let mut command = session.command(other);
    command.env("FAKE_NVRTC", "7");
    session.observe("an NVRTC that lacks a part", other, command);
    let whole = std::fs::read(session.work().join("libnvrtc.so")).unwrap();
    session.write("half.so", &whole[..whole.len() / 2]);
    let halved = "compile good.onnx --target cuda:sm_80 --nvrtc ./half.so";
    // How long the halves are depends on the C compiler.
    let output = session.command(halved).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("./half.so: the file is cut off: it has "), "{said}");
    session.write("libnvrtc-builtins.so.13.0", &whole[..whole.len() / 2]);
    let output = session.command(COMPILE).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("./libnvrtc-builtins.so.13.0: the file is cut off: it has "), "{said}");
    session.finish();
}

/// A recurrence of so many hidden units that its CTAs wait for each other.
fn wide_recurrence() -> ModelBuilder {
    const HIDDEN: usize = 512;
    let weights = |inputs: usize| {
        let values: Vec<f32> = (0..HIDDEN * inputs).map(|at| (at % 7) as f32 / 1e4).collect();
        Tensor::from_vec([1, HIDDEN, inputs], values)
    };
    GraphBuilder::new("recurrence")
        .input("x", DType::F32, [2, 1, 16])
        .initializer("w", &weights(16))
        .initializer("r", &weights(HIDDEN))
        .node(node("RNN", ["x", "w", "r"], ["y"]).attr("hidden_size", HIDDEN as i64))
        .output("y")
        .model(17)
}

/// What a call says that must succeed.
fn said(mut command: Command) -> (String, String) {
    let output = command.output().unwrap();
    let [out, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{out}{errors}");
    (out, errors)
}

/// Compiles PTX, for no GPU in particular and for the one that is here.
const PTX: &str = "compile good.onnx --target cuda:compute_80 --nvrtc ./libnvrtc.so -o ptx.orc";
const PTX_HERE: &str =
    "compile good.onnx --target cuda --nvrtc ./libnvrtc.so --cuda-driver ./libcuda.so -o here.orc";
const RUN_PTX: &str = "run ptx.orc --cuda-driver ./libcuda.so";

#[test]
fn ptx() {
    let mut session = session("ptx");
    let note =
        "are PTX for compute_80, which the driver of any GPU of compute capability 8.0 or later compiles";
    let (_, errors) = said(session.command(PTX));
    assert!(errors.contains(note) && !errors.contains("no table"), "{errors}");
    for capability in [80, 86, 90, 100, 120] {
        said(steered(&session, RUN_PTX, &format!("set capability {capability}")));
    }
    // PTX of a later version than the driver's.
    let mut later = session.command(PTX);
    later.env("FAKE_PTX", "9.5").args(["--cache-dir", "later"]);
    said(later);
    said(steered(&session, RUN_PTX, "set capability 120\nset driver_version 12080"));

    // A GPU of a generation that has no table.
    let (_, errors) = said(steered(&session, PTX_HERE, "set capability 120"));
    assert!(
        errors.contains("note: there is no table of compute capability 12.0 (Fake 0): kernels have"),
        "{errors}"
    );
    said(steered(&session, &format!("{PTX_HERE} --tune -q"), "set capability 120"));
    let (plan, _) = said(session.command("explain here.orc --all"));
    assert!(plan.contains(" for compute_80 in f32: ") && plan.contains(note), "{plan}");
    // One that is not here.
    let unknown = "compile good.onnx --target cuda:sm_121 --nvrtc ./libnvrtc.so -o unknown.orc";
    let (_, errors) = said(session.command(unknown));
    assert!(errors.contains("note: there is no table of sm_121: ") && errors.contains(note), "{errors}");

    let command = steered(&session, RUN_PTX, "set capability 75");
    session.observe("a GPU older than the PTX", RUN_PTX, command);
    let command = steered(&session, RUN, "set capability 120");
    session.observe("code of one generation on another", RUN, command);
    let command = steered(&session, RUN_PTX, "set capability 120\nfail cuModuleLoadDataEx 218 0");
    session.observe("PTX that the driver does not compile", RUN_PTX, command);
    let too_new = format!("{PTX_HERE} --cache-dir too-new");
    let mut command = steered(&session, &too_new, "set capability 120");
    command.env("FAKE_PTX", "10.0");
    session.observe("PTX of a language that the driver does not have", &too_new, command);
    session.case("a GPU that is too old to be named", "compile good.onnx --target cuda:sm_75");

    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/walkthrough/causal_attention.onnx");
    session.write("attention.onnx", std::fs::read(model).unwrap());
    let shared =
        "compile attention.onnx --target cuda:compute_80 --precision f16 --nvrtc ./libnvrtc.so -o ptx.orc -q";
    said(session.command(shared));
    let command = steered(&session, RUN_PTX, "set max_shared 1024");
    session.observe("a GPU with less shared memory", RUN_PTX, command);

    session.write("recurrence.onnx", wide_recurrence().encode());
    let waiting = "compile recurrence.onnx --target cuda:sm_90 --nvrtc ./libnvrtc.so -o ptx.orc -q";
    said(session.command(waiting));
    said(steered(&session, RUN_PTX, "set memory_total 8000000\nset sms 78"));
    let command = steered(&session, RUN_PTX, "set memory_total 8000000\nset sms 16");
    session.observe("a GPU with fewer SMs than CTAs that wait for each other", RUN_PTX, command);
    session.finish();
}

#[test]
fn kernels_are_named_by_model_and_share_the_cache() {
    let session = session("profilers");
    let kernels = || std::fs::read_dir(session.cache().join("kernels")).unwrap().count();
    let before = kernels();
    session.write("other model.onnx", good_model().encode());
    for (target, ends) in [("cuda:sm_90", "cubin"), ("cuda:compute_80", "ptx")] {
        for (model, name) in [("good.onnx", "good"), ("other model.onnx", "other_model")] {
            let mut command =
                session.command(&format!("compile --target {target} --nvrtc ./libnvrtc.so -o it.orc -q"));
            command.arg(model);
            said(command);
            let (plan, _) = said(session.command("explain it.orc --json"));
            assert!(plan.contains(&format!("\"symbol\": \"{name}_k0_mul_max_add\"")), "{plan}");
            let (source, _) = said(session.command("explain it.orc --source k0"));
            assert!(source.contains(&format!("{name}_k0_mul_max_add(")), "{source}");
            let mut command = session.command("run it.orc --cuda-driver ./libcuda.so");
            command.env("FAKE_CUDA", "set capability 90");
            said(command);
        }
        let files = std::fs::read_dir(session.cache().join("kernels")).unwrap().flatten();
        let of_kind = files.filter(|file| file.path().extension().is_some_and(|found| found == ends));
        assert_eq!(of_kind.count(), 1, "{target}");
    }
    assert_eq!(kernels(), before + 1, "PTX beside the cubin that was there");

    let marked = |arguments: &str, variable: &str, value: &str| {
        let mut command = session.command(arguments);
        command.env("FAKE_NVTX", "1").env(variable, value);
        said(command)
            .1
            .lines()
            .filter(|line| line.contains("begin") || line.contains("end"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let steps = "begin good\n  begin k0_mul_max_add\n  end\nend";
    for arguments in [RUN, CHECKED] {
        assert_eq!(marked(arguments, "ORCHESTRION_NVTX", "./libnvtx.so"), steps);
    }
    for (variable, value) in [
        ("ORCHESTRION_NVTX", "0"),
        ("ORCHESTRION_NVTX", "./absent.so"),
        ("NVTX_INJECTION64_PATH", "/absent.so"),
    ] {
        assert_eq!(marked(RUN, variable, value), "");
    }
}

#[test]
fn launches_are_chosen_once_for_a_driver() {
    let session = session("launches");
    let launches = |steps: &str| {
        let bench = "bench good.orc --cuda-driver ./libcuda.so --seconds 0";
        let (out, _) = said(steered(&session, bench, steps));
        out.lines().find(|line| line.starts_with("launches: ")).expect("it says how").to_owned()
    };
    // The machine may be too busy for all rounds within the time that they may take.
    let chosen = |steps: &str| {
        let mut tries = (0..50).map(|_| launches(steps));
        tries
            .find(|line| line.ends_with(": medians of 25 rounds)"))
            .expect("a process has time for 25 rounds")
    };
    let remembered = |line: &str| line.replace("rounds)", "rounds, remembered from an earlier process)");
    let first = chosen("");
    assert_eq!([launches(""), launches("")], [remembered(&first), remembered(&first)]);
    // Another driver, and again the first one.
    let other = chosen("set driver_version 13010");
    assert_eq!(launches("set driver_version 13010"), remembered(&other));
    assert_eq!(launches(""), remembered(&first));
    // Records that are damaged.
    let tuning = session.cache().join("tuning");
    let shards = std::fs::read_dir(&tuning).unwrap().flatten();
    let records: Vec<_> =
        shards.flat_map(|shard| std::fs::read_dir(shard.path()).unwrap().flatten()).collect();
    assert!(records.len() >= 2, "{records:?}");
    for record in records {
        std::fs::write(record.path(), "{").unwrap();
    }
    let again = chosen("");
    assert_eq!(launches(""), remembered(&again));
    let (report, _) = said(session.command("explain good.orc --measure --cuda-driver ./libcuda.so"));
    assert!(report.contains(&remembered(&again)), "{report}");
}

#[test]
fn refused_sources_are_kept() {
    let session = session("refused");
    for (status, name) in [("6", "NVRTC_ERROR_COMPILATION"), ("11", "NVRTC_ERROR_INTERNAL_ERROR")] {
        let mut command = session.command("compile good.onnx --target cuda:sm_80 --nvrtc ./libnvrtc.so");
        let output = command.env("FAKE_NVRTC", status).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(70), "{said}");
        let start =
            "error: internal error: NVRTC does not compile generated source `k0_mul_max_add`, kept at ";
        let rest = said.strip_prefix(start).unwrap_or_else(|| panic!("{said}"));
        let (path, rest) = rest.split_once(":\n").unwrap();
        assert!(std::fs::read_to_string(path).unwrap().contains("k_mul_max_add____"), "{path}");
        assert!(rest.starts_with(name) && rest.contains("This is a bug in Orchestrion"), "{said}");
    }
}
