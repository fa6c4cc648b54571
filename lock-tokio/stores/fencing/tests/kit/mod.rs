//! What the tests of several resources share.

use std::sync::Barrier;
use std::thread;

use lock_proto::Fence;
use lock_proto::fence::FenceCheck;

/// Holders that write at the same time, each several times.
pub(crate) const WRITERS: u64 = 4;
/// Writes of each.
pub(crate) const WRITES: u64 = 25;

/// Lets holders write at the same time, each with tokens that grow, equal and smaller ones among
/// them. `write` returns the check and a number that grows with each write that was carried out.
///
/// # Panics
///
/// If a write was carried out after one with a greater token.
pub(crate) fn storm<W: FnMut(Fence) -> (FenceCheck, u64)>(writer: impl Fn() -> W + Sync) {
    let all = Barrier::new(WRITERS as usize);
    let mut written: Vec<(u64, u64)> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (writer, all) = (&writer, &all);
                scope.spawn(move || {
                    let mut write = writer();
                    let mut written = Vec::new();
                    all.wait();
                    for step in 0..WRITES {
                        let fence = Fence::new(1 + step + (number + step) % 3);
                        match write(fence) {
                            (FenceCheck::Accepted, order) => written.push((order, fence.get())),
                            (FenceCheck::Stale { seen }, _) => {
                                assert!(seen > fence, "{fence} is not older than {seen}")
                            }
                        }
                    }
                    written
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    written.sort_unstable();
    assert_eq!(written.last().map(|(_, fence)| *fence), Some(WRITES + 2), "the greatest token is accepted");
    assert!(written.is_sorted_by_key(|(_, fence)| *fence), "a late write came through: {written:?}");
}
