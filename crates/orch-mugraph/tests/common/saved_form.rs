//! µGraphs as JSON: our own form for other programs to read, and the published saved form of Mirage, read only.
//!
//! A saved set is a list of graphs, each a list of kernel operators that name tensors by `guid`, after those that
//! define them. Accumulators that reduce are taken apart: `red_ld_sum` is a sum along the last dimension that is
//! accumulated, `redtox_ld_sum` keeps `reduction_dimx` elements, `red_ld_rms` is the root of the mean square. Shapes
//! that are saved are compared with those that operators give. Strides, layouts, addresses and types of elements are
//! ignored.

use orch_mugraph::graph::{Accumulation, BlockGraph, MuGraph, TensorId, TileId, TileNode};
use orch_mugraph::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use orch_mugraph::rational::Rational;
use orch_mugraph::tiling::{MAX_BLOCKS, MAX_LOOP, tile_shape};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The largest extent of a saved tensor.
const MAX_EXTENT: u64 = 1 << 32;

/// Our JSON form: nodes in order, shapes of all tensors, outputs.
pub fn to_json(graph: &MuGraph) -> Value {
    serde_json::to_value(graph).unwrap_or(Value::Null)
}

/// Why a saved set cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ImportError {
    /// The graph by its position in the set, the operator by its position in the graph and its name, and, for block
    /// graphs, the tile operator likewise.
    pub place: String,
    /// What was found, and what was expected.
    pub problem: String,
}

impl ImportError {
    fn new(place: impl fmt::Display, problem: impl Into<String>) -> ImportError {
        ImportError { place: place.to_string(), problem: problem.into() }
    }

    fn within(self, place: impl fmt::Display) -> ImportError {
        ImportError { place: format!("{place}, {}", self.place), ..self }
    }
}

/// The µGraphs of a published saved set.
///
/// # Errors
/// The first operator that cannot be read.
pub fn import_saved(text: &str) -> Result<Vec<MuGraph>, ImportError> {
    let set: Value = serde_json::from_str(text)
        .map_err(|e| ImportError::new("saved set", format!("{e}; expected the JSON of a whole set")))?;
    let graphs = set.as_array().ok_or_else(|| ImportError::new("saved set", "expected a list of graphs"))?;
    graphs.iter().enumerate().map(|(at, graph)| import_graph(&format!("saved graph {at}"), graph)).collect()
}

fn import_graph(place: &str, operators: &Value) -> Result<MuGraph, ImportError> {
    let mut import = Import { graph: MuGraph::new("saved"), tensors: BTreeMap::new() };
    let Some(operators) = operators.as_array() else {
        return Err(ImportError::new(place, "expected a list of operators"));
    };
    for (position, operator) in operators.iter().enumerate() {
        let here = operator_place("operator", position, operator);
        import.operator(&here, operator).map_err(|e| e.within(place))?;
    }
    if import.graph.outputs().is_empty() {
        return Err(ImportError::new(place, "expected a kn_output_op, which says what is computed"));
    }
    Ok(import.graph)
}

fn operator_place(kind: &str, position: usize, operator: &Value) -> String {
    match operator["op_type"].as_str() {
        Some(name) => format!("{kind} {position} ({name})"),
        None => format!("{kind} {position}"),
    }
}

/// A graph while it is read.
struct Import {
    graph: MuGraph,
    tensors: BTreeMap<u64, TensorId>,
}

impl Import {
    fn operator(&mut self, place: &str, operator: &Value) -> Result<(), ImportError> {
        let wrong = |problem: String| ImportError::new(place, problem);
        let name = name(operator, "kn_").map_err(wrong)?;
        let args = list(operator, "input_tensors").map_err(wrong)?.iter().map(|tensor| self.tensor(tensor));
        let args: Vec<TensorId> = args.collect::<Result<_, _>>().map_err(wrong)?;
        if name == "customized" {
            let (block, stored) = BlockImport::read(self, place, &operator["bgraph"])?;
            let made = self.graph.block(block).map_err(|e| wrong(e.to_string()))?;
            self.define(&made, operator).map_err(wrong)?;
            return self.in_order(&made, &stored).map_err(wrong);
        }
        self.predefined(name, &args, operator).map_err(wrong)
    }

    /// An input, an output or a kernel that no block graph defines.
    fn predefined(&mut self, name: &str, args: &[TensorId], operator: &Value) -> Result<(), String> {
        let made = match name {
            "output" => {
                let name = format!("o{}", self.graph.outputs().len());
                self.graph.output(name, only(args)?).map_err(|e| e.to_string())?;
                return Ok(());
            }
            "input" => {
                let name = format!("x{}", self.graph.inputs().count());
                self.graph.input(name, &only_result(operator)?)
            }
            name => {
                let op = operator_of(name, &only_result(operator)?)?;
                self.graph.op(op, args).map_err(|e| e.problem)?
            }
        };
        self.define(&[made], operator)
    }

    /// Records the results of an operator under their saved names, after a comparison of their shapes with the saved
    /// ones.
    fn define(&mut self, made: &[TensorId], operator: &Value) -> Result<(), String> {
        let results = list(operator, "output_tensors")?;
        if made.len() != results.len() {
            return Err(format!("makes {} tensors, {} are saved", made.len(), results.len()));
        }
        for (&id, result) in made.iter().zip(results) {
            same_shape(self.graph.shape(id), result)?;
            let guid = guid(result)?;
            if self.tensors.insert(guid, id).is_some() {
                return Err(format!("tensor {guid} is defined twice"));
            }
        }
        Ok(())
    }

    /// Compares the tensors that a block graph stores with the results of its kernel.
    fn in_order(&self, made: &[TensorId], stored: &[u64]) -> Result<(), String> {
        match made.iter().zip(stored).find(|(id, guid)| self.tensors.get(guid) != Some(id)) {
            Some((_, guid)) => {
                Err(format!("stores tensor {guid} at another position than output_tensors says"))
            }
            None => Ok(()),
        }
    }

    fn tensor(&self, described: &Value) -> Result<TensorId, String> {
        let guid = guid(described)?;
        let known = self.tensors.get(&guid).copied().ok_or_else(|| undefined("tensor", guid))?;
        same_shape(self.graph.shape(known), described)?;
        Ok(known)
    }
}

/// A block graph while it is read.
struct BlockImport<'a> {
    kernels: &'a Import,
    block: BlockGraph,
    /// The shapes of the first block's tiles in its first iteration.
    shapes: Vec<Vec<usize>>,
    tiles: BTreeMap<u64, TileId>,
    /// The tensors that are stored, by `guid`.
    stored: Vec<u64>,
}

impl BlockImport<'_> {
    /// The block graph of a kernel, and the tensors that it stores.
    fn read(kernels: &Import, place: &str, described: &Value) -> Result<(BlockGraph, Vec<u64>), ImportError> {
        let wrong = |problem: String| ImportError::new(place, problem);
        let block = empty_block(described).map_err(wrong)?;
        let (shapes, tiles, stored) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut import = BlockImport { kernels, block, shapes, tiles, stored };
        for (position, operator) in list(described, "operators").map_err(wrong)?.iter().enumerate() {
            import.operator(operator).map_err(|problem| {
                ImportError::new(operator_place("tile operator", position, operator), problem).within(place)
            })?;
        }
        Ok((import.block, import.stored))
    }

    fn operator(&mut self, operator: &Value) -> Result<(), String> {
        let name = name(operator, "tb_")?;
        let args: Vec<TileId> =
            list(operator, "input_tensors")?.iter().map(|tile| self.tile(tile)).collect::<Result<_, _>>()?;
        if name == "output" {
            self.stored.push(guid(&operator["dtensor"])?);
            self.block.store(only(&args)?, &map(operator, "output_map")?);
            return Ok(());
        }
        let result = only_result(operator)?;
        let accumulator = name.strip_prefix("forloop_accum_").or_else(|| name.strip_prefix("accum_"));
        let id = match (name, accumulator) {
            ("input", _) => self.load(operator)?,
            ("concat_then_matmul", _) => self.product_of_concatenations(&args)?,
            (_, Some(kind)) => self.accumulator(kind, only(&args)?, &result)?,
            (name, None) => self.op(operator_of(name, &result)?, &args)?,
        };
        let [described] = list(operator, "output_tensors")? else { return Err("expected one result".into()) };
        same_shape(&self.shapes[id.index()], described)?;
        let guid = guid(described)?;
        if self.tiles.insert(guid, id).is_some() {
            return Err(format!("tile {guid} is defined twice"));
        }
        Ok(())
    }

    fn tile(&self, described: &Value) -> Result<TileId, String> {
        let guid = guid(described)?;
        let known = self.tiles.get(&guid).copied().ok_or_else(|| undefined("tile", guid))?;
        same_shape(&self.shapes[known.index()], described)?;
        Ok(known)
    }

    fn push(&mut self, node: TileNode) -> Result<TileId, String> {
        let (first, tensors) = ([0; 3], self.kernels.graph.shapes());
        let shape = tile_shape(&node, &self.shapes, (&self.block, tensors), (&first, 0))?;
        self.shapes.push(shape);
        self.block.nodes.push(node);
        Ok(TileId(self.shapes.len() as u32 - 1))
    }

    fn op(&mut self, op: Op, args: &[TileId]) -> Result<TileId, String> {
        self.push(TileNode::Op { op, args: args.to_vec() })
    }

    fn load(&mut self, operator: &Value) -> Result<TileId, String> {
        let tensor = self.kernels.tensor(&operator["dtensor"])?;
        let (grid, along_loop) = (map(operator, "input_map")?, dim(operator, "forloop_dim")?);
        let shape = self.kernels.graph.shape(tensor);
        if let Some(dim) = grid.iter().chain([&along_loop]).flatten().find(|&&dim| dim >= shape.len()) {
            return Err(format!("partitions dimension {dim} of a tensor of shape {shape:?}"));
        }
        self.push(TileNode::Load { tensor, grid, along_loop })
    }

    /// `(a | b) x (c over d)`
    fn product_of_concatenations(&mut self, args: &[TileId]) -> Result<TileId, String> {
        let &[a, b, c, d] = args else { return Err(format!("{} operands, expected 4", args.len())) };
        let Some(last) = self.shapes[a.index()].len().checked_sub(1).filter(|&last| last > 0) else {
            return Err("expected operands of two dimensions at least".into());
        };
        let lhs = self.op(Op::Concat { dim: last }, &[a, b])?;
        let rhs = self.op(Op::Concat { dim: last - 1 }, &[c, d])?;
        self.op(Op::Matmul, &[lhs, rhs])
    }

    fn accumulator(&mut self, kind: &str, tile: TileId, result: &[usize]) -> Result<TileId, String> {
        if kind == "nored" {
            return self.accumulate(tile);
        }
        let shape = self.shapes[tile.index()].clone();
        let (Some((&extent, before)), Some(&keep)) = (shape.split_last(), result.last()) else {
            return Err("expected an operand and a result of one dimension at least".into());
        };
        let sum = |keep| Op::Reduce { f: ReduceFn::Sum, dim: before.len(), keep };
        match kind {
            "red_ld_sum" | "redtox_ld_sum" => {
                let sum = self.op(sum(keep), &[tile])?;
                self.accumulate(sum)
            }
            "red_ld_mean" | "red_ld_rms" => {
                let is_rms = kind == "red_ld_rms";
                let term = if is_rms { self.op(Op::Unary(UnaryFn::Square), &[tile])? } else { tile };
                let sum = self.op(sum(1), &[term])?;
                let sum = self.accumulate(sum)?;
                let terms = extent.checked_mul(self.block.loop_range);
                let scale = terms.and_then(Rational::one_over).ok_or("a mean of none or too many")?;
                let mean = self.op(Op::Scale(scale), &[sum])?;
                if is_rms { self.op(Op::Unary(UnaryFn::Sqrt), &[mean]) } else { Ok(mean) }
            }
            other => Err(format!(
                "no accumulator {other}; there are nored, red_ld_sum, red_ld_mean, red_ld_rms, redtox_ld_sum"
            )),
        }
    }

    fn accumulate(&mut self, tile: TileId) -> Result<TileId, String> {
        self.push(TileNode::Accumulate { how: Accumulation::Sum, tile })
    }
}

/// The grid and the loop of a block graph.
fn empty_block(described: &Value) -> Result<BlockGraph, String> {
    let blocks = |axis: &&str| number(&described["grid_dim"], axis);
    let grid: Vec<usize> = ["x", "y", "z"].iter().map(blocks).collect::<Result<_, _>>()?;
    let loop_range = number(described, "forloop_range")?;
    let is_grid = grid.iter().all(|blocks| (1..=MAX_BLOCKS).contains(blocks));
    if !is_grid || !(1..=MAX_LOOP).contains(&loop_range) {
        let limits = format!("1 to {MAX_BLOCKS} blocks and 1 to {MAX_LOOP} iterations");
        return Err(format!("a grid of {grid:?} and a loop of {loop_range}; expected {limits}"));
    }
    Ok(BlockGraph::new(&grid, loop_range))
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
        let (rest, keeps) = rest.strip_suffix("_to_dimx").map_or((rest, false), |rest| (rest, true));
        if let Some(dim) = number(rest) {
            return Ok(Op::Reduce { f: ReduceFn::Sum, dim, keep: if keeps { result[dim] } else { 1 } });
        }
    }
    if let Some(dim) = name.strip_prefix("concat_").and_then(number) {
        return Ok(Op::Concat { dim });
    }
    match name {
        "matmul" => Ok(Op::Matmul),
        "rms_norm" => Ok(Op::RmsNorm { eps: Rational::ZERO }),
        _ => {
            Err(format!("no operator {name} with a result of shape {result:?}; there are {}", known_names()))
        }
    }
}

fn known_names() -> String {
    let unary = UnaryFn::NAMES.map(|(_, name)| name);
    let binary = BinaryFn::NAMES.map(|(_, name)| name);
    let elementwise: Vec<&str> = unary.into_iter().chain(binary).collect();
    format!(
        "matmul, rms_norm, reduction_D, reduction_D_to_dimx, concat_D for dimensions D, {}",
        elementwise.join(", ")
    )
}

/// The name of an operator between the prefix of its level and `_op`.
fn name<'a>(operator: &'a Value, level: &str) -> Result<&'a str, String> {
    let name = operator["op_type"].as_str().ok_or("expected a text op_type")?;
    let name = name.strip_prefix(level).unwrap_or(name);
    Ok(name.strip_suffix("_op").unwrap_or(name))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    value[key].as_array().map(Vec::as_slice).ok_or_else(|| format!("expected a list {key}"))
}

fn number(value: &Value, key: &str) -> Result<usize, String> {
    let number = value[key].as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("expected a number {key}"))
}

fn guid(value: &Value) -> Result<u64, String> {
    value["guid"].as_u64().ok_or_else(|| "expected a tensor with a guid".into())
}

fn only<T: Copy>(args: &[T]) -> Result<T, String> {
    if let [arg] = args { Ok(*arg) } else { Err(format!("{} operands, expected 1", args.len())) }
}

/// The shape of an operator's single result.
fn only_result(operator: &Value) -> Result<Vec<usize>, String> {
    match list(operator, "output_tensors")? {
        [result] => shape(result),
        results => Err(format!("{} results, expected 1", results.len())),
    }
}

fn shape(value: &Value) -> Result<Vec<usize>, String> {
    let wrong = || format!("expected a shape: num_dims, and as many extents up to {MAX_EXTENT} in dim");
    let rank = number(value, "num_dims").map_err(|_| wrong())?;
    let extents = value["dim"].as_array().and_then(|dim| dim.get(..rank)).ok_or_else(wrong)?;
    let extent = |e: &Value| usize::try_from(e.as_u64().filter(|&e| e <= MAX_EXTENT)?).ok();
    extents.iter().map(extent).collect::<Option<_>>().ok_or_else(wrong)
}

fn same_shape(known: &[usize], described: &Value) -> Result<(), String> {
    let saved = shape(described)?;
    if saved == known { Ok(()) } else { Err(format!("a tensor of shape {known:?}, saved as {saved:?}")) }
}

fn undefined(what: &str, guid: u64) -> String {
    format!("{what} {guid} is defined by no operator before: expected operators in order, without cycles")
}

fn dim(value: &Value, key: &str) -> Result<Option<usize>, String> {
    match value[key].as_i64() {
        Some(-1) => Ok(None),
        Some(dim) if dim >= 0 => Ok(usize::try_from(dim).ok()),
        _ => Err(format!("expected a dimension, or -1 for none, in {key}")),
    }
}

fn map(operator: &Value, key: &str) -> Result<Vec<Option<usize>>, String> {
    ["x", "y", "z"].iter().map(|axis| dim(&operator[key], axis).map_err(|e| format!("{key}: {e}"))).collect()
}
