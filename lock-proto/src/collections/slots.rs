//! Generational ids: a slot is reused, an id never.
// M6

use alloc::vec::Vec;

const NO_OWNER: u32 = u32::MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Slots {
    slots: Vec<TakenSlot>,
    free: Vec<u32>,
    /// Number of ids that have not ended.
    live: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TakenSlot {
    generation: u32,
    owner: u32,
}

impl Slots {
    pub(crate) const fn len(&self) -> usize {
        self.live
    }

    /// Allocates an id for `owner`, and returns its slot and generation.
    pub(crate) fn take(&mut self, owner: u32) -> (u32, u32) {
        self.live += 1;
        if let Some(slot) = self.free.pop() {
            let found = &mut self.slots[slot as usize];
            found.owner = owner;
            return (slot, found.generation);
        }
        self.slots.push(TakenSlot { generation: 0, owner });
        ((self.slots.len() - 1) as u32, 0)
    }

    /// Returns the owner; `None` if the id has ended.
    pub(crate) fn owner(&self, slot: u32, generation: u32) -> Option<u32> {
        let found = self.slots.get(slot as usize)?;
        (found.generation == generation && found.owner != NO_OWNER).then_some(found.owner)
    }

    pub(crate) fn end(&mut self, slot: u32) {
        let Some(found) = self.slots.get_mut(slot as usize).filter(|found| found.owner != NO_OWNER) else { return };
        found.owner = NO_OWNER;
        self.live -= 1;
        // A slot with no generations left is retired, so that no id is ever reused.
        if let Some(next) = found.generation.checked_add(1) {
            found.generation = next;
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_reused_and_id_is_not() {
        // M6
        let mut slots = Slots::default();
        let first = slots.take(7);
        assert_eq!(slots.owner(first.0, first.1), Some(7));
        slots.end(first.0);
        slots.end(first.0);
        assert_eq!((slots.owner(first.0, first.1), slots.len()), (None, 0));
        let second = slots.take(8);
        assert_eq!((second.0, slots.owner(second.0, second.1)), (first.0, Some(8)));
        assert_ne!(first, second);
        assert_eq!(slots.owner(first.0, first.1), None);
    }

    /// Regression: it counted as used for ever.
    #[test]
    fn slot_without_generations_is_retired_and_unused() {
        // M6
        let mut slots = Slots::default();
        let first = slots.take(7);
        slots.slots[first.0 as usize].generation = u32::MAX;
        slots.end(first.0);
        assert_eq!((slots.len(), slots.owner(first.0, u32::MAX)), (0, None));
        assert_ne!(slots.take(8).0, first.0);
        assert_eq!(slots.len(), 1);
    }
}
