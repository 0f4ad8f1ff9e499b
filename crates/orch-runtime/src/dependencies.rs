//! Which steps must wait for which, by the bytes that they read and write.

use crate::program::{Access, BufferRef};

/// For each step the earlier ones that it must wait for, ascending: those that write what it reads or writes, or read
/// what it writes, without those that another one has waited for already. Steps are given by their ranges.
///
/// With `n` steps this compares up to `n^2 / 2` pairs; in a chain, where waiting for the last is waiting for all, `n`.
pub fn dependencies(steps: &[Vec<BufferRef>]) -> Vec<Vec<usize>> {
    // The steps that each one is certain to come after.
    let mut ancestors: Vec<Vec<bool>> = Vec::with_capacity(steps.len());
    let mut all = Vec::with_capacity(steps.len());
    for (idx, step) in steps.iter().enumerate() {
        let (mut before, mut direct) = (vec![false; idx], Vec::new());
        // From the last to the first: an earlier step never waits for a later one.
        for earlier in (0..idx).rev() {
            if before[earlier] || !conflict(&steps[earlier], step) {
                continue;
            }
            direct.push(earlier);
            before[earlier] = true;
            before.iter_mut().zip(&ancestors[earlier]).for_each(|(mine, theirs)| *mine |= theirs);
        }
        direct.reverse();
        ancestors.push(before);
        all.push(direct);
    }
    all
}

/// True if one of two steps, given by their ranges, writes a byte that the other one reads or writes.
pub fn conflict(first: &[BufferRef], second: &[BufferRef]) -> bool {
    let is_written = |a: &BufferRef, b: &BufferRef| a.access == Access::Write || b.access == Access::Write;
    first.iter().any(|a| second.iter().any(|b| is_written(a, b) && a.overlaps(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Base;
    use proptest::prelude::*;

    fn read(at: usize, len: usize) -> BufferRef {
        BufferRef::read(Base::Arena, at, len)
    }

    fn write(at: usize, len: usize) -> BufferRef {
        BufferRef::write(Base::Arena, at, len)
    }

    #[test]
    fn branches_join() {
        let steps = [
            vec![BufferRef::read(Base::Input(0), 0, 8), write(0, 8)],
            vec![read(0, 8), write(8, 8)],
            vec![read(0, 8), write(16, 8)],
            vec![read(8, 8), read(16, 8), BufferRef::write(Base::Output(0), 0, 8)],
            // The place of what the branches have read.
            vec![BufferRef::read(Base::Constant(0), 0, 8), write(4, 4)],
        ];
        assert_eq!(dependencies(&steps), [vec![], vec![0], vec![0], vec![1, 2], vec![1, 2]]);
    }

    #[test]
    fn only_shared_bytes_that_a_step_writes_matter() {
        let steps =
            [vec![read(0, 8)], vec![read(0, 8)], vec![write(8, 8)], vec![write(15, 1)], vec![read(0, 9)]];
        assert_eq!(dependencies(&steps), [vec![], vec![], vec![], vec![2], vec![2]]);
        let bases = [Base::Arena, Base::Output(0), Base::Output(1)];
        let steps = bases.map(|base| vec![BufferRef::write(base, 0, 8)]);
        assert_eq!(dependencies(&steps), [vec![], vec![], vec![]] as [Vec<usize>; 3]);
    }

    fn any_step() -> impl Strategy<Value = Vec<BufferRef>> {
        let range = (0usize..12, 0usize..4, any::<bool>());
        let make = |(at, len, is_written)| if is_written { write(at, len) } else { read(at, len) };
        proptest::collection::vec(range.prop_map(make), 0..4)
    }

    proptest! {
        #[test]
        fn all_conflicts_are_ordered_and_no_edge_is_implied(
            steps in proptest::collection::vec(any_step(), 0..14)
        ) {
            let direct = dependencies(&steps);
            let mut reach = vec![vec![false; steps.len()]; steps.len()];
            for (idx, earlier) in direct.iter().enumerate() {
                for &step in earlier {
                    prop_assert!(step < idx && conflict(&steps[step], &steps[idx]));
                    let implied = earlier.iter().any(|&other| reach[other][step]);
                    prop_assert!(!implied, "{idx} waits for {step} through another step");
                }
                for &step in earlier {
                    reach[idx][step] = true;
                    let theirs = reach[step].clone();
                    reach[idx].iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine |= theirs);
                }
                for step in 0..idx {
                    prop_assert!(reach[idx][step] || !conflict(&steps[step], &steps[idx]));
                }
            }
        }
    }
}
