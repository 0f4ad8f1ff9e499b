//! Constants that can be replaced after compiling: kernels read them where they read inputs, so nothing of them is folded or packed.

use crate::Error;
use orch_ir::{OperatorGraph, Tensor, ValueId, message};

/// A constant of a model that can be replaced after compiling.
#[derive(Clone, Debug)]
pub struct UpdatableConstant {
    /// The initializer's name.
    pub name: String,
    /// What the model has.
    pub value: Tensor,
}

/// Makes initializers inputs of the graph, behind those that it has.
///
/// # Errors
/// If there is no initializer of such a name, or a name is given twice.
pub fn take_updatable(graph: &mut OperatorGraph, names: &[String]) -> Result<Vec<UpdatableConstant>, Error> {
    names.iter().map(|name| take(graph, name)).collect()
}

fn take(graph: &mut OperatorGraph, name: &str) -> Result<UpdatableConstant, Error> {
    let named = |id: &ValueId| graph.values[id.index()].name == name;
    let found = graph.initializers.keys().copied().find(named);
    let taken = found.and_then(|id| Some((id, graph.initializers.remove(&id)?)));
    let Some((id, tensor)) = taken else {
        let known: Vec<&str> =
            graph.initializers.keys().take(8).map(|id| graph.values[id.index()].name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Error::Input(format!(
            "no constant of the model is named `{}` that could be updatable; its constants are {}",
            message::name(name),
            message::sentence(&known)
        )));
    };
    let value = &mut graph.values[id.index()];
    value.dtype = Some(tensor.dtype());
    value.shape = Some(tensor.shape().iter().map(|&size| Some(size)).collect());
    graph.inputs.push(id);
    Ok(UpdatableConstant { name: name.to_owned(), value: tensor })
}

#[cfg(test)]
mod tests {
    use crate::{Executable, Model, Options, RunOptions};
    use orch_ir::{DType, Tensor};
    use orch_onnx::builder::{GraphBuilder, node};

    #[test]
    fn constants_are_replaced_between_runs() {
        let folder = orch_files::Scratch::new().unwrap();
        let options = Options {
            cache_dir: folder.path().to_owned(),
            calibrate: false,
            updatable: vec!["w".to_owned()],
            ..Options::default()
        };
        let weight = Tensor::from_vec([3], vec![1.0f32, 2.0, 3.0]);
        let model = GraphBuilder::new("scaled")
            .input("x", DType::F32, [2, 3])
            .initializer("w", &weight)
            .node(node("Mul", ["x", "w"], ["y"]))
            .output("y");
        let model = Model::parse(model.model(17).encode(), "", None, &options).unwrap();
        let artifact = model.compile(&options).unwrap();

        // A manifest whose constant is of another size is refused.
        let mut edited = artifact.clone();
        edited.manifest.updatable[0].port.shape = vec![4];
        assert!(edited.check().is_err());
        edited = artifact.clone();
        edited.manifest.updatable[0].constant += 1;
        assert!(edited.check().is_err());

        let executable = Executable::load(artifact, RunOptions::default()).unwrap();
        let mut context = executable.context().unwrap();
        let x = Tensor::from_vec([2, 3], vec![1.0f32; 6]);
        let rows = |row: [f32; 3]| [Tensor::from_vec([2, 3], [row, row].concat())];
        assert_eq!(context.run(std::slice::from_ref(&x)).unwrap(), rows([1.0, 2.0, 3.0]));
        let new = Tensor::from_vec([3], vec![4.0f32, 5.0, 6.0]);
        let error = executable.set_constants(&[("w", new.clone()), ("v", new.clone())]).unwrap_err();
        assert!(error.to_string().starts_with("`v` cannot be replaced"), "{error}");
        assert_eq!(context.run(std::slice::from_ref(&x)).unwrap(), rows([1.0, 2.0, 3.0]));
        executable.set_constants(&[("w", new)]).unwrap();
        assert_eq!(context.run(std::slice::from_ref(&x)).unwrap(), rows([4.0, 5.0, 6.0]));
        let saved = Executable::load(executable.to_artifact(), RunOptions::default()).unwrap();
        assert_eq!(saved.run(&[x]).unwrap(), rows([4.0, 5.0, 6.0]));
    }
}
