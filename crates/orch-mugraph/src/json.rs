//! µGraphs as JSON: our own form for other programs to read, and the published saved form of Mirage, read only.
//!
//! A saved set is a list of graphs, each a list of kernel operators that name tensors by `guid`. Accumulators that reduce
//! are taken apart: `red_ld_sum` is a sum along the last dimension that is accumulated, `redtox_ld_sum` keeps
//! `reduction_dimx` elements, `red_ld_rms` is the root of the mean square. Tensors of one `guid` are one tensor.

use crate::graph::{Accumulation, BlockGraph, MuGraph, TensorId, TileId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use serde_json::Value;
use std::collections::BTreeMap;

/// Our JSON form: nodes in order, shapes of all tensors, outputs.
pub fn to_json(graph: &MuGraph) -> Value {
    serde_json::to_value(graph).unwrap_or(Value::Null)
}

/// Why a saved set cannot be read: which graph, which operator, what is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("saved graph {graph}, operator {operator}: {problem}")]
pub struct ImportError {
    /// The position of the graph in the set.
    pub graph: usize,
    /// The position of the kernel operator in the graph.
    pub operator: usize,
    /// The problem.
    pub problem: String,
}

/// The µGraphs of a published saved set.
///
/// # Errors
/// The first operator that cannot be read.
pub fn import_saved(text: &str) -> Result<Vec<MuGraph>, ImportError> {
    let error = |problem: String| ImportError { graph: 0, operator: 0, problem };
    let set: Value = serde_json::from_str(text).map_err(|e| error(e.to_string()))?;
    let graphs = set.as_array().ok_or_else(|| error("expected a list of graphs".into()))?;
    let read = |(at, operators): (usize, &Value)| {
        import_graph(operators).map_err(|(operator, problem)| ImportError { graph: at, operator, problem })
    };
    graphs.iter().enumerate().map(read).collect()
}

fn import_graph(operators: &Value) -> Result<MuGraph, (usize, String)> {
    let mut import = Import { graph: MuGraph::new("saved"), tensors: BTreeMap::new() };
    for (position, operator) in list(operators, "a graph").map_err(|e| (0, e))?.iter().enumerate() {
        import.operator(operator).map_err(|problem| (position, problem))?;
    }
    Ok(import.graph)
}

struct Import {
    graph: MuGraph,
    tensors: BTreeMap<u64, TensorId>,
}

impl Import {
    fn operator(&mut self, operator: &Value) -> Result<(), String> {
        let name = text(operator, "op_type")?;
        let name = name.strip_prefix("kn_").unwrap_or(name);
        let name = name.strip_suffix("_op").unwrap_or(name);
        let results = list(&operator["output_tensors"], "output_tensors")?;
        let args: Vec<TensorId> = list(&operator["input_tensors"], "input_tensors")?
            .iter()
            .map(|tensor| self.tensor(tensor))
            .collect::<Result<_, _>>()?;
        match name {
            "input" => {
                let result = results.first().ok_or("an input without a tensor")?;
                let name = format!("x{}", self.graph.inputs().count());
                let id = self.graph.input(name, &shape(result)?);
                self.tensors.insert(guid(result)?, id);
            }
            "output" => {
                let name = format!("o{}", self.graph.outputs().len());
                let arg = *args.first().ok_or("an output without a tensor")?;
                self.graph.output(name, arg).map_err(|e| e.to_string())?;
            }
            "customized" => {
                let block = self.block(&operator["bgraph"])?;
                let made = self.graph.block(block).map_err(|e| e.to_string())?;
                for (id, result) in made.into_iter().zip(results) {
                    self.define(id, result)?;
                }
            }
            name => {
                let result = results.first().ok_or("an operator without a result")?;
                let op = operator_of(name, &shape(result)?)?;
                let id = self.graph.op(op, &args).map_err(|e| e.to_string())?;
                self.define(id, result)?;
            }
        }
        Ok(())
    }

    fn define(&mut self, id: TensorId, described: &Value) -> Result<(), String> {
        let expected = shape(described)?;
        if self.graph.shape(id) != expected {
            return Err(format!("a result of shape {:?}, saved as {expected:?}", self.graph.shape(id)));
        }
        self.tensors.insert(guid(described)?, id);
        Ok(())
    }

    fn tensor(&self, described: &Value) -> Result<TensorId, String> {
        let guid = guid(described)?;
        self.tensors.get(&guid).copied().ok_or_else(|| format!("tensor {guid} is not defined before"))
    }

    fn block(&self, described: &Value) -> Result<BlockGraph, String> {
        let grid = ["x", "y", "z"].map(|axis| number(&described["grid_dim"], axis));
        let [x, y, z] = grid;
        let loop_range = number(described, "forloop_range")?;
        let mut block = BlockGraph::new(&[x?, y?, z?], loop_range);
        let mut tiles: BTreeMap<u64, TileId> = BTreeMap::new();
        for operator in list(&described["operators"], "operators")? {
            let name = text(operator, "op_type")?;
            let name = name.strip_prefix("tb_").unwrap_or(name);
            let name = name.strip_suffix("_op").unwrap_or(name);
            let args: Vec<(TileId, &Value)> = list(&operator["input_tensors"], "input_tensors")?
                .iter()
                .map(|tile| Ok((*tiles.get(&guid(tile)?).ok_or("a tile that is not defined before")?, tile)))
                .collect::<Result<_, String>>()?;
            if name == "output" {
                let (tile, _) = args.first().ok_or("a store without a tile")?;
                block.store(*tile, &map(&operator["output_map"])?);
                continue;
            }
            let result = list(&operator["output_tensors"], "output_tensors")?.first().ok_or("no result")?;
            let id = match name {
                "input" => {
                    let tensor = self.tensor(&operator["dtensor"])?;
                    block.load(tensor, &map(&operator["input_map"])?, dim(&operator["forloop_dim"])?)
                }
                name => tile(&mut block, name, &args, &shape(result)?)?,
            };
            tiles.insert(guid(result)?, id);
        }
        Ok(block)
    }
}

/// Adds a tile operator or accumulator.
fn tile(
    block: &mut BlockGraph,
    name: &str,
    args: &[(TileId, &Value)],
    result: &[usize],
) -> Result<TileId, String> {
    let &(first, described) = args.first().ok_or("an operator without operands")?;
    let accumulator = name.strip_prefix("forloop_accum_").or_else(|| name.strip_prefix("accum_"));
    let last = result.len().checked_sub(1).ok_or("a scalar tile")?;
    let sum = |keep| Op::Reduce { f: ReduceFn::Sum, dim: last, keep };
    let mean = |block: &BlockGraph| {
        let extent = shape(described)?[last].checked_mul(block.loop_range);
        extent.and_then(Rational::one_over).map(Op::Scale).ok_or_else(|| "a mean of too many".to_owned())
    };
    Ok(match accumulator {
        Some("nored") => block.accumulate(Accumulation::Sum, first),
        Some("red_ld_sum" | "redtox_ld_sum") => {
            let sum = block.op(sum(result[last]), &[first]);
            block.accumulate(Accumulation::Sum, sum)
        }
        Some(kind @ ("red_ld_mean" | "red_ld_rms")) => {
            let scale = mean(block)?;
            let is_rms = kind == "red_ld_rms";
            let term = if is_rms { block.op(Op::Unary(UnaryFn::Square), &[first]) } else { first };
            let sum = block.op(sum(1), &[term]);
            let sum = block.accumulate(Accumulation::Sum, sum);
            let mean = block.op(scale, &[sum]);
            if is_rms { block.op(Op::Unary(UnaryFn::Sqrt), &[mean]) } else { mean }
        }
        Some(other) => return Err(format!("no accumulator {other}")),
        None if name == "concat_then_matmul" => {
            let [a, b, c, d] = args else { return Err("expected four operands".into()) };
            let lhs = block.op(Op::Concat { dim: last }, &[a.0, b.0]);
            let rhs = block.op(Op::Concat { dim: last - 1 }, &[c.0, d.0]);
            block.op(Op::Matmul, &[lhs, rhs])
        }
        None => {
            let op = operator_of(name, result)?;
            block.nodes.push(TileNode::Op { op, args: args.iter().map(|(id, _)| *id).collect() });
            TileId(block.nodes.len() as u32 - 1)
        }
    })
}

/// The operator of a saved name, whose result has this shape.
fn operator_of(name: &str, result: &[usize]) -> Result<Op, String> {
    if let Some((f, _)) = UnaryFn::NAMES.into_iter().find(|(_, known)| *known == name) {
        return Ok(Op::Unary(f));
    }
    if let Some((f, _)) = BinaryFn::NAMES.into_iter().find(|(_, known)| *known == name) {
        return Ok(Op::Binary(f));
    }
    let number = |rest: &str| rest.parse().ok().filter(|&dim: &usize| dim < result.len());
    if let Some(rest) = name.strip_prefix("reduction_") {
        let dim = number(rest.strip_suffix("_to_dimx").unwrap_or(rest));
        if let Some(dim) = dim {
            return Ok(Op::Reduce { f: ReduceFn::Sum, dim, keep: result[dim] });
        }
    }
    if let Some(dim) = name.strip_prefix("concat_").and_then(number) {
        return Ok(Op::Concat { dim });
    }
    match name {
        "matmul" => Ok(Op::Matmul),
        "rms_norm" => Ok(Op::RmsNorm { eps: Rational::ZERO }),
        _ => Err(format!("no operator {name}")),
    }
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a [Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("expected a list of {what}"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key].as_str().ok_or_else(|| format!("expected a text {key}"))
}

fn number(value: &Value, key: &str) -> Result<usize, String> {
    let number = value[key].as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("expected a number {key}"))
}

fn guid(value: &Value) -> Result<u64, String> {
    value["guid"].as_u64().ok_or_else(|| "expected a guid".into())
}

fn shape(value: &Value) -> Result<Vec<usize>, String> {
    let rank = number(value, "num_dims")?;
    let extents = list(&value["dim"], "extents")?.iter().take(rank);
    let shape: Option<Vec<usize>> =
        extents.map(|e| e.as_u64().and_then(|e| usize::try_from(e).ok())).collect();
    shape.filter(|shape| shape.len() == rank).ok_or_else(|| "expected the extents of a tensor".into())
}

fn dim(value: &Value) -> Result<Option<usize>, String> {
    match value.as_i64() {
        Some(-1) => Ok(None),
        Some(dim) => usize::try_from(dim).map(Some).map_err(|_| format!("dimension {dim}")),
        None => Err("expected a dimension".into()),
    }
}

fn map(value: &Value) -> Result<Vec<Option<usize>>, String> {
    ["x", "y", "z"].iter().map(|axis| dim(&value[*axis])).collect()
}
