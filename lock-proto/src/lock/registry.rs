//! Names, ids and deadlines of the locks of one client. Every hub contains one.

use alloc::boxed::Box;
use alloc::collections::btree_map::{self, BTreeMap};
use alloc::vec::Vec;
use core::time::Duration;

use crate::collections::{Deadlines, Slots};
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::Instant;

/// The machines of a client and their acquisitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Registry<K, M> {
    names: BTreeMap<K, u32>,
    /// Boxed, so that a growing table moves only pointers.
    machines: Vec<Option<Box<M>>>,
    free: Vec<u32>,
    acquisitions: Slots,
    deadlines: Deadlines,
    held: u32,
    /// During a shutdown, every machine before this slot is drained. A guard of a lost hold that is
    /// returned later gives its machine work.
    drained: usize,
}

impl<K: Clone + Ord, M> Registry<K, M> {
    pub(crate) fn new() -> Self {
        Self {
            names: BTreeMap::new(),
            machines: Vec::new(),
            free: Vec::new(),
            acquisitions: Slots::default(),
            deadlines: Deadlines::default(),
            held: 0,
            drained: 0,
        }
    }

    /// Returns the earliest deadline and the slot of its machine. `Instant::MAX` means never.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<(Instant, u32)> {
        self.deadlines.first().filter(|(at, _)| *at < Instant::MAX)
    }

    /// Returns the slot of a machine that is due.
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> Option<u32> {
        self.next_deadline().filter(|(at, _)| *at <= now).map(|(_, slot)| slot)
    }

    /// Called after the deadline of `slot` was served. If it did not move, retries a millisecond
    /// later.
    pub(crate) fn served(&mut self, now: Instant, slot: u32) {
        if self.due(now) == Some(slot) {
            debug_assert!(false, "the deadline of slot {slot} was served and did not move");
            self.deadlines.set(slot, Some(now + Duration::from_millis(1)));
        }
    }

    pub(crate) const fn acquisitions(&self) -> usize {
        self.acquisitions.len()
    }

    /// Starts an acquisition of the lock `key`, and returns the slot of its machine and the id.
    pub(crate) fn begin(&mut self, key: K, new: impl FnOnce(K) -> M) -> (u32, LockId) {
        let machine = match self.names.entry(key) {
            btree_map::Entry::Occupied(known) => *known.get(),
            btree_map::Entry::Vacant(name) => {
                let machine = Some(Box::new(new(name.key().clone())));
                let slot = if let Some(slot) = self.free.pop() {
                    self.machines[slot as usize] = machine;
                    slot
                } else {
                    self.machines.push(machine);
                    (self.machines.len() - 1) as u32
                };
                *name.insert(slot)
            }
        };
        let (slot, generation) = self.acquisitions.take(machine);
        (machine, LockId { slot, generation })
    }

    /// Returns the slot of the machine of an acquisition.
    ///
    /// # Errors
    ///
    /// [`Misuse::Stale`] if the acquisition has ended.
    // M6
    #[inline]
    pub(crate) fn slot_of(&self, id: LockId) -> Result<u32, Misuse> {
        self.acquisitions.owner(id.slot, id.generation).ok_or(Misuse::Stale(id))
    }

    pub(crate) fn slot_of_key(&self, key: &K) -> Option<u32> {
        self.names.get(key).copied()
    }

    pub(crate) fn slots(&self) -> core::ops::Range<u32> {
        0..self.machines.len() as u32
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&M> {
        self.machines.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut M> {
        self.machines.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(crate) fn of(&self, id: LockId) -> Option<&M> {
        self.get(self.slot_of(id).ok()?)
    }

    /// Called after every step of the machine in `slot`. Updates its deadline and the count of held
    /// locks, removes `ended` acquisitions, and drops the unused machine of the key `over`.
    #[inline]
    pub(crate) fn stepped(
        &mut self,
        slot: u32,
        (was_held, is_held): (bool, bool),
        over: Option<K>,
        deadline: Option<Instant>,
        ended: impl IntoIterator<Item = LockId>,
    ) {
        self.held = self.held + u32::from(is_held) - u32::from(was_held);
        self.drained = self.drained.min(slot as usize);
        self.deadlines.set(slot, deadline.filter(|_| over.is_none()));
        if let (Some(key), Some(machine)) = (over, self.machines.get_mut(slot as usize)) {
            self.names.remove(&key);
            *machine = None;
            self.free.push(slot);
        }
        for id in ended {
            self.acquisitions.end(id.slot);
        }
    }

    pub(crate) const fn held(&self) -> u32 {
        self.held
    }

    /// Returns true if every machine is drained. Continues at the first undrained one.
    pub(crate) fn is_drained(&mut self, drained: impl Fn(&M) -> bool) -> bool {
        let done = |machine: &Option<Box<M>>| machine.as_deref().is_none_or(&drained);
        while self.machines.get(self.drained).is_some_and(done) {
            self.drained += 1;
        }
        self.drained == self.machines.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &M> {
        self.machines.iter().flatten().map(AsRef::as_ref)
    }

    /// Drops all machines. A stopped client sends nothing more.
    pub(crate) fn clear(&mut self) -> Vec<(u32, Box<M>)> {
        self.names.clear();
        self.free.clear();
        self.deadlines = Deadlines::default();
        self.drained = 0;
        let all = core::mem::take(&mut self.machines);
        all.into_iter().enumerate().filter_map(|(slot, machine)| Some((slot as u32, machine?))).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Held while `left` is odd, over at zero.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Toy {
        key: u8,
        left: u32,
    }

    impl Toy {
        const fn new(key: u8) -> Self {
            Self { key, left: 2 }
        }

        const fn is_held(&self) -> bool {
            self.left % 2 == 1
        }

        const fn is_over(&self) -> bool {
            self.left == 0
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn step(all: &mut Registry<u8, Toy>, slot: u32, deadline: Option<Instant>, ended: &[LockId]) {
        let machine = all.get_mut(slot).unwrap();
        let was_held = machine.is_held();
        machine.left -= 1;
        let (is_held, over) = (machine.is_held(), machine.is_over().then_some(machine.key));
        all.stepped(slot, (was_held, is_held), over, deadline, ended.iter().copied());
    }

    #[test]
    fn acquisitions_of_one_name_share_machine_until_it_ends() {
        let mut all = Registry::<u8, Toy>::new();
        let (slot, first) = all.begin(7, Toy::new);
        let (same, second) = all.begin(7, Toy::new);
        assert_eq!((slot, all.slot_of_key(&7), all.slot_of(first)), (same, Some(slot), Ok(slot)));
        assert_ne!(first, second);
        step(&mut all, slot, Some(at(5)), &[first]);
        assert_eq!(
            (all.held(), all.slot_of(first), all.next_deadline()),
            (1, Err(Misuse::Stale(first)), Some((at(5), slot)))
        );
        step(&mut all, slot, Some(at(6)), &[second]);
        assert_eq!((all.held(), all.slot_of_key(&7), all.next_deadline(), all.iter().count()), (0, None, None, 0));
        // The slots are reused, the ids never.
        let (again, third) = all.begin(8, Toy::new);
        assert_eq!(again, slot);
        assert!(third != first && third != second);
    }

    #[test]
    fn only_due_machine_is_served() {
        // M7
        let mut all = Registry::<u8, Toy>::new();
        let slots: Vec<u32> = (0..3).map(|key| all.begin(key, Toy::new).0).collect();
        for (slot, deadline) in slots.iter().zip([Some(at(30)), None, Some(Instant::MAX)]) {
            step(&mut all, *slot, deadline, &[]);
        }
        assert_eq!((all.due(at(29)), all.due(at(30))), (None, Some(slots[0])));
        step(&mut all, slots[0], None, &[]);
        all.served(at(30), slots[0]);
        assert_eq!((all.due(at(99)), all.next_deadline()), (None, None), "the last instant is never");
    }

    #[test]
    fn registry_is_drained_once_every_machine_is_drained() {
        let mut all = Registry::<u8, Toy>::new();
        let (slot, _) = all.begin(1, |key| Toy { key, left: 4 });
        assert_eq!((all.acquisitions(), all.is_drained(Toy::is_over)), (1, false));
        step(&mut all, slot, None, &[]);
        assert!(all.is_drained(Toy::is_held));
        step(&mut all, slot, None, &[]);
        assert!(!all.is_drained(Toy::is_held), "it has got work since");
        assert_eq!(all.clear().len(), 1);
    }
}
