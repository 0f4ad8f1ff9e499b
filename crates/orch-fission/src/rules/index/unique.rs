//! Unique: the distinct elements, or slices of an axis, of an operand that is known when compiling: sorted or in order
//! of appearance, with where each appears first, which one each element is, and how often each occurs.

use super::select_along;
use crate::registry::Applied;
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::Tensor;
use std::cmp::Ordering;

pub(super) fn unique(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let value = ctx.constant_operand(call, 0, "X")?;
    let shape = value.shape().clone();
    let (x, value, axis) = match call.int("axis")? {
        Some(axis) => (x, value, normalize_axis(axis, shape.rank())?),
        None => (ctx.reshape(x, [shape.elems()])?, value.reshaped([shape.elems()]), 0),
    };
    let sorted = call.flag_or("sorted", true)?;
    let slices = Slices::of(&value, axis)?;
    let distinct = slices.distinct(sorted);
    let firsts: Vec<usize> = distinct.iter().map(|members| members[0]).collect();
    let mut inverse = vec![0i64; slices.0.len()];
    for (index, members) in distinct.iter().enumerate() {
        members.iter().for_each(|&member| inverse[member] = index as i64);
    }
    let counts: Vec<i64> = distinct.iter().map(|members| members.len() as i64).collect();
    let list = |values: Vec<i64>| Tensor::from_vec([values.len()], values);
    let indices = list(firsts.iter().map(|&first| first as i64).collect());
    let y = select_along(ctx, x, axis, firsts)?;
    Ok(vec![
        y.into(),
        ctx.tensor(indices).into(),
        ctx.tensor(list(inverse)).into(),
        ctx.tensor(list(counts)).into(),
    ])
}

/// One element of a slice, so that 64-bit integers stay exact.
#[derive(Clone, Copy)]
enum Key {
    Int(i64),
    Float(f64),
}

/// The elements of each slice along an axis, in row-major order.
struct Slices(Vec<Vec<Key>>);

impl Slices {
    fn of(value: &Tensor, axis: usize) -> Result<Self, RuleError> {
        let shape = value.shape();
        let keys: Vec<Key> = match value.to_i64() {
            Some(values) => values.into_iter().map(Key::Int).collect(),
            None => value.to_f64().into_iter().map(Key::Float).collect(),
        };
        let inner: usize = shape[axis + 1..].iter().product();
        let mut slices = vec![Vec::new(); shape[axis]];
        for (at, key) in keys.into_iter().enumerate() {
            slices[at / inner % shape[axis]].push(key);
        }
        Ok(Self(slices))
    }

    /// For each distinct slice the positions where it appears, ascending.
    fn distinct(&self, sorted: bool) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by(|&lhs, &rhs| compare(&self.0[lhs], &self.0[rhs]));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for position in order {
            match groups.last_mut() {
                Some(group) if compare(&self.0[group[0]], &self.0[position]).is_eq() => group.push(position),
                _ => groups.push(vec![position]),
            }
        }
        if !sorted {
            groups.sort_by_key(|group| group[0]);
        }
        groups
    }
}

/// Lexicographic order; NaN last.
fn compare(lhs: &[Key], rhs: &[Key]) -> Ordering {
    let element = |pair: (&Key, &Key)| match pair {
        (Key::Int(lhs), Key::Int(rhs)) => lhs.cmp(rhs),
        (Key::Float(lhs), Key::Float(rhs)) => {
            lhs.partial_cmp(rhs).unwrap_or_else(|| lhs.is_nan().cmp(&rhs.is_nan()))
        }
        (Key::Int(_), Key::Float(_)) => Ordering::Less,
        (Key::Float(_), Key::Int(_)) => Ordering::Greater,
    };
    lhs.iter().zip(rhs).map(element).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn elements_are_sorted_or_in_order_of_appearance() {
        let x = [2.0, 1.0, 1.0, 3.0, 4.0, 3.0];
        let all = |sorted: i64| {
            let call = apply("Unique", 11).floats(&[6], &x).with("sorted", Attribute::Int(sorted)).results(4);
            call.run().expect("valid").iter().map(|result| result.to_f64()).collect::<Vec<_>>()
        };
        let appearing = [
            vec![2.0, 1.0, 3.0, 4.0],
            vec![0.0, 1.0, 3.0, 4.0],
            vec![0.0, 1.0, 1.0, 2.0, 3.0, 2.0],
            vec![1.0, 2.0, 2.0, 1.0],
        ];
        assert_eq!(all(0), appearing);
        assert_eq!(all(1)[0], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(all(1)[2], [1.0, 0.0, 0.0, 2.0, 3.0, 2.0]);
    }

    #[test]
    fn slices_compare_as_a_whole() {
        let x = [1.0, 0.0, 1.0, 0.0, 2.0, 0.0];
        let call = apply("Unique", 11).floats(&[3, 2], &x).with("axis", Attribute::Int(0));
        assert_eq!(call.first(), (vec![2, 2], vec![1.0, 0.0, 2.0, 0.0]));
    }
}
