//! An order of columns in which what updates an input comes after all that read it.
//!
//! Updates join one by one, those that would close a circle stay out. To know that without ordering all columns again, each column keeps
//! a position above those of the columns that it waits for; when one waits for more, only columns at positions between these and its own
//! are looked at (Pearce and Kelly, *A dynamic topological sort algorithm for directed acyclic graphs*, JEA 2006, for several edges into
//! one column at once).

use orch_ir::TensorId;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// Columns, and which of them wait for which.
pub struct ColumnOrder {
    writers: HashMap<TensorId, Vec<usize>>,
    readers: HashMap<TensorId, Vec<usize>>,
    /// For each column those that wait for it, and those that it waits for.
    after: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// For each column its position, above those of all that it waits for; and the column of each position.
    position: Vec<usize>,
    at_position: Vec<usize>,
    /// Columns that were looked at.
    steps: usize,
}

impl ColumnOrder {
    /// Each column, given as what it reads and writes, waits for those that write what it reads. `None` if they wait in a circle.
    pub fn of<'a>(columns: impl Iterator<Item = (&'a [TensorId], &'a [TensorId])> + Clone) -> Option<Self> {
        let (mut writers, mut readers) = (HashMap::new(), HashMap::new());
        for (column, (inputs, outputs)) in columns.clone().enumerate() {
            note(&mut readers, inputs, column);
            note(&mut writers, outputs, column);
        }
        let count = columns.clone().count();
        let mut order = ColumnOrder {
            writers,
            readers,
            after: vec![Vec::new(); count],
            before: Vec::with_capacity(count),
            position: vec![0; count],
            at_position: Vec::new(),
            steps: 0,
        };
        for (column, (inputs, _)) in columns.enumerate() {
            let written = inputs.iter().filter_map(|tensor| order.writers.get(tensor)).flatten();
            let writers: BTreeSet<usize> = written.copied().collect();
            writers.iter().for_each(|&writer| order.after[writer].push(column));
            order.before.push(writers.into_iter().collect());
        }
        order.at_position = order.lowest_first()?;
        for (position, &column) in order.at_position.iter().enumerate() {
            order.position[column] = position;
        }
        Some(order)
    }

    /// The column that writes a tensor, if there is one.
    pub fn only_writer(&self, tensor: TensorId) -> Option<usize> {
        match self.writers.get(&tensor)?[..] {
            [writer] => Some(writer),
            _ => None,
        }
    }

    /// Lets a column wait for all others that read a tensor. False, and as before, if that is impossible.
    pub fn wait_for_readers(&mut self, column: usize, tensor: TensorId) -> bool {
        let readers = self.readers.get(&tensor).into_iter().flatten().copied();
        let readers: Vec<usize> = readers.filter(|&reader| reader != column).collect();
        self.steps += readers.len();
        let lowest = self.position[column];
        let highest = readers.iter().map(|&reader| self.position[reader]).max().unwrap_or(0);
        if highest > lowest {
            let later = self.reached([column], &self.after, |position| position <= highest);
            if readers.iter().any(|reader| later.contains(&self.position[*reader])) {
                self.steps += later.len();
                return false;
            }
            let above = readers.iter().copied().filter(|&reader| self.position[reader] > lowest);
            let earlier = self.reached(above, &self.before, |position| position >= lowest);
            self.steps += later.len() + earlier.len();
            self.rearrange(&earlier, &later);
        }
        for reader in readers {
            self.after[reader].push(column);
            self.before[column].push(reader);
        }
        true
    }

    /// The positions of some columns, and of those that are reached from them by positions that are allowed.
    fn reached(
        &self,
        from: impl IntoIterator<Item = usize>,
        next: &[Vec<usize>],
        is_allowed: impl Fn(usize) -> bool,
    ) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = from.into_iter().collect();
        while let Some(column) = open.pop() {
            if found.insert(self.position[column]) {
                open.extend(next[column].iter().copied().filter(|&other| is_allowed(self.position[other])));
            }
        }
        found
    }

    /// Gives columns, by position, the same positions in another order: some earlier, the others later.
    fn rearrange(&mut self, earlier: &BTreeSet<usize>, later: &BTreeSet<usize>) {
        let columns = earlier.iter().chain(later).map(|&position| self.at_position[position]);
        let columns: Vec<usize> = columns.collect();
        let positions: BTreeSet<usize> = earlier.union(later).copied().collect();
        for (column, position) in columns.into_iter().zip(positions) {
            self.position[column] = position;
            self.at_position[position] = column;
        }
    }

    /// All columns, of those that wait for nothing that is left always the lowest. `None` if they wait in a circle.
    pub fn lowest_first(&self) -> Option<Vec<usize>> {
        let mut waits: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let ready = (0..waits.len()).filter(|&column| waits[column] == 0).map(Reverse);
        let mut ready: BinaryHeap<Reverse<usize>> = ready.collect();
        let mut order = Vec::with_capacity(waits.len());
        while let Some(Reverse(column)) = ready.pop() {
            order.push(column);
            for &other in &self.after[column] {
                waits[other] -= 1;
                if waits[other] == 0 {
                    ready.push(Reverse(other));
                }
            }
        }
        (order.len() == waits.len()).then_some(order)
    }
}

fn note(uses: &mut HashMap<TensorId, Vec<usize>>, tensors: &[TensorId], column: usize) {
    for &tensor in tensors {
        let columns = uses.entry(tensor).or_default();
        if columns.last() != Some(&column) {
            columns.push(column);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Column = (Vec<TensorId>, Vec<TensorId>);

    fn order_of(columns: &[Column]) -> ColumnOrder {
        let ends = columns.iter().map(|(inputs, outputs)| (&inputs[..], &outputs[..]));
        ColumnOrder::of(ends).expect("no circle")
    }

    fn column(inputs: &[u32], outputs: &[u32]) -> Column {
        (inputs.iter().copied().map(TensorId).collect(), outputs.iter().copied().map(TensorId).collect())
    }

    /// Columns in order, column `n` writing tensor `100 + n` from some before it and from inputs below 100.
    fn any_columns() -> impl Strategy<Value = Vec<Column>> {
        let inputs = prop::collection::vec(prop_oneof![0..4u32, 100..112u32], 0..4);
        prop::collection::vec(inputs, 1..12).prop_map(|all| {
            let columns = all.into_iter().zip(100..).map(|(mut inputs, own)| {
                inputs.retain(|&input| input < own);
                column(&inputs, &[own])
            });
            columns.collect()
        })
    }

    proptest! {
        #[test]
        fn updates_join_while_there_is_an_order(
            columns in any_columns(),
            updates in prop::collection::vec((0..12usize, 0..4u32), 1..6),
        ) {
            let mut order = order_of(&columns);
            let mut joined: Vec<(usize, TensorId)> = Vec::new();
            for (updater, input) in updates.into_iter().map(|(column, input)| (column % columns.len(), TensorId(input))) {
                let mut waits: Vec<BTreeSet<usize>> = Vec::new();
                for (inputs, _) in &columns {
                    waits.push((0..columns.len()).filter(|other| inputs.contains(&columns[*other].1[0])).collect());
                }
                for &(column, tensor) in joined.iter().chain([&(updater, input)]) {
                    waits[column].extend((0..columns.len()).filter(|&other| other != column && columns[other].0.contains(&tensor)));
                }
                let mut expected = Vec::new();
                while let Some(next) = (0..columns.len())
                    .find(|next| !expected.contains(next) && waits[*next].iter().all(|wait| expected.contains(wait)))
                {
                    expected.push(next);
                }
                let is_possible = expected.len() == columns.len();
                prop_assert_eq!(order.wait_for_readers(updater, input), is_possible);
                if is_possible {
                    joined.push((updater, input));
                    prop_assert_eq!(order.lowest_first(), Some(expected));
                }
            }
        }
    }

    #[test]
    fn columns_that_wait_in_a_circle_have_no_order() {
        let columns = [column(&[101], &[100]), column(&[100], &[101])];
        let ends = columns.iter().map(|(inputs, outputs)| (&inputs[..], &outputs[..]));
        assert!(ColumnOrder::of(ends).is_none());
    }

    /// Columns looked at for layers of four columns, the second of which updates a cache that the last one reads.
    fn steps(layers: u32) -> usize {
        let mut columns = Vec::new();
        for layer in 0..layers {
            let (cache, own) = (layer, 1000 + 4 * layer);
            columns.push(column(&[own - 1], &[own]));
            columns.push(column(&[cache, own], &[own + 1]));
            columns.push(column(&[own], &[own + 2]));
            columns.push(column(&[own + 2, cache], &[own + 3]));
        }
        let mut order = order_of(&columns);
        for layer in 0..layers {
            let updater = order.only_writer(TensorId(1001 + 4 * layer)).expect("written once");
            assert!(order.wait_for_readers(updater, TensorId(layer)));
        }
        order.steps
    }

    #[test]
    fn steps_grow_with_the_number_of_layers() {
        assert_eq!([8, 16, 32].map(steps), [1, 2, 4].map(|times| times * steps(8)));
    }
}
