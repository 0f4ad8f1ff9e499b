//! Models have the regions that they should: each block of the Mirage papers is one, and attention and normalisation
//! of networks are.
//!
//! Graphs are read from `$ORCHESTRION_MODELS` (`../shared/models` beside the repository by default), or with their
//! weights from `target/zoo`, where `scripts/zoo.sh` writes them, or from a folder like it that the variable names.
//! Models that are not there are skipped.

use orch_mugraph::{MuGraph, Region, RegionLimits, print, regions};
use orchestrion::{Model, Options};
use std::path::{Path, PathBuf};

/// The operators of a program, without their constants.
fn operators(program: &MuGraph) -> String {
    let text = print(program);
    let ops = text.lines().filter_map(|line| line.split_once(" = ").map(|(_, op)| op));
    let words = ops.filter_map(|op| op.split([' ', '(']).next());
    words.filter(|word| *word != "input").collect::<Vec<_>>().join(" ")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The model with its weights, if it is there.
fn load(name: &str) -> Option<Model> {
    let models = std::env::var_os("ORCHESTRION_MODELS").map(PathBuf::from);
    let models = models.unwrap_or_else(|| root().join("../shared/models"));
    let places = [
        root().join("target/zoo").join(name).join("model.onnx"),
        models.join(name).join("model.onnx"),
        models.join(format!("{name}.onnx")),
    ];
    let found = places.iter().filter(|path| path.exists());
    let model = found.map(|path| Model::load(path, &Options::default())).find_map(Result::ok);
    if model.is_none() {
        println!("{name}: skipped, there is no model with its weights (scripts/zoo.sh {name} writes it)");
    }
    model
}

/// The regions of a model, before and after rewriting.
fn found(name: &str, model: &Model) -> (Vec<Region>, Vec<Region>) {
    let limits = RegionLimits::default();
    let rewritten = orch_rewrite::rewrite(&model.graph, &orch_rewrite::RewriteOptions::default()).0;
    let (before, after) = (regions(&model.graph, &limits), regions(&rewritten, &limits));
    println!("{name}: {} regions, {} once rewritten", before.len(), after.len());
    (before, after)
}

const ATTENTION: &str = "matmul exp sum div matmul";

#[test]
fn blocks_of_the_papers_are_regions() {
    // Rewriting multiplies the three weights of the LoRA block out.
    for (name, program) in [
        ("mirage_gqa", "matmul scale exp sum div matmul"),
        ("mirage_qknorm", "matmul scale exp sum div matmul"),
        ("mirage_rmsnorm", "rms_norm mul matmul"),
        ("mirage_gated_mlp", "matmul silu matmul mul"),
        ("mirage_lora", "matmul matmul matmul add"),
        ("mirage_ntrans", "rms_norm scale sub mul add rms_norm scale"),
    ] {
        let Some(model) = load(name) else { continue };
        let (before, _) = found(name, &model);
        let programs: Vec<String> = before.iter().map(|region| operators(&region.program)).collect();
        assert!(programs.iter().any(|found| found == program), "{name}: {programs:#?}");
    }
}

#[test]
fn every_layer_of_a_network_has_its_attention() {
    for (name, program, layers) in [
        ("bert_base", "matmul mask mask exp sum div matmul", 12),
        ("distilbert", "matmul mask mask exp sum div matmul", 6),
        ("gpt2", "matmul scale causal mask exp sum div matmul", 12),
        ("vit_b16", "matmul scale exp sum div matmul", 12),
        ("llama_block", "matmul causal mask exp sum div matmul", 1),
        ("llama_block", "mul rotate mul add mul rotate mul add matmul causal mask exp sum div matmul", 1),
        ("segformer_b0", ATTENTION, 6),
    ] {
        let Some(model) = load(name) else { continue };
        let (_, after) = found(name, &model);
        let outputs: std::collections::BTreeSet<_> = after
            .iter()
            .filter(|region| operators(&region.program) == program)
            .map(|region| region.output.tensor)
            .collect();
        let others: std::collections::BTreeSet<_> =
            after.iter().map(|region| operators(&region.program)).collect();
        assert!(outputs.len() >= layers, "{name}: {} of {layers} layers; {others:#?}", outputs.len());
    }
}
