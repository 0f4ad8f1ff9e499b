//! Attention of a new position whose queries are rotated by their position is one proved part on every kind of target,
//! however the model says it, and computes what the model says.

mod cache_dir;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::generate::random_inputs;
use orch_ir::{Attribute, OperatorGraph, OperatorNode, Tensor, Value, ValueId};
use orch_mugraph::Certificate;
use orchestrion::compare::compare;
use orchestrion::manifest::ModelInfo;
use orchestrion::{Executable, Model, Options, Precision, RunOptions};
use plan_options::options;

/// How a model rotates.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// `x * cos + concat(-x2, x1) * sin`, as exporters write it.
    Exported,
    /// `RotaryEmbedding` of halves.
    Halves,
    /// `RotaryEmbedding` of neighbours.
    Neighbours,
}

/// A model while it is written.
#[derive(Default)]
struct Operators(OperatorGraph);

impl Operators {
    fn value(&mut self, value: Value) -> ValueId {
        let name = format!("v{}", self.0.values.len());
        self.0.add_value(Value { name, ..value })
    }

    fn input(&mut self, shape: &[usize]) -> ValueId {
        let shape = Some(shape.iter().map(|&extent| Some(extent)).collect());
        let id = self.value(Value { dtype: Some(orch_ir::DType::F32), shape, ..Value::default() });
        self.0.inputs.push(id);
        id
    }

    fn constant(&mut self, tensor: Tensor) -> ValueId {
        let id = self.value(Value { dtype: Some(tensor.dtype()), ..Value::default() });
        self.0.initializers.insert(id, tensor);
        id
    }

    /// An operator with so many results.
    fn ops(
        &mut self,
        op_type: &str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
        results: usize,
    ) -> Vec<ValueId> {
        let outputs: Vec<ValueId> = (0..results).map(|_| self.value(Value::default())).collect();
        self.0.nodes.push(OperatorNode {
            name: format!("{op_type}_{}", self.0.nodes.len()),
            domain: String::new(),
            op_type: op_type.to_owned(),
            opset: 23,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: outputs.iter().copied().map(Some).collect(),
            attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        });
        outputs
    }

    fn op(&mut self, op_type: &str, inputs: &[ValueId], attributes: &[(&str, Attribute)]) -> ValueId {
        self.ops(op_type, inputs, attributes, 1)[0]
    }

    /// `x` `[1, heads, 1, size]` turned by the angles of a position.
    fn rotated(&mut self, form: Form, x: ValueId, size: usize, position: usize) -> ValueId {
        let angle = |at: usize| position as f32 * 10_000f32.powf(-2.0 * at as f32 / size as f32);
        let angles = |f: fn(f32) -> f32, count: usize, shape: &[usize]| {
            let values: Vec<f32> = (0..count).map(|at| f(angle(at % (size / 2)))).collect();
            Tensor::from_vec(shape, values)
        };
        match form {
            Form::Exported => {
                let [cos, sin] = [f32::cos, f32::sin].map(|f| self.constant(angles(f, size, &[1, size])));
                let half = self.constant(Tensor::from_vec([2], vec![size as i64 / 2; 2]));
                let parts = self.ops("Split", &[x, half], &[("axis", Attribute::Int(3))], 2);
                let negated = self.op("Neg", &parts[1..], &[]);
                let turned = self.op("Concat", &[negated, parts[0]], &[("axis", Attribute::Int(-1))]);
                let (plain, turned) = (self.op("Mul", &[x, cos], &[]), self.op("Mul", &[turned, sin], &[]));
                self.op("Add", &[plain, turned], &[])
            }
            Form::Halves | Form::Neighbours => {
                let [cos, sin] =
                    [f32::cos, f32::sin].map(|f| self.constant(angles(f, size / 2, &[1, 1, size / 2])));
                let interleaved = i64::from(matches!(form, Form::Neighbours));
                self.op("RotaryEmbedding", &[x, cos, sin], &[("interleaved", Attribute::Int(interleaved))])
            }
        }
    }
}

/// Attention of a new position: two heads of keys, eight heads of queries for each.
fn model(form: Form, [keys, size]: [usize; 2]) -> Model {
    let mut operators = Operators::default();
    let q = operators.input(&[1, 16, 1, size]);
    let (k, v) = (operators.input(&[1, 2, keys, size]), operators.input(&[1, 2, keys, size]));
    let q = operators.rotated(form, q, size, keys - 1);
    let groups = operators.constant(Tensor::from_vec([4], vec![1, 2, 8, size as i64]));
    let q = operators.op("Reshape", &[q, groups], &[]);
    let k = operators.op("Transpose", &[k], &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))]);
    let scores = operators.op("MatMul", &[q, k], &[]);
    let weights = operators.op("Softmax", &[scores], &[("axis", Attribute::Int(-1))]);
    let result = operators.op("MatMul", &[weights, v], &[]);
    operators.0.outputs.push(result);
    Model::from_operators(&operators.0, ModelInfo::default(), &Options::default())
        .unwrap_or_else(|error| panic!("{form:?}: {error}"))
}

/// Whether a part with a rotation is proved.
fn has_rotation(proofs: &[Certificate]) -> bool {
    proofs.iter().any(|proof| proof.candidate.contains("= rotate("))
}

const FORMS: [Form; 3] = [Form::Exported, Form::Halves, Form::Neighbours];

#[test]
fn rotated_attention_is_compiled_for_the_cpu() {
    for form in FORMS {
        let cache = CacheDir::new(&format!("rotary-{form:?}"));
        let model = model(form, [4096, 64]);
        let artifact = model.compile(&options(&cache, None, Precision::F32)).expect("it compiles");
        assert!(has_rotation(&artifact.manifest.proofs), "{form:?}: {:#?}", artifact.manifest.proofs);
        let inputs = random_inputs(&model.graph, 5);
        let expected = model.interpret(&inputs, true).expect("the inputs fit");
        let mut executable = Executable::load(artifact, RunOptions::default()).expect("it loads");
        let outputs = executable.run(&inputs).expect("it runs");
        let difference = compare(&outputs[0], &expected[0]);
        assert!(difference.scaled < 1e-5 && difference.mismatched == 0, "{form:?}: {difference:?}");
    }
}

#[test]
fn rotated_attention_is_planned_for_gpus() {
    for form in FORMS {
        for (target, precision, tolerance) in
            [("cuda:sm_90", Precision::F32, 1e-5), ("cuda:sm_80", Precision::Tf32, 1e-2)]
        {
            let cache = CacheDir::new(&format!("rotary-{form:?}-{target}"));
            let model = model(form, [1024, 32]);
            let planned = model.plan(&options(&cache, Some(target), precision)).expect("it is planned");
            assert!(has_rotation(planned.proofs()), "{form:?} for {target}: {:#?}", planned.proofs());
            let inputs = random_inputs(&model.graph, 5);
            let expected = model.interpret(&inputs, true).expect("the inputs fit");
            let outputs = planned.emulate(&inputs).expect("it runs");
            let difference = compare(&outputs[0], &expected[0]);
            assert!(difference.scaled < tolerance && difference.mismatched == 0, "{form:?}: {difference:?}");
        }
    }
}
