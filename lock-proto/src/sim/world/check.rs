//! The checkers that are always on.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::process::{Record, Stage};
use crate::id::LockId;
use crate::redis::{Event, Fence};
use crate::time::Instant;

/// Somebody who believes to hold a lock, until the end of the validity it was told, in true time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    client: usize,
    lock: LockId,
    until: Instant,
}

/// Value and expiry.
type Content = (Vec<u8>, Option<u64>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checker {
    holds: BTreeMap<Vec<u8>, Vec<Hold>>,
    fences: BTreeMap<Vec<u8>, Fence>,
    /// Each lock's key on each node, as last seen.
    keys: BTreeMap<(usize, Vec<u8>), Content>,
    overlaps: u64,
    grants: u64,
}

impl Checker {
    /// How often a lock was granted.
    pub(super) const fn grants(&self) -> u64 {
        self.grants
    }

    /// Two believed to hold the same lock this often.
    pub(super) const fn overlaps(&self) -> u64 {
        self.overlaps
    }

    /// A grant, or more time for one. `until` is the end of validity in true time.
    pub(super) fn holds(
        &mut self,
        now: Instant,
        key: &[u8],
        client: usize,
        lock: LockId,
        until: Instant,
    ) -> Result<(), String> {
        let holds = self.holds.entry(key.to_vec()).or_default();
        holds.retain(|hold| hold.until > now && (hold.client, hold.lock) != (client, lock));
        let other = holds.first().cloned();
        if until > now {
            holds.push(Hold { client, lock, until });
        }
        match other {
            Some(other) if until > now => {
                self.overlaps += 1;
                Err(format!(
                    "two holders of {}: client {} {} until {} and client {client} {lock} until {until}",
                    key.escape_ascii(),
                    other.client,
                    other.lock,
                    other.until,
                ))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// More time for a hold, which must not have ended.
    pub(super) fn renewed(&self, now: Instant, key: &[u8], client: usize, lock: LockId) -> Result<(), String> {
        let holds = self.holds.get(key).map(Vec::as_slice).unwrap_or_default();
        match holds.iter().find(|hold| (hold.client, hold.lock) == (client, lock)) {
            Some(hold) if hold.until > now => Ok(()),
            Some(_) | None => Err(format!("client {client} {lock} was renewed though it was over")),
        }
    }

    /// It holds no longer: it was told so, gave it back, or died.
    pub(super) fn ends(&mut self, key: &[u8], client: usize, lock: LockId) {
        if let Some(holds) = self.holds.get_mut(key) {
            holds.retain(|hold| (hold.client, hold.lock) != (client, lock));
        }
    }

    /// The process is no more, and with it every hold.
    pub(super) fn dies(&mut self, client: usize) {
        for holds in self.holds.values_mut() {
            holds.retain(|hold| hold.client != client);
        }
    }

    /// A hold of a running process whose validity is over must have been told so.
    pub(super) fn overdue(&self, now: Instant, client: usize) -> Result<(), String> {
        for (key, holds) in &self.holds {
            if let Some(hold) = holds.iter().find(|hold| hold.client == client && hold.until <= now) {
                let (name, lock, until) = (key.escape_ascii(), hold.lock, hold.until);
                return Err(format!(
                    "client {client} {lock} ({name}) was valid until {until} and was not told of its end"
                ));
            }
        }
        Ok(())
    }

    /// Fencing tokens of a lock grow from grant to grant.
    pub(super) fn granted(&mut self, key: &[u8], fence: Option<Fence>) -> Result<(), String> {
        self.grants += 1;
        let Some(fence) = fence else { return Ok(()) };
        match self.fences.insert(key.to_vec(), fence) {
            Some(last) if last >= fence => {
                Err(format!("the fence of {} went from {last} to {fence}", key.escape_ascii()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Nothing that a client sends shortens the life of a key that keeps its value.
    pub(super) fn key(&mut self, node: usize, key: &[u8], now: Option<(&[u8], Option<u64>)>) -> Result<(), String> {
        let place = (node, key.to_vec());
        let Some((value, expires)) = now else {
            self.keys.remove(&place);
            return Ok(());
        };
        let before = self.keys.insert(place, (value.to_vec(), expires));
        match before {
            Some((old, Some(at))) if old == value && expires.is_some_and(|new| new < at) => {
                Err(format!("the life of {} on node {node} was shortened", key.escape_ascii()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The key was written by the test itself.
    pub(super) fn forget_keys(&mut self, node: usize) {
        self.keys.retain(|(other, _), _| *other != node);
    }
}

/// Whether `event` may come now, and where it leads.
pub(super) fn next_stage(record: &Record, event: &Event) -> Result<Stage, String> {
    use Stage::{Abandoned, Ended, Held, Lost, Offered, Releasing, Waiting};
    let stage = record.stage;
    match (event, stage) {
        (Event::Blocked(_), Waiting) => Ok(Waiting),
        (Event::Granted(_), Waiting) => Ok(Offered),
        (Event::Withdrawn, Offered) | (Event::Failed(_), Waiting) | (Event::Released(_), Releasing) => Ok(Ended),
        (Event::Renewed { .. } | Event::ExtendFailed(_) | Event::AtRisk { .. }, Offered | Held) => Ok(stage),
        (Event::Lost(_), Offered | Held) => Ok(Lost),
        // It was over already when it was given back, and that is said first.
        (Event::Lost(_), Releasing) if !record.events.iter().any(|event| matches!(event, Event::Lost(_))) => {
            Ok(Releasing)
        }
        (
            Event::Blocked(_)
            | Event::Granted(_)
            | Event::Withdrawn
            | Event::Failed(_)
            | Event::Renewed { .. }
            | Event::ExtendFailed(_)
            | Event::AtRisk { .. }
            | Event::Lost(_)
            | Event::Released(_)
            | Event::Proclaimed { .. }
            | Event::ProclaimFailed(_),
            Waiting | Offered | Held | Lost | Releasing | Abandoned | Ended,
        ) => Err(format!("{event:?} came at the stage {stage:?}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use crate::redis::{Loss, Release};

    const A: LockId = LockId { slot: 0, generation: 0 };
    const B: LockId = LockId { slot: 1, generation: 0 };

    const fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn two_valid_holders_are_found_and_two_in_turn_are_not() {
        let mut checker = Checker::default();
        checker.holds(at(0), b"a", 0, A, at(100)).unwrap();
        checker.holds(at(50), b"b", 1, B, at(100)).unwrap();
        checker.holds(at(100), b"a", 1, B, at(200)).unwrap();
        assert_eq!(checker.overlaps(), 0);
        let found = checker.holds(at(199), b"a", 0, A, at(300)).unwrap_err();
        assert!(found.starts_with("two holders of a: client 1"), "{found}");
        assert_eq!(checker.overlaps(), 1);
    }

    #[test]
    fn more_time_for_a_hold_that_has_ended_is_found_too() {
        let mut checker = Checker::default();
        checker.holds(at(0), b"a", 0, A, at(100)).unwrap();
        checker.holds(at(120), b"a", 1, B, at(200)).unwrap();
        assert!(checker.holds(at(130), b"a", 0, A, at(230)).is_err());
    }

    #[test]
    fn what_is_over_cannot_be_renewed() {
        let mut checker = Checker::default();
        assert!(checker.renewed(at(0), b"a", 0, A).is_err());
        checker.holds(at(0), b"a", 0, A, at(100)).unwrap();
        checker.renewed(at(99), b"a", 0, A).unwrap();
        assert!(checker.renewed(at(100), b"a", 0, A).is_err());
    }

    #[test]
    fn a_hold_that_was_given_back_counts_no_more() {
        let mut checker = Checker::default();
        checker.holds(at(0), b"a", 0, A, at(100)).unwrap();
        checker.ends(b"a", 0, A);
        checker.holds(at(10), b"a", 1, B, at(100)).unwrap();
        checker.dies(1);
        checker.holds(at(20), b"a", 0, A, at(100)).unwrap();
    }

    #[test]
    fn an_end_that_nobody_told_is_found() {
        let mut checker = Checker::default();
        checker.holds(at(0), b"a", 0, A, at(100)).unwrap();
        checker.overdue(at(99), 0).unwrap();
        checker.overdue(at(100), 1).unwrap();
        assert!(checker.overdue(at(100), 0).is_err());
    }

    #[test]
    fn fences_must_grow() {
        let mut checker = Checker::default();
        checker.granted(b"a", Some(Fence(5))).unwrap();
        checker.granted(b"b", Some(Fence(2))).unwrap();
        checker.granted(b"a", None).unwrap();
        checker.granted(b"a", Some(Fence(6))).unwrap();
        assert!(checker.granted(b"a", Some(Fence(6))).is_err());
    }

    #[test]
    fn a_shortened_life_is_found() {
        let mut checker = Checker::default();
        checker.key(0, b"a", Some((b"x", Some(100)))).unwrap();
        checker.key(0, b"a", Some((b"x", Some(150)))).unwrap();
        checker.key(1, b"a", Some((b"x", Some(120)))).unwrap();
        checker.key(0, b"a", Some((b"y", Some(120)))).unwrap();
        checker.key(0, b"a", None).unwrap();
        checker.key(0, b"a", Some((b"y", Some(110)))).unwrap();
        assert!(checker.key(0, b"a", Some((b"y", Some(109)))).is_err());
    }

    #[test]
    fn what_may_follow_what() {
        let stage = |stage, event: &Event| next_stage(&Record { stage, ..Record::new(Vec::new(), true) }, event);
        let (lost, released) = (Event::Lost(Loss::Gone), Event::Released(Release::Released));
        assert_eq!(stage(Stage::Held, &lost), Ok(Stage::Lost));
        assert_eq!(stage(Stage::Releasing, &released), Ok(Stage::Ended));
        for (bad, event) in [
            (Stage::Waiting, &lost),
            (Stage::Lost, &lost),
            (Stage::Abandoned, &released),
            (Stage::Ended, &released),
            (Stage::Held, &Event::Withdrawn),
            (Stage::Lost, &Event::Renewed { valid_until: Instant::ZERO }),
        ] {
            assert!(stage(bad, event).is_err(), "{event:?} at {bad:?}");
        }
    }
}
