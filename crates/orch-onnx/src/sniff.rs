//! A guess at what a file is that turned out not to be an ONNX model. Only error messages use it.

/// First bytes (at an offset) of files that are mistaken for ONNX models, and what they are.
const MAGIC: [(usize, &[u8], &str); 17] = [
    (0, b"version https://git-lfs", "a Git LFS pointer: fetch the model itself with `git lfs pull`"),
    (0, b"\x89PNG\r\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"PK\x03\x04", "a zip archive (PyTorch's .pt and .pth are; export with torch.onnx.export)"),
    (0, b"\x1f\x8b", "a gzip file: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file: unpack it first"),
    (0, b"\x89HDF\r\n", "an HDF5 file (Keras)"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x7fELF", "an executable or shared library"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "an ONNX Runtime .ort model: import the .onnx it was made from"),
    (8, b"{\"", "a safetensors file: weights without a graph"),
    (0, b"<?xml", "an XML document"),
];

/// How many leading bytes decide whether a file is text.
const TEXT_PROBE_BYTES: usize = 256;

/// What the file that starts with `bytes` looks like, if that is known.
pub(crate) fn guess(bytes: &[u8]) -> Option<&'static str> {
    let known = MAGIC
        .iter()
        .find(|(offset, magic, _)| bytes.get(*offset..).is_some_and(|rest| rest.starts_with(magic)));
    known.map(|(_, _, name)| *name).or_else(|| is_text(bytes).then_some("text"))
}

/// True if the file starts as printable text does.
fn is_text(bytes: &[u8]) -> bool {
    let probe = &bytes[..bytes.len().min(TEXT_PROBE_BYTES)];
    let printable = |&byte: &u8| byte >= b' ' || matches!(byte, b'\n' | b'\r' | b'\t');
    let cut_at_most = |error: std::str::Utf8Error| error.error_len().is_none();
    !probe.is_empty()
        && probe.iter().all(printable)
        && std::str::from_utf8(probe).map_or_else(cut_at_most, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_files_are_known() {
        assert_eq!(guess(b"\x89PNG\r\n\x1a\n...."), Some("a PNG image"));
        assert_eq!(guess(b"{\"graph\": []}"), Some("text"));
        assert_eq!(
            guess(b"\x10\0\0\0\0\0\0\0{\"a\":1}"),
            Some("a safetensors file: weights without a graph")
        );
        assert_eq!(guess(b"\x08\x07\x12\x07pytorch"), None);
        assert_eq!(guess(b""), None);
    }
}
