//! The resources of an SM that kernels use, as the assembler (ptxas) reports them.

/// The resources of one kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelResources {
    /// The function's name.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Memory of a thread for arrays that are indexed at run time, and for spilled values.
    pub stack_bytes: u32,
    /// Bytes that a thread writes because registers did not suffice, counted once per instruction.
    pub spill_store_bytes: u32,
    /// Bytes that it reads again.
    pub spill_load_bytes: u32,
    /// Shared memory of a block that the code declares with its size.
    pub shared_bytes: u32,
    /// Barriers that a block uses.
    pub barriers: u32,
}

/// The kernels of a report made with `-v`. For each there are lines such as
///
/// ```text
/// ptxas info    : Compiling entry function 'add' for 'sm_90a'
/// ptxas info    : Function properties for add
/// ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 12 registers, used 1 barriers, 512 bytes smem
/// ```
pub(in crate::cuda) fn of_log(log: &str) -> Vec<KernelResources> {
    let mut kernels: Vec<KernelResources> = Vec::new();
    // Other functions have properties too, but are not kernels.
    let mut is_kernels_own = false;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.push(KernelResources { name, ..KernelResources::default() });
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            is_kernels_own = kernels.last().is_some_and(|kernel| kernel.name == name.trim());
        } else if let Some(kernel) = kernels.last_mut() {
            let number = |what: &str| number_before(line, what);
            if line.contains(" bytes stack frame") && is_kernels_own {
                kernel.stack_bytes = number(" bytes stack frame");
                kernel.spill_store_bytes = number(" bytes spill stores");
                kernel.spill_load_bytes = number(" bytes spill loads");
            } else if line.contains(": Used ") {
                kernel.registers = number(" registers");
                kernel.barriers = number(" barriers");
                kernel.shared_bytes = number(" bytes smem");
            }
        }
    }
    kernels
}

/// The number that stands before these words, or 0.
fn number_before(line: &str, what: &str) -> u32 {
    let before = line.split_once(what).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let log = "warning: something\n\
            ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'attention' for 'sm_90a'\n\
            ptxas info    : Function properties for attention\n\
            ptxas         .     256 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 168 registers, used 2 barriers, 256 bytes cumulative stack size, 49152 bytes smem\n\
            ptxas info    : Function properties for helper\n\
            \u{20}   64 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n\
            ptxas info    : Compile time = 28.705 ms\n\
            ptxas info    : Compiling entry function 'add' for 'sm_80'\n\
            ptxas info    : Function properties for add\n\
            \u{20}   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 14 registers, 376 bytes cmem[0]\n";
        let expected = [
            KernelResources {
                name: "attention".into(),
                registers: 168,
                stack_bytes: 256,
                spill_store_bytes: 8,
                spill_load_bytes: 12,
                shared_bytes: 49152,
                barriers: 2,
            },
            KernelResources { name: "add".into(), registers: 14, ..KernelResources::default() },
        ];
        assert_eq!(of_log(log), expected);
        assert_eq!(of_log(""), []);
    }
}
