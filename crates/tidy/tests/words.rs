//! The code speaks the language of CUTLASS, Triton and PTX: words of this project's own for what these name already stay out.
//! `docs/glossary.md` says what they are called.

use tidy::sources::{files, root};

/// What is not written, and what is written instead. Words that mean something else somewhere (an LSTM has gates, a detector boxes)
/// are not here.
const INSTEAD: [(&str, &str); 31] = [
    ("copy engine", "TMA"),
    ("copy_box", "tma_load"),
    ("CopyBox", "TmaLoad"),
    ("await_boxes", "mbarrier_wait_full"),
    ("AwaitBoxes", "MbarrierWaitFull"),
    ("pass_gate", "mbarrier_arrive_empty"),
    ("PassGate", "MbarrierArriveEmpty"),
    ("await_gate", "mbarrier_wait_empty"),
    ("AwaitGate", "MbarrierWaitEmpty"),
    ("gates_suffice", "empty mbarriers"),
    ("multiply_tiles", "wgmma"),
    ("MultiplyTiles", "Wgmma"),
    ("tile_products", "wgmma"),
    ("whole tiles", "wgmma"),
    ("load_matrix", "ldmatrix"),
    ("LoadMatrix", "Ldmatrix"),
    ("under way", "in flight"),
    ("under_way", "in_flight"),
    ("few rows", "skinny GEMM"),
    ("few_rows", "skinny"),
    ("groups of warps", "warp groups"),
    ("group of warps", "warp group"),
    ("groups of four warps", "warp groups"),
    ("second-level cache", "L2"),
    ("first-level cache", "L1"),
    ("TeamStmt", "CtaStmt"),
    ("await_joined", "cluster_wait"),
    ("TILE_LINE", "SWIZZLE_ROW"),
    ("tasks_in_clusters", "ctas_in_clusters"),
    ("matrix units", "tensor cores, AMX"),
    ("by the way", "say when"),
];

#[test]
fn old_words_stay_out() {
    let mut found = Vec::new();
    let mut count = 0;
    for path in files(&root(), &["rs", "cuh", "cu", "c", "md", "py", "sh"]) {
        let below = path.strip_prefix(root()).unwrap_or(&path).to_owned();
        // The history of changes, and this list itself.
        if below.ends_with("CHANGELOG.md") || below.ends_with("tidy/tests/words.rs") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for (at, line) in text.lines().enumerate() {
            for (old, new) in INSTEAD.iter().filter(|(old, _)| line.contains(old)) {
                found.push(format!("{}:{}: \"{old}\": {new}", below.display(), at + 1));
            }
        }
    }
    assert!(count > 500, "only {count} files were read");
    assert!(found.is_empty(), "{} lines use words of old:\n{}", found.len(), found.join("\n"));
}
