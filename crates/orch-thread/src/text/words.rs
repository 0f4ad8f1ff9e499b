//! Words and symbols of the text of thread programs, which the printer and the parser share.

use orch_compute::expr::Type;
use orch_ir::BinaryFn;

/// Infix functions of two operands.
pub(crate) const INFIX: [(&str, BinaryFn); 4] =
    [("+", BinaryFn::Add), ("-", BinaryFn::Sub), ("*", BinaryFn::Mul), ("/", BinaryFn::Div)];

/// Words that are not names of variables or buffers unless in quotes, besides [`AMX_WORDS`] and [`CTA_WORDS`].
const KEYWORDS: [&str; 10] = ["let", "reg", "for", "if", "else", "prefetch", "true", "false", "to", "step"];

/// First words of the statements on matrix tiles.
pub(crate) const AMX_WORDS: [&str; 4] = ["amx_zero", "amx_load", "amx_dot", "amx_store"];

/// First words of the statements of CTAs.
pub(crate) const CTA_WORDS: [&str; 27] = [
    "barrier",
    "warp_barrier",
    "cluster_barrier",
    "cluster_arrive",
    "cluster_wait",
    "reuse_shared",
    "launch_dependents",
    "grid_dependency_wait",
    "wgmma_wait",
    "compute_first",
    "shuffle",
    "exceeds",
    "grid_barrier",
    "load_dsmem",
    "load_relaxed",
    "store_dsmem",
    "red",
    "cp_async",
    "tma_load",
    "mbarrier_wait_full",
    "mbarrier_arrive_empty",
    "mbarrier_wait_empty",
    "cp_async_commit",
    "cp_async_wait",
    "ldmatrix",
    "mma",
    "wgmma",
];

/// True for a word that is not the name of a variable or buffer unless in quotes.
pub(crate) fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word) || AMX_WORDS.contains(&word) || CTA_WORDS.contains(&word)
}

/// Expressions that nest deeper are printed in parts, with labels.
pub(crate) const MAX_PRINTED_DEPTH: usize = 128;

/// The name of a type: `f32`, `f32x16`.
pub(crate) fn type_text(ty: Type) -> String {
    if ty.lanes == 1 { ty.dtype.to_string() } else { format!("{}x{}", ty.dtype, ty.lanes) }
}
