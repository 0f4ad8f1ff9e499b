//! stub
use crate::graph::MuGraph;
use orch_ir::{NodeId, PrimGraph, TensorId};
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    pub tensor: TensorId,
    pub strides: Vec<usize>,
    pub offset: usize,
}
pub struct Region {
    pub program: MuGraph,
    pub inputs: Vec<View>,
    pub output: View,
    pub nodes: Vec<NodeId>,
}
#[derive(Default)]
pub struct RegionLimits;
pub fn regions(_graph: &PrimGraph, _limits: &RegionLimits) -> Vec<Region> {
    Vec::new()
}
