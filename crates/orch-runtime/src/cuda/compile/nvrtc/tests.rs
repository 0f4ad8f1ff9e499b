//! Tests of compiling with NVRTC, which needs no GPU. The library is taken from the environment variable
//! `ORCHESTRION_TEST_NVRTC`, or from the repository's `.venv`; where neither has one, the tests say so.

use super::*;
use crate::cuda::DeviceCodeCache;
use crate::cuda::driver::cubin;
use crate::cuda::driver::ptx::{self, PtxHeader};
use orch_files::Scratch;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

static GO: AtomicBool = AtomicBool::new(false);

/// NVRTC; one that is required must be there.
fn nvrtc() -> Option<Arc<Nvrtc>> {
    static LOADED: OnceLock<Option<Arc<Nvrtc>>> = OnceLock::new();
    let load = || {
        if let Some(path) = std::env::var_os("ORCHESTRION_TEST_NVRTC") {
            let paths = SearchPaths { nvrtc: Some(path.into()), ..SearchPaths::default() };
            return Some(Arc::new(Nvrtc::load(&paths).unwrap()));
        }
        let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
        let versions = std::fs::read_dir(venv).into_iter().flatten().flatten();
        let site_packages = versions.map(|version| version.path().join("site-packages")).collect();
        let found = Nvrtc::load(&SearchPaths { site_packages, ..SearchPaths::default() });
        found.inspect_err(|error| eprintln!("skipped: {error}")).ok().map(Arc::new)
    };
    LOADED.get_or_init(load).clone()
}

const ADD: &str = "extern \"C\" __global__ void __launch_bounds__(128)\n\
    add(const float *a, const float *b, float *c) {\n\
    __shared__ float s[128]; int i = blockIdx.x * 128 + threadIdx.x;\n\
    s[threadIdx.x] = a[i]; __syncthreads(); c[i] = s[127 - threadIdx.x] + b[i]; }\n";

/// A kernel that halves may be computed with nothing but inline PTX.
const HALVES: &str = "extern \"C\" __global__ void halves(const unsigned short *a, unsigned short *b) {\n\
    float x; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(x) : \"h\"(a[threadIdx.x]));\n\
    unsigned short y; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(2.0f * x)); b[threadIdx.x] = y; }\n";

fn source(text: &str) -> Source {
    Source { name: "test".into(), text: text.into(), symbols: Vec::new() }
}

fn compile(nvrtc: &Nvrtc, text: &str, arch: &str) -> Result<DeviceCode, NvrtcError> {
    nvrtc.compile(&source(text), &NvrtcTarget::new(arch), &std::env::temp_dir())
}

#[test]
fn kernels_compile_for_both_generations() {
    let Some(nvrtc) = nvrtc() else { return };
    for (arch, capability) in [("sm_80", "8.0"), ("sm_90a", "9.0")] {
        let cubin = compile(&nvrtc, &format!("{ADD}{HALVES}"), arch).unwrap();
        assert_eq!(cubin::capability(&cubin.bytes).unwrap().to_string(), capability);
        let add = cubin.kernels.iter().find(|kernel| kernel.name == "add").unwrap();
        assert_eq!((add.shared_bytes, add.barriers, add.spill_store_bytes, add.stack_bytes), (512, 1, 0, 0));
        assert!((8..40).contains(&add.registers), "{add:?}");
        assert_eq!(cubin.kernels.len(), 2);
    }
}

#[test]
fn ptx_is_for_any_later_generation() {
    let Some(nvrtc) = nvrtc() else { return };
    let code = compile(&nvrtc, &format!("{ADD}{HALVES}"), "compute_80").unwrap();
    let header = PtxHeader::of(&code.bytes).unwrap();
    assert_eq!(header.capability.to_string(), "8.0");
    // The driver of the release takes it.
    assert_eq!(header.version, ptx::newest(nvrtc.version()));
    let text = std::str::from_utf8(&code.bytes).unwrap();
    assert!(text.contains(".entry add(") && text.trim_end().ends_with('}'), "{text}");
    assert!(code.kernels.is_empty(), "{:?}", code.kernels);
    let text = compile(&nvrtc, ADD, "compute_10").unwrap_err().to_string();
    assert!(text.contains("does not compile for compute_10, only for sm_"), "{text}");
}

#[test]
fn warp_group_instructions_assemble() {
    let Some(nvrtc) = nvrtc() else { return };
    let text = "extern \"C\" __global__ void fence() { asm volatile(\"wgmma.fence.sync.aligned;\"); }\n";
    assert!(compile(&nvrtc, text, "sm_90a").is_ok());
    let Err(NvrtcError::Rejected { log, source_file, .. }) = compile(&nvrtc, text, "sm_90") else { panic!() };
    assert!(log.contains("wgmma"), "{log}");
    std::fs::remove_file(source_file).unwrap();
}

#[test]
fn spilled_registers_are_counted() {
    let Some(nvrtc) = nvrtc() else { return };
    let text = "extern \"C\" __global__ void __launch_bounds__(1024) spill(const float *a, float *b, int n) {\n\
        float v[96];\n\
        _Pragma(\"unroll\") for (int i = 0; i < 96; ++i) v[i] = a[i * 1024 + threadIdx.x];\n\
        for (int k = 0; k < n; ++k) { _Pragma(\"unroll\") for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i + 1) % 96] + 1.0f; }\n\
        _Pragma(\"unroll\") for (int i = 0; i < 96; ++i) b[i * 1024 + threadIdx.x] = v[i]; }\n";
    let kernels = compile(&nvrtc, text, "sm_80").unwrap().kernels;
    assert!(kernels[0].spill_store_bytes > 0 && kernels[0].registers == 64, "{kernels:?}");
}

#[test]
fn refused_sources_are_kept_and_named() {
    let Some(nvrtc) = nvrtc() else { return };
    let dir = Scratch::new().unwrap();
    let error = nvrtc.compile(&source("oops"), &NvrtcTarget::new("sm_80"), dir.path()).unwrap_err();
    let NvrtcError::Rejected { source_file, .. } = &error else { panic!("{error}") };
    assert_eq!(std::fs::read_to_string(source_file).unwrap(), "oops");
    let text = error.to_string();
    assert!(text.starts_with("internal error: ") && text.contains("test.cu(1)"), "{text}");
    assert!(matches!(compile(&nvrtc, "\0", "sm_80"), Err(NvrtcError::Failed { .. })));
}

#[test]
fn unknown_targets_are_refused() {
    let Some(nvrtc) = nvrtc() else { return };
    for arch in ["sm_10", "gfx90a", "sm_", "sm_90x"] {
        let text = compile(&nvrtc, ADD, arch).unwrap_err().to_string();
        assert!(text.contains(&format!("does not compile for {arch}, only for sm_")), "{text}");
    }
    let mut target = NvrtcTarget::new("sm_80");
    target.options.push("--no-such-option".into());
    let error = nvrtc.compile(&source(ADD), &target, &std::env::temp_dir()).unwrap_err();
    assert!(matches!(error, NvrtcError::Failed { .. }), "{error}");
}

/// Nothing is searched for beside the source: what code generation must not count on.
#[test]
fn there_are_no_headers() {
    let Some(nvrtc) = nvrtc() else { return };
    for header in ["cuda_fp16.h", "stdint.h"] {
        let Err(NvrtcError::Rejected { log, source_file, .. }) =
            compile(&nvrtc, &format!("#include <{header}>\n{ADD}"), "sm_80")
        else {
            panic!("{header} is there");
        };
        assert!(log.contains(header));
        std::fs::remove_file(source_file).unwrap();
    }
}

#[test]
fn a_batch_is_compiled_in_parallel_and_once() {
    let Some(nvrtc) = nvrtc() else { return };
    let dir = Scratch::new().unwrap();
    let open = |arch| DeviceCodeCache::open(dir.path(), Arc::clone(&nvrtc), NvrtcTarget::new(arch)).unwrap();
    let cache = open("sm_80");
    let sources = [ADD, "broken", ADD, HALVES].map(source);
    let seen = Mutex::new(Vec::new());
    let results = cache.compile_all(&sources, 3, &|at| seen.lock().unwrap().push((at.done, at.total)), &GO);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(results[0], results[2]);
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, [(1, 3), (2, 3), (3, 3)]);

    // What is known needs no compiler, so cancelling does not matter; a damaged file is not known.
    let cancelled = AtomicBool::new(true);
    assert_eq!(cache.compile(&sources[0], &cancelled), results[0]);
    let path = dir.path().join("kernels").join(format!("{}.cubin", cache.key(ADD)));
    std::fs::write(&path, "damage").unwrap();
    assert_eq!(cache.compile(&sources[0], &cancelled), Err(NvrtcError::Cancelled));
    assert_eq!(cache.compile(&sources[0], &GO), results[0]);
    assert_ne!(open("sm_90a").key(ADD), cache.key(ADD));
}

#[test]
fn caches_that_cannot_be_written_are_named() {
    let Some(nvrtc) = nvrtc() else { return };
    let target = NvrtcTarget::new("sm_80");
    let text = DeviceCodeCache::open(Path::new("/dev/null"), nvrtc, target).unwrap_err().to_string();
    assert!(text.contains("cache folder /dev/null"), "{text}");
}
