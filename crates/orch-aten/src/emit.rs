//! The operator graph under construction: each function adds one ONNX operator (or none, where nothing happens) and
//! knows the type of its result.

use orch_ir::{Attribute, DType, OperatorGraph, OperatorNode, Shape, Tensor, Value, ValueId, message};
use std::collections::{BTreeMap, BTreeSet};

/// The version of ONNX's operator set that nodes are of.
const OPSET: i64 = 23;

/// The operator set of scalar functions that ONNX lacks.
const SCALARS: &str = "orchestrion.scalar";

/// The most bytes of all tables that rules make: a small document can ask for very many large ones.
const MAX_TABLE_BYTES: usize = 1 << 26;

/// The most bytes of a node's name in the names of its values.
const NAME_BYTES: usize = 100;

/// Why a call is not translated.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Refusal {
    /// A limit of this compiler.
    Unsupported(String),
    /// The arguments do not fit the target or each other.
    Invalid(String),
    /// An argument is not what the target takes.
    Argument { argument: String, detail: String },
}

/// A limit of this compiler.
pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Unsupported(what.into()))
}

/// A fault of the document.
pub(crate) fn invalid<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Invalid(what.into()))
}

/// A tensor of the graph with its type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Val {
    pub id: ValueId,
    pub dtype: DType,
    pub shape: Shape,
}

/// The result of adding operators.
pub(crate) type Emitted = Result<Val, Refusal>;

impl Val {
    /// Type and shape as messages show them.
    pub fn describe(&self) -> String {
        format!("{}{}", self.dtype, self.shape)
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }
}

/// Builds an operator graph.
pub(crate) struct Emitter {
    pub graph: OperatorGraph,
    /// The names of all values: fission resolves operands by name.
    names: BTreeSet<String>,
    /// What new nodes are named after.
    node: String,
    count: usize,
    constants: BTreeMap<(DType, Vec<usize>, Vec<u8>), Val>,
    /// True where all indices of one operand are within its extent.
    index_checks: Vec<Val>,
    table_bytes: usize,
}

impl Emitter {
    /// An empty graph; `taken` are names that its values must not have.
    pub fn new(name: &str, taken: BTreeSet<String>) -> Self {
        let opsets = BTreeMap::from([(String::new(), OPSET)]);
        let graph = OperatorGraph { name: name.to_owned(), opsets, ..OperatorGraph::default() };
        Self {
            graph,
            names: taken,
            node: String::new(),
            count: 0,
            constants: BTreeMap::new(),
            index_checks: Vec::new(),
            table_bytes: 0,
        }
    }

    /// Names the nodes that follow.
    pub fn begin(&mut self, node: &str) {
        self.node = message::shortened(node, NAME_BYTES);
    }

    /// A value with this name if none has it, else with one like it.
    fn value(&mut self, wanted: &str, dtype: DType, shape: Shape) -> Val {
        let mut name = wanted.to_owned();
        while name.is_empty() || !self.names.insert(name.clone()) {
            name = format!("{wanted}#{}", self.count);
            self.count += 1;
        }
        let dims = shape.iter().map(|&extent| Some(extent)).collect();
        let value = Value { name, dtype: Some(dtype), shape: Some(dims), ..Value::default() };
        Val { id: self.graph.add_value(value), dtype, shape }
    }

    /// Adds an input; its name is not taken yet.
    pub fn input(&mut self, name: &str, dtype: DType, shape: Shape) -> Val {
        let value = self.value(name, dtype, shape);
        self.graph.inputs.push(value.id);
        value
    }

    /// Adds an output.
    pub fn output(&mut self, name: &str, value: &Val) {
        let result = self.value(name, value.dtype, value.shape.clone());
        let place = result.clone();
        self.push("Identity", "", &[Some(value)], &[], &[result]);
        self.graph.outputs.push(place.id);
    }

    fn push(
        &mut self,
        op_type: &str,
        domain: &str,
        inputs: &[Option<&Val>],
        attributes: &[(&str, Attribute)],
        results: &[Val],
    ) {
        self.graph.nodes.push(OperatorNode {
            name: self.node.clone(),
            domain: domain.to_owned(),
            op_type: op_type.to_owned(),
            opset: if domain.is_empty() { OPSET } else { 1 },
            inputs: inputs.iter().map(|input| input.map(|value| value.id)).collect(),
            outputs: results.iter().map(|value| Some(value.id)).collect(),
            attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        });
    }

    /// Adds an operator with these result types.
    pub fn many(
        &mut self,
        op_type: &str,
        inputs: &[Option<&Val>],
        attributes: &[(&str, Attribute)],
        results: &[(DType, Shape)],
    ) -> Vec<Val> {
        let wanted = format!("{}#{}", self.node, self.count);
        let results: Vec<Val> =
            results.iter().map(|(dtype, shape)| self.value(&wanted, *dtype, shape.clone())).collect();
        self.count += 1;
        self.push(op_type, "", inputs, attributes, &results);
        results
    }

    /// Adds an operator with one result.
    pub fn one(
        &mut self,
        op_type: &str,
        inputs: &[&Val],
        attributes: &[(&str, Attribute)],
        (dtype, shape): (DType, Shape),
    ) -> Val {
        let inputs: Vec<Option<&Val>> = inputs.iter().map(|&value| Some(value)).collect();
        self.many(op_type, &inputs, attributes, &[(dtype, shape)]).swap_remove(0)
    }

    /// A function of one element, of the operand's type.
    pub fn unary(&mut self, op_type: &str, x: &Val) -> Val {
        self.one(op_type, &[x], &[], (x.dtype, x.shape.clone()))
    }

    /// A function of one element that ONNX lacks.
    pub fn scalar_function(&mut self, op_type: &str, x: &Val) -> Val {
        let wanted = format!("{}#{}", self.node, self.count);
        let result = self.value(&wanted, x.dtype, x.shape.clone());
        self.graph.opsets.insert(SCALARS.to_owned(), 1);
        self.push(op_type, SCALARS, &[Some(x)], &[], std::slice::from_ref(&result));
        result
    }

    /// 64 random bits for each position of the sequence of a key; both are u64, of one shape.
    pub fn random_bits(&mut self, position: &Val, key: &Val) -> Val {
        let wanted = format!("{}#{}", self.node, self.count);
        let result = self.value(&wanted, DType::U64, position.shape.clone());
        self.count += 1;
        self.graph.opsets.insert(SCALARS.to_owned(), 1);
        self.push("Philox", SCALARS, &[Some(position), Some(key)], &[], std::slice::from_ref(&result));
        result
    }

    /// Bits shifted to the right by an amount; of signed types arithmetically.
    pub fn shift_right(&mut self, x: &Val, amount: &Val) -> Emitted {
        let shape = self.common_shape("BitShift", x, amount)?;
        let direction = Attribute::String("RIGHT".into());
        Ok(self.one("BitShift", &[x, amount], &[("direction", direction)], (x.dtype, shape)))
    }

    /// A constant; equal small ones are shared.
    pub fn constant(&mut self, tensor: Tensor) -> Val {
        const SHARED_BYTES: usize = 64;
        let key = (tensor.bytes().len() <= SHARED_BYTES)
            .then(|| (tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec()));
        if let Some(known) = key.as_ref().and_then(|key| self.constants.get(key)) {
            return known.clone();
        }
        let value = self.value("constant", tensor.dtype(), tensor.shape().clone());
        self.graph.initializers.insert(value.id, tensor);
        if let Some(key) = key {
            self.constants.insert(key, value.clone());
        }
        value
    }

    /// A constant that a rule computes, and that may be large.
    pub fn table(&mut self, tensor: Tensor) -> Emitted {
        self.table_bytes += tensor.bytes().len();
        if self.table_bytes > MAX_TABLE_BYTES {
            return unsupported(format!("tables of more than {MAX_TABLE_BYTES} bytes in all"));
        }
        Ok(self.constant(tensor))
    }

    /// A list of integers as an operand.
    pub fn ints(&mut self, values: &[i64]) -> Val {
        self.constant(Tensor::from_vec([values.len()], values.to_vec()))
    }

    /// A scalar: floats are rounded, integers truncated.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Val {
        self.constant(Tensor::from_f64(dtype, Shape::scalar(), &[value]))
    }

    /// A scalar from an integer.
    pub fn scalar_int(&mut self, dtype: DType, value: i64) -> Val {
        self.constant(Tensor::from_i64(dtype, Shape::scalar(), &[value]))
    }

    /// A tensor of one repeated value.
    pub fn full(&mut self, value: &Val, shape: &Shape) -> Emitted {
        self.expand(value, shape)
    }

    /// A tensor of zeros.
    pub fn zeros(&mut self, dtype: DType, shape: &Shape) -> Emitted {
        let zero = self.scalar(dtype, 0.0);
        self.expand(&zero, shape)
    }

    /// `op(a, b)` with NumPy's broadcasting, of the operands' type.
    pub fn binary(&mut self, op_type: &str, a: &Val, b: &Val) -> Emitted {
        let shape = self.common_shape(op_type, a, b)?;
        Ok(self.one(op_type, &[a, b], &[], (a.dtype, shape)))
    }

    /// `op(a, value)`.
    pub fn binary_scalar(&mut self, op_type: &str, a: &Val, value: f64) -> Emitted {
        let value = self.scalar(a.dtype, value);
        self.binary(op_type, a, &value)
    }

    /// A comparison with NumPy's broadcasting.
    pub fn compare(&mut self, op_type: &str, a: &Val, b: &Val) -> Emitted {
        let shape = self.common_shape(op_type, a, b)?;
        Ok(self.one(op_type, &[a, b], &[], (DType::Bool, shape)))
    }

    /// A comparison with a number.
    pub fn compare_scalar(&mut self, op_type: &str, a: &Val, value: f64) -> Emitted {
        let value = self.scalar(a.dtype, value);
        self.compare(op_type, a, &value)
    }

    fn common_shape(&self, op_type: &str, a: &Val, b: &Val) -> Result<Shape, Refusal> {
        if a.dtype != b.dtype {
            return invalid(format!("{op_type} of {} and {}", a.describe(), b.describe()));
        }
        broadcast(&[&a.shape, &b.shape])
    }

    /// `condition ? a : b`.
    pub fn select(&mut self, condition: &Val, a: &Val, b: &Val) -> Emitted {
        if condition.dtype != DType::Bool || a.dtype != b.dtype {
            let operands = [condition, a, b].map(Val::describe);
            return invalid(format!("a selection of {}, {} and {}", operands[0], operands[1], operands[2]));
        }
        let shape = broadcast(&[&condition.shape, &a.shape, &b.shape])?;
        Ok(self.one("Where", &[condition, a, b], &[], (a.dtype, shape)))
    }

    /// Another element type.
    pub fn cast(&mut self, x: &Val, dtype: DType) -> Val {
        if x.dtype == dtype {
            return x.clone();
        }
        let to = Attribute::Int(onnx_type(dtype));
        self.one("Cast", &[x], &[("to", to)], (dtype, x.shape.clone()))
    }

    /// f16 and bf16 as f32: the type in which eager computes.
    pub fn widen(&mut self, x: &Val) -> Val {
        self.cast(x, wide(x.dtype))
    }

    /// True where elements are not zero.
    pub fn truth(&mut self, x: &Val) -> Val {
        self.cast(x, DType::Bool)
    }

    /// The same elements under another shape.
    pub fn reshape(&mut self, x: &Val, dims: impl Into<Vec<usize>>) -> Emitted {
        let dims = dims.into();
        let Some(shape) = Shape::checked(dims.clone()).filter(|shape| shape.elems() == x.shape.elems())
        else {
            return invalid(format!("{} cannot have the shape {dims:?}", x.describe()));
        };
        if shape == x.shape {
            return Ok(x.clone());
        }
        let target: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let target = self.ints(&target);
        Ok(self.one("Reshape", &[x, &target], &[("allowzero", Attribute::Int(1))], (x.dtype, shape)))
    }

    /// Repeats dimensions of extent 1, and inserts leading ones.
    pub fn expand(&mut self, x: &Val, shape: &Shape) -> Emitted {
        if broadcast(&[&x.shape, shape])? != *shape {
            return invalid(format!("{} cannot be expanded to {shape}", x.describe()));
        }
        if *shape == x.shape {
            return Ok(x.clone());
        }
        let target: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let target = self.ints(&target);
        Ok(self.one("Expand", &[x, &target], &[], (x.dtype, shape.clone())))
    }

    /// Result dimension `i` is dimension `perm[i]`.
    pub fn transpose(&mut self, x: &Val, perm: &[usize]) -> Emitted {
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.rank()) {
            return invalid(format!("{perm:?} is no permutation of the dimensions of {}", x.describe()));
        }
        if perm.is_sorted() {
            return Ok(x.clone());
        }
        let dims: Vec<usize> = perm.iter().map(|&dim| x.shape[dim]).collect();
        let perm = Attribute::Ints(perm.iter().map(|&dim| dim as i64).collect());
        Ok(self.one("Transpose", &[x], &[("perm", perm)], (x.dtype, dims.into())))
    }

    /// `x[.., start + i * step, ..]` for `i < count`; all positions are within the axis.
    pub fn slice(&mut self, x: &Val, axis: usize, (start, step, count): (usize, i64, usize)) -> Emitted {
        let mut dims = x.shape.to_vec();
        if count == dims[axis] && start == 0 && step == 1 {
            return Ok(x.clone());
        }
        let extent = dims[axis] as i64;
        let last = (count as i64 - 1).checked_mul(step).and_then(|span| span.checked_add(start as i64));
        if count > 0 && !(start < dims[axis] && last.is_some_and(|last| (0..extent).contains(&last))) {
            return invalid(format!(
                "{count} positions from {start} by {step} of axis {axis} of {}",
                x.describe()
            ));
        }
        dims[axis] = count;
        // The end is beyond the last position; before the first element it is written as far below zero.
        let end = match last {
            Some(last) if count > 0 && step > 0 => last + 1,
            Some(last) if count > 0 && last > 0 => last - 1,
            Some(_) if count > 0 => i64::MIN,
            _ => start as i64,
        };
        let operands = [start as i64, end, axis as i64, step].map(|value| self.ints(&[value]));
        let [start, end, axis, step] = &operands;
        Ok(self.one("Slice", &[x, start, end, axis, step], &[], (x.dtype, dims.into())))
    }

    /// Joins tensors along an axis.
    pub fn concat(&mut self, parts: &[Val], axis: usize) -> Emitted {
        let Some(first) = parts.first() else { return invalid("nothing is joined") };
        let others = |shape: &Shape| [&shape[..axis], &shape[axis + 1..]].concat();
        let fits = |part: &&Val| {
            part.dtype == first.dtype
                && part.rank() == first.rank()
                && others(&part.shape) == others(&first.shape)
        };
        if axis >= first.rank() {
            return invalid(format!("axis {axis} of {}", first.describe()));
        }
        if let Some(other) = parts.iter().find(|part| !fits(part)) {
            return invalid(format!(
                "{} and {} are joined along axis {axis}",
                first.describe(),
                other.describe()
            ));
        }
        let mut dims = first.shape.to_vec();
        dims[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let shape = checked(dims)?;
        if let [only] = parts {
            return Ok(only.clone());
        }
        let parts: Vec<&Val> = parts.iter().collect();
        Ok(self.one("Concat", &parts, &[("axis", Attribute::Int(axis as i64))], (first.dtype, shape)))
    }

    /// Adds elements around each dimension; negative amounts crop.
    pub fn pad(&mut self, x: &Val, low: &[i64], high: &[i64], value: &Val) -> Emitted {
        if low.iter().chain(high).all(|&amount| amount == 0) {
            return Ok(x.clone());
        }
        let padded = |dim: usize| {
            let sum = i128::from(low[dim]) + i128::from(high[dim]) + x.shape[dim] as i128;
            usize::try_from(sum).ok().filter(|_| {
                let cropped = low[dim].min(0).unsigned_abs().checked_add(high[dim].min(0).unsigned_abs());
                cropped.is_some_and(|cropped| cropped <= x.shape[dim] as u64)
            })
        };
        let Some(dims) = (0..x.rank()).map(padded).collect::<Option<Vec<usize>>>() else {
            return invalid(format!("{} is padded by {low:?} and {high:?}", x.describe()));
        };
        let shape = checked(dims)?;
        let amounts = self.ints(&[low, high].concat());
        Ok(self.one("Pad", &[x, &amounts, value], &[], (x.dtype, shape)))
    }

    /// Reduces axes (sorted); those stay with extent 1 if `keep`.
    pub fn reduce(&mut self, op_type: &str, x: &Val, axes: &[usize], keep: bool) -> Val {
        if axes.is_empty() {
            return x.clone();
        }
        let shape = reduced(&x.shape, axes, keep);
        let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        let axes = self.ints(&axes);
        self.one(op_type, &[x, &axes], &[("keepdims", Attribute::Int(keep.into()))], (x.dtype, shape))
    }

    /// Matrix products over the last two dimensions, with shared leading ones.
    pub fn matmul(&mut self, a: &Val, b: &Val) -> Emitted {
        let (ra, rb) = (a.rank(), b.rank());
        let fits = ra >= 2
            && ra == rb
            && a.dtype == b.dtype
            && a.shape[ra - 1] == b.shape[rb - 2]
            && a.shape[..ra - 2] == b.shape[..rb - 2];
        if !fits {
            return invalid(format!("the product of {} and {}", a.describe(), b.describe()));
        }
        let shape = checked([&a.shape[..ra - 1], &b.shape[rb - 1..]].concat())?;
        Ok(self.one("MatMul", &[a, b], &[], (a.dtype, shape)))
    }

    /// The last two dimensions exchanged.
    pub fn transpose_last(&mut self, x: &Val) -> Emitted {
        let mut perm: Vec<usize> = (0..x.rank()).collect();
        if let [.., a, b] = &mut perm[..] {
            std::mem::swap(a, b);
        }
        self.transpose(x, &perm)
    }

    /// `data` with dimension `axis` replaced by the dimensions of `indices`.
    pub fn gather(&mut self, data: &Val, indices: &Val, axis: usize) -> Emitted {
        let shape = checked([&data.shape[..axis], &indices.shape, &data.shape[axis + 1..]].concat())?;
        let axis = Attribute::Int(axis as i64);
        Ok(self.one("Gather", &[data, indices], &[("axis", axis)], (data.dtype, shape)))
    }

    /// Positions along an axis, as `i64`.
    pub fn iota(&mut self, count: usize) -> Val {
        let operands = [0, count as i64, 1].map(|value| self.scalar_int(DType::I64, value));
        let [start, end, step] = &operands;
        self.one("Range", &[start, end, step], &[], (DType::I64, [count].into()))
    }

    /// Notes that indices are to be in `low..high`: what the graph's check of indices says.
    pub fn check_indices(&mut self, indices: &Val, low: i64, high: i64) -> Result<(), Refusal> {
        let wide = self.cast(indices, DType::I64);
        let low = self.scalar_int(DType::I64, low);
        let high = self.scalar_int(DType::I64, high);
        let above = self.compare("GreaterOrEqual", &wide, &low)?;
        let below = self.compare("Less", &wide, &high)?;
        let within = self.binary("And", &above, &below)?;
        let axes: Vec<usize> = (0..within.rank()).collect();
        let all = self.reduce("ReduceMin", &within, &axes, false);
        self.index_checks.push(all);
        Ok(())
    }

    /// True if all indices that were noted are within their extents.
    pub fn all_indices(&mut self) -> Emitted {
        let mut all = self.scalar(DType::Bool, 1.0);
        for check in std::mem::take(&mut self.index_checks) {
            all = self.binary("And", &all, &check)?;
        }
        Ok(all)
    }
}

/// A shape from computed extents.
pub(crate) fn checked(dims: Vec<usize>) -> Result<Shape, Refusal> {
    let text = format!("a tensor of shape {dims:?} holds more than 2^40 elements");
    Shape::checked(dims).ok_or(Refusal::Invalid(text))
}

/// The shape that these shapes broadcast to.
pub(crate) fn broadcast(shapes: &[&Shape]) -> Result<Shape, Refusal> {
    let rank = shapes.iter().map(|shape| shape.rank()).max().unwrap_or(0);
    let mut dims = vec![1; rank];
    for shape in shapes {
        for (dim, &extent) in dims[rank - shape.rank()..].iter_mut().zip(shape.iter()) {
            match (*dim, extent) {
                (1, _) => *dim = extent,
                (_, 1) => {}
                (known, extent) if known == extent => {}
                _ => return invalid(format!("shapes {shapes:?} do not broadcast")),
            }
        }
    }
    checked(dims)
}

/// A shape without these axes, or with extent 1 there.
pub(crate) fn reduced(shape: &Shape, axes: &[usize], keep: bool) -> Shape {
    let dims = shape.iter().enumerate().filter_map(|(axis, &extent)| match axes.contains(&axis) {
        true => keep.then_some(1),
        false => Some(extent),
    });
    dims.collect::<Vec<_>>().into()
}

/// f32 for f16 and bf16, else the type itself.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// The number of an element type in ONNX.
fn onnx_type(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
    }
}
