//! The wait queue of one lock name within one client.

use alloc::collections::{BTreeSet, VecDeque};

use super::request::{Renew, Wait};
use crate::id::LockId;
use crate::time::Instant;

/// One waiting acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<T> {
    /// The id that its events refer to.
    pub id: LockId,
    /// The store's terms, such as a TTL.
    pub terms: T,
    /// How the lock is renewed.
    pub renew: Renew,
    /// How long it waits.
    pub wait: Wait,
    /// When the wait began.
    pub since: Instant,
}

impl<T> Waiter<T> {
    /// Returns when the wait ends; `None` if it has no limit.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::For(limit) => Some(self.since + limit),
            Wait::Try | Wait::Forever => None,
        }
    }
}

/// Waiters in FIFO order. The one at the head competes with other clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiters<T> {
    queue: VecDeque<Waiter<T>>,
    /// The ends of the limited waits, earliest first.
    ends: BTreeSet<(Instant, LockId)>,
}

impl<T> Waiters<T> {
    pub(crate) const fn new() -> Self {
        Self { queue: VecDeque::new(), ends: BTreeSet::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn head(&self) -> Option<&Waiter<T>> {
        self.queue.front()
    }

    pub(crate) fn push(&mut self, waiter: Waiter<T>) {
        self.begin_wait(&waiter);
        self.queue.push_back(waiter);
    }

    pub(crate) fn push_front(&mut self, waiter: Waiter<T>) {
        self.begin_wait(&waiter);
        self.queue.push_front(waiter);
    }

    pub(crate) fn pop(&mut self) -> Option<Waiter<T>> {
        let waiter = self.queue.pop_front()?;
        self.left(&waiter);
        Some(waiter)
    }

    pub(crate) fn pop_last(&mut self) -> Option<Waiter<T>> {
        let waiter = self.queue.pop_back()?;
        self.left(&waiter);
        Some(waiter)
    }

    /// Returns the position of an acquisition. Scans the queue, which can be long.
    pub(crate) fn position(&self, id: LockId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.id == id)
    }

    pub(crate) fn remove(&mut self, place: usize) -> Option<Waiter<T>> {
        let waiter = self.queue.remove(place)?;
        self.left(&waiter);
        Some(waiter)
    }

    fn left(&mut self, waiter: &Waiter<T>) {
        if self.queue.is_empty() {
            // A held lock without waiters should not keep the memory of the queue.
            self.queue = VecDeque::new();
        }
        if let Some(end) = waiter.deadline() {
            self.ends.remove(&(end, waiter.id));
        }
    }

    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Returns the position of a waiter whose wait has ended.
    pub(crate) fn due(&self, now: Instant) -> Option<usize> {
        let (_, id) = self.ends.first().filter(|(end, _)| *end <= now)?;
        self.position(*id)
    }

    fn begin_wait(&mut self, waiter: &Waiter<T>) {
        if let Some(end) = waiter.deadline() {
            self.ends.insert((end, waiter.id));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use core::time::Duration;

    use super::*;

    fn waiter(slot: u32, wait: Wait) -> Waiter<()> {
        let id = LockId { slot, generation: 0 };
        Waiter { id, terms: (), renew: Renew::Auto, wait, since: Instant::from_millis(100) }
    }

    fn limited(slot: u32, ms: u64) -> Waiter<()> {
        waiter(slot, Wait::For(Duration::from_millis(ms)))
    }

    #[test]
    fn waiters_leave_in_fifo_order_and_returned_waiter_is_first() {
        let mut all = Waiters::new();
        (0..3).for_each(|slot| all.push(waiter(slot, Wait::Forever)));
        let first = all.pop().unwrap();
        all.push_front(first);
        assert_eq!(all.pop_last().unwrap().id.slot, 2);
        assert_eq!(
            [all.pop(), all.pop(), all.pop()].map(|waiter| waiter.map(|waiter| waiter.id.slot)),
            [Some(0), Some(1), None]
        );
    }

    #[test]
    fn earliest_wait_end_is_due_first_and_removed_waiter_is_not() {
        let mut all = Waiters::new();
        [limited(0, 30), waiter(1, Wait::Try), limited(2, 10), limited(3, 20)]
            .into_iter()
            .for_each(|waiter| all.push(waiter));
        let at = Instant::from_millis;
        assert_eq!((all.next_end(), all.due(at(109)), all.due(at(110))), (Some(at(110)), None, Some(2)));
        all.remove(2);
        assert_eq!((all.next_end(), all.due(at(200))), (Some(at(120)), Some(2)));
        all.remove(2);
        all.pop();
        assert_eq!((all.next_end(), all.due(at(200))), (None, None));
    }
}
