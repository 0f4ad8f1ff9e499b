//! Matrix tiles as AMX intrinsics.
//!
//! The tile number is part of the instruction, so tiles are not C variables. The intrinsics do not tell the compiler
//! what memory they read, so a barrier stands before each load: what was stored before is in memory then.

use orch_thread::{AmxStmt, ThreadProgram};

/// The most rows that a configuration describes, one entry each.
const CONFIGURED: usize = 16;

/// The lines of one statement; `offset` is the text of its element offset.
pub fn lines(
    program: &ThreadProgram,
    buffers: &[String],
    stmt: &AmxStmt,
    offset: Option<&str>,
) -> Vec<String> {
    let access = |tile: &orch_thread::TileId, stride: &i64| {
        let buffer = &buffers[stmt.buffer().expect("an access names a buffer").index()];
        let stride_bytes = stride * program.tiles[tile.index()].dtype.size_bytes() as i64;
        format!("{}, {buffer} + {}, {stride_bytes}", tile.0, offset.expect("an access has an offset"))
    };
    match stmt {
        AmxStmt::Zero(tile) => vec![format!("_tile_zero({});", tile.0)],
        AmxStmt::Load { tile, stride, .. } => vec![
            "__asm__ volatile(\"\" ::: \"memory\");".to_owned(),
            format!("_tile_loadd({});", access(tile, stride)),
        ],
        AmxStmt::Dot { acc, a, b } => vec![format!("_tile_dpbf16ps({}, {}, {});", acc.0, a.0, b.0)],
        AmxStmt::Store { tile, stride, .. } => vec![
            format!("_tile_stored({});", access(tile, stride)),
            "__asm__ volatile(\"\" ::: \"memory\");".to_owned(),
        ],
    }
}

/// The lines that tell the hardware the shapes of the program's tiles; nothing if it has none.
pub fn configure(program: &ThreadProgram) -> String {
    if program.tiles.is_empty() {
        return String::new();
    }
    let padded = |value: &dyn Fn(usize) -> usize| {
        let values: Vec<String> = (0..CONFIGURED)
            .map(|tile| if tile < program.tiles.len() { value(tile).to_string() } else { "0".to_owned() })
            .collect();
        values.join(", ")
    };
    let row_bytes = padded(&|tile| program.tiles[tile].columns * program.tiles[tile].dtype.size_bytes());
    let rows = padded(&|tile| program.tiles[tile].rows);
    format!(
        "    static const struct {{\n        uint8_t palette, start_row, reserved[14];\n        \
         uint16_t row_bytes[{CONFIGURED}];\n        uint8_t rows[{CONFIGURED}];\n    }} \
         __attribute__((aligned(64))) tiles = {{1, 0, {{0}}, {{{row_bytes}}}, {{{rows}}}}};\n    \
         _tile_loadconfig(&tiles);\n"
    )
}

/// The line that gives the tiles back; nothing if the program has none.
pub fn release(program: &ThreadProgram) -> &'static str {
    if program.tiles.is_empty() { "" } else { "    _tile_release();\n" }
}
