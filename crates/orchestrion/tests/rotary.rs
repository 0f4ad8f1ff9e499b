//! Attention of a new position whose queries are rotated by their position is one proved part on every kind of target,
//! however the model says it, with a cache and in half precision too, and computes what the model says.

mod cache_dir;
mod plan_options;

use cache_dir::CacheDir;
use orch_ir::generate::random_inputs;
use orch_ir::{Attribute, DType, OperatorGraph, OperatorNode, Tensor, Value, ValueId};
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
    /// As `Exported`, of half of each head.
    Part,
}

/// A model while it is written.
#[derive(Default)]
struct Operators(OperatorGraph);

impl Operators {
    fn value(&mut self, value: Value) -> ValueId {
        let name = format!("v{}", self.0.values.len());
        self.0.add_value(Value { name, ..value })
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> ValueId {
        let shape = Some(shape.iter().map(|&extent| Some(extent)).collect());
        let id = self.value(Value { dtype: Some(dtype), shape, ..Value::default() });
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

    fn cast(&mut self, x: ValueId, from: DType, to: DType) -> ValueId {
        let code = if to == DType::F16 { 10 } else { 1 };
        if from == to { x } else { self.op("Cast", &[x], &[("to", Attribute::Int(code))]) }
    }

    /// Softmax in f32 of products of `[1, 16, 1, size]` queries and `[1, 2, keys, size]` keys, by values.
    fn attention(&mut self, [q, k, v]: [ValueId; 3], dtype: DType, size: usize) -> ValueId {
        let groups = self.constant(Tensor::from_vec([4], vec![1, 2, 8, size as i64]));
        let q = self.op("Reshape", &[q, groups], &[]);
        let k = self.op("Transpose", &[k], &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))]);
        let scores = self.op("MatMul", &[q, k], &[]);
        let scores = self.cast(scores, dtype, DType::F32);
        let weights = self.op("Softmax", &[scores], &[("axis", Attribute::Int(-1))]);
        let weights = self.cast(weights, DType::F32, dtype);
        self.op("MatMul", &[weights, v], &[])
    }

    fn model(&self) -> Model {
        Model::from_operators(&self.0, ModelInfo::default(), &Options::default())
            .unwrap_or_else(|error| panic!("{error}"))
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
            Form::Part => {
                let part = self.constant(Tensor::from_vec([2], vec![size as i64 / 2; 2]));
                let parts = self.ops("Split", &[x, part], &[("axis", Attribute::Int(3))], 2);
                let turned = self.rotated(Form::Exported, parts[0], size / 2, position);
                self.op("Concat", &[turned, parts[1]], &[("axis", Attribute::Int(-1))])
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

/// Attention of a new position: two heads of keys, eight heads of queries for each. What is not f32 is cast to it where it
/// is rotated, and for softmax.
fn model(form: Form, dtype: DType, [keys, size]: [usize; 2]) -> Model {
    let mut operators = Operators::default();
    let q = operators.input(dtype, &[1, 16, 1, size]);
    let [k, v] = [(); 2].map(|()| operators.input(dtype, &[1, 2, keys, size]));
    let q = operators.cast(q, dtype, DType::F32);
    let turned = operators.rotated(form, q, size, keys - 1);
    let q = operators.cast(turned, DType::F32, dtype);
    let result = operators.attention([q, k, v], dtype, size);
    operators.0.outputs.push(result);
    operators.model()
}

/// A decoder's step with a cache: the keys and the values of a position are joined to those before, and are outputs, too.
fn decoder(form: Form, dtype: DType, [keys, size]: [usize; 2]) -> Model {
    let mut operators = Operators::default();
    let q = operators.input(dtype, &[1, 16, 1, size]);
    let [k, v] = [(); 2].map(|()| operators.input(dtype, &[1, 2, 1, size]));
    let [past_keys, past_values] = [(); 2].map(|()| operators.input(dtype, &[1, 2, keys - 1, size]));
    let [q, k] = [q, k].map(|x| {
        let x = operators.cast(x, dtype, DType::F32);
        let turned = operators.rotated(form, x, size, keys - 1);
        operators.cast(turned, DType::F32, dtype)
    });
    let joined = [[past_keys, k], [past_values, v]];
    let [k, v] = joined.map(|parts| operators.op("Concat", &parts, &[("axis", Attribute::Int(2))]));
    let result = operators.attention([q, k, v], dtype, size);
    let row = operators.constant(Tensor::from_vec([2], vec![1, 16 * size as i64]));
    let row = operators.op("Reshape", &[result, row], &[]);
    let weights = operators.input(dtype, &[16 * size, 48]);
    let projected = operators.op("MatMul", &[row, weights], &[]);
    operators.0.outputs.extend([projected, k, v]);
    operators.model()
}

/// Whether a part with a rotation is proved.
fn has_rotation(proofs: &[Certificate]) -> bool {
    proofs.iter().any(|proof| proof.candidate.contains("= rotate("))
}

const FORMS: [Form; 4] = [Form::Exported, Form::Halves, Form::Neighbours, Form::Part];

#[test]
fn rotated_attention_is_compiled_for_the_cpu() {
    let f32s = FORMS.map(|form| (form, DType::F32, 1e-5));
    for (form, dtype, tolerance) in f32s.into_iter().chain([(Form::Exported, DType::F16, 2e-3)]) {
        let cache = CacheDir::new(&format!("rotary-{form:?}-{dtype}"));
        let model = model(form, dtype, [4096, 64]);
        let artifact = model.compile(&options(&cache, None, Precision::F32)).expect("it compiles");
        assert!(has_rotation(&artifact.manifest.proofs), "{form:?}: {:#?}", artifact.manifest.proofs);
        let inputs = random_inputs(&model.graph, 5);
        let expected = model.interpret(&inputs, true).expect("the inputs fit");
        let executable = Executable::load(artifact, RunOptions::default()).expect("it loads");
        let outputs = executable.run(&inputs).expect("it runs");
        let difference = compare(&outputs[0], &expected[0]);
        assert!(difference.scaled < tolerance && difference.mismatched == 0, "{form:?}: {difference:?}");
    }
}

#[test]
fn rotated_attention_is_planned_for_gpus() {
    for form in FORMS {
        for (target, precision, tolerance) in
            [("cuda:sm_90", Precision::F32, 1e-5), ("cuda:sm_80", Precision::Tf32, 1e-2)]
        {
            let cache = CacheDir::new(&format!("rotary-{form:?}-{target}"));
            let model = model(form, DType::F32, [1024, 32]);
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

#[test]
fn attention_with_a_cache_is_planned_for_gpus() {
    for (form, dtype, precision, tolerance) in [
        (Form::Exported, DType::F32, Precision::F32, 1e-5),
        (Form::Part, DType::F32, Precision::Tf32, 1e-2),
        (Form::Exported, DType::F16, Precision::F16, 1e-2),
        (Form::Part, DType::F16, Precision::F32, 2e-3),
    ] {
        let what = format!("{form:?} of {dtype} in {}", precision.name());
        let cache = CacheDir::new(&format!("rotary-decoder-{form:?}-{dtype}"));
        let model = decoder(form, dtype, [1024, 32]);
        let planned = model.plan(&options(&cache, Some("cuda:sm_90"), precision)).expect("it is planned");
        assert!(has_rotation(planned.proofs()), "{what}: {:#?}", planned.proofs());
        let inputs = random_inputs(&model.graph, 5);
        let expected = model.interpret(&inputs, true).expect("the inputs fit");
        let outputs = planned.emulate(&inputs).expect("it runs");
        for (output, expected) in outputs.iter().zip(&expected) {
            let difference = compare(output, expected);
            assert!(difference.scaled < tolerance && difference.mismatched == 0, "{what}: {difference:?}");
        }
    }
}
