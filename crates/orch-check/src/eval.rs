//! The meaning of a program over any kind of values, element by element.

use crate::program::{Extent, Node, Op, Program, Result, Scalar, computed, is_present, lens, steps};
use std::sync::Arc;

/// A kind of values.
pub trait Domain {
    /// An element.
    type Value: Copy;
    /// Says why what came before has no value, if it has none; called often.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
    /// An element of an input: the tensor, whether it is a mask, position.
    fn input(&mut self, tensor: usize, is_mask: bool, at: usize) -> Self::Value;
    /// A numerator by a positive denominator.
    fn constant(&mut self, num: i64, den: i64) -> Self::Value;
    /// A function of numbers.
    fn apply(&mut self, scalar: Scalar, args: &[Self::Value]) -> Self::Value;
    /// An element of a tensor that is computed.
    fn element(&mut self, _tensor: usize, value: Self::Value) -> Self::Value {
        value
    }
}

/// A tensor: elements, where the first one is, and the distance between neighbours along each dimension.
struct Strided<V> {
    elements: Elements<V>,
    first: usize,
    steps: Vec<usize>,
}

#[derive(Clone)]
enum Elements<V> {
    Known(Arc<Vec<V>>),
    /// Of a large input, made when they are read: the tensor, and whether it is a mask.
    Input(usize, bool),
}

/// Inputs of more elements are large.
const LARGE: usize = 1 << 18;

impl<V: Copy> Strided<V> {
    /// The place of an element; where an extent of 1 is repeated, of that one.
    #[inline(always)]
    fn place(&self, index: &[usize]) -> usize {
        self.first + index.iter().zip(&self.steps).map(|(index, step)| index * step).sum::<usize>()
    }

    #[inline(always)]
    fn get<D: Domain<Value = V>>(&self, domain: &mut D, index: &[usize]) -> V {
        self.at(domain, self.place(index))
    }

    #[inline(always)]
    fn at<D: Domain<Value = V>>(&self, domain: &mut D, place: usize) -> V {
        match self.elements {
            Elements::Known(ref elements) => elements[place],
            Elements::Input(tensor, is_mask) => {
                let value = domain.input(tensor, is_mask, place);
                domain.element(tensor, value)
            }
        }
    }
}

/// Calls `visit` with the place and the index of every element, in order.
fn each_index(shape: &[Extent], mut visit: impl FnMut(usize, &[usize]) -> Result<()>) -> Result<()> {
    let (lens, mut index) = (computed(shape), vec![0; shape.len()]);
    for at in 0..lens.iter().product() {
        if is_present(shape, &index) {
            visit(at, &index)?;
        }
        for dim in (0..lens.len()).rev() {
            index[dim] = (index[dim] + 1) % lens[dim];
            if index[dim] > 0 {
                break;
            }
        }
    }
    Ok(())
}

/// The elements, in order, of tensors that are wanted.
///
/// # Errors
/// Why there are none.
pub fn evaluate<D: Domain>(
    domain: &mut D,
    program: &Program,
    wanted: &[usize],
) -> Result<Vec<Vec<D::Value>>> {
    let mut tensors: Vec<Strided<D::Value>> = Vec::new();
    let [zero, one] = [0, 1].map(|number| domain.constant(number, 1));
    // Where each tensor is read last.
    let mut last = vec![0; program.nodes.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        node.args.iter().for_each(|&arg| last[arg] = at);
    }
    wanted.iter().for_each(|&tensor| last[tensor] = usize::MAX);
    for (at, node) in program.nodes.iter().enumerate() {
        let sizes = computed(&node.shape);
        let args: Vec<&Strided<D::Value>> = node.args.iter().map(|&arg| &tensors[arg]).collect();
        let is_mask = matches!(node.op, Op::Input { is_mask: true, .. });
        let given = Elements::Input(at, is_mask);
        let given = Strided { elements: given, first: 0, steps: steps(&lens(&node.shape)) };
        let tensor = match &node.op {
            Op::Input { .. } if is_lazy(node) => given,
            Op::Move(parts) if is_lazy(node) => {
                let (mut first, mut steps, own) = (args[0].first, vec![0; sizes.len()], &args[0].steps);
                for part in parts {
                    first += part.start * own[part.to];
                    steps[part.from] += if sizes[part.from] > 1 { part.factor * own[part.to] } else { 0 };
                }
                Strided { elements: args[0].elements.clone(), first, steps }
            }
            op => {
                let mut elements = vec![zero; sizes.iter().product()];
                // What a function is applied to.
                let mut items = Vec::new();
                each_index(&node.shape, |number, index| {
                    if number.is_multiple_of(256) {
                        domain.check()?;
                    }
                    let value = match op {
                        Op::Input { .. } => given.get(domain, index),
                        Op::Constant(num, den) => domain.constant(*num, *den),
                        Op::Compare { dim, with, offset } => {
                            let limit = offset + with.map_or(0, |with| index[with] as i128);
                            if index[*dim] as i128 <= limit { one } else { zero }
                        }
                        Op::Each(scalar) => {
                            items.clear();
                            items.extend(args.iter().map(|arg| arg.get(domain, index)));
                            domain.apply(*scalar, &items)
                        }
                        Op::Reduce(scalar, dim) => {
                            let depth = program.shape(node.args[0])[*dim].present(index);
                            let line = |arg: &Strided<D::Value>| {
                                let (start, step) = (arg.place(index), arg.steps[*dim]);
                                (0..depth).map(move |number| start + number * step)
                            };
                            items.clear();
                            match args[..] {
                                [a, b] => items.extend(line(a).zip(line(b)).map(|(i, j)| {
                                    let both = [a.at(domain, i), b.at(domain, j)];
                                    domain.apply(Scalar::Mul, &both)
                                })),
                                _ => items.extend(line(args[0]).map(|place| args[0].at(domain, place))),
                            }
                            domain.apply(*scalar, &items)
                        }
                        Op::Concat(dim) => {
                            let (mut from, mut arg) = (index.to_vec(), 0);
                            while from[*dim] >= program.shape(node.args[arg])[*dim].len {
                                from[*dim] -= program.shape(node.args[arg])[*dim].len;
                                arg += 1;
                            }
                            args[arg].get(domain, &from)
                        }
                        Op::Move(parts) => {
                            let mut from = vec![0; args[0].steps.len()];
                            parts.iter().for_each(|part| from[part.to] += part.at(index[part.from]));
                            args[0].get(domain, &from)
                        }
                    };
                    elements[number] = domain.element(at, value);
                    Ok(())
                })?;
                Strided { elements: Elements::Known(Arc::new(elements)), first: 0, steps: steps(&sizes) }
            }
        };
        tensors.push(tensor);
        for &arg in node.args.iter().filter(|&&arg| last[arg] == at) {
            tensors[arg].elements = Elements::Known(Arc::default());
        }
    }
    domain.check()?;
    let values = |&tensor: &usize| {
        let mut values = Vec::new();
        each_index(program.shape(tensor), |_, index| {
            values.push(tensors[tensor].get(domain, index));
            Ok(())
        })?;
        Ok(values)
    };
    wanted.iter().map(values).collect()
}

/// True if elements are not held: those of a large input, and those that move and keep equal distances.
fn is_lazy(node: &Node) -> bool {
    match &node.op {
        Op::Input { .. } => computed(&node.shape).iter().product::<usize>() >= LARGE,
        Op::Move(parts) => {
            parts.iter().all(|part| part.divisor == 1 && part.modulus >= node.shape[part.from].computed)
        }
        _ => false,
    }
}

/// What an evaluation takes: elementary operations, and elements that are held.
pub fn cost(program: &Program) -> [f64; 2] {
    let mut cost = [0.0; 2];
    for node in program.nodes.iter().filter(|node| !is_lazy(node)) {
        let count = node.shape.iter().map(|extent| extent.computed as f64).product::<f64>();
        // Elements along the dimension that is reduced.
        let depth = match node.op {
            Op::Reduce(_, dim) => program.shape(node.args[0])[dim].len as f64,
            _ => 1.0,
        };
        cost = [cost[0] + count * depth, cost[1] + count + 3.0 * depth];
    }
    cost
}
