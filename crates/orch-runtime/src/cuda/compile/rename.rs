//! Other names for kernels in code that is compiled.

use bytes::Bytes;

/// Code in which `symbol`, the name of its only kernel, is `name`.
///
/// PTX is text. In a cubin, the name stands by itself and at the end of names of sections, in tables of strings that NULs end: what
/// takes its place there ends earlier, so it may not be longer; of a longer name the beginning is taken.
pub fn rename_kernel(code: &Bytes, symbol: &str, name: &str) -> Bytes {
    let mut renamed = code.to_vec();
    if !code.starts_with(b"\x7fELF") {
        return match std::str::from_utf8(code) {
            Ok(text) => text.replace(symbol, name).into(),
            Err(_) => code.clone(),
        };
    }
    let mut field = vec![0; symbol.len()];
    let len = name.len().min(symbol.len());
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
    let mut at = 0;
    while let Some(found) = find(&renamed[at..], symbol.as_bytes()) {
        let start = at + found;
        at = start + symbol.len();
        renamed[start..at].copy_from_slice(&field);
    }
    renamed.into()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len().max(1)).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_a_cubin_end_where_the_name_does() {
        let code = Bytes::from_static(b"\x7fELF\0.text.k_add___\0k_add___\0.nv.info.k_add___\0rest");
        let expected = b"\x7fELF\0.text.m_k0\0\0\0\0\0m_k0\0\0\0\0\0.nv.info.m_k0\0\0\0\0\0rest";
        assert_eq!(rename_kernel(&code, "k_add___", "m_k0"), &expected[..]);
        assert_eq!(rename_kernel(&code, "k_add___", "a_longer_name").len(), code.len());
        assert_eq!(rename_kernel(&code, "absent", "x"), code);
    }

    #[test]
    fn names_in_ptx_may_have_any_length() {
        let code = Bytes::from_static(b".entry k_add___(\n.param .u64 k_add____param_0\n");
        let expected = b".entry model_k0_add(\n.param .u64 model_k0_add_param_0\n";
        assert_eq!(rename_kernel(&code, "k_add___", "model_k0_add"), &expected[..]);
    }
}
