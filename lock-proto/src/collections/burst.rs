//! Queues that free their memory after a burst, such as a hundred thousand late renewals.

use alloc::collections::VecDeque;

/// Smaller queues keep their capacity, so that normal traffic does not allocate.
const MIN_BURST: usize = 4096;

/// Removes the first entry. Removing the last one frees the capacity of a burst.
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    if queue.len() <= 1 && queue.capacity() > MIN_BURST {
        return core::mem::take(queue).pop_front();
    }
    queue.pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_queue_frees_only_burst_capacity() {
        for (entries, kept) in [(MIN_BURST / 2, true), (2 * MIN_BURST, false)] {
            let mut queue: VecDeque<usize> = (0..entries).collect();
            assert!((0..entries).all(|n| pop(&mut queue) == Some(n)));
            assert_eq!(queue.capacity() > 0, kept, "{entries} entries");
            assert_eq!(pop(&mut queue), None);
        }
    }
}
