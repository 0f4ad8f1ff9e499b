//! The meaning of a program over any kind of values, element by element.

use crate::program::{Extent, Node, Op, Program, Ratio, Scalar, is_present, lens};
use std::sync::Arc;

/// Why there is no value.
#[derive(Clone, PartialEq, Debug)]
pub enum Stop {
    /// A divisor is zero: other inputs may do.
    Undefined(String),
    /// No statement is made about programs like this one.
    Unsupported(String),
}

/// A kind of values.
pub trait Domain {
    /// An element.
    type Value: Copy;
    /// What follows is of this tensor. Says why what came before has no value, if it has none.
    fn enter(&mut self, _tensor: usize) -> Result<(), Stop> {
        Ok(())
    }
    /// An element of an input: its tensor, whether it is a mask, position.
    fn input(&mut self, tensor: usize, is_mask: bool, at: usize) -> Self::Value;
    /// A function of numbers.
    fn apply(&mut self, scalar: &Scalar, args: &[Self::Value]) -> Self::Value;
    /// An element of the tensor at hand, of which this is the number.
    fn element(&mut self, value: Self::Value) -> Self::Value {
        value
    }
}

/// A tensor: elements, where the first one is, and the distance between neighbours along each dimension.
#[derive(Clone)]
pub struct Strided<V> {
    elements: Elements<V>,
    first: usize,
    steps: Vec<usize>,
}

#[derive(Clone)]
enum Elements<V> {
    Known(Arc<Vec<V>>),
    /// Of an input: made when they are read.
    Input(usize, bool),
}

impl<V: Copy> Strided<V> {
    /// An element.
    #[inline(always)]
    pub fn get<D: Domain<Value = V>>(&self, domain: &mut D, index: &[usize]) -> V {
        self.at(domain, self.place(index))
    }

    fn place(&self, index: &[usize]) -> usize {
        self.first + index.iter().zip(&self.steps).map(|(index, step)| index * step).sum::<usize>()
    }

    #[inline(always)]
    fn at<D: Domain<Value = V>>(&self, domain: &mut D, place: usize) -> V {
        match &self.elements {
            Elements::Known(elements) => elements[place],
            Elements::Input(tensor, is_mask) => domain.input(*tensor, *is_mask, place),
        }
    }

    /// Puts the elements along a dimension that are present into a list.
    fn line<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        shape: &[Extent],
        (index, dim): (&mut [usize], usize),
        into: &mut Vec<V>,
    ) {
        into.clear();
        index[dim] = 0;
        if shape[dim].ragged.is_none() {
            let len = if is_present(shape, index) { shape[dim].len } else { 0 };
            let (place, step) = (self.place(index), self.steps[dim]);
            into.extend((0..len).map(|at| self.at(domain, place + at * step)));
            return;
        }
        for at in 0..shape[dim].len {
            index[dim] = at;
            if is_present(shape, index) {
                into.push(self.get(domain, index));
            }
        }
    }
}

/// Distances between neighbours of a tensor in row-major order; none where an extent of 1 is repeated.
fn steps(lens: &[usize]) -> Vec<usize> {
    let mut step = 1;
    let mut steps: Vec<usize> =
        lens.iter().rev().map(|&len| (if len == 1 { 0 } else { step }, step *= len).0).collect();
    steps.reverse();
    steps
}

/// Calls `visit` with every index, in order.
pub fn each_index(lens: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0; lens.len()];
    for _ in 0..lens.iter().product() {
        visit(&index);
        for dim in (0..lens.len()).rev() {
            index[dim] += 1;
            if index[dim] < lens[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

/// A tensor of what a function gives for each index.
fn built<V: Copy>(shape: &[Extent], absent: V, mut f: impl FnMut(&[usize]) -> V) -> Strided<V> {
    let lens = lens(shape);
    let mut elements = Vec::with_capacity(lens.iter().product());
    each_index(&lens, |index| elements.push(if is_present(shape, index) { f(index) } else { absent }));
    Strided { elements: Elements::Known(Arc::new(elements)), first: 0, steps: steps(&lens) }
}

/// The values of all tensors that are wanted.
///
/// # Errors
/// Why there are none.
pub fn evaluate<D: Domain>(
    domain: &mut D,
    program: &Program,
    wanted: &[bool],
) -> Result<Vec<Option<Strided<D::Value>>>, Stop> {
    let mut tensors: Vec<Option<Strided<D::Value>>> = Vec::new();
    for (at, node) in program.nodes.iter().enumerate() {
        let args: Option<Vec<&Strided<D::Value>>> =
            node.args.iter().map(|&arg| tensors[arg].as_ref()).collect();
        let shapes: Vec<&[Extent]> =
            node.args.iter().map(|&arg| program.nodes[arg].shape.as_slice()).collect();
        let value = match args.filter(|_| wanted[at]) {
            Some(args) => {
                domain.enter(at)?;
                Some(value(domain, (at, node), &args, &shapes)?)
            }
            None => None,
        };
        tensors.push(value);
    }
    domain.enter(program.nodes.len() - 1)?;
    Ok(tensors)
}

fn value<D: Domain>(
    domain: &mut D,
    (at, node): (usize, &Node),
    args: &[&Strided<D::Value>],
    shapes: &[&[Extent]],
) -> Result<Strided<D::Value>, Stop> {
    let shape = &node.shape;
    let [zero, one] = [0, 1].map(|num| domain.apply(&Scalar::Constant(Ratio { num, den: 1 }), &[]));
    let own = lens(shape);
    // Elements of operands at other places: `place` gives the index there, and the operand.
    let moved = |domain: &mut D, place: &dyn Fn(&[usize], &mut Vec<usize>) -> usize| {
        let mut from = Vec::new();
        built(shape, zero, |index| {
            from.clear();
            from.extend_from_slice(index);
            let arg = place(index, &mut from);
            args[arg].get(domain, &from)
        })
    };
    // The first operand with other steps.
    let viewed = |skipped: usize, mut steps: Vec<usize>| {
        steps.iter_mut().zip(shape).filter(|(_, extent)| extent.len == 1).for_each(|(step, _)| *step = 0);
        Strided { elements: args[0].elements.clone(), first: args[0].first + skipped, steps }
    };
    Ok(match &node.op {
        // Made when they are read.
        Op::Input { is_mask, .. } => {
            Strided { elements: Elements::Input(at, *is_mask), first: 0, steps: steps(&own) }
        }
        Op::Compare { dim, with, offset, .. } => built(shape, zero, |index| {
            let limit = offset + with.map_or(0, |with| index[with] as i128);
            if index[*dim] as i128 <= limit { one } else { zero }
        }),
        Op::Each(scalar) => {
            let mut items = Vec::new();
            built(shape, zero, |index| {
                items.clear();
                items.extend(args.iter().map(|arg| arg.get(domain, index)));
                let value = domain.apply(scalar, &items);
                domain.element(value)
            })
        }
        Op::Reduce(scalar, dim) => {
            let (mut items, mut from) = (Vec::new(), Vec::new());
            built(shape, zero, |index| {
                from.clear();
                from.extend_from_slice(index);
                args[0].line(domain, shapes[0], (&mut from, *dim), &mut items);
                let value = domain.apply(scalar, &items);
                domain.element(value)
            })
        }
        Op::Matmul => matmul(domain, at, (shape, zero), args, shapes)?,
        Op::Transpose(order) => viewed(0, order.iter().map(|&dim| args[0].steps[dim]).collect()),
        Op::Broadcast(_) => viewed(0, args[0].steps.clone()),
        Op::Slice { dim, start, .. } => viewed(start * args[0].steps[*dim], args[0].steps.clone()),
        Op::Split { tiling, along, iterations } => {
            let size = |dim: usize, axis: usize| shapes[0][dim].len.div_ceil(tiling.blocks[axis]);
            let cut = tiling.dims.iter().enumerate();
            let mut steps: Vec<usize> =
                cut.map(|(axis, dim)| dim.map_or(0, |dim| size(dim, axis) * args[0].steps[dim])).collect();
            steps.push(along.map_or(0, |dim| {
                let axis = tiling.dims.iter().position(|cut| *cut == Some(dim));
                axis.map_or(shapes[0][dim].len, |axis| size(dim, axis)).div_ceil(*iterations)
                    * args[0].steps[dim]
            }));
            steps.extend(&args[0].steps);
            viewed(0, steps)
        }
        Op::Reshape(_) if args[0].steps == steps(&lens(shapes[0])) => viewed(0, steps(&lens(shape))),
        Op::Reshape(_) => moved(domain, &|index, from| {
            let at = index.iter().zip(shape).fold(0, |at, (index, extent)| at * extent.len + index);
            *from = index_of(at, &lens(shapes[0]));
            0
        }),
        Op::Repeat { dim, times } => moved(domain, &|_, from| {
            from[*dim] /= times;
            0
        }),
        Op::Concat(dim) => moved(domain, &|_, from| {
            let mut arg = 0;
            while from[*dim] >= shapes[arg][*dim].len {
                from[*dim] -= shapes[arg][*dim].len;
                arg += 1;
            }
            arg
        }),
        Op::Merge(tiling) => moved(domain, &|index, from| {
            let prefix = tiling.blocks.len() + 1;
            from.splice(..0, vec![0; prefix]);
            for (axis, dim) in tiling.dims.iter().enumerate() {
                if let Some(dim) = *dim {
                    let size = shapes[0][prefix + dim].len;
                    (from[axis], from[prefix + dim]) = (index[dim] / size, index[dim] % size);
                }
            }
            0
        }),
    })
}

/// The index of an element in row-major order.
pub fn index_of(mut at: usize, lens: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = lens.iter().rev().map(|&len| (at % len, at /= len).0).collect();
    index.reverse();
    index
}

fn matmul<D: Domain>(
    domain: &mut D,
    at: usize,
    (shape, zero): (&[Extent], D::Value),
    args: &[&Strided<D::Value>],
    shapes: &[&[Extent]],
) -> Result<Strided<D::Value>, Stop> {
    let batch = shape.len() - 2;
    let stored = lens(shape);
    let (m, n, k) = (stored[batch], stored[batch + 1], shapes[0][batch + 1].len);
    let mut elements = vec![zero; stored.iter().product()];
    let (mut column, mut products) = (Vec::new(), Vec::new());
    for (number, first) in (0..elements.len()).step_by(m * n).enumerate() {
        domain.enter(at)?;
        let mut index = [index_of(number, &stored[..batch]), vec![0; 2]].concat();
        let mut rows = vec![Vec::with_capacity(k); m];
        for (i, row) in rows.iter_mut().enumerate() {
            index[batch] = i;
            args[0].line(domain, shapes[0], (&mut index, batch + 1), row);
        }
        for j in 0..n {
            index[batch + 1] = j;
            args[1].line(domain, shapes[1], (&mut index, batch), &mut column);
            for (i, row) in rows.iter().enumerate() {
                products.clear();
                products.extend(row.iter().zip(&column).map(|(&a, &b)| domain.apply(&Scalar::Mul, &[a, b])));
                let sum = domain.apply(&Scalar::Sum, &products);
                elements[first + i * n + j] = domain.element(sum);
            }
        }
    }
    Ok(Strided { elements: Elements::Known(Arc::new(elements)), first: 0, steps: steps(&stored) })
}

/// A bound for what an evaluation takes: elementary operations, and elements that are held at once.
pub fn cost(program: &Program) -> (f64, f64) {
    let (mut work, mut held) = (0.0, 0.0);
    let shape = |node: &Node| -> f64 { node.shape.iter().map(|extent| extent.len as f64).product() };
    for node in &program.nodes {
        let own = shape(node);
        let largest = node.args.iter().map(|&arg| shape(&program.nodes[arg])).fold(own, f64::max);
        work += 100.0
            + match &node.op {
                Op::Matmul => {
                    let k = program.nodes[node.args[0]].shape.last().map_or(1.0, |extent| extent.len as f64);
                    own * k * 5.0 + shape(&program.nodes[node.args[1]]) * 30.0
                }
                Op::Each(Scalar::Exp | Scalar::Reciprocal) => 350.0 * largest,
                Op::Each(Scalar::Largest | Scalar::Relu | Scalar::Sqrt | Scalar::Erf)
                | Op::Reduce(Scalar::Largest, _) => 200.0 * largest,
                op if op.is_view() => 0.0,
                Op::Input { .. } => 0.0,
                _ => 30.0 * largest,
            };
        held += if node.op.is_view() || matches!(node.op, Op::Input { .. }) { 0.0 } else { own };
        // Lines of operands are collected.
        let line = node.args.first().map_or(&[][..], |&arg| &program.nodes[arg].shape);
        held += match &node.op {
            Op::Reduce(_, dim) => line[*dim].len as f64,
            Op::Matmul => line[line.len() - 2..].iter().fold(2.0, |count, extent| count * extent.len as f64),
            _ => 0.0,
        };
    }
    held += program.outputs.iter().map(|(_, id)| shape(&program.nodes[*id])).sum::<f64>();
    (work, held)
}
