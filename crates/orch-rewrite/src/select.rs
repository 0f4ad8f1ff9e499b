//! Selections of positions without a pattern as gathers.
//!
//! [`PrimOp::Select`] takes positions that are known when compiling, and kernels compute them by a formula. Where there is none (a table
//! of relative positions, a permutation of channels, an interpolation by an odd factor), the positions become a constant that kernels
//! read:
//!
//! ```text
//! select [-, [3, 0, 2]] x  =  take axis 1 x, constant [3, 0, 2]
//! ```
//!
//! Stands after the rewriting, whose rules join and move selections. Exact.

use crate::prepare::{computed, rebuilt};
use orch_ir::{PrimGraph, PrimOp, Shape, Tensor, TensorId};
use std::collections::BTreeMap;

/// The graph with selections of positions for which there is no formula as gathers, one after the other by dimensions. Equal
/// positions are one constant.
pub fn index_selections(graph: &PrimGraph, has_formula: impl Fn(&[usize]) -> bool) -> PrimGraph {
    let is_irregular = |list: &Option<Vec<usize>>| list.as_ref().is_some_and(|list| !has_formula(list));
    let mut constants: BTreeMap<Vec<usize>, TensorId> = BTreeMap::new();
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let PrimOp::Select { positions } = &node.op else { return false };
        if !positions.iter().any(is_irregular) {
            return false;
        }
        let expected = "positions are in range";
        let mut selected = computed(known, node.inputs[0]);
        let regular: Vec<Option<Vec<usize>>> =
            positions.iter().map(|list| list.clone().filter(|list| has_formula(list))).collect();
        if regular.iter().any(Option::is_some) {
            selected = result.add(PrimOp::Select { positions: regular }, &[selected]).expect(expected);
        }
        for (axis, list) in positions.iter().enumerate().filter(|(_, list)| is_irregular(list)) {
            let list = list.as_ref().expect("it is irregular");
            let indices = *constants.entry(list.clone()).or_insert_with(|| {
                let values =
                    list.iter().map(|&at| i32::try_from(at).expect("extents are below 2^31")).collect();
                result.add_constant(Tensor::from_vec(Shape::from([list.len()]), values))
            });
            selected = result.add(PrimOp::Take { axis }, &[selected, indices]).expect(expected);
        }
        known[node.outputs[0].index()] = Some(selected);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::DType;

    #[test]
    fn positions_without_a_formula_become_constants() {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [4, 3, 5]);
        let positions = vec![Some(vec![2, 0, 3]), Some(vec![1]), Some(vec![2, 0, 3, 3])];
        let y = graph.add(PrimOp::Select { positions }, &[x]).unwrap();
        graph.add_output("y", y);
        let indexed = index_selections(&graph, |list| list.len() == 1);
        let ops: Vec<&PrimOp> = indexed.nodes().iter().map(|node| &node.op).collect();
        assert!(matches!(
            ops[..],
            [PrimOp::Select { .. }, PrimOp::Take { axis: 0 }, PrimOp::Take { axis: 2 }]
        ));
        let inputs = [Tensor::from_vec([4, 3, 5], (0..60).map(|i| i as f32).collect())];
        let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
        assert_eq!(results(&graph)[0].to_f64(), results(&indexed)[0].to_f64());
        // Nothing is done where nothing is irregular.
        assert_eq!(orch_ir::text::print(&index_selections(&graph, |_| true)), orch_ir::text::print(&graph));
    }
}
