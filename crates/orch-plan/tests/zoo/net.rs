//! The builder of the zoo: primitives with shapes and floating-point operations, over a [`Dag`].

use orch_ir::{NodeId, TensorId};
use orch_plan::dag::{Dag, DagNode, NodeKind};

/// A tensor of a [`Net`].
pub type T = TensorId;

/// A graph under construction.
#[derive(Default)]
pub struct Net {
    shapes: Vec<Vec<usize>>,
    is_weight: Vec<bool>,
    nodes: Vec<DagNode>,
    labels: Vec<&'static str>,
    flops: Vec<f64>,
}

/// A convolution's window.
#[derive(Clone, Copy)]
pub struct Conv {
    pub channels: usize,
    pub kernel: usize,
    pub stride: usize,
    pub groups: usize,
}

impl Net {
    /// A graph input.
    pub fn input(&mut self, shape: &[usize]) -> T {
        self.tensor(shape.to_vec(), false)
    }

    /// A constant.
    pub fn weight(&mut self, shape: &[usize]) -> T {
        self.tensor(shape.to_vec(), true)
    }

    fn tensor(&mut self, shape: Vec<usize>, is_weight: bool) -> T {
        self.shapes.push(shape);
        self.is_weight.push(is_weight);
        TensorId::new(self.shapes.len() - 1)
    }

    pub fn shape(&self, tensor: T) -> &[usize] {
        &self.shapes[tensor.index()]
    }

    /// The number of elements of a tensor.
    pub fn elems(&self, tensor: T) -> usize {
        self.shape(tensor).iter().product()
    }

    pub fn is_weight(&self, tensor: T) -> bool {
        self.is_weight[tensor.index()]
    }

    /// The operator's name of a node.
    pub fn label(&self, node: NodeId) -> &'static str {
        self.labels[node.index()]
    }

    /// Floating-point operations of a node.
    pub fn flops(&self, node: NodeId) -> f64 {
        self.flops[node.index()]
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The graph as the planner sees it.
    pub fn dag(&self, outputs: &[T]) -> Dag {
        Dag::new(self.shapes.len(), self.nodes.clone(), outputs.to_vec())
            .expect("the zoo builds valid graphs")
    }

    fn add(
        &mut self,
        label: &'static str,
        kind: NodeKind,
        inputs: &[T],
        shape: Vec<usize>,
        flops: usize,
    ) -> T {
        let output = self.tensor(shape, false);
        let is_cheap = kind == NodeKind::Injective;
        self.nodes.push(DagNode { kind, is_cheap, inputs: inputs.to_vec(), outputs: vec![output] });
        self.labels.push(label);
        self.flops.push(flops as f64);
        output
    }

    /// An elementwise primitive; the result has the shape of the first operand.
    pub fn map(&mut self, label: &'static str, inputs: &[T]) -> T {
        let shape = self.shape(inputs[0]).to_vec();
        let flops = shape.iter().product();
        self.add(label, NodeKind::Injective, inputs, shape, flops)
    }

    /// A layout primitive.
    pub fn layout(&mut self, label: &'static str, input: T, shape: &[usize]) -> T {
        self.add(label, NodeKind::Injective, &[input], shape.to_vec(), 0)
    }

    pub fn reshape(&mut self, input: T, shape: &[usize]) -> T {
        self.layout("Reshape", input, shape)
    }

    pub fn transpose(&mut self, input: T, perm: &[usize]) -> T {
        let shape: Vec<usize> = perm.iter().map(|&dim| self.shape(input)[dim]).collect();
        self.layout("Transpose", input, &shape)
    }

    /// Joins along `axis`.
    pub fn concat(&mut self, inputs: &[T], axis: usize) -> T {
        let mut shape = self.shape(inputs[0]).to_vec();
        shape[axis] = inputs.iter().map(|&input| self.shape(input)[axis]).sum();
        self.add("Concat", NodeKind::Injective, inputs, shape, 0)
    }

    /// The mean over `axes`, which keep extent 1.
    pub fn mean(&mut self, input: T, axes: &[usize]) -> T {
        let mut shape = self.shape(input).to_vec();
        let flops = shape.iter().product();
        for &axis in axes {
            shape[axis] = 1;
        }
        self.add("ReduceMean", NodeKind::Reduce, &[input], shape, flops)
    }

    /// Pooling that keeps the shape.
    pub fn max_pool(&mut self, input: T, kernel: usize) -> T {
        let shape = self.shape(input).to_vec();
        let flops = shape.iter().product::<usize>() * kernel * kernel;
        self.add("MaxPool", NodeKind::Reduce, &[input], shape, flops)
    }

    /// `[.., m, k] x [.., k, n]`.
    pub fn matmul(&mut self, lhs: T, rhs: T) -> T {
        let mut shape = self.shape(lhs).to_vec();
        let inner = shape.pop().expect("a matrix");
        shape.push(*self.shape(rhs).last().expect("a matrix"));
        let flops = 2 * inner * shape.iter().product::<usize>();
        self.add("MatMul", NodeKind::Anchor, &[lhs, rhs], shape, flops)
    }

    /// A convolution with a bias on `[n, c, h, w]`, padded to keep `ceil(extent / stride)` positions.
    pub fn conv(&mut self, input: T, conv: Conv) -> T {
        self.conv_with_margin(input, conv, conv.kernel - 1)
    }

    /// A convolution without padding.
    pub fn conv_valid(&mut self, input: T, conv: Conv) -> T {
        self.conv_with_margin(input, conv, 0)
    }

    fn conv_with_margin(&mut self, input: T, conv: Conv, margin: usize) -> T {
        let [batch, channels, height, width] = self.shape(input)[..] else { panic!("[n, c, h, w]") };
        let Conv { channels: out, kernel, stride, groups } = conv;
        let weight = self.weight(&[out, channels / groups, kernel, kernel]);
        let bias = self.weight(&[out]);
        let positions = |extent: usize| (extent + margin - kernel) / stride + 1;
        let shape = vec![batch, out, positions(height), positions(width)];
        let flops = 2 * shape.iter().product::<usize>() * channels / groups * kernel * kernel;
        self.add("Conv", NodeKind::Anchor, &[input, weight, bias], shape, flops)
    }
}
