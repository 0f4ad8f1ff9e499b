//! What profilers call the kernels of a GPU: `resnet50_k12_conv_relu`.
//!
//! The compiler is given a symbol that tells only what a kernel computes, so that equal kernels are one entry of the cache,
//! whatever models they are of, and a plan's kernels are those that tuning has timed. The symbol is as long as the longest name, which
//! takes its place in the source and in the object afterwards.

use crate::manifest::ModelInfo;
use crate::plan::backend::BuiltKernel;
use orch_runtime::cuda::{Source, rename_kernel};

/// Bytes of a symbol, and of a name at most.
const SYMBOL_BYTES: usize = 64;

/// Bytes of a name that are the model's, at most.
const MODEL_BYTES: usize = 24;

/// The symbol under which a kernel is compiled.
pub fn compiled_symbol(program: &str) -> String {
    let mut symbol = format!("{program:_<SYMBOL_BYTES$}");
    symbol.truncate(SYMBOL_BYTES);
    symbol
}

/// The name of a kernel of a model in a profiler. Kernels' names begin with their number, so that names differ within a model.
fn profiler_name(model: &str, kernel: &str) -> String {
    let mut name = model.to_owned();
    name.truncate(MODEL_BYTES);
    name = format!("{}_{kernel}", name.trim_end_matches('_'));
    name.truncate(SYMBOL_BYTES);
    name
}

/// Gives kernels of a GPU, each alone in its source, the names of this model.
pub fn name_sources(sources: &mut [Source], model: &ModelInfo) {
    let model = model.label();
    for Source { name: kernel, text, symbols } in sources {
        for symbol in symbols {
            let name = profiler_name(&model, kernel);
            *text = text.replace(symbol.as_str(), &name);
            *symbol = name;
        }
    }
}

/// Gives built kernels, compiled under these symbols, the names that their sources have.
pub fn name_objects(objects: &mut [BuiltKernel], compiled: &[Vec<String>], sources: &[Source]) {
    for ((object, compiled), source) in objects.iter_mut().zip(compiled).zip(sources) {
        for (symbol, name) in compiled.iter().zip(&source.symbols).filter(|(symbol, name)| symbol != name) {
            object.bytes = rename_kernel(&object.bytes, symbol, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(path: &str, name: &str) -> ModelInfo {
        ModelInfo { path: path.to_owned(), name: name.to_owned(), digest: String::new() }
    }

    #[test]
    fn models_are_named_by_their_file() {
        for (path, name, expected) in [
            ("models/resnet50.onnx", "main_graph", "resnet50"),
            ("/a/bert-base (1).onnx", "", "bert_base__1"),
            ("", "torch-jit export", "torch_jit_export"),
            ("3d-unet.onnx", "", "m3d_unet"),
            ("übung.onnx", "", "bung"),
            ("", "..", "model"),
        ] {
            assert_eq!(model(path, name).label(), expected);
        }
    }

    #[test]
    fn names_are_bounded_and_differ() {
        assert_eq!(profiler_name("resnet50", "k12_conv_relu"), "resnet50_k12_conv_relu");
        let long = "a_very_long_name_of_a_model_indeed";
        assert_eq!(profiler_name(long, "k0_add"), "a_very_long_name_of_a_mo_k0_add");
        let name = profiler_name(long, &format!("k1234{}", "_reduce_sum".repeat(9)));
        assert_eq!(name.len(), SYMBOL_BYTES);
        assert!(name.starts_with("a_very_long_name_of_a_mo_k1234_reduce_sum_"));
        assert_eq!(compiled_symbol("k_add").len(), SYMBOL_BYTES);
        assert_eq!(compiled_symbol(&"k_add".repeat(20)).len(), SYMBOL_BYTES);
    }

    #[test]
    fn sources_and_objects_get_the_same_names() {
        let symbol = compiled_symbol("k_add");
        let source = Source {
            name: "k3_add".into(),
            text: format!("void {symbol}() {{}}"),
            symbols: vec![symbol.clone()],
        };
        let mut named = vec![source.clone()];
        name_sources(&mut named, &model("tiny.onnx", ""));
        assert_eq!(named[0].text, "void tiny_k3_add() {}");
        let mut objects = [BuiltKernel { bytes: format!(".entry {symbol}(").into(), resources: None }];
        name_objects(&mut objects, &[source.symbols], &named);
        assert_eq!(objects[0].bytes, &b".entry tiny_k3_add("[..]);
    }
}
