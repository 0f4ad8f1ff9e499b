//! Plans by hand, and random requests: what is live together never overlaps.

use super::occupied::Occupied;
use super::storage::Storage;
use super::*;
use proptest::prelude::*;

fn buffer(bytes: u64, first_use: u32, last_use: u32) -> Buffer {
    Buffer { bytes, alignment: 1, first_use, last_use }
}

fn in_place(output: u32, input: u32) -> InPlace {
    InPlace { output: BufferId(output), input: BufferId(input) }
}

fn view(view: u32, of: u32, offset_bytes: u64) -> MemoryAlias {
    MemoryAlias { view: BufferId(view), of: BufferId(of), offset_bytes }
}

fn planned(buffers: Vec<Buffer>, views: Vec<MemoryAlias>, in_place: Vec<InPlace>) -> MemoryPlan {
    let request = MemoryRequest { buffers, views, in_place };
    let plan = plan_memory(&request).expect("a valid request");
    check_plan(&request, &plan);
    plan
}

/// Everything that a plan promises.
fn check_plan(request: &MemoryRequest, plan: &MemoryPlan) {
    assert!(plan.live_bytes <= plan.arena_bytes);
    let place = |id: usize| plan.offsets[id]..plan.offsets[id] + request.buffers[id].bytes;
    for (id, buffer) in request.buffers.iter().enumerate() {
        assert_eq!(plan.offsets[id] % buffer.alignment, 0);
        assert_eq!(plan.arena_alignment % buffer.alignment, 0);
        assert!(place(id).end <= plan.arena_bytes);
    }
    for link in &request.views {
        assert_eq!(plan.offsets[link.view.index()], plan.offsets[link.of.index()] + link.offset_bytes);
    }
    for pair in &plan.in_place {
        assert!(request.in_place.contains(pair));
        let (output, input) = (request.buffers[pair.output.index()], request.buffers[pair.input.index()]);
        assert_eq!(plan.offsets[pair.output.index()], plan.offsets[pair.input.index()]);
        assert_eq!(output.first_use, input.last_use);
    }
    // The step in which the output that `left` is part of is written over the input `right`, or the reverse.
    let step_of_sharing = |left: usize, right: usize| {
        let shares = |pair: &&InPlace| {
            let (output, input) = (root(request, pair.output.index()), pair.input.index());
            output == root(request, left) && input == right || output == root(request, right) && input == left
        };
        plan.in_place.iter().find(shares).map(|pair| request.buffers[pair.output.index()].first_use)
    };
    for left in 0..request.buffers.len() {
        for right in 0..left {
            let overlap = place(left).start < place(right).end && place(right).start < place(left).end;
            if !overlap || root(request, left) == root(request, right) {
                continue;
            }
            let (one, other) = (request.buffers[left], request.buffers[right]);
            let first = one.first_use.max(other.first_use);
            let last = one.last_use.min(other.last_use);
            let is_shared_step = first == last && step_of_sharing(left, right) == Some(first);
            assert!(first > last || is_shared_step, "b{left} and b{right} overlap: {plan:?}");
        }
    }
}

fn root(request: &MemoryRequest, id: usize) -> usize {
    let link = request.views.iter().find(|link| link.view.index() == id);
    link.map_or(id, |link| root(request, link.of.index()))
}

#[test]
fn memory_of_the_dead_is_used_again() {
    let chain = vec![buffer(100, 0, 1), buffer(60, 1, 2), buffer(100, 2, 3), buffer(60, 3, 4)];
    let plan = planned(chain, vec![], vec![]);
    assert_eq!((plan.arena_bytes, plan.live_bytes), (160, 160));
}

#[test]
fn buffers_of_one_step_are_live_together() {
    let plan = planned(vec![buffer(8, 0, 1), buffer(8, 1, 1)], vec![], vec![]);
    assert_eq!(plan.arena_bytes, 16);
}

#[test]
fn outputs_take_the_place_of_dying_inputs() {
    let chain = vec![buffer(64, 0, 1), buffer(64, 1, 2), buffer(64, 2, 3)];
    let plan = planned(chain.clone(), vec![], vec![in_place(1, 0), in_place(2, 1)]);
    assert_eq!((plan.arena_bytes, plan.in_place.len()), (64, 2));
    let mut longer = chain;
    longer[0].last_use = 2;
    let plan = planned(longer, vec![], vec![in_place(1, 0), in_place(2, 1)]);
    assert_eq!((plan.arena_bytes, plan.in_place), (128, vec![in_place(2, 1)]));
}

#[test]
fn only_one_output_takes_an_inputs_place() {
    let buffers = vec![buffer(64, 0, 1), buffer(64, 1, 2), buffer(64, 1, 2)];
    let plan = planned(buffers, vec![], vec![in_place(1, 0), in_place(2, 0)]);
    assert_eq!((plan.arena_bytes, plan.in_place.len()), (128, 1));
}

#[test]
fn a_small_output_does_not_keep_a_large_input_alive() {
    let buffers = vec![buffer(100, 0, 1), buffer(10, 1, 3), buffer(100, 2, 3)];
    let plan = planned(buffers, vec![], vec![in_place(1, 0)]);
    assert_eq!((plan.arena_bytes, plan.in_place.len()), (110, 0));
}

#[test]
fn views_keep_the_whole_alive_and_guard_it() {
    let buffers = vec![buffer(100, 0, 1), buffer(40, 2, 4), buffer(100, 3, 4)];
    let plan = planned(buffers, vec![view(1, 0, 60)], vec![]);
    assert_eq!(plan.arena_bytes, 200);
    assert_eq!(plan.offsets[1], plan.offsets[0] + 60);
    // b2 may overwrite b0, but the same step reads a view of it.
    let buffers = vec![buffer(64, 0, 2), buffer(32, 1, 2), buffer(64, 2, 3)];
    let plan = planned(buffers, vec![view(1, 0, 0)], vec![in_place(2, 0)]);
    assert_eq!((plan.arena_bytes, plan.in_place.len()), (128, 0));
}

#[test]
fn nothing_and_empty_buffers_need_nothing() {
    assert_eq!(planned(vec![], vec![], vec![]).arena_bytes, 0);
    assert_eq!(planned(vec![buffer(0, 0, 9), buffer(0, 3, 4)], vec![], vec![]).arena_bytes, 0);
}

#[test]
fn malformed_requests_are_refused() {
    let refused = |buffers: Vec<Buffer>, views: Vec<MemoryAlias>, in_place: Vec<InPlace>| {
        plan_memory(&MemoryRequest { buffers, views, in_place }).unwrap_err().to_string()
    };
    let odd = Buffer { alignment: 12, ..buffer(1, 0, 0) };
    assert_eq!(refused(vec![odd], vec![], vec![]), "b0 has alignment 12: it must be a power of two");
    let backward = refused(vec![buffer(1, 2, 1)], vec![], vec![]);
    assert_eq!(backward, "b0 is used last at step 1, before its first use at step 2");
    let two = vec![buffer(8, 0, 1), buffer(8, 0, 1)];
    assert_eq!(refused(two.clone(), vec![view(0, 5, 0)], vec![]), "b5 does not exist: there are 2 buffers");
    assert_eq!(refused(two.clone(), vec![], vec![in_place(7, 0)]), "b7 does not exist: there are 2 buffers");
    assert!(refused(two.clone(), vec![view(1, 0, 1)], vec![]).starts_with("b1 does not lie inside b0"));
    assert!(refused(two.clone(), vec![view(1, 0, u64::MAX)], vec![]).starts_with("b1 does not lie inside"));
    let circle = vec![view(1, 0, 0), view(0, 1, 0)];
    assert_eq!(refused(two.clone(), circle, vec![]), "b0 is a view of two buffers, or of itself");
    let twice = vec![view(1, 0, 0), view(1, 0, 0)];
    assert_eq!(refused(two, twice, vec![]), "b1 is a view of two buffers, or of itself");
    let aligned = vec![buffer(8, 0, 1), Buffer { alignment: 4, ..buffer(2, 0, 1) }];
    assert!(refused(aligned, vec![view(1, 0, 2)], vec![]).starts_with("b1 needs alignment 4"));
    let huge = vec![buffer(1 << 62, 0, 1)];
    assert_eq!(refused(huge, vec![], vec![]), "the buffers have more than 2^62 bytes together");
}

/// Random buffers; views of earlier buffers; permissions between buffers that meet.
fn any_request() -> impl Strategy<Value = MemoryRequest> {
    let any_buffer = (0..200u64, 0..5u32, 0..12u32, 0..6u32).prop_map(|(bytes, log, first_use, length)| {
        Buffer { bytes, alignment: 1 << log, first_use, last_use: first_use + length }
    });
    let any_views = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4);
    (prop::collection::vec(any_buffer, 1..16), any_views).prop_map(|(mut buffers, links)| {
        let mut views: Vec<MemoryAlias> = Vec::new();
        for (left, right) in links {
            let (left, right) = (left.index(buffers.len()), right.index(buffers.len()));
            let is_new = views.iter().all(|link| link.view.index() != left.max(right));
            if left != right && is_new {
                let (of, part) = (left.min(right), left.max(right));
                buffers[part].alignment = 1;
                buffers[part].bytes = buffers[part].bytes.min(buffers[of].bytes / 2);
                views.push(view(part as u32, of as u32, buffers[of].bytes / 3));
            }
        }
        // A view's size may have been lowered after views of it were made.
        views.retain(|link| {
            let (part, of) = (buffers[link.view.index()], buffers[link.of.index()]);
            link.offset_bytes + part.bytes <= of.bytes
        });
        let ids = 0..buffers.len();
        let meet = |&(output, input): &(usize, usize)| buffers[output].first_use == buffers[input].last_use;
        let pairs = ids.clone().flat_map(|output| ids.clone().map(move |input| (output, input)));
        let in_place =
            pairs.filter(meet).map(|(output, input)| in_place(output as u32, input as u32)).collect();
        MemoryRequest { buffers, views, in_place }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_is_live_together_never_overlaps(request in any_request()) {
        let plan = plan_memory(&request).expect("valid by construction");
        check_plan(&request, &plan);
        prop_assert_eq!(plan_memory(&request).expect("as before"), plan);
    }
}

/// The bytes below 256 that ranges have.
fn bytes_of(ranges: impl IntoIterator<Item = (u64, u64)>) -> Vec<bool> {
    let mut is_in = vec![false; 256];
    ranges.into_iter().for_each(|(start, end)| is_in[start as usize..end as usize].fill(true));
    is_in
}

proptest! {
    #[test]
    fn what_is_taken_during_a_life_is_what_lives_then_takes(
        placed in prop::collection::vec((0..20u32, 0..8u32, 0..200u64, 1..50u64), 1..20),
    ) {
        let storages: Vec<Storage> = placed
            .iter()
            .map(|&(first_use, length, _, bytes)| Storage { bytes, alignment: 1, first_use, last_use: first_use + length })
            .collect();
        let mut occupied = Occupied::new(&storages);
        for (at, &(.., start, bytes)) in placed.iter().enumerate() {
            let meets = |other: &usize| {
                storages[*other].first_use <= storages[at].last_use && storages[at].first_use <= storages[*other].last_use
            };
            let alive = (0..at).filter(meets).map(|other| (placed[other].2, placed[other].2 + placed[other].3));
            prop_assert_eq!(bytes_of(occupied.during(at)), bytes_of(alive));
            occupied.take(at, start, start + bytes);
        }
    }
}

/// Buffers of a recurrence that was unrolled: a state that each step writes anew, some short-lived ones, and a result of each step that
/// lives to the end.
fn unrolled(steps: u32) -> MemoryRequest {
    let sizes = [96, 4096, 700, 64 * 33];
    let mut buffers = Vec::new();
    for step in 0..steps {
        let at = 4 * step;
        for (number, &bytes) in (0..).zip(&sizes) {
            let last_use = if number == 0 { 4 * steps } else { at + number + 2 };
            buffers.push(Buffer { bytes, alignment: 64, first_use: at + number, last_use });
        }
    }
    MemoryRequest { buffers, ..MemoryRequest::default() }
}

#[test]
fn steps_grow_with_the_number_of_buffers() {
    let [small, medium, large] =
        [50, 100, 200].map(|steps| plan_memory(&unrolled(steps)).expect("valid").steps);
    let [added, added_next] = [medium - small, large - medium];
    assert!(added_next * 10 <= added * 25, "{small}, {medium}, {large}");
}

#[test]
fn long_chains_of_views_and_of_outputs_in_place_are_one_buffer() {
    let length = 20_000;
    let chain: Vec<Buffer> = (0..length).map(|at| buffer(64, at, at + 1)).collect();
    let views = (1..length).map(|at| view(at, at - 1, 0)).collect();
    let plan =
        plan_memory(&MemoryRequest { buffers: chain.clone(), views, in_place: vec![] }).expect("valid");
    assert_eq!(plan.arena_bytes, 64);
    let in_place = (1..length).rev().map(|at| in_place(at, at - 1)).collect();
    let plan = plan_memory(&MemoryRequest { buffers: chain, views: vec![], in_place }).expect("valid");
    assert_eq!((plan.arena_bytes, plan.in_place.len()), (64, length as usize - 1));
}
