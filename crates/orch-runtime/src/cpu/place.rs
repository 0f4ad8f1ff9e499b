//! Where constants lie on machines with several NUMA nodes.
//!
//! A page lies on the node of the thread that touches it first. Steps are cut among the threads of a pool in order, and so are the panels
//! of packed weights: of the bytes of a constant the thread that most often reads the part `t` of `T` is the thread `t`. It writes them, so
//! that they lie beside it; a single thread that reads the file would put all on its own node, whose memory all would share.

use super::aligned::AlignedBuffer;
use super::pool::{Chunking, Pool};
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Copies of constants, of each of which every thread wrote its part.
pub(super) fn by_threads(pool: &Pool, constants: &[Bytes]) -> Vec<Bytes> {
    let threads = pool.threads();
    let mut buffers: Vec<AlignedBuffer> =
        constants.iter().map(|bytes| AlignedBuffer::untouched(bytes.len())).collect();
    // Of each thread, the parts that it writes.
    let mut parts: Vec<Vec<(&mut [u8], &[u8])>> = (0..threads).map(|_| Vec::new()).collect();
    for (buffer, bytes) in buffers.iter_mut().zip(constants) {
        let mut rest = buffer.as_mut_slice();
        for (thread, own) in parts.iter_mut().enumerate() {
            let range = part(bytes.len(), threads, thread);
            let (first, behind) = std::mem::take(&mut rest).split_at_mut(range.len());
            own.push((first, &bytes[range]));
            rest = behind;
        }
    }
    let parts: Vec<Mutex<Vec<_>>> = parts.into_iter().map(Mutex::new).collect();
    pool.run(threads as i64, Chunking::Static, &|call| {
        for thread in call.tasks.clone() {
            let mut own = parts[thread as usize].lock().unwrap_or_else(PoisonError::into_inner);
            own.iter_mut().for_each(|(to, from)| to.copy_from_slice(from));
        }
    });
    drop(parts);
    buffers.into_iter().map(Bytes::from).collect()
}

/// The bytes of a thread.
fn part(len: usize, threads: usize, thread: usize) -> Range<usize> {
    let bound = |thread: usize| (len as u128 * thread as u128 / threads as u128) as usize;
    bound(thread)..bound(thread + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{ALIGN_BYTES, PoolOptions};

    #[test]
    fn copies_are_whole() {
        let pool = Pool::new(PoolOptions { threads: 3, pin: false });
        let constants: Vec<Bytes> = [0, 1, 2, 100, (2 << 20) + 7]
            .map(|len| (0..len).map(|at| (at * 31 % 251) as u8).collect::<Vec<_>>().into())
            .into();
        let placed = by_threads(&pool, &constants);
        assert_eq!(placed, constants);
        assert!(placed.iter().all(|bytes| bytes.as_ptr().addr().is_multiple_of(ALIGN_BYTES)));
    }

    #[test]
    fn parts_follow_each_other() {
        for (len, threads) in [(0, 2), (5, 3), (64, 1), (usize::MAX, 7)] {
            let parts: Vec<_> = (0..threads).map(|thread| part(len, threads, thread)).collect();
            assert_eq!((parts[0].start, parts[threads - 1].end), (0, len));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
