//! Queues that give the room of a burst back: when a hundred thousand renewals were late together, their room would otherwise stay.

use alloc::collections::VecDeque;

/// Room for this many entries is kept, so that everyday traffic allocates nothing.
const KEPT: usize = 4096;

/// Takes the first entry; with the last one the room of a burst is given back.
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    if queue.len() <= 1 && queue.capacity() > KEPT {
        return core::mem::take(queue).pop_front();
    }
    queue.pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_burst_is_given_back_and_that_of_every_day_is_kept() {
        for (entries, kept) in [(KEPT / 2, true), (2 * KEPT, false)] {
            let mut queue: VecDeque<usize> = (0..entries).collect();
            assert!((0..entries).all(|n| pop(&mut queue) == Some(n)));
            assert_eq!(queue.capacity() > 0, kept, "{entries} entries");
            assert_eq!(pop(&mut queue), None);
        }
    }
}
