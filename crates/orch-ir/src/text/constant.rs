//! Tensor elements in text.

use crate::{DType, Shape, Tensor};
use bytes::Bytes;
use half::{bf16, f16};
use std::fmt::Write;

/// Constants of more elements are written as hexadecimal bytes.
pub const LISTED_ELEMS: usize = 64;

/// The elements of a tensor: `[1, 2.5]` or `hex "00.."`.
pub fn print_elements(out: &mut String, tensor: &Tensor) {
    if tensor.shape().elems() > LISTED_ELEMS {
        out.push_str("hex \"");
        for byte in tensor.bytes() {
            push(out, format_args!("{byte:02x}"));
        }
        out.push('"');
        return;
    }
    out.push('[');
    let size = tensor.dtype().size_bytes();
    for (position, element) in tensor.bytes().chunks_exact(size).enumerate() {
        out.push_str(if position == 0 { "" } else { ", " });
        print_element(out, tensor.dtype(), element);
    }
    out.push(']');
}

/// Appends formatted text.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes any text");
}

/// One element; floats in the shortest form that reads back, NaNs other than the usual one with their bits.
fn print_element(out: &mut String, dtype: DType, bytes: &[u8]) {
    fn read<T: bytemuck::Pod>(bytes: &[u8]) -> T {
        bytemuck::pod_read_unaligned(bytes)
    }
    match dtype {
        DType::Bool => out.push_str(if bytes[0] == 0 { "false" } else { "true" }),
        DType::I8 => push(out, format_args!("{}", read::<i8>(bytes))),
        DType::I16 => push(out, format_args!("{}", read::<i16>(bytes))),
        DType::I32 => push(out, format_args!("{}", read::<i32>(bytes))),
        DType::I64 => push(out, format_args!("{}", read::<i64>(bytes))),
        DType::U8 => push(out, format_args!("{}", read::<u8>(bytes))),
        DType::U16 => push(out, format_args!("{}", read::<u16>(bytes))),
        DType::U32 => push(out, format_args!("{}", read::<u32>(bytes))),
        DType::U64 => push(out, format_args!("{}", read::<u64>(bytes))),
        DType::F16 => {
            let value = read::<f16>(bytes);
            print_float(out, value.to_f32(), value.to_bits() == f16::NAN.to_bits(), value.to_bits().into());
        }
        DType::BF16 => {
            let value = read::<bf16>(bytes);
            print_float(out, value.to_f32(), value.to_bits() == bf16::NAN.to_bits(), value.to_bits().into());
        }
        DType::F32 => {
            let value = read::<f32>(bytes);
            print_float(out, value, value.to_bits() == f32::NAN.to_bits(), value.to_bits().into());
        }
        DType::F64 => {
            let value = read::<f64>(bytes);
            print_float(out, value, value.to_bits() == f64::NAN.to_bits(), value.to_bits());
        }
    }
}

fn print_float<F: Into<f64> + std::fmt::Debug + Copy>(
    out: &mut String,
    value: F,
    usual_nan: bool,
    bits: u64,
) {
    if value.into().is_nan() {
        return if usual_nan { out.push_str("nan") } else { push(out, format_args!("nan:{bits:#x}")) };
    }
    let text = format!("{value:?}");
    out.push_str(text.strip_suffix(".0").unwrap_or(&text));
}

/// The tensor with these elements, each as [`print_elements`] writes it.
///
/// # Errors
/// If there are too few or too many, or one does not fit the type.
pub fn from_elements(dtype: DType, shape: Shape, elements: &[String]) -> Result<Tensor, String> {
    if elements.len() != shape.elems() {
        return Err(format!("{dtype}{shape} has {} elements, {} are given", shape.elems(), elements.len()));
    }
    let mut bytes = Vec::with_capacity(elements.len() * dtype.size_bytes());
    for element in elements {
        let parsed = element_bytes(dtype, element);
        bytes.extend(parsed.ok_or_else(|| format!("{element} is not an element of type {dtype}"))?);
    }
    Tensor::from_bytes(dtype, shape, bytes.into()).map_err(|error| error.to_string())
}

/// The tensor over hexadecimal bytes.
///
/// # Errors
/// If the bytes are not those of such a tensor.
pub fn from_hex(dtype: DType, shape: Shape, digits: &str) -> Result<Tensor, String> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let pairs = digits.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| match *pair {
            [high, low] => Some(nibble(high)? << 4 | nibble(low)?),
            _ => None,
        })
        .collect();
    let bytes = Bytes::from(bytes.ok_or("the text is not an even number of hexadecimal digits")?);
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        return Err("a boolean is 00 or 01".to_owned());
    }
    Tensor::from_bytes(dtype, shape, bytes).map_err(|error| error.to_string())
}

/// The bytes of one element.
fn element_bytes(dtype: DType, text: &str) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::Bool => vec![u8::from(text.parse::<bool>().ok()?)],
        DType::I8 => text.parse::<i8>().ok()?.to_le_bytes().to_vec(),
        DType::I16 => text.parse::<i16>().ok()?.to_le_bytes().to_vec(),
        DType::I32 => text.parse::<i32>().ok()?.to_le_bytes().to_vec(),
        DType::I64 => text.parse::<i64>().ok()?.to_le_bytes().to_vec(),
        DType::U8 => text.parse::<u8>().ok()?.to_le_bytes().to_vec(),
        DType::U16 => text.parse::<u16>().ok()?.to_le_bytes().to_vec(),
        DType::U32 => text.parse::<u32>().ok()?.to_le_bytes().to_vec(),
        DType::U64 => text.parse::<u64>().ok()?.to_le_bytes().to_vec(),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => match text.strip_prefix("nan") {
            Some("") => nan_bytes(dtype),
            Some(bits) => u64::from_str_radix(bits.strip_prefix(":0x")?, 16)
                .ok()
                .filter(|&bits| dtype.size_bytes() == 8 || bits >> (8 * dtype.size_bytes()) == 0)?
                .to_le_bytes()[..dtype.size_bytes()]
                .to_vec(),
            None => number_bytes(dtype, text)?,
        },
    })
}

/// The bytes of the usual NaN.
fn nan_bytes(dtype: DType) -> Vec<u8> {
    Tensor::from_f64(dtype, Shape::scalar(), &[f64::NAN]).bytes().to_vec()
}

/// The bytes of a float that is a number or infinite.
fn number_bytes(dtype: DType, text: &str) -> Option<Vec<u8>> {
    let single = || text.parse::<f32>().ok();
    Some(match dtype {
        DType::F16 => f16::from_f32(single()?).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(single()?).to_le_bytes().to_vec(),
        DType::F32 => single()?.to_le_bytes().to_vec(),
        _ => text.parse::<f64>().ok()?.to_le_bytes().to_vec(),
    })
}
