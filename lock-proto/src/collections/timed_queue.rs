//! Queues that know when the first of their entries runs out of patience.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use super::burst;
use crate::time::Instant;

/// A queue, first in, first out, of entries with deadlines in any order; tells the earliest deadline in amortised constant
/// time, without an allocation per entry.
///
/// `minima` is the queue without every entry that has a later one due no later than itself: such an entry can never be the
/// earliest again. What is left is sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Patient<T> {
    entries: VecDeque<T>,
    minima: VecDeque<(u64, Instant)>,
    /// Number of the first entry, and of the next one to come.
    first: u64,
    next: u64,
}

impl<T> Default for Patient<T> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), minima: VecDeque::new(), first: 0, next: 0 }
    }
}

impl<T> Patient<T> {
    pub(crate) fn push(&mut self, entry: T, deadline: Instant) {
        while self.minima.back().is_some_and(|(_, earlier)| *earlier >= deadline) {
            self.minima.pop_back();
        }
        self.minima.push_back((self.next, deadline));
        self.next += 1;
        self.entries.push_back(entry);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.entries.is_empty() {
            return None;
        }
        if self.minima.front().is_some_and(|(number, _)| *number == self.first) {
            self.minima.pop_front();
        }
        self.first += 1;
        burst::pop(&mut self.entries)
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.entries.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.minima.front().map(|(_, deadline)| *deadline)
    }
}

/// What waits for a connection that is being opened. Here an entry that runs out of patience leaves alone, out of order;
/// opening goes on for the others.
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
    /// Its place: a number that grows.
    pub(crate) fn push(&mut self, entry: T, deadline: Instant) -> u64 {
        let place = self.next;
        self.put(place, entry, deadline);
        place
    }

    /// As `push`, at a place of the caller's choice: one that is free.
    pub(crate) fn put(&mut self, place: u64, entry: T, deadline: Instant) {
        self.deadlines.insert((deadline, place));
        self.entries.insert(place, (deadline, entry));
        self.next = self.next.max(place + 1);
    }

    /// The entry at this place, with its deadline.
    pub(crate) fn take(&mut self, place: u64) -> Option<(T, Instant)> {
        let (deadline, entry) = self.entries.remove(&place)?;
        self.deadlines.remove(&(deadline, place));
        Some((entry, deadline))
    }

    /// The place of the first that came.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.first_key_value().map(|(place, _)| *place)
    }

    /// All of them with their places, in the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(place, (_, entry))| (*place, entry))
    }

    /// The first that came, with its deadline.
    pub(crate) fn pop(&mut self) -> Option<(T, Instant)> {
        let (number, (deadline, entry)) = self.entries.pop_first()?;
        self.deadlines.remove(&(deadline, number));
        Some((entry, deadline))
    }

    /// One whose deadline is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        let due = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&due);
        self.entries.remove(&due.1).map(|(_, entry)| entry)
    }

    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
