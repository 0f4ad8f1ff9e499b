//! Long sums of products of data: values that f16 may not hold.
//!
//! Where the results of a product are few, each is a sum of many terms. If both factors are data, nothing keeps such a
//! sum small: `k^T v` of linear attention is summed over all tokens, and so is a Gram matrix. f16 ends at 65504. Not among
//! them are
//!
//! - products with weights, which were trained to give results of the data's size: constants, and inputs that are multiplied
//!   as they are, which may be weights;
//! - sums of fewer terms;
//! - products with a result about as large as a factor, as of scores and of attention over as many keys as queries;
//! - averages: a factor `x / sum(x)`, as softmax makes, whose weights add up to one.
//!
//! What is computed from such sums may be as large, until it is divided by data (numerator by denominator, or what is
//! normalised by its length) or goes through a function that grows more slowly.

use crate::operands::moves;
use orch_ir::{BinaryFn, DType, PrimGraph, PrimNode, PrimOp, ReduceOp, ScalarFn, TensorId, UnaryFn};

/// A product has few results if each factor has so many times as many elements.
const FEW: usize = 8;

/// A sum is long if it has so many terms: what is of shorter ones f16 holds, unless their factors are about as large as it
/// holds.
const MANY_TERMS: usize = 1024;

/// What is known of each tensor, by number.
struct SumFacts<'a> {
    graph: &'a PrimGraph,
    /// It depends on an input.
    data: Vec<bool>,
    /// It is data, and more than elements of an input.
    computed: Vec<bool>,
    /// It is `x / sum(x)`.
    averages: Vec<bool>,
    /// It is something without data divided by data.
    reciprocals: Vec<bool>,
    /// It is a long sum of products of data, or as large as one.
    sums: Vec<bool>,
}

/// For each tensor whether it is of f32 and as large as a long sum of products of data.
pub(super) fn sums(graph: &PrimGraph) -> Vec<bool> {
    let none = || vec![false; graph.tensors().len()];
    let mut facts = SumFacts {
        graph,
        data: none(),
        computed: none(),
        averages: none(),
        reciprocals: none(),
        sums: none(),
    };
    for (_, input) in &graph.inputs {
        facts.data[input.index()] = true;
    }
    for node in graph.nodes() {
        facts.learn(node);
    }
    facts.sums
}

impl SumFacts<'_> {
    /// What a node's results are, after all nodes before it.
    fn learn(&mut self, node: &PrimNode) {
        let any = |of: &[bool]| node.inputs.iter().any(|input| of[input.index()]);
        let is_moved = moves(&node.op);
        let is_data = any(&self.data) || matches!(node.op, PrimOp::Opaque(_));
        let is_computed = if is_moved { any(&self.computed) } else { is_data };
        let is_average = is_moved && any(&self.averages) || self.is_average(node);
        let is_reciprocal = is_moved && any(&self.reciprocals) || self.is_reciprocal(node);
        let is_sum = self.is_long_sum(node) || any(&self.sums) && self.stays_large(node);
        for &output in &node.outputs {
            let number = output.index();
            self.data[number] = is_data;
            self.computed[number] = is_computed;
            self.averages[number] = is_average;
            self.reciprocals[number] = is_reciprocal;
            self.sums[number] = is_sum && self.graph.dtype(output) == DType::F32;
        }
    }

    /// True for a product of data with few results of many terms that are no averages.
    fn is_long_sum(&self, node: &PrimNode) -> bool {
        let elems = |tensor: TensorId| self.graph.shape(tensor).elems();
        let is_long = |input: TensorId| {
            let number = input.index();
            self.computed[number] && !self.averages[number] && FEW * elems(node.outputs[0]) <= elems(input)
        };
        let PrimOp::Contract(contract) = &node.op else { return false };
        let lhs = self.graph.shape(node.inputs[0]).dims().iter().zip(&contract.lhs);
        let terms: usize =
            lhs.filter(|(_, label)| !contract.out.contains(label)).map(|(extent, _)| extent).product();
        terms >= MANY_TERMS && node.inputs.iter().all(|&input| is_long(input))
    }

    /// True if a result may be as large as an operand that is a long sum.
    fn stays_large(&self, node: &PrimNode) -> bool {
        let of = |facts: &[bool], operand: usize| facts[node.inputs[operand].index()];
        match &node.op {
            PrimOp::Map(ScalarFn::Unary(f)) => {
                use UnaryFn::{Abs, Ceil, Floor, Neg, RoundEven, Trunc};
                matches!(f, Abs | Ceil | Floor | Neg | RoundEven | Trunc)
            }
            PrimOp::Map(ScalarFn::Binary(f)) => match f {
                BinaryFn::Mul => !of(&self.reciprocals, 0) && !of(&self.reciprocals, 1),
                BinaryFn::Div => !of(&self.data, 1),
                f => {
                    use BinaryFn::{Add, Max, Min, Pow, Sub};
                    matches!(f, Add | Max | Min | Pow | Sub)
                }
            },
            PrimOp::Reduce { .. } | PrimOp::Window { .. } => true,
            PrimOp::Contract(_) | PrimOp::Conv(_) | PrimOp::ConvTranspose { .. } => true,
            PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. } => true,
            op => moves(op),
        }
    }

    /// True for `x / sum(x)`.
    fn is_average(&self, node: &PrimNode) -> bool {
        if !matches!(node.op, PrimOp::Map(ScalarFn::Binary(BinaryFn::Div))) {
            return false;
        }
        let mut divisor = node.inputs[1];
        while let Some(producer) = self.graph.producer(divisor).map(|producer| self.graph.node(producer)) {
            match producer.op {
                PrimOp::Reduce { op: ReduceOp::Sum, .. } => return producer.inputs[0] == node.inputs[0],
                PrimOp::Broadcast { .. } | PrimOp::Reshape { .. } => divisor = producer.inputs[0],
                _ => return false,
            }
        }
        false
    }

    /// True for what a product is divided by in another form.
    fn is_reciprocal(&self, node: &PrimNode) -> bool {
        let is_data = |operand: usize| self.data[node.inputs[operand].index()];
        match node.op {
            PrimOp::Map(ScalarFn::Unary(UnaryFn::Recip)) => is_data(0),
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Div)) => !is_data(0) && is_data(1),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sums;
    use orch_ir::text::parse;

    /// The numbers of the tensors that are as large as long sums: `nodes` have inputs of these shapes as `t0` and `t1`,
    /// and `t2` and `t3` that are computed from them.
    fn large([x, y]: [&str; 2], nodes: &str, output: usize) -> Vec<usize> {
        let text = format!(
            "graph \"g\" {{\ninput \"x\" t0: f32[{x}]\ninput \"y\" t1: f32[{y}]\nt2: f32[{x}] = neg t0\n\
             t3: f32[{y}] = neg t1\n{nodes}\noutput \"y\" t{output}\n}}"
        );
        let graph = parse(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        let found = sums(&graph).into_iter().enumerate();
        found.filter(|(_, is_sum)| *is_sum).map(|(number, _)| number).collect()
    }

    const NONE: [usize; 0] = [];

    /// 1024 keys and values of 4 channels.
    const KEYS: [&str; 2] = ["1024, 4", "1024, 4"];

    #[test]
    fn linear_attention_is_large_up_to_its_division() {
        let nodes = "const t4: f32[1] = [0]
t5: f32[1024, 4] = broadcast t4 dims=[0]
t6: f32[1024, 4] = max t2, t5
t7: f32[1024] = reduce.sum t6 axes=[1]
t8: f32[4, 4] = contract t6, t3 labels=\"ab,ac->bc\"
t9: f32[1024, 4] = contract t6, t8 labels=\"ab,bc->ac\"
t10: f32[1024, 3] = slice t9 starts=[0, 0]
t11: f32[1024, 1] = slice t9 starts=[0, 3]
t12: f32[1024, 3] = broadcast t11 dims=[0, 1]
t13: f32[1024, 3] = div t10, t12
t14: f32[1024, 3] = exp t13";
        assert_eq!(large(KEYS, nodes, 14), [8, 9, 10, 11, 12]);
    }

    #[test]
    fn a_reciprocal_divides_and_a_constant_scales() {
        let nodes = "t4: f32[4, 4] = contract t2, t3 labels=\"ab,ac->bc\"
const t5: f32[4, 4] = [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
t6: f32[4, 4] = div t4, t5
t7: f32[4] = reduce.max t6 axes=[1]
t8: f32[4] = recip t7
t9: f32[4, 4] = broadcast t8 dims=[0]
t10: f32[4, 4] = mul t6, t9
t11: f32[4, 4] = sqrt t6
t12: f32[4, 4] = sub t10, t11";
        assert_eq!(large(KEYS, nodes, 12), [4, 6, 7]);
    }

    #[test]
    fn averages_are_not_large() {
        // Two queries by 1024 keys.
        let shapes = ["2, 1024", "1024, 4"];
        let softmax = "t4: f32[2, 1024] = exp t2
t5: f32[2] = reduce.sum t4 axes=[1]
t6: f32[2, 1024] = broadcast t5 dims=[0]
t7: f32[2, 1024] = div t4, t6";
        let attention =
            |weights: &str| format!("{softmax}\nt8: f32[2, 4] = contract {weights}, t3 labels=\"ab,bc->ac\"");
        assert_eq!(large(shapes, &attention("t7"), 8), NONE);
        assert_eq!(large(shapes, &attention("t4"), 8), [8]);
    }

    #[test]
    fn products_with_weights_of_few_terms_or_of_many_results_are_not_large() {
        let shapes = ["2, 1024", "1024, 2"];
        let nodes = "const t4: f32[1] = [1]
t5: f32[1024, 2] = broadcast t4 dims=[0]
t6: f32[2, 2] = contract t2, t5 labels=\"ab,bc->ac\"
t7: f32[1024, 2] = reshape t0
t8: f32[2, 2] = contract t2, t7 labels=\"ab,bc->ac\"
t9: f32[1024, 1024] = contract t2, t2 labels=\"ab,ac->bc\"";
        assert_eq!(large(shapes, nodes, 9), NONE);
        let sum =
            |results: usize| format!("t4: f32[{results}, {results}] = contract t2, t3 labels=\"ab,bc->ac\"");
        assert_eq!(large(shapes, &sum(2), 4), [4]);
        assert_eq!(large(["2, 1023", "1023, 2"], &sum(2), 4), NONE);
        // An eighth of a factor's elements, and more.
        assert_eq!(large(["128, 1024", "1024, 128"], &sum(128), 4), [4]);
        assert_eq!(large(["129, 1024", "1024, 129"], &sum(129), 4), NONE);
    }
}
