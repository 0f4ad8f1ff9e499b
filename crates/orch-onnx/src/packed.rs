//! Elements of less than 8 bits: several share a byte, the first one in the lowest bits. Here each gets a byte.

use bytes::Bytes;
use orch_ir::Encoding;

/// The bytes that this many elements take in a file.
pub(crate) fn packed_bytes(encoding: Encoding, elems: usize) -> usize {
    elems.div_ceil(8 / encoding.bits())
}

/// The codes of the first `elems` elements, one per byte; shared with `data` where they are already.
pub(crate) fn unpacked(encoding: Encoding, data: Bytes, elems: usize) -> Bytes {
    let bits = encoding.bits();
    if bits == 8 {
        return data;
    }
    let codes = data.iter().flat_map(|&byte| (0..8 / bits).map(move |at| encoding.code(byte >> (at * bits))));
    codes.take(elems).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_element_is_lowest() {
        assert_eq!(packed_bytes(Encoding::I4, 3), 2);
        assert_eq!(unpacked(Encoding::I4, Bytes::from_static(&[0x8f, 0x01]), 3)[..], [0xff, 0xf8, 1]);
        assert_eq!(packed_bytes(Encoding::U2, 5), 2);
        assert_eq!(unpacked(Encoding::U2, Bytes::from_static(&[0b11_10_01_00, 2]), 5)[..], [0, 1, 2, 3, 2]);
        assert_eq!(unpacked(Encoding::F8E5M2, Bytes::from_static(&[0xfc]), 1)[..], [0xfc]);
    }
}
