//! NumPy's `.npy` files: one tensor each, format versions 1 to 3.

use bytes::Bytes;
use orch_files::whole_file;
use orch_ir::{DType, Shape, Tensor};
use std::io::Write;
use std::path::Path;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Why bytes are not a tensor that we read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NpyError {
    /// The bytes are no `.npy` file, or only a part of one.
    #[error("not a complete .npy file: {0}")]
    Malformed(&'static str),
    /// More bytes than the array has.
    #[error(
        "{bytes} bytes follow the elements that the header of the .npy file states; one array per file is read: save it alone"
    )]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The file is valid but holds something that is not read here.
    #[error("{0} is not supported in .npy files; save the array as C-contiguous, little-endian numbers")]
    Unsupported(String),
}

/// Reads the bytes of a `.npy` file. Fortran order is converted.
///
/// # Errors
/// If they are malformed, or of a type that tensors do not have.
pub fn read(bytes: &Bytes) -> Result<Tensor, NpyError> {
    if bytes.len() < 12 || &bytes[..6] != MAGIC {
        return Err(NpyError::Malformed("it does not start like one"));
    }
    let (length, start): (usize, usize) = match bytes[6] {
        1 => (u16::from_le_bytes([bytes[8], bytes[9]]) as usize, 10),
        2 | 3 => (u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize, 12),
        version => return Err(NpyError::Unsupported(format!("format version {version}"))),
    };
    let end = start.checked_add(length).filter(|&end| end <= bytes.len());
    let end = end.ok_or(NpyError::Malformed("the header is cut short"))?;
    let header =
        std::str::from_utf8(&bytes[start..end]).map_err(|_| NpyError::Malformed("the header is not text"))?;
    let dtype = parse_dtype(field(header, "descr")?)?;
    let dims = parse_shape(field(header, "shape")?)?;
    let is_fortran = field(header, "fortran_order")?.starts_with("True");
    let shape = Shape::checked(dims).ok_or(NpyError::Malformed("the shape is too large"))?;
    let stored =
        if is_fortran { shape.iter().rev().copied().collect::<Vec<_>>().into() } else { shape.clone() };
    let elems_bytes = shape.elems() * dtype.size_bytes();
    let data =
        end.checked_add(elems_bytes).filter(|&stop| stop <= bytes.len()).map(|stop| bytes.slice(end..stop));
    let data = data.ok_or(NpyError::Malformed("the elements are cut short"))?;
    let trailing = bytes.len() - end - elems_bytes;
    if trailing > 0 {
        return Err(NpyError::Trailing { bytes: trailing });
    }
    if dtype == DType::Bool && data.iter().any(|&byte| byte > 1) {
        return Err(NpyError::Malformed("a boolean is neither 0 nor 1"));
    }
    let tensor =
        Tensor::from_bytes(dtype, stored, data).map_err(|_| NpyError::Malformed("sizes disagree"))?;
    Ok(if is_fortran { reversed(&tensor) } else { tensor })
}

/// Writes a tensor; bf16, which NumPy lacks, is widened to f32.
///
/// # Errors
/// If writing fails.
pub fn write(out: &mut impl Write, tensor: &Tensor) -> std::io::Result<()> {
    let widened;
    let tensor = if tensor.dtype() == DType::BF16 {
        widened = Tensor::from_f64(DType::F32, tensor.shape().clone(), &tensor.to_f64());
        &widened
    } else {
        tensor
    };
    let dims: String = tensor.shape().iter().map(|dim| format!("{dim}, ")).collect();
    let descr = descr(tensor.dtype());
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - header.len() - 1));
    header.push('\n');
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    out.write_all(tensor.bytes())
}

/// Writes a tensor to a file beside `path` and renames it into place.
///
/// # Errors
/// If the file cannot be written; nothing is left behind then.
pub fn save(path: &Path, tensor: &Tensor) -> std::io::Result<()> {
    whole_file::write(path, |out| write(out, tensor))
}

/// The text after `'name':` in a header.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, NpyError> {
    let key = format!("'{name}'");
    let at = header.find(&key).ok_or(NpyError::Malformed("a header field is missing"))?;
    let rest = header[at + key.len()..].trim_start();
    Ok(rest.strip_prefix(':').ok_or(NpyError::Malformed("a header field has no value"))?.trim_start())
}

fn parse_dtype(value: &str) -> Result<DType, NpyError> {
    let quoted = value.strip_prefix('\'').and_then(|rest| rest.split('\'').next());
    let name = quoted.ok_or_else(|| NpyError::Unsupported("a structured array".to_owned()))?;
    // `=` is the order of the machine that wrote the file; bf16 has no name there.
    let little = name.replace('=', "<");
    let known =
        DType::ALL.into_iter().filter(|dtype| *dtype != DType::BF16).find(|dtype| descr(*dtype) == little);
    known.ok_or_else(|| NpyError::Unsupported(format!("element type {name}")))
}

fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::I16 => "<i2",
        DType::U16 => "<u2",
        DType::I32 => "<i4",
        DType::U32 => "<u4",
        DType::I64 => "<i8",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::F32 | DType::BF16 => "<f4",
        DType::F64 => "<f8",
    }
}

fn parse_shape(value: &str) -> Result<Vec<usize>, NpyError> {
    let inner = value.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (inner, _) = inner.ok_or(NpyError::Malformed("the shape is no tuple"))?;
    let numbers = inner.split(',').map(str::trim).filter(|number| !number.is_empty());
    numbers
        .map(|number| number.parse().map_err(|_| NpyError::Malformed("the shape is no tuple of numbers")))
        .collect()
}

/// The tensor with its dimensions in reverse order, elements moved accordingly.
fn reversed(tensor: &Tensor) -> Tensor {
    let shape: Shape = tensor.shape().iter().rev().copied().collect::<Vec<_>>().into();
    let (strides, size) = (tensor.shape().strides(), tensor.dtype().size_bytes());
    let mut bytes = Vec::with_capacity(tensor.bytes().len());
    let mut index = vec![0; shape.rank()];
    for _ in 0..shape.elems() {
        let offset: usize = index.iter().rev().zip(&strides).map(|(i, stride)| i * stride).sum();
        bytes.extend_from_slice(&tensor.bytes()[offset * size..(offset + 1) * size]);
        for dim in (0..shape.rank()).rev() {
            index[dim] += 1;
            if index[dim] < shape[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
    Tensor::from_bytes(tensor.dtype(), shape, bytes.into()).expect("as many elements as before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_round_trip() {
        let tensors = [
            Tensor::from_vec([2, 3], vec![1.0f32, -2.0, 3.5, f32::NAN, f32::INFINITY, 0.0]),
            Tensor::scalar(7i64),
            Tensor::from_bools([3], &[true, false, true]),
            Tensor::zeros(DType::F16, [0, 4]),
        ];
        for tensor in tensors {
            let mut bytes = Vec::new();
            write(&mut bytes, &tensor).unwrap();
            assert!((bytes.len() - tensor.bytes().len()).is_multiple_of(64));
            assert_eq!(read(&bytes.into()).unwrap().bytes(), tensor.bytes());
        }
    }

    #[test]
    fn fortran_order_is_converted() {
        let header = "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }\n";
        let mut bytes =
            [&MAGIC[..], &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
        bytes.extend([0i32, 3, 1, 4, 2, 5].iter().flat_map(|v| v.to_le_bytes()));
        let tensor = read(&bytes.into()).unwrap();
        assert_eq!((tensor.shape().to_vec(), tensor.to_i64().unwrap()), (vec![2, 3], vec![0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn damage_is_told() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Tensor::scalar(1.0f32)).unwrap();
        for cut in 0..bytes.len() {
            assert!(read(&Bytes::copy_from_slice(&bytes[..cut])).is_err(), "cut at {cut}");
        }
        let two = Bytes::from([&bytes[..], &bytes].concat());
        assert_eq!(read(&two).unwrap_err(), NpyError::Trailing { bytes: bytes.len() });
        assert!(read(&Bytes::from_static(b"\x93NUMPY\x09\0aaaaaaaaaa")).is_err());
    }
}
