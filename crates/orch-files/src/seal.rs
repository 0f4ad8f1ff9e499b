//! Content with a hash at its end, so that a damaged file is noticed.
//!
//! ```text
//! content | BLAKE3 of name and content, 32 bytes
//! ```
//! Tools that read shared objects and cubins ignore what follows them.

use bytes::Bytes;

const HASH_BYTES: usize = blake3::OUT_LEN;

/// The content with the hash that [`unsealed`] expects under the same name.
pub(crate) fn sealed(name: &str, content: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(content.len() + HASH_BYTES);
    file.extend_from_slice(content);
    file.extend_from_slice(hash(name, content).as_bytes());
    file
}

/// The content of a file, if it is the one that was sealed under this name.
pub(crate) fn unsealed(name: &str, file: Vec<u8>) -> Option<Bytes> {
    let length = file.len().checked_sub(HASH_BYTES)?;
    let file = Bytes::from(file);
    let (content, stored) = (file.slice(..length), file.slice(length..));
    let stored: [u8; HASH_BYTES] = stored[..].try_into().ok()?;
    (hash(name, &content) == stored).then_some(content)
}

fn hash(name: &str, content: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    // The length keeps the end of a name and the start of a content apart.
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(content);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_noticed() {
        let file = sealed("a.so", b"content");
        assert_eq!(unsealed("a.so", file.clone()).as_deref(), Some(&b"content"[..]));
        assert_eq!(unsealed("b.so", file.clone()), None, "a file that was moved");
        for length in 0..file.len() {
            assert_eq!(unsealed("a.so", file[..length].to_vec()), None);
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert_eq!(unsealed("a.so", damaged), None);
        }
    }
}
