//! A builder of graphs in the published saved form of Mirage, so that tests write its graphs from their descriptions.
//!
//! It infers shapes independently of the importer, so that tests compare the two.

use serde_json::{Value, json};

/// A tensor or tile, as operators name it.
#[derive(Clone, Debug)]
pub struct Saved {
    shape: Vec<usize>,
    guid: u64,
}

impl Saved {
    fn json(&self) -> Value {
        let mut dim = self.shape.clone();
        dim.resize(4, 0);
        json!({"dim": dim, "num_dims": self.shape.len(), "guid": self.guid})
    }
}

/// A graph that is being built.
pub struct SavedGraph {
    operators: Vec<Value>,
    guids: u64,
    /// What `reduction_to_dimx` and its accumulator keep.
    dimx: usize,
}

impl SavedGraph {
    /// An empty graph, whose reductions to some elements keep `dimx`.
    pub fn new(dimx: usize) -> SavedGraph {
        SavedGraph { operators: Vec::new(), guids: 10, dimx }
    }

    fn named(&mut self, shape: Vec<usize>) -> Saved {
        self.guids += 1;
        Saved { shape, guid: self.guids }
    }

    pub fn input(&mut self, shape: &[usize]) -> Saved {
        let result = self.named(shape.to_vec());
        self.operators.push(operator("kn", "input", &[], Some(&result)));
        result
    }

    /// A predefined kernel.
    pub fn op(&mut self, name: &str, args: &[&Saved]) -> Saved {
        let result = self.named(result_shape(name, args, self.dimx));
        self.operators.push(operator("kn", name, args, Some(&result)));
        result
    }

    /// A kernel that a block graph defines, which [`SavedBlock::finish`] adds.
    pub fn kernel(&mut self, grid: [usize; 3], loop_range: usize) -> SavedBlock<'_> {
        let (operators, stored) = (Vec::new(), Vec::new());
        SavedBlock { graph: self, grid, loop_range, operators, loaded: Vec::new(), stored }
    }

    /// The graph with this result.
    pub fn output(mut self, result: &Saved) -> Value {
        self.operators.push(operator("kn", "output", &[result], None));
        self.operators.into()
    }
}

/// A block graph that is being built.
pub struct SavedBlock<'a> {
    graph: &'a mut SavedGraph,
    grid: [usize; 3],
    loop_range: usize,
    operators: Vec<Value>,
    loaded: Vec<Value>,
    stored: Vec<Saved>,
}

/// No dimension, in maps.
pub const NONE: i64 = -1;

impl SavedBlock<'_> {
    /// A load: for each grid dimension the dimension that it partitions, and the one that the loop partitions.
    pub fn load(&mut self, tensor: &Saved, map: [i64; 3], along_loop: i64) -> Saved {
        let mut shape = tensor.shape.clone();
        let parts = map.into_iter().zip(self.grid).chain([(along_loop, self.loop_range)]);
        for (dim, parts) in parts.filter(|(dim, _)| *dim != NONE) {
            shape[dim as usize] /= parts;
        }
        let tile = self.graph.named(shape);
        let mut load = operator("tb", "input", &[], Some(&tile));
        load["dtensor"] = tensor.json();
        load["input_map"] = axes(&map);
        load["forloop_dim"] = along_loop.into();
        self.loaded.push(tensor.json());
        self.operators.push(load);
        tile
    }

    /// An operator or accumulator on tiles.
    pub fn op(&mut self, name: &str, args: &[&Saved]) -> Saved {
        let tile = self.graph.named(result_shape(name, args, self.graph.dimx));
        self.operators.push(operator("tb", name, args, Some(&tile)));
        tile
    }

    /// A tile that becomes a tensor: for each grid dimension the one along which the blocks' tiles are put together.
    pub fn store(&mut self, tile: &Saved, map: [i64; 3]) {
        let mut shape = tile.shape.clone();
        for (dim, blocks) in map.into_iter().zip(self.grid).filter(|(dim, _)| *dim != NONE) {
            shape[dim as usize] *= blocks;
        }
        let tensor = self.graph.named(shape);
        let mut store = operator("tb", "output", &[tile], None);
        store["dtensor"] = tensor.json();
        store["output_map"] = axes(&map);
        self.operators.push(store);
        self.stored.push(tensor);
    }

    /// Adds the kernel to its graph; the tensors that were stored.
    pub fn finish<const N: usize>(self) -> [Saved; N] {
        let bgraph = json!({
            "grid_dim": axes(&self.grid.map(|blocks| blocks as i64)),
            "block_dim": axes(&[128, 1, 1]),
            "forloop_range": self.loop_range,
            "reduction_dimx": self.graph.dimx,
            "operators": self.operators,
        });
        let results: Vec<Value> = self.stored.iter().map(Saved::json).collect();
        self.graph.operators.push(json!({
            "op_type": "kn_customized_op",
            "input_tensors": self.loaded,
            "output_tensors": results,
            "bgraph": bgraph,
        }));
        self.stored.try_into().expect("as many stores as are taken")
    }
}

fn axes(map: &[i64; 3]) -> Value {
    json!({"x": map[0], "y": map[1], "z": map[2]})
}

fn operator(level: &str, name: &str, args: &[&Saved], result: Option<&Saved>) -> Value {
    let args: Vec<Value> = args.iter().map(|arg| arg.json()).collect();
    let results: Vec<Value> = result.iter().map(|result| result.json()).collect();
    json!({"op_type": format!("{level}_{name}_op"), "input_tensors": args, "output_tensors": results})
}

fn result_shape(name: &str, args: &[&Saved], dimx: usize) -> Vec<usize> {
    let mut shape = args[0].shape.clone();
    let last = shape.len() - 1;
    match name {
        "matmul" => shape[last] = args[1].shape[last],
        "concat_then_matmul" => shape[last] = args[2].shape[last],
        "accum_red_ld_sum" | "accum_red_ld_mean" | "accum_red_ld_rms" => shape[last] = 1,
        "accum_redtox_ld_sum" => shape[last] = dimx,
        "add" | "mul" | "div" => {
            for (extent, other) in shape.iter_mut().zip(&args[1].shape) {
                *extent = (*extent).max(*other);
            }
        }
        name if name.starts_with("reduction_") => {
            let dim: usize = name["reduction_".len()..][..1].parse().expect("a dimension");
            shape[dim] = if name.ends_with("_to_dimx") { dimx } else { 1 };
        }
        _ => {}
    }
    shape
}
