//! What a cubin (an ELF file with a device's code) says of itself.

use super::device::Capability;

/// `EM_CUDA`.
const MACHINE_CUDA: u16 = 190;

/// The instruction set that a cubin is for; `None` if this is no cubin.
///
/// It is in the header's flags: in the lowest byte up to ABI version 7, in the second from 8 (CUDA 13) on.
pub(in crate::cuda) fn capability(cubin: &[u8]) -> Option<Capability> {
    let field = |at: usize| -> Option<[u8; 2]> { cubin.get(at..at + 2)?.try_into().ok() };
    let is_cubin = cubin.starts_with(b"\x7fELF\x02\x01")
        && field(18).is_some_and(|machine| u16::from_le_bytes(machine) == MACHINE_CUDA);
    if !is_cubin {
        return None;
    }
    let (abi, flags) = (*cubin.get(8)?, field(48)?);
    let number = u32::from(if abi >= 8 { flags[1] } else { flags[0] });
    Some(Capability::of_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 64 bytes of a cubin.
    fn header(abi: u8, flags: u32) -> Vec<u8> {
        let mut header = vec![0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[8] = abi;
        header[18..20].copy_from_slice(&MACHINE_CUDA.to_le_bytes());
        header[48..52].copy_from_slice(&flags.to_le_bytes());
        header
    }

    #[test]
    fn headers_of_both_kinds_are_read() {
        let of = |abi, flags| capability(&header(abi, flags)).unwrap().to_string();
        assert_eq!([of(7, 0x50_0550), of(7, 0x5a_0d5a)], ["8.0", "9.0"]);
        assert_eq!([of(8, 0x600_5004), of(8, 0x600_5a04), of(8, 0x600_7804)], ["8.0", "9.0", "12.0"]);
    }

    #[test]
    fn other_files_are_none() {
        let mut other = header(7, 0x50_0550);
        other[18] = 62;
        assert_eq!(capability(&other), None);
        for len in 0..52 {
            assert_eq!(capability(&header(8, 0x600_5a04)[..len.min(49)]), None);
        }
    }
}
