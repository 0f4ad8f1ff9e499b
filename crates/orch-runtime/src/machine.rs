//! What CPU this is: instruction sets, caches, and how many of its CPUs this process may use.

use crate::os;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

/// The processor family.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
    /// Anything else: portable C only.
    Other,
}

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// An instruction-set extension that kernels may use.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum Feature { $($(#[$doc])* $variant,)* }

        impl Feature {
            /// Every feature, in declaration order.
            pub const ALL: &'static [Feature] = &[$(Feature::$variant),*];

            /// The name, as compilers and `/proc/cpuinfo` spell it.
            pub fn name(self) -> &'static str {
                match self { $(Feature::$variant => $name,)* }
            }
        }
    };
}

features! {
    /// 256-bit integer vectors.
    Avx2 => "avx2",
    /// Fused multiply-add on 256-bit vectors.
    Fma => "fma",
    /// Conversions between f16 and f32.
    F16c => "f16c",
    /// AVX-512 foundation.
    Avx512F => "avx512f",
    /// AVX-512 on 8- and 16-bit lanes.
    Avx512Bw => "avx512bw",
    /// AVX-512 on 32- and 64-bit integer lanes.
    Avx512Dq => "avx512dq",
    /// AVX-512 instructions on 128- and 256-bit vectors.
    Avx512Vl => "avx512vl",
    /// AVX-512 8-bit dot products.
    Avx512Vnni => "avx512vnni",
    /// AVX-512 bf16 dot products.
    Avx512Bf16 => "avx512bf16",
    /// AVX-512 f16 arithmetic.
    Avx512Fp16 => "avx512fp16",
    /// AMX bf16 tiles, granted by the operating system.
    AmxBf16 => "amx-bf16",
    /// AMX 8-bit tiles, granted by the operating system.
    AmxInt8 => "amx-int8",
    /// ARM 128-bit vectors.
    Neon => "neon",
    /// ARM f16 arithmetic.
    Fp16 => "fp16",
    /// ARM 8-bit dot products.
    DotProd => "dotprod",
    /// ARM bf16 dot products.
    Bf16 => "bf16",
    /// ARM scalable vectors.
    Sve => "sve",
}

/// Data cache sizes in bytes, as one core sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheSizes {
    /// First level, per core.
    pub l1d_bytes: usize,
    /// Second level, per core or cluster.
    pub l2_bytes: usize,
    /// Last level, shared; 0 if there is none.
    pub l3_bytes: usize,
}

impl CacheSizes {
    /// Sizes that are assumed where the system does not report any: small for any current CPU.
    pub const FALLBACK: CacheSizes =
        CacheSizes { l1d_bytes: 32 << 10, l2_bytes: 512 << 10, l3_bytes: 8 << 20 };
}

/// The machine that this process runs on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Processor family.
    pub arch: Arch,
    /// The processor's name as it reports it.
    pub model: String,
    /// Usable instruction-set extensions: present, and enabled by the operating system.
    pub features: BTreeSet<Feature>,
    /// Data caches.
    pub caches: CacheSizes,
    /// The CPUs that this process may run on (affinity), ascending; empty where the system does not report them.
    pub cpus: Vec<usize>,
    /// Threads worth running: the allowed CPUs, less if a control group grants less time.
    pub threads: usize,
}

impl Machine {
    /// Detects the properties of this machine. On Linux with AMX this also requests the permission to use its registers, which then
    /// holds for all threads of the process.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpus = os::allowed_cpus();
        let first_cpu = cpus.first().copied().unwrap_or(0);
        Self {
            arch: if cfg!(target_arch = "x86_64") {
                Arch::X86_64
            } else if cfg!(target_arch = "aarch64") {
                Arch::Aarch64
            } else {
                Arch::Other
            },
            model: model_name(&cpuinfo),
            features: detect_features(&cpuinfo),
            caches: read_caches(Path::new(&format!("/sys/devices/system/cpu/cpu{first_cpu}/cache"))),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            cpus,
        }
    }

    /// True if this extension may be used.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Bytes of the widest vector register with full float arithmetic.
    pub fn vector_bytes(&self) -> usize {
        if self.has(Feature::Avx512F) {
            64
        } else if self.has(Feature::Avx2) {
            32
        } else {
            16
        }
    }

    /// A line that is equal for machines that run the same binary at the same speed: family, model, extensions and
    /// caches. It leaves out how many CPUs this process was given; add [`threads`](Self::threads) where that matters.
    pub fn fingerprint(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features: Vec<_> = self.features.iter().map(|feature| feature.name()).collect();
        let CacheSizes { l1d_bytes, l2_bytes, l3_bytes } = self.caches;
        write!(
            f,
            "{:?}; {}; {}; L1d {l1d_bytes}, L2 {l2_bytes}, L3 {l3_bytes}",
            self.arch,
            self.model,
            features.join(" ")
        )
    }
}

fn detect_features(cpuinfo: &str) -> BTreeSet<Feature> {
    let amx = amx_features(cpuinfo);
    Feature::ALL.iter().copied().filter(|&feature| is_detected(feature) || amx.contains(&feature)).collect()
}

#[cfg(target_arch = "x86_64")]
fn is_detected(feature: Feature) -> bool {
    match feature {
        Feature::Avx2 => is_x86_feature_detected!("avx2"),
        Feature::Fma => is_x86_feature_detected!("fma"),
        Feature::F16c => is_x86_feature_detected!("f16c"),
        Feature::Avx512F => is_x86_feature_detected!("avx512f"),
        Feature::Avx512Bw => is_x86_feature_detected!("avx512bw"),
        Feature::Avx512Dq => is_x86_feature_detected!("avx512dq"),
        Feature::Avx512Vl => is_x86_feature_detected!("avx512vl"),
        Feature::Avx512Vnni => is_x86_feature_detected!("avx512vnni"),
        Feature::Avx512Bf16 => is_x86_feature_detected!("avx512bf16"),
        Feature::Avx512Fp16 => is_x86_feature_detected!("avx512fp16"),
        Feature::AmxBf16 | Feature::AmxInt8 => false,
        Feature::Neon | Feature::Fp16 | Feature::DotProd | Feature::Bf16 | Feature::Sve => false,
    }
}

#[cfg(target_arch = "aarch64")]
fn is_detected(feature: Feature) -> bool {
    use std::arch::is_aarch64_feature_detected;
    match feature {
        Feature::Neon => is_aarch64_feature_detected!("neon"),
        Feature::Fp16 => is_aarch64_feature_detected!("fp16"),
        Feature::DotProd => is_aarch64_feature_detected!("dotprod"),
        Feature::Bf16 => is_aarch64_feature_detected!("bf16"),
        Feature::Sve => is_aarch64_feature_detected!("sve"),
        _ => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_detected(_: Feature) -> bool {
    false
}

/// AMX as Linux lists it, if Linux also grants it. (Run-time detection of AMX is not in stable Rust, and other
/// systems do not save its registers.)
fn amx_features(cpuinfo: &str) -> BTreeSet<Feature> {
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    let listed: BTreeSet<_> = flags
        .split_whitespace()
        .filter_map(|flag| match flag {
            "amx_bf16" => Some(Feature::AmxBf16),
            "amx_int8" => Some(Feature::AmxInt8),
            _ => None,
        })
        .collect();
    if listed.is_empty() || os::request_amx() { listed } else { BTreeSet::new() }
}

fn model_name(cpuinfo: &str) -> String {
    let part = |name| field(cpuinfo, name).unwrap_or_default();
    match field(cpuinfo, "model name") {
        // Virtual machines often hide the model's name, but not its numbers.
        Some(name) => format!("{name} {}/{}/{}", part("cpu family"), part("model"), part("stepping")),
        None => match field(cpuinfo, "CPU part") {
            Some(id) => format!("{} {id}", part("CPU implementer")),
            None => format!("unknown {}", std::env::consts::ARCH),
        },
    }
}

/// The value of the first `name : value` line of `/proc/cpuinfo`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Reads a `/sys/devices/system/cpu/cpuN/cache` folder; missing values take their fallback.
fn read_caches(folder: &Path) -> CacheSizes {
    let mut sizes = CacheSizes::FALLBACK;
    let mut found = false;
    // More cache descriptions than any CPU has.
    for index in 0..16 {
        let read = |name: &str| fs::read_to_string(folder.join(format!("index{index}/{name}")));
        let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else { continue };
        let Some(bytes) = parse_size(size.trim()) else { continue };
        if kind.trim() == "Instruction" {
            continue;
        }
        if !found {
            sizes.l3_bytes = 0;
            found = true;
        }
        match level.trim() {
            "1" => sizes.l1d_bytes = bytes,
            "2" => sizes.l2_bytes = bytes,
            "3" => sizes.l3_bytes = bytes,
            _ => {}
        }
    }
    sizes
}

/// `48K`, `2M` or plain bytes.
fn parse_size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_shl(shift).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_files::Scratch;

    #[test]
    fn this_machine_is_plausible() {
        let machine = Machine::detect();
        assert!(machine.threads >= 1);
        assert!(machine.caches.l1d_bytes >= 4 << 10);
        assert!(machine.caches.l2_bytes >= machine.caches.l1d_bytes);
        assert!([16, 32, 64].contains(&machine.vector_bytes()));
        assert_eq!(machine.fingerprint(), Machine::detect().fingerprint());
    }

    #[test]
    fn avx512_implies_what_it_extends() {
        let machine = Machine::detect();
        if machine.has(Feature::Avx512F) {
            assert!(machine.has(Feature::Avx2) && machine.has(Feature::Fma));
        }
    }

    #[test]
    fn cpuinfo_fields() {
        let intel = "cpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\nstepping\t: 8\nflags\t\t: fpu sse\n";
        assert_eq!(model_name(intel), "Intel(R) Xeon(R) 6/143/8");
        assert_eq!(amx_features(intel), BTreeSet::new());
        assert_eq!(model_name("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "0x41 0xd0c");
        assert!(model_name("").starts_with("unknown "));
    }

    #[test]
    fn cache_folders() {
        let dir = Scratch::new().unwrap();
        for (index, level, kind, size) in
            [(0, "1", "Data", "48K"), (1, "1", "Instruction", "32K"), (2, "2", "Unified", "2M")]
        {
            let folder = dir.path().join(format!("index{index}"));
            fs::create_dir(&folder).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }
        let expected = CacheSizes { l1d_bytes: 48 << 10, l2_bytes: 2 << 20, l3_bytes: 0 };
        assert_eq!(read_caches(dir.path()), expected);
        assert_eq!(read_caches(Path::new("/nonexistent")), CacheSizes::FALLBACK);
    }

    #[test]
    fn sizes_with_units() {
        assert_eq!(parse_size("480M"), Some(480 << 20));
        assert_eq!(parse_size("65536"), Some(65536));
        assert_eq!(["", "K", "0K", "12X", "é"].map(parse_size), [None; 5]);
    }
}
