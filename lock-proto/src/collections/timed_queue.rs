//! A queue whose entries have deadlines.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::time::Instant;

/// Entries in FIFO order. An entry whose deadline has passed can leave out of order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiting<T> {
    entries: BTreeMap<u64, (Instant, T)>,
    deadlines: BTreeSet<(Instant, u64)>,
    next: u64,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), deadlines: BTreeSet::new(), next: 0 }
    }
}

impl<T> Waiting<T> {
    /// Appends an entry, and returns its place, a growing number.
    pub(crate) fn push(&mut self, entry: T, deadline: Instant) -> u64 {
        let place = self.next;
        self.put(place, entry, deadline);
        place
    }

    pub(crate) fn put(&mut self, place: u64, entry: T, deadline: Instant) {
        self.deadlines.insert((deadline, place));
        self.entries.insert(place, (deadline, entry));
        self.next = self.next.max(place + 1);
    }

    /// Moves the deadline of an entry. Returns false if there is none.
    pub(crate) fn reschedule(&mut self, place: u64, deadline: Instant) -> bool {
        let Some((before, _)) = self.entries.get_mut(&place) else { return false };
        if *before != deadline {
            // In this order the set is never empty, which would free its memory.
            self.deadlines.insert((deadline, place));
            self.deadlines.remove(&(*before, place));
            *before = deadline;
        }
        true
    }

    pub(crate) fn take(&mut self, place: u64) -> Option<(T, Instant)> {
        let (deadline, entry) = self.entries.remove(&place)?;
        self.deadlines.remove(&(deadline, place));
        Some((entry, deadline))
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.first_key_value().map(|(place, _)| *place)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(place, (_, entry))| (*place, entry))
    }

    pub(crate) fn pop(&mut self) -> Option<(T, Instant)> {
        let (number, (deadline, entry)) = self.entries.pop_first()?;
        self.deadlines.remove(&(deadline, number));
        Some((entry, deadline))
    }

    /// Removes an entry whose deadline is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        let due = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&due);
        self.entries.remove(&due.1).map(|(_, entry)| entry)
    }

    /// The entries whose deadline is not after `now`.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = &T> {
        let due = self.deadlines.iter().take_while(move |(deadline, _)| *deadline <= now);
        due.filter_map(|(_, place)| self.entries.get(place).map(|(_, entry)| entry))
    }

    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
