//! Deadlines of the locks: a binary heap whose entries can be moved.
//!
//! Unlike a tree, a heap in a vector does not allocate when a renewal moves its timer. Finding due
//! entries costs O(due · log n), never O(locks).
// M7

use alloc::vec::Vec;

use crate::time::Instant;

const ABSENT: u32 = u32::MAX;

/// Deadlines by slot, earliest first. Ties go to the lower slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Deadlines {
    heap: Vec<(Instant, u32)>,
    place: Vec<u32>,
}

impl Deadlines {
    /// Returns the earliest deadline and its slot.
    pub(crate) fn first(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Sets, moves or removes the deadline of `slot`.
    pub(crate) fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        let index = slot as usize;
        if self.place.len() <= index {
            if deadline.is_none() {
                return;
            }
            self.place.resize(index + 1, ABSENT);
        }
        match (self.place[index], deadline) {
            (ABSENT, None) => {}
            (ABSENT, Some(at)) => {
                self.heap.push((at, slot));
                self.up(self.heap.len() - 1);
            }
            (place, Some(at)) => {
                let place = place as usize;
                let before = self.heap[place].0;
                self.heap[place].0 = at;
                if at < before {
                    self.up(place);
                } else {
                    self.down(place);
                }
            }
            (place, None) => {
                let place = place as usize;
                self.place[index] = ABSENT;
                self.heap.swap_remove(place);
                if place < self.heap.len() {
                    self.up(place);
                    self.down(place);
                }
            }
        }
    }

    /// Moves the entry at `place` up. Writes each displaced entry once, and the moved one at the
    /// end.
    fn up(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / 2;
            let above = self.heap[parent];
            if above <= entry {
                break;
            }
            self.put(place, above);
            place = parent;
        }
        self.put(place, entry);
    }

    fn down(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let child = 2 * place + 1;
            let (child, least) = match self.heap.get(child..) {
                Some(&[left, right, ..]) if right < left => (child + 1, right),
                Some(&[left, ..]) => (child, left),
                Some([]) | None => break,
            };
            if entry <= least {
                break;
            }
            self.put(place, least);
            place = child;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (Instant, u32)) {
        self.heap[place] = entry;
        self.place[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jitter::mix;
    use alloc::collections::BTreeMap;

    #[test]
    fn agrees_with_sorted_map() {
        let mut heap = Deadlines::default();
        let mut model = BTreeMap::new();
        for n in 0..20_000 {
            let slot = (mix(1, n) % 64) as u32;
            let deadline = match mix(2, n) % 4 {
                0 => None,
                _ => Some(Instant::from_nanos(mix(3, n) % 1_000)),
            };
            heap.set(slot, deadline);
            match deadline {
                Some(at) => model.insert(slot, at),
                None => model.remove(&slot),
            };
            assert_eq!(heap.first(), model.iter().map(|(slot, at)| (*at, *slot)).min());
        }
    }
}
