//! `docs/walkthrough.md` shows real texts: every line of its blocks stands, in that order, in what the stage makes of the model today.

use orch_compute::{Layout, fuse};
use orchestrion::{DumpAfter, Model, Options, Precision};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What each stage makes of a model, by the stage's name in the page.
fn texts(name: &str, folder: &Path) -> BTreeMap<String, String> {
    let dumped = Arc::new(Mutex::new(String::new()));
    let received = Arc::clone(&dumped);
    let receive = move |_: &str, text: &str| received.lock().expect("no thread panicked").push_str(text);
    let options = Options {
        target: Some("cuda:sm_90".to_owned()),
        precision: Precision::F16,
        cache_dir: folder.to_owned(),
        dump_after: Some(DumpAfter { pass: "evict_first".to_owned(), receive: Arc::new(receive) }),
        ..Options::default()
    };
    let model =
        Model::load(&root().join(format!("docs/walkthrough/{name}.onnx")), &options).expect("a model");
    let planned = model.plan(&options).expect("a plan");
    let threads = dumped.lock().expect("no thread panicked").clone();
    let sources = model.sources(&Options { dump_after: None, ..options }).expect("sources");
    let rewritten = orch_rewrite::rewrite(&model.graph, &orch_rewrite::RewriteOptions::default()).0;
    let nodes: Vec<_> = rewritten.node_ids().collect();
    let outputs: Vec<_> = rewritten.outputs.iter().map(|(_, tensor)| *tensor).collect();
    let row_major = |tensor| Layout::row_major(rewritten.shape(tensor).rank());
    let block = fuse::build(&rewritten, &nodes, &outputs, &row_major, "kernel");
    let block = block.map_or_else(|problem| problem.to_string(), |block| block.to_string());
    let proofs: Vec<String> = planned.proofs().iter().map(|proof| proof.candidate.clone()).collect();
    let cuda: String = sources.iter().map(|source| source.text.as_str()).collect();
    [
        ("primitives", orch_ir::text::print(&model.graph)),
        ("rewritten", orch_ir::text::print(&rewritten)),
        ("block", block),
        ("mugraph", proofs.join("\n")),
        ("thread", threads),
        ("cuda", cuda),
    ]
    .map(|(stage, text)| (format!("{name} {stage}"), text))
    .into()
}

/// The blocks of the page that name a stage, and their lines.
fn blocks(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(stage) = line.strip_prefix("<!-- shows: ").and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        assert!(lines.next().is_some_and(|line| line.starts_with("```")), "a block follows {line}");
        let shown = lines.by_ref().take_while(|line| !line.starts_with("```"));
        found.push((stage.to_owned(), shown.map(|line| line.trim().to_owned()).collect()));
    }
    found
}

#[test]
fn the_walkthrough_shows_what_the_stages_make() {
    let folder = std::env::temp_dir().join(format!("orchestrion-walkthrough-{}", std::process::id()));
    let mut all = texts("softmax", &folder);
    all.extend(texts("causal_attention", &folder));
    let _ = std::fs::remove_dir_all(&folder);
    let page = std::fs::read_to_string(root().join("docs/walkthrough.md")).expect("the page");
    let blocks = blocks(&page);
    assert!(blocks.len() >= 8, "{} blocks", blocks.len());
    let mut problems = String::new();
    for (stage, shown) in blocks {
        let text = all
            .get(&stage)
            .unwrap_or_else(|| panic!("there is no stage {stage}; there are {:?}", all.keys()));
        let mut lines = text.lines().map(str::trim);
        let wanted = shown.iter().filter(|line| !line.is_empty() && *line != "...");
        if let Some(line) = wanted.into_iter().find(|line| !lines.any(|real| real == *line)) {
            problems += &format!("{stage}: `{line}` is not, or not there, in:\n{text}\n");
        }
    }
    assert!(problems.is_empty(), "{problems}");
}
