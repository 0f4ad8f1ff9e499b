//! Groups of columns that read and write numbered storages.

use super::*;
use proptest::prelude::*;

fn touched(read: &[u32], written: &[u32]) -> Touched {
    let storages = |list: &[u32]| list.iter().map(|&number| TensorId(number)).collect();
    Touched { read: storages(read), written: storages(written) }
}

/// A kernel that gains by being joined on some number of threads.
const SHARED: Option<SharedWork> = Some(SharedWork { tasks: 12, alone_us: 100.0 });

fn groups_of(touched: &[Touched], bytes: &dyn Fn(TensorId) -> usize) -> Vec<Vec<usize>> {
    groups(touched, &vec![SHARED; touched.len()], bytes)
}

/// Two branches, each of two columns, which are given one after the other.
fn branches() -> Vec<Touched> {
    vec![
        touched(&[0], &[1]),
        touched(&[1], &[2]),
        touched(&[2], &[3]),
        touched(&[1], &[4]),
        touched(&[4], &[5]),
        touched(&[3, 5], &[6]),
    ]
}

#[test]
fn branches_are_side_by_side() {
    let side_by_side = [vec![0], vec![1, 3], vec![2, 4], vec![5]];
    assert_eq!(groups_of(&branches(), &|_| 1), side_by_side);
    // What runs on the host, or is next to nothing, is in no group.
    let mut works = vec![SHARED; 6];
    works[3] = None;
    works[2] = Some(SharedWork { tasks: 12, alone_us: 0.1 });
    assert_eq!(groups(&branches(), &works, &|_| 1), [vec![0], vec![1], vec![2], vec![3], vec![4], vec![5]]);
}

#[test]
fn hardly_more_bytes_live_at_once() {
    let large = 10 * FEW_BYTES;
    let bytes = |of: [u32; 2]| move |tensor: TensorId| if of.contains(&tensor.0) { large } else { 1 };
    // The first results of both branches at once are twice what lives at any column of the given order.
    assert_eq!(
        groups_of(&branches(), &bytes([2, 4])),
        [vec![0], vec![1], vec![2], vec![3], vec![4], vec![5]]
    );
    // As much lives at the end.
    assert_eq!(groups_of(&branches(), &bytes([5, 6])), [vec![0], vec![1, 3], vec![2, 4], vec![5]]);
}

#[test]
fn what_is_written_over_is_read_before() {
    // The second column reads what the third writes over.
    let columns = [touched(&[0], &[1]), touched(&[1], &[2]), touched(&[0, 1], &[1]), touched(&[1, 2], &[3])];
    assert_eq!(groups_of(&columns, &|_| 1), [vec![0], vec![1], vec![2], vec![3]]);
    // As is what is written twice.
    let columns = [touched(&[0], &[1]), touched(&[0], &[1]), touched(&[0], &[2])];
    assert_eq!(groups_of(&columns, &|_| 1), [vec![0, 2], vec![1]]);
}

fn any_columns() -> impl Strategy<Value = Vec<Touched>> {
    let lists = (proptest::collection::vec(0u32..12, 0..4), proptest::collection::vec(0u32..12, 1..3));
    proptest::collection::vec(lists.prop_map(|(read, written)| touched(&read, &written)), 1..24)
}

proptest! {
    #[test]
    fn groups_keep_the_order_of_conflicts(columns in any_columns(), sizes in proptest::collection::vec(0usize..4 * FEW_BYTES, 12)) {
        let bytes = |tensor: TensorId| sizes[tensor.index()];
        let groups = groups_of(&columns, &bytes);
        let mut number_of = vec![usize::MAX; columns.len()];
        for (number, group) in groups.iter().enumerate() {
            group.iter().for_each(|&column| number_of[column] = number);
        }
        prop_assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), columns.len());
        for (later, b) in columns.iter().enumerate() {
            for (earlier, a) in columns[..later].iter().enumerate() {
                let conflicts = a.all().any(|tensor| b.written.contains(&tensor))
                    || a.written.iter().any(|tensor| b.read.contains(tensor));
                prop_assert!(!conflicts || number_of[earlier] < number_of[later], "{earlier} {later} {groups:?}");
            }
        }
        // Hardly more bytes live at most, where columns of a group run at the same time.
        let merged: Vec<Touched> = groups
            .iter()
            .map(|group| Touched {
                read: group.iter().flat_map(|&column| columns[column].read.clone()).collect(),
                written: group.iter().flat_map(|&column| columns[column].written.clone()).collect(),
            })
            .collect();
        let most = live_bytes(&merged, &bytes).into_iter().max();
        prop_assert!(most <= Some(allowed_bytes(&live_bytes(&columns, &bytes))));
    }
}
