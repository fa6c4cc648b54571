//! The locks of one client: names, ids, deadlines, and the shutdown. The hub of every store is built around one.

use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::vec::Vec;
use core::time::Duration;

use crate::collections::{Deadlines, Slots};
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::Instant;

/// The state machine of one name.
pub(crate) trait Machine {
    /// What tells one name from another in the store.
    type Key: Clone + Ord;

    /// A machine that nobody has asked for anything.
    fn new(key: Self::Key) -> Self;
    /// The name.
    fn key(&self) -> &Self::Key;
    /// Returns true if the lock is held or has been offered.
    fn is_held(&self) -> bool;
    /// Returns true if the machine has no remaining work and can be dropped.
    fn is_over(&self) -> bool;
}

/// The machines of a client, and the acquisitions that they work on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Registry<M: Machine> {
    now: Instant,
    names: BTreeMap<M::Key, u32>,
    /// Boxed, so that a growing table moves pointers only.
    machines: Vec<Option<Box<M>>>,
    free: Vec<u32>,
    acquisitions: Slots,
    deadlines: Deadlines,
    held: u32,
    shutdown: Shutdown,
}

/// How far the shutdown is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Shutdown {
    /// When it ends at the latest; `None` before it begins.
    until: Option<Instant>,
    /// Every machine before this slot is drained.
    drained: usize,
    over: bool,
}

impl<M: Machine> Registry<M> {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            now,
            names: BTreeMap::new(),
            machines: Vec::new(),
            free: Vec::new(),
            acquisitions: Slots::default(),
            deadlines: Deadlines::default(),
            held: 0,
            shutdown: Shutdown::default(),
        }
    }

    // --- time ---

    /// The latest time that a caller has named.
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Moves the clock forward. Time that runs backwards is taken as standing still (requirement M1).
    #[inline]
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// The earliest deadline of a machine, and its slot. `Instant::MAX` means never.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<(Instant, u32)> {
        self.deadlines.first().filter(|(at, _)| *at < Instant::MAX)
    }

    /// The slot of a machine whose deadline has come.
    #[inline]
    pub(crate) fn due(&self) -> Option<u32> {
        self.next_deadline().filter(|(at, _)| *at <= self.now).map(|(_, slot)| slot)
    }

    /// Called after the deadline of `slot` was served. A machine that does not move it would be called for ever; it is
    /// called again a millisecond later.
    pub(crate) fn served(&mut self, slot: u32) {
        if self.due() == Some(slot) {
            debug_assert!(false, "the deadline of slot {slot} was served and did not move");
            self.deadlines.set(slot, Some(self.now + Duration::from_millis(1)));
        }
    }

    // --- machines and acquisitions ---

    /// Checks that another acquisition may begin.
    ///
    /// # Errors
    ///
    /// [`Misuse::ShuttingDown`] or [`Misuse::TooMany`].
    pub(crate) const fn admit(&self, limit: u32) -> Result<(), Misuse> {
        if self.is_stopping() {
            return Err(Misuse::ShuttingDown);
        }
        if self.acquisitions.len() >= limit as usize {
            return Err(Misuse::TooMany { limit });
        }
        Ok(())
    }

    /// A new acquisition of the lock `key`, and the slot of its machine.
    pub(crate) fn begin(&mut self, key: M::Key) -> (u32, LockId) {
        let machine = match self.names.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(name) => {
                let machine = Some(Box::new(M::new(name.key().clone())));
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

    /// The slot of the machine that works on an acquisition.
    ///
    /// # Errors
    ///
    /// [`Misuse::Stale`] if the acquisition has ended (requirement M6).
    #[inline]
    pub(crate) fn slot_of(&self, id: LockId) -> Result<u32, Misuse> {
        self.acquisitions.owner(id.slot, id.generation).ok_or(Misuse::Stale(id))
    }

    /// The slot of the machine of `key`.
    pub(crate) fn slot_of_key(&self, key: &M::Key) -> Option<u32> {
        self.names.get(key).copied()
    }

    /// The slots in use lie below this.
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

    /// The machine that works on an acquisition.
    pub(crate) fn of(&self, id: LockId) -> Option<&M> {
        self.get(self.slot_of(id).ok()?)
    }

    /// Called after every step of the machine in `slot`: keeps the count of held locks, forgets what has ended, and moves
    /// the deadline.
    #[inline]
    pub(crate) fn stepped(
        &mut self,
        slot: u32,
        was_held: bool,
        deadline: Option<Instant>,
        ended: impl IntoIterator<Item = LockId>,
    ) {
        let Some(place) = self.machines.get_mut(slot as usize) else { return };
        let Some(machine) = place.as_deref() else { return };
        match (was_held, machine.is_held()) {
            (false, true) => self.held += 1,
            (true, false) => self.held -= 1,
            (true, true) | (false, false) => {}
        }
        if machine.is_over() {
            self.names.remove(machine.key());
            *place = None;
            self.free.push(slot);
            self.deadlines.set(slot, None);
        } else {
            self.deadlines.set(slot, deadline);
        }
        for id in ended {
            self.acquisitions.end(id.slot);
        }
    }

    /// How many locks are held.
    pub(crate) const fn held(&self) -> u32 {
        self.held
    }

    // --- shutdown (requirement U2) ---

    /// Begins the shutdown, or brings its end forward. Returns true if it has just begun.
    pub(crate) fn begin_shutdown(&mut self, within: Duration) -> bool {
        let until = self.now + within;
        let first = self.shutdown.until.is_none();
        self.shutdown.until = Some(self.shutdown.until.map_or(until, |already| already.min(until)));
        first
    }

    /// Returns true once the shutdown has begun.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.shutdown.until.is_some()
    }

    /// Returns true once the shutdown is over.
    pub(crate) const fn is_stopped(&self) -> bool {
        self.shutdown.over
    }

    /// When the shutdown ends at the latest, while it is under way.
    pub(crate) fn stop_at(&self) -> Option<Instant> {
        self.shutdown.until.filter(|_| !self.shutdown.over)
    }

    /// Returns true if every machine is drained. Costs what has changed since the last call.
    pub(crate) fn is_drained(&mut self, drained: impl Fn(&M) -> bool) -> bool {
        let done = |machine: &Option<Box<M>>| machine.as_deref().is_none_or(&drained);
        while self.machines.get(self.shutdown.drained).is_some_and(done) {
            self.shutdown.drained += 1;
        }
        self.shutdown.drained == self.machines.len()
    }

    /// The machines that are left.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &M> {
        self.machines.iter().flatten().map(AsRef::as_ref)
    }

    /// Ends the shutdown.
    pub(crate) const fn stop(&mut self) {
        self.shutdown.over = true;
    }

    /// Drops all machines: a client that has stopped sends nothing more.
    pub(crate) fn clear(&mut self) -> Vec<(u32, Box<M>)> {
        self.names.clear();
        self.free.clear();
        self.deadlines = Deadlines::default();
        self.shutdown.drained = 0;
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

    impl Machine for Toy {
        type Key = u8;

        fn new(key: u8) -> Self {
            Self { key, left: 2 }
        }

        fn key(&self) -> &u8 {
            &self.key
        }

        fn is_held(&self) -> bool {
            self.left % 2 == 1
        }

        fn is_over(&self) -> bool {
            self.left == 0
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// One step, as a hub makes it.
    fn step(all: &mut Registry<Toy>, slot: u32, deadline: Option<Instant>, ended: &[LockId]) {
        let machine = all.get_mut(slot).unwrap();
        let was_held = machine.is_held();
        machine.left -= 1;
        all.stepped(slot, was_held, deadline, ended.iter().copied());
    }

    #[test]
    fn acquisitions_of_one_name_share_a_machine_until_it_is_over() {
        let mut all = Registry::<Toy>::new(at(0));
        let (slot, first) = all.begin(7);
        let (same, second) = all.begin(7);
        assert_eq!((slot, all.slot_of_key(&7), all.slot_of(first)), (same, Some(slot), Ok(slot)));
        assert_ne!(first, second);
        step(&mut all, slot, Some(at(5)), &[first]);
        assert_eq!(
            (all.held(), all.slot_of(first), all.next_deadline()),
            (1, Err(Misuse::Stale(first)), Some((at(5), slot)))
        );
        step(&mut all, slot, Some(at(6)), &[second]);
        assert_eq!((all.held(), all.slot_of_key(&7), all.next_deadline(), all.iter().count()), (0, None, None, 0));
        // The slots are used again, the ids never.
        let (again, third) = all.begin(8);
        assert_eq!(again, slot);
        assert!(third != first && third != second);
    }

    #[test]
    fn m1_time_never_runs_backwards() {
        let mut all = Registry::<Toy>::new(at(10));
        all.advance(at(5));
        assert_eq!(all.now(), at(10));
        all.advance(at(11));
        assert_eq!(all.now(), at(11));
    }

    #[test]
    fn m7_only_what_is_due_is_served() {
        let mut all = Registry::<Toy>::new(at(0));
        let slots: Vec<u32> = (0..3).map(|key| all.begin(key).0).collect();
        for (slot, deadline) in slots.iter().zip([Some(at(30)), None, Some(Instant::MAX)]) {
            step(&mut all, *slot, deadline, &[]);
        }
        all.advance(at(29));
        assert_eq!(all.due(), None);
        all.advance(at(30));
        assert_eq!(all.due(), Some(slots[0]));
        step(&mut all, slots[0], None, &[]);
        all.served(slots[0]);
        assert_eq!((all.due(), all.next_deadline()), (None, None), "the last instant is never");
    }

    #[test]
    fn a_client_takes_no_more_than_its_limit_and_nothing_once_it_stops() {
        let mut all = Registry::<Toy>::new(at(0));
        assert_eq!(all.admit(1), Ok(()));
        let (slot, _) = all.begin(1);
        assert_eq!(all.admit(1), Err(Misuse::TooMany { limit: 1 }));
        let ms = Duration::from_millis;
        assert_eq!(
            [all.begin_shutdown(ms(50)), all.begin_shutdown(ms(90)), all.begin_shutdown(ms(20))],
            [true, false, false]
        );
        assert_eq!((all.admit(9), all.stop_at()), (Err(Misuse::ShuttingDown), Some(at(20))));
        assert!(!all.is_drained(Machine::is_over));
        step(&mut all, slot, None, &[]);
        assert!(all.is_drained(Machine::is_held));
        all.stop();
        assert_eq!((all.is_stopped(), all.stop_at(), all.clear().len()), (true, None, 1));
    }
}
