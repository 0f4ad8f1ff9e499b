//! Matrix tiles of thread programs: registers of rows, and the statements that work on them (Intel AMX).
//!
//! A program declares its tiles with their shapes; the emitted kernel configures the hardware for them once per call.
//! Tiles belong to one worker, and are undefined when a task starts.
//!
//! ```text
//!   tile acc: f32[16, 16]
//!   tile a: bf16[16, 32]
//!   tile b: bf16[16, 32]
//! {
//!   amx_zero acc
//!   amx_load a, x[0], stride 64
//!   amx_load b, packed[0], stride 32
//!   amx_dot acc, a, b
//!   amx_store acc, y[0], stride 16
//! }
//! ```
//!
//! `amx_dot` adds a matrix product whose operand `b` holds pairs of K side by side:
//! `acc[m, n] += sum over k of a[m, 2k] * b[k, 2n] + a[m, 2k + 1] * b[k, 2n + 1]`. The interpreter adds the products in
//! the order of K with one rounding each; hardware may add the odd product of a pair first, and reads and writes subnormals
//! as zeros.

use orch_compute::expr::scalar::{self, Number};
use orch_compute::expr::{BufferId, ExprId};
use orch_ir::DType;

/// A matrix tile of a thread program, a position in [`ThreadProgram::tiles`](crate::ThreadProgram::tiles).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TileId(pub u32);

impl TileId {
    /// The position in the program's table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A matrix tile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AmxShape {
    /// Readable name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
}

/// Tiles that the hardware has.
pub const MAX_TILES: usize = 8;
/// Rows of the largest tile.
pub const MAX_TILE_ROWS: usize = 16;
/// Bytes of the longest row of a tile.
pub const MAX_TILE_ROW_BYTES: usize = 64;

/// A statement on tiles.
#[derive(Clone, PartialEq, Debug)]
pub enum AmxStmt {
    /// Sets all elements to zero.
    Zero(TileId),
    /// Reads the rows of a tile from a buffer.
    Load {
        /// Which tile.
        tile: TileId,
        /// Which buffer.
        buffer: BufferId,
        /// Element offset of the first row.
        offset: ExprId,
        /// Elements between the starts of neighbouring rows.
        stride: i64,
    },
    /// Adds the product of two tiles to a third.
    Dot {
        /// The accumulators, `f32[m, n]`.
        acc: TileId,
        /// Operand A, `bf16[m, 2k]`.
        a: TileId,
        /// Operand B in pairs of K, `bf16[k, 2n]`.
        b: TileId,
    },
    /// Writes the rows of a tile to a buffer.
    Store {
        /// Which tile.
        tile: TileId,
        /// Which buffer.
        buffer: BufferId,
        /// Element offset of the first row.
        offset: ExprId,
        /// Elements between the starts of neighbouring rows.
        stride: i64,
    },
}

impl AmxStmt {
    /// The element offset of an access to memory.
    pub fn offset(&self) -> Option<ExprId> {
        match self {
            AmxStmt::Load { offset, .. } | AmxStmt::Store { offset, .. } => Some(*offset),
            AmxStmt::Zero(_) | AmxStmt::Dot { .. } => None,
        }
    }

    /// The buffer that is read or written.
    pub fn buffer(&self) -> Option<BufferId> {
        match self {
            AmxStmt::Load { buffer, .. } | AmxStmt::Store { buffer, .. } => Some(*buffer),
            AmxStmt::Zero(_) | AmxStmt::Dot { .. } => None,
        }
    }

    /// The tiles that take part.
    pub fn tiles(&self) -> Vec<TileId> {
        match self {
            AmxStmt::Zero(tile) | AmxStmt::Load { tile, .. } | AmxStmt::Store { tile, .. } => vec![*tile],
            AmxStmt::Dot { acc, a, b } => vec![*acc, *a, *b],
        }
    }

    /// The same statement with its offset replaced by `map` of it.
    pub fn map_offset(&self, map: impl FnOnce(ExprId) -> ExprId) -> Self {
        let mut mapped = self.clone();
        if let AmxStmt::Load { offset, .. } | AmxStmt::Store { offset, .. } = &mut mapped {
            *offset = map(*offset);
        }
        mapped
    }
}

/// The accumulators `[m, n]` after `amx_dot`, given `a` `[m, k]` and `b` `[k / 2, 2n]` in row-major order; `None` if an element is not a
/// float.
pub(crate) fn dot(
    accs: &[Number],
    a: &[Number],
    b: &[Number],
    columns: usize,
    k_extent: usize,
) -> Option<Vec<Number>> {
    let element = |(at, &acc): (usize, &Number)| {
        let (row, column) = (at / columns, at % columns);
        (0..k_extent).try_fold(acc, |acc, k| {
            // b: [k / 2, column, k % 2], a: [row, k]
            let b_elem = b[k / 2 * 2 * columns + 2 * column + k % 2];
            scalar::fma(DType::F32, a[row * k_extent + k], b_elem, acc)
        })
    };
    accs.iter().enumerate().map(element).collect()
}

#[cfg(test)]
mod tests {
    use crate::{BufferData, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    const HEADER: &str = "program k, 1 tasks task: i64 [0..=0]\n  input x: bf16[6]\n  input w: bf16[12]\n  \
                          output y: f32[6]\n  tile sum: f32[2, 3]\n  tile a: bf16[2, 2]\n  tile b: bf16[1, 6]\n";

    fn program(body: &str) -> crate::ThreadProgram {
        parse_thread(&format!("{HEADER}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn pairs_of_k_are_multiplied() {
        let program = program(
            "amx_zero sum\namx_load a, x[0], stride 3\namx_load b, w[6], stride 6\namx_dot sum, a, b\n\
             amx_dot sum, a, b\namx_store sum, y[0], stride 3\n",
        );
        assert_eq!(validate_thread(&program), Vec::<String>::new());
        let bf16 =
            |values: &[f64]| BufferData::from_tensor(&Tensor::from_f64(DType::BF16, [values.len()], values));
        let x = bf16(&[1.0, 2.0, 99.0, 3.0, 4.0, 99.0]);
        let w = bf16(&[9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
        let mut buffers = [x, w, BufferData::zeros(DType::F32, 6)];
        interpret(&program, &mut buffers, &ExecOptions::default()).unwrap();
        let sums = buffers[2].to_tensor([6]).unwrap().to_f64();
        assert_eq!(sums, [42.0, 84.0, 126.0, 86.0, 172.0, 258.0]);
    }

    #[test]
    fn a_tile_has_a_value_before_it_is_read() {
        let program = program("amx_store sum, y[0], stride 3\n");
        let mut buffers =
            program.buffers.iter().map(|b| BufferData::zeros(b.dtype, b.elems)).collect::<Vec<_>>();
        let error = interpret(&program, &mut buffers, &ExecOptions::default()).unwrap_err();
        assert_eq!(error.to_string(), "sum is read before it has a value");
    }

    #[test]
    fn tiles_fit_the_hardware_and_each_other() {
        let mut program =
            program("amx_dot sum, b, a\namx_load sum, x[0], stride 3\namx_store a, x[0], stride 3\n");
        program.tiles[0].rows = 17;
        assert_eq!(
            validate_thread(&program),
            [
                "tile sum has 17 rows of 12 bytes; up to 16 rows of up to 64 bytes, a multiple of 4, are expected",
                "body.0: f32[17, 3] += bf16[1, 6] * bf16[2, 2]: f32[m, n], bf16[m, 2k] and bf16[k, 2n] are expected",
                "body.1: tile sum is f32, b0 holds bf16",
                "body.2: the input b0 is stored to",
            ]
        );
    }
}
