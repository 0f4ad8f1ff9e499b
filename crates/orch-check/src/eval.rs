//! The meaning of a program over any kind of values, element by element.

use crate::program::{Extent, Op, Part, Program, Ratio, Scalar, is_present, lens, steps};
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
    /// Says why what came before has no value, if it has none; called often.
    fn check(&mut self) -> Result<(), Stop> {
        Ok(())
    }
    /// An element of an input: its number, whether it is a mask, position.
    fn input(&mut self, number: u64, is_mask: bool, at: usize) -> Self::Value;
    /// A function of numbers.
    fn apply(&mut self, scalar: &Scalar, args: &[Self::Value]) -> Self::Value;
    /// An element of a tensor, of which this is the number.
    fn element(&mut self, _tensor: usize, value: Self::Value) -> Self::Value {
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
    /// Made when they are read, as inputs may be larger than all else: the tensor, the input's number, whether it is a mask.
    Input(usize, u64, bool),
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
            &Elements::Input(tensor, number, is_mask) => {
                let value = domain.input(number, is_mask, place);
                domain.element(tensor, value)
            }
        }
    }

    /// The elements along a dimension that are present, from an index on whose coordinate there is zero.
    fn line<D: Domain<Value = V>>(
        &self,
        domain: &mut D,
        shape: &[Extent],
        start: &[usize],
        dim: usize,
    ) -> Vec<V> {
        let (place, mut index) = (self.place(start), start.to_vec());
        let mut line = Vec::with_capacity(shape[dim].len);
        for at in 0..shape[dim].len {
            index[dim] = at;
            if shape[dim].ragged.is_none() || is_present(shape, &index) {
                line.push(self.at(domain, place + at * self.steps[dim]));
            }
        }
        line
    }
}

/// Calls `visit` with every index at which there is an element, in order.
pub fn each_index(lens: &[usize], shape: &[Extent], mut visit: impl FnMut(usize, &[usize])) {
    let mut index = vec![0; lens.len()];
    for at in 0..lens.iter().product() {
        if is_present(shape, &index) {
            visit(at, &index);
        }
        for dim in (0..lens.len()).rev() {
            index[dim] += 1;
            if index[dim] < lens[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

/// The index of an element in row-major order.
pub fn index_of(mut at: usize, lens: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = lens.iter().rev().map(|&len| (at % len, at /= len).0).collect();
    index.reverse();
    index
}

/// The values of all tensors, of each up to extents that are given for it.
///
/// # Errors
/// Why there are none.
pub fn evaluate<D: Domain>(
    domain: &mut D,
    program: &Program,
    boxes: &[Vec<usize>],
) -> Result<Vec<Strided<D::Value>>, Stop> {
    let mut tensors: Vec<Strided<D::Value>> = Vec::new();
    for (at, node) in program.nodes.iter().enumerate() {
        let args: Vec<&Strided<D::Value>> = node.args.iter().map(|&arg| &tensors[arg]).collect();
        let [zero, one] = [0, 1].map(|num| domain.apply(&Scalar::Constant(Ratio { num, den: 1 }), &[]));
        // The tensor of what a function gives for each index.
        let built = |domain: &mut D, f: &mut dyn FnMut(&mut D, &[usize]) -> D::Value| {
            let (mut elements, mut state) = (vec![zero; boxes[at].iter().product()], Ok(()));
            each_index(&boxes[at], &node.shape, |place, index| {
                if state.is_ok() && place.is_multiple_of(256) {
                    state = domain.check();
                }
                if state.is_ok() {
                    elements[place] = f(domain, index);
                }
            });
            let elements = Elements::Known(Arc::new(elements));
            state.map(|()| Strided { elements, first: 0, steps: steps(&boxes[at]) })
        };
        let mut items = Vec::new();
        let tensor = match &node.op {
            Op::Input { name, is_mask } => {
                let number = program.inputs().filter(|(other, _)| *other < name.as_str()).count() as u64;
                let elements = Elements::Input(at, number, *is_mask);
                Ok(Strided { elements, first: 0, steps: steps(&lens(&node.shape)) })
            }
            Op::Compare { dim, with, offset } => built(domain, &mut |_, index| {
                let limit = offset + with.map_or(0, |with| index[with] as i128);
                if index[*dim] as i128 <= limit { one } else { zero }
            }),
            Op::Each(scalar) => built(domain, &mut |domain, index| {
                items.clear();
                items.extend(args.iter().map(|arg| arg.get(domain, index)));
                let value = domain.apply(scalar, &items);
                domain.element(at, value)
            }),
            Op::Reduce(scalar, dim) => {
                // Of each operand the line that was read last, and where it starts.
                let mut lines = vec![(Vec::new(), Vec::new()); args.len()];
                built(domain, &mut |domain, index| {
                    for ((arg, &id), (start, line)) in args.iter().zip(&node.args).zip(&mut lines) {
                        let shape = program.shape(id);
                        let own =
                            index.iter().zip(shape).map(|(&at, extent)| if extent.len == 1 { 0 } else { at });
                        if start.is_empty() || !own.clone().eq(start.iter().copied()) {
                            *start = own.collect();
                            *line = arg.line(domain, shape, start, *dim);
                        }
                    }
                    items.clear();
                    match &lines[..] {
                        [(_, a), (_, b)] => {
                            items.extend(a.iter().zip(b).map(|(&a, &b)| domain.apply(&Scalar::Mul, &[a, b])));
                        }
                        _ => items.extend_from_slice(&lines[0].1),
                    }
                    let value = domain.apply(scalar, &items);
                    domain.element(at, value)
                })
            }
            Op::Concat(dim) => built(domain, &mut |domain, index| {
                let (mut from, mut arg) = (index.to_vec(), 0);
                while from[*dim] >= program.shape(node.args[arg])[*dim].len {
                    from[*dim] -= program.shape(node.args[arg])[*dim].len;
                    arg += 1;
                }
                args[arg].get(domain, &from)
            }),
            Op::Move(parts) if is_view(parts, &boxes[at]) => {
                let all = |f: &dyn Fn(&Part) -> usize, parts: &[Part]| {
                    parts.iter().map(|part| f(part) * args[0].steps[part.dim]).sum::<usize>()
                };
                let first =
                    args[0].first + parts.iter().map(|parts| all(&|part| part.start, parts)).sum::<usize>();
                let step = |(parts, len): (&Vec<Part>, &usize)| {
                    if *len == 1 { 0 } else { all(&|part| part.factor, parts) }
                };
                let steps = parts.iter().zip(&boxes[at]).map(step).collect();
                Ok(Strided { elements: args[0].elements.clone(), first, steps })
            }
            Op::Move(parts) => built(domain, &mut |domain, index| {
                let mut from = vec![0; args[0].steps.len()];
                for (parts, at) in parts.iter().zip(index) {
                    parts.iter().for_each(|part| from[part.dim] += part.at(*at));
                }
                args[0].get(domain, &from)
            }),
        };
        tensors.push(tensor?);
    }
    domain.check()?;
    Ok(tensors)
}

/// True if elements that move keep equal distances, so that nothing has to be copied.
fn is_view(parts: &[Vec<Part>], lens: &[usize]) -> bool {
    parts
        .iter()
        .zip(lens)
        .all(|(parts, &len)| parts.iter().all(|part| part.divisor == 1 && part.modulus >= len))
}

/// A bound for what an evaluation takes: elementary operations, and elements that are held, some tensors twice more.
pub fn cost(program: &Program, boxes: &[Vec<usize>], kept: impl Iterator<Item = usize>) -> (f64, f64) {
    let count = |tensor: usize| boxes[tensor].iter().map(|&len| len as f64).product::<f64>();
    let (mut work, mut held) = (0.0, 0.0);
    for (at, node) in program.nodes.iter().enumerate() {
        let own = count(at);
        // Elements along the dimension that is reduced.
        let depth = if let Op::Reduce(_, dim) = node.op { boxes[node.args[0]][dim] as f64 } else { 1.0 };
        let price = match &node.op {
            Op::Each(Scalar::Exp | Scalar::Reciprocal) => 350.0,
            Op::Each(Scalar::Largest | Scalar::Relu | Scalar::Sqrt | Scalar::Erf)
            | Op::Reduce(Scalar::Largest, _) => 200.0,
            Op::Reduce(..) if node.args.len() == 2 => 20.0,
            Op::Input { .. } => 0.0,
            Op::Move(parts) if is_view(parts, &boxes[at]) => 0.0,
            _ => 30.0,
        };
        work += 100.0 + price * own * depth;
        held += if price > 0.0 { own + 3.0 * depth } else { 0.0 };
    }
    (work, held + kept.map(|tensor| 2.0 * count(tensor)).sum::<f64>())
}
