//! What templates need to know of a target, as data.

/// Capability numbers of a CPU target. A new generation adds a table entry, not an emitter.
#[derive(Clone, PartialEq, Debug)]
pub struct CpuTarget {
    /// Name in records and options: `x86-64-v4`, ...
    pub name: &'static str,
    /// Its name after `-march=` of C compilers.
    pub march: &'static str,
    /// Bytes of the widest vector register worth using.
    pub vector_bytes: usize,
    /// Architectural vector registers.
    pub vector_registers: usize,
    /// True if masked loads and stores are single instructions.
    pub has_masks: bool,
    /// True if an instruction multiplies pairs of bf16 and adds them to f32 (AVX512-BF16).
    pub has_bf16_dot: bool,
    /// True if bf16 matrix tiles (AMX) may be used.
    pub has_amx_bf16: bool,
    /// L1 data cache in bytes.
    pub l1_bytes: usize,
    /// L2 in bytes, per core.
    pub l2_bytes: usize,
}

/// AVX-512 machines (Skylake-SP, Ice Lake, Zen 4 and later).
pub const X86_64_V4: CpuTarget = CpuTarget {
    name: "x86-64-v4",
    march: "x86-64-v4",
    vector_bytes: 64,
    vector_registers: 32,
    has_masks: true,
    has_bf16_dot: false,
    has_amx_bf16: false,
    l1_bytes: 32 << 10,
    l2_bytes: 1 << 20,
};

/// AVX-512 machines with bf16 dot products (Cooper Lake, Zen 4 and later).
pub const X86_64_V4_BF16: CpuTarget =
    CpuTarget { name: "x86-64-v4-bf16", march: "cooperlake", has_bf16_dot: true, ..X86_64_V4 };

/// AVX-512 machines with bf16 matrix tiles (Sapphire Rapids and later).
pub const X86_64_AMX: CpuTarget = CpuTarget {
    name: "x86-64-amx",
    march: "sapphirerapids",
    has_bf16_dot: true,
    has_amx_bf16: true,
    l1_bytes: 48 << 10,
    l2_bytes: 2 << 20,
    ..X86_64_V4
};

/// AVX2 and FMA machines (Haswell, Zen and later).
pub const X86_64_V3: CpuTarget = CpuTarget {
    name: "x86-64-v3",
    march: "x86-64-v3",
    vector_bytes: 32,
    vector_registers: 16,
    has_masks: false,
    has_bf16_dot: false,
    has_amx_bf16: false,
    l1_bytes: 32 << 10,
    l2_bytes: 256 << 10,
};

/// 64-bit Arm with NEON.
pub const AARCH64: CpuTarget = CpuTarget {
    name: "aarch64",
    march: "armv8-a",
    vector_bytes: 16,
    vector_registers: 32,
    has_masks: false,
    has_bf16_dot: false,
    has_amx_bf16: false,
    l1_bytes: 64 << 10,
    l2_bytes: 512 << 10,
};

/// Every CPU target.
pub const CPU_TARGETS: [&CpuTarget; 5] = [&X86_64_AMX, &X86_64_V4_BF16, &X86_64_V4, &X86_64_V3, &AARCH64];

impl CpuTarget {
    /// True if bf16 contractions are faster than f32 ones.
    pub fn has_bf16(&self) -> bool {
        self.has_bf16_dot || self.has_amx_bf16
    }

    /// Lanes of a vector of elements of `size_bytes` bytes.
    pub fn lanes(&self, size_bytes: usize) -> usize {
        self.vector_bytes / size_bytes
    }
}

/// True if vectors of elements so far apart are picked from the few consecutive vectors that they lie in, where all lanes take part:
/// elements in reverse, or a few steps apart.
pub fn is_short_stride(stride: i64) -> bool {
    matches!(stride, -1 | 2..=4)
}

/// Capability numbers of a GPU target, and of the device at hand where it is known.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuTarget {
    /// Name in records and options: `sm_90`, ...
    pub name: &'static str,
    /// Its name after `-arch=` of NVRTC; of a virtual architecture (`compute_80`) for PTX, which drivers compile.
    pub arch: &'static str,
    /// SMs.
    pub sms: usize,
    /// SMs of the smallest GPU that runs its code: no more CTAs may wait for each other.
    pub least_sms: usize,
    /// Bytes of shared memory that one CTA may use.
    pub shared_bytes: usize,
    /// Bytes of shared memory of an SM; each resident CTA takes 1 KiB of them beyond its own.
    pub sm_shared_bytes: usize,
    /// 32-bit registers of an SM.
    pub sm_registers: usize,
    /// Most resident threads of an SM.
    pub sm_threads: usize,
    /// True if CTAs may run in clusters and access each other's shared memory (DSMEM).
    pub has_clusters: bool,
    /// True if there is programmatic dependent launch.
    pub has_pdl: bool,
    /// True if there is `wgmma`.
    pub has_wgmma: bool,
    /// L2 in bytes.
    pub l2_bytes: usize,
}

/// What a CTA takes of its SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CtaResources {
    /// Threads.
    pub threads: usize,
    /// Registers of a thread.
    pub registers: usize,
    /// Bytes of shared memory.
    pub shared_bytes: usize,
}

/// Most CTAs that an SM holds, whatever they take.
const MOST_RESIDENT: usize = 32;
/// Bytes of an SM's shared memory that a resident CTA takes beyond its own.
const CTA_SHARED_BYTES: usize = 1 << 10;

impl GpuTarget {
    /// CTAs that an SM holds at once; none if a CTA does not fit. Registers are given to warps eight a thread.
    pub fn resident_ctas(&self, cta: CtaResources) -> usize {
        let CtaResources { threads, registers, shared_bytes } = cta;
        if shared_bytes > self.shared_bytes {
            return 0;
        }
        let by_registers = self.sm_registers / (registers.next_multiple_of(8) * threads).max(1);
        let by_shared = self.sm_shared_bytes / (shared_bytes + CTA_SHARED_BYTES);
        (self.sm_threads / threads.max(1)).min(by_registers).min(by_shared).min(MOST_RESIDENT)
    }

    /// Bytes of shared memory of each of so many CTAs of an SM, at most.
    pub fn shared_bytes_beside(&self, resident: usize) -> usize {
        (self.sm_shared_bytes / resident.max(1)).saturating_sub(CTA_SHARED_BYTES).min(self.shared_bytes)
    }

    /// CTAs in clusters of `cluster` that are resident at once, one per SM. A cluster lies within a GPC, whose SMs beyond whole
    /// clusters stay idle: by `cudaOccupancyMaxActiveClusters` an H200, with 132 SMs, runs 66 clusters of two, 30 of four
    /// and 15 of eight.
    pub fn ctas_in_clusters(&self, cluster: usize) -> usize {
        let usable = if cluster > 2 { self.sms * 10 / 11 } else { self.sms };
        usable / cluster.max(1) * cluster
    }
}

/// Ampere data centre GPUs (A100), and others of that generation with numbers of their own.
pub const SM_80: GpuTarget = GpuTarget {
    name: "sm_80",
    arch: "sm_80",
    sms: 108,
    // An A30.
    least_sms: 56,
    shared_bytes: 163 << 10,
    sm_shared_bytes: 164 << 10,
    sm_registers: 64 << 10,
    sm_threads: 2048,
    has_clusters: false,
    has_pdl: false,
    has_wgmma: false,
    l2_bytes: 40 << 20,
};

/// Hopper (H100, H200).
pub const SM_90: GpuTarget = GpuTarget {
    name: "sm_90",
    arch: "sm_90a",
    sms: 132,
    // An H20.
    least_sms: 78,
    shared_bytes: 227 << 10,
    sm_shared_bytes: 228 << 10,
    has_clusters: true,
    has_pdl: true,
    has_wgmma: true,
    l2_bytes: 50 << 20,
    ..SM_80
};

/// PTX, which the driver of any GPU of compute capability 8.0 or later compiles: what has no entry of its own. The limits are the
/// least of these GPUs.
pub const COMPUTE_80: GpuTarget = GpuTarget {
    name: "compute_80",
    arch: "compute_80",
    // An A2.
    least_sms: 10,
    shared_bytes: 99 << 10,
    sm_shared_bytes: 100 << 10,
    sm_threads: 1536,
    ..SM_80
};

/// Every GPU target.
pub const GPU_TARGETS: [&GpuTarget; 3] = [&SM_90, &SM_80, &COMPUTE_80];

#[cfg(test)]
mod tests {
    use super::{CtaResources, SM_80, SM_90};

    #[test]
    fn larger_clusters_leave_sms_idle() {
        assert_eq!([1, 2, 4, 8].map(|cluster| SM_90.ctas_in_clusters(cluster)), [132, 132, 120, 120]);
        assert_eq!(SM_80.ctas_in_clusters(8) % 8, 0);
    }

    /// 64 K registers, 228 KiB and 2048 threads for each SM of an H100.
    #[test]
    fn the_scarcest_resource_says_how_many_ctas_an_sm_holds() {
        let resident = |threads, registers, shared_kib: usize| {
            SM_90.resident_ctas(CtaResources { threads, registers, shared_bytes: shared_kib << 10 })
        };
        // 97 registers are given as 104.
        assert_eq!([resident(128, 128, 16), resident(128, 97, 16)], [4, 4]);
        assert_eq!([resident(128, 32, 75), resident(128, 32, 76)], [3, 2]);
        assert_eq!([resident(1024, 32, 0), resident(32, 16, 0)], [2, 32]);
        assert_eq!([resident(256, 32, 227), resident(256, 32, 228)], [1, 0]);
        // As many bytes as are left to each of them.
        for count in 1..=8 {
            let shared_bytes = SM_90.shared_bytes_beside(count);
            assert_eq!(SM_90.resident_ctas(CtaResources { threads: 64, registers: 32, shared_bytes }), count);
        }
    }
}
