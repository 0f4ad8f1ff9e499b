//! Limits of the hardware that tensor maps, mbarriers and AMX tiles violate.

use crate::amx::{AmxShape, AmxStmt, MAX_TILE_ROW_BYTES, MAX_TILE_ROWS, MAX_TILES};
use crate::program::ThreadProgram;
use orch_ir::DType;

/// Violations of the hardware's limits by the tensor maps and mbarriers of a program.
pub(crate) fn check_tensor_maps(program: &ThreadProgram) -> Vec<String> {
    let mut problems = Vec::new();
    for tensor_map in &program.tensor_maps {
        let problem = match program.buffers.get(tensor_map.buffer.index()) {
            Some(buffer) => tensor_map.problem(buffer),
            None => Some(format!("there is no buffer {}", tensor_map.buffer)),
        };
        problems.extend(problem.map(|problem| format!("tensor_map {}: {problem}", tensor_map.name)));
    }
    if (program.mbarriers.full == 0) != (program.mbarriers.loads == 0) {
        problems
            .push(format!("{} full mbarriers of {} loads", program.mbarriers.full, program.mbarriers.loads));
    }
    if program.mbarriers.full > 0 && program.cta.is_none() {
        problems.push("mbarriers without a cta".to_owned());
    }
    problems
}

/// Violations of the hardware's limits by the AMX tiles of a program.
pub(crate) fn check_tiles(program: &ThreadProgram) -> Vec<String> {
    let mut problems = Vec::new();
    if program.tiles.len() > MAX_TILES {
        problems.push(format!("{} tiles, there are {MAX_TILES}", program.tiles.len()));
    }
    for tile in &program.tiles {
        let row_bytes = tile.columns * tile.dtype.size_bytes();
        let is_shape =
            (1..=MAX_TILE_ROWS).contains(&tile.rows) && (1..=MAX_TILE_ROW_BYTES).contains(&row_bytes);
        if !is_shape || !row_bytes.is_multiple_of(4) {
            problems.push(format!(
                "tile {} has {} rows of {row_bytes} bytes; up to {MAX_TILE_ROWS} rows of up to {MAX_TILE_ROW_BYTES} \
                 bytes, a multiple of 4, are expected",
                tile.name, tile.rows
            ));
        }
    }
    problems
}

/// The violation by a statement on AMX tiles, except for its offset.
pub(crate) fn check_tile_stmt(program: &ThreadProgram, stmt: &AmxStmt) -> Option<String> {
    let mut shapes = Vec::new();
    for tile in stmt.tiles() {
        match program.tiles.get(tile.index()) {
            Some(shape) => shapes.push(shape),
            None => return Some(format!("there is no tile {}", tile.0)),
        }
    }
    match (stmt, &shapes[..]) {
        (AmxStmt::Load { buffer, .. } | AmxStmt::Store { buffer, .. }, [tile]) => {
            let held = program.buffers.get(buffer.index())?.dtype;
            (held != tile.dtype)
                .then(|| format!("tile {} is {}, {buffer} holds {held}", tile.name, tile.dtype))
        }
        (AmxStmt::Dot { .. }, [acc, a, b]) => {
            let types = (acc.dtype, a.dtype, b.dtype) == (DType::F32, DType::BF16, DType::BF16);
            let extents = (acc.rows, 2 * acc.columns, 2 * b.rows) == (a.rows, b.columns, a.columns);
            (!types || !extents).then(|| {
                let text = |tile: &AmxShape| format!("{}[{}, {}]", tile.dtype, tile.rows, tile.columns);
                format!(
                    "{} += {} * {}: f32[m, n], bf16[m, 2k] and bf16[k, 2n] are expected",
                    text(acc),
                    text(a),
                    text(b)
                )
            })
        }
        _ => None,
    }
}
