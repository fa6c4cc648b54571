//! Cleanup on one node: the compensating delete of retired tokens.
//!
//! An abandoned attempt may have written its token, or may still do so: a stopped server later
//! executes what a closed connection has sent. The delete is repeated until a request newer than
//! all attempts it covers confirms it. After `Unknown`, the node is checked once more a TTL later.
// A4

use alloc::vec::Vec;
use core::time::Duration;

use super::calls::Takes;
use super::context::NodeSet;
use crate::id::NodeId;
use crate::jitter::doubled;
use crate::lock::{Cause, ErrorClass};
use crate::redis::request::Reply;
use crate::redis::token::Retired;
use crate::redis::validity::Ttl;
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Delete {
    pub(crate) emitted: Instant,
    /// Highest number that it may delete.
    pub(super) covers: u64,
    /// All covered attempts had been answered when it was emitted.
    settled: bool,
    /// It includes the keys that wake a waiter.
    pub(crate) announce: bool,
    /// More cleanup was scheduled since it was sent.
    again: bool,
}

impl Delete {
    /// Returns false for the number of a later attempt or hold.
    pub(super) const fn may_remove(&self, number: u64) -> bool {
        number <= self.covers
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum CleanupStep {
    #[default]
    Clear,
    Sent(Delete),
    /// Confirmed, but with attempts in flight. Repeated after the last of them.
    Settling {
        covers: u64,
    },
    /// To be repeated after an error of the server.
    Retry {
        at: Instant,
    },
    /// To be repeated after a reconnect.
    Stalled,
    /// Confirmed, with a final check to come.
    Check {
        at: Instant,
    },
}

/// The delete that is pending on one node, next to the attempts in flight there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cleanup {
    /// Longest TTL of the attempts that ended `Unknown`; zero if none did.
    unknown_ttl: Duration,
    /// When to check the node once more after `Unknown`. Later uses of the name do not cancel it.
    recheck: Option<Instant>,
    /// Highest granted number to delete; 0 for none. Only a delete that covers it decides about it.
    present: u64,
    /// Number that the delete will most likely find.
    number: u64,
    announce: bool,
    /// The node has confirmed a token whose delete is not confirmed yet. If false, a delete that
    /// fails with its connection is not repeated.
    confirmed: bool,
    retries: u8,
    step: CleanupStep,
}

#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    Now,
    No,
}

impl Cleanup {
    /// Returns true if nothing is pending. Only attempts in flight may still write a token.
    pub(crate) fn is_clear(&self) -> bool {
        self.step == CleanupStep::Clear && self.unknown_ttl.is_zero() && self.recheck.is_none() && !self.has_granted()
    }

    /// Returns true if the node has a token of this client, or may yet get one by an attempt that was
    /// answered.
    pub(crate) fn may_have_landed(&self) -> bool {
        !self.unknown_ttl.is_zero() || self.recheck.is_some() || self.has_granted()
    }

    pub(crate) const fn announces(&self) -> bool {
        self.announce
    }

    /// Returns the number that a delete will most likely find, and others to look for.
    ///
    /// If the node was clear there are no others: all other attempts were answered, and what
    /// they left was deleted and checked for. If the delete fails, it is repeated with all retired
    /// numbers.
    // A2, A4, U1
    pub(super) fn numbers_to_delete(&self, takes: Takes<'_>, retired: Retired) -> (u64, Option<Retired>) {
        if self.number > 0 && self.is_clear() && takes.are_settled(retired.last) {
            (self.number, None)
        } else {
            // Do not look for a live or lost number.
            (if retired.contains(self.number) { self.number } else { 0 }, Some(retired))
        }
    }

    /// Returns the number that a delete will most likely find, unless its attempt is in flight.
    pub(super) fn answered_number(&self, takes: Takes<'_>) -> Option<u64> {
        Some(self.number).filter(|number| !takes.contains(*number))
    }

    /// Records that the token with this number was granted and has to be deleted.
    pub(crate) fn granted(&mut self, number: u64) {
        self.confirmed = true;
        self.present = self.present.max(number);
    }

    pub(crate) const fn has_granted(&self) -> bool {
        self.present > 0
    }

    /// Records that an attempt with this TTL ended `Unknown`, so that its token may still appear.
    pub(crate) fn ended_unknown(&mut self, ttl: Ttl) {
        self.unknown_ttl = self.unknown_ttl.max(ttl.duration());
    }

    /// Handles the reply to an attempt whose number is retired.
    pub(super) fn late_reply(&mut self, takes: Takes<'_>, number: u64, reply: &Reply) -> Send {
        let granted = matches!(reply, Reply::Granted { .. });
        if granted {
            self.granted(number);
        }
        // If the delete in flight does not find the token, it is repeated.
        let covered = granted && matches!(self.step, CleanupStep::Sent(delete) if number <= delete.covers);
        if (granted && !covered) || matches!(reply, Reply::Unknown(_)) {
            return self.schedule(takes, 0, false);
        }
        if self.step == CleanupStep::Stalled {
            self.repeat(takes.are_settled(number), CleanupStep::Stalled);
        }
        let settles = !granted && matches!(self.step, CleanupStep::Settling { covers } if takes.are_settled(covers));
        if settles { Send::Now } else { Send::No }
    }

    /// Schedules a delete, because the retired token with this number may be on the node. While its
    /// attempt is in flight, nothing has confirmed the token: replies come in order, so no later
    /// request was answered either. The attempt's reply will decide.
    pub(super) fn schedule(&mut self, takes: Takes<'_>, number: u64, announce: bool) -> Send {
        self.confirmed |= !takes.contains(number);
        self.schedule_unconfirmed(number, announce)
    }

    /// Schedules a delete on a node without a token, to wake a waiter.
    // A7
    pub(crate) fn schedule_announcement(&mut self, number: u64) -> Send {
        self.schedule_unconfirmed(number, true)
    }

    fn schedule_unconfirmed(&mut self, number: u64, announce: bool) -> Send {
        self.number = if self.is_clear() { number } else { self.number.max(number) };
        self.announce |= announce;
        self.retries = 0;
        let CleanupStep::Sent(delete) = &mut self.step else { return Send::Now };
        delete.again = true;
        Send::No
    }

    pub(super) fn delete_sent(&mut self, takes: Takes<'_>, emitted: Instant, covers: u64, announce: bool) {
        let settled = takes.are_settled(covers);
        self.step = CleanupStep::Sent(Delete { emitted, covers, settled, announce, again: false });
    }

    /// Returns the delete in flight.
    pub(crate) const fn deleting(&self) -> Option<Delete> {
        if let CleanupStep::Sent(delete) = self.step { Some(delete) } else { None }
    }

    /// Returns true if a delete that wakes a waiter is in flight.
    pub(crate) const fn is_announcing(&self) -> bool {
        matches!(self.step, CleanupStep::Sent(delete) if delete.announce)
    }

    pub(super) fn answered(&mut self, takes: Takes<'_>, now: Instant, delete: Delete, reply: &Reply) -> Send {
        match reply {
            Reply::Deleted { .. } | Reply::Absent | Reply::Taken => {
                let deleted = matches!(reply, Reply::Deleted { .. });
                let found = self.has_granted() && self.present <= delete.covers;
                if found {
                    self.present = 0;
                }
                if delete.again || (found && !delete.settled && !deleted) {
                    return Send::Now;
                }
                self.retries = 0;
                self.confirmed = false;
                if !takes.are_settled(delete.covers) {
                    self.step = CleanupStep::Settling { covers: delete.covers };
                    return Send::No;
                }
                if !self.unknown_ttl.is_zero() {
                    self.recheck = self.recheck.max(Some(now + self.unknown_ttl));
                    self.unknown_ttl = Duration::ZERO;
                } else if self.recheck.is_some_and(|at| at <= delete.emitted) {
                    self.recheck = None;
                }
                // Later deletes would wake the client's own waiter if they announced, too.
                self.announce = false;
                self.step = self.recheck.map_or(CleanupStep::Clear, |at| CleanupStep::Check { at });
            }
            Reply::NotSent(_) | Reply::Unknown(Cause::Fault(_)) => {
                self.repeat(takes.are_settled(delete.covers), CleanupStep::Stalled);
            }
            // The wake-up keys may be forbidden or elsewhere in a cluster. Delete without them.
            Reply::Rejected(error) if error.class == ErrorClass::Refused && delete.announce => return Send::Now,
            Reply::Rejected(error) | Reply::Unknown(Cause::Server(error)) => {
                self.retries = self.retries.saturating_add(1);
                if error.class == ErrorClass::Refused && takes.are_settled(delete.covers) {
                    // A retry would be refused as well. A token that is left expires by its TTL.
                    *self = Self::default();
                } else {
                    let pause = doubled(Duration::from_millis(20), self.retries.into(), Duration::from_secs(2));
                    self.step = CleanupStep::Retry { at: now + pause };
                }
            }
            // Not a reply to a delete; retry later to be safe.
            Reply::Granted { .. } | Reply::Busy { .. } | Reply::Extended | Reply::Announced => {
                self.step = CleanupStep::Retry { at: now + Duration::from_secs(1) };
            }
        }
        Send::No
    }

    /// Repeats the delete, starting with this step, if there is something to delete: otherwise each
    /// name would be kept for as long as the node is down. `settled`: all attempts that it covers
    /// were answered.
    fn repeat(&mut self, settled: bool, step: CleanupStep) {
        if self.confirmed || self.may_have_landed() || !settled {
            self.step = step;
        } else {
            *self = Self::default();
        }
    }

    /// Another server has executed the delete. It is repeated on the next connection, or at
    /// `until`, when that server counts as the node's own.
    // Q6
    pub(super) fn led_elsewhere(&mut self, takes: Takes<'_>, delete: Delete, until: Instant) -> Send {
        self.repeat(takes.are_settled(delete.covers), CleanupStep::Retry { at: until });
        Send::No
    }

    pub(crate) fn node_up(&self) -> Send {
        if matches!(self.step, CleanupStep::Stalled | CleanupStep::Retry { .. }) { Send::Now } else { Send::No }
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match self.step {
            CleanupStep::Retry { at } | CleanupStep::Check { at } => Some(at),
            CleanupStep::Clear | CleanupStep::Sent(_) | CleanupStep::Settling { .. } | CleanupStep::Stalled => None,
        }
    }

    pub(crate) const fn is_stalled(&self) -> bool {
        matches!(self.step, CleanupStep::Stalled)
    }

    /// Returns true if only the final check remains, which nothing has to wait for.
    pub(crate) const fn is_only_a_check(&self) -> bool {
        matches!(self.step, CleanupStep::Check { .. })
    }
}

/// The cleanups of all nodes. Clear ones are not stored, so that an idle hold takes no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cleanups(Vec<(NodeId, Cleanup)>);

impl Cleanups {
    pub(crate) fn get(&self, node: NodeId) -> Option<&Cleanup> {
        self.0.iter().find(|(at, _)| *at == node).map(|(_, cleanup)| cleanup)
    }

    /// Returns the cleanup of `node`, creating a clear one if necessary.
    pub(crate) fn of(&mut self, node: NodeId) -> &mut Cleanup {
        let place = self.0.iter().position(|(at, _)| *at == node).unwrap_or_else(|| {
            if self.0.is_empty() {
                // More than one is rare.
                self.0 = Vec::with_capacity(1);
            }
            self.0.push((node, Cleanup::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cleanup> {
        self.0.iter().map(|(_, cleanup)| cleanup)
    }

    /// Returns the nodes to which a delete is due.
    pub(crate) fn due(&self, now: Instant) -> NodeSet {
        self.nodes(|cleanup| cleanup.deadline().is_some_and(|at| at <= now))
    }

    pub(crate) fn deleting(&self) -> NodeSet {
        self.nodes(|cleanup| cleanup.deleting().is_some())
    }

    fn nodes(&self, which: impl Fn(&Cleanup) -> bool) -> NodeSet {
        let mut nodes = NodeSet::default();
        for (node, cleanup) in &self.0 {
            if which(cleanup) {
                nodes.insert(*node);
            }
        }
        nodes
    }

    pub(crate) fn tidy(&mut self) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|(_, cleanup)| !cleanup.is_clear());
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, cleanup)| cleanup.is_clear())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::calls::RedisCalls;
    use super::*;
    use crate::fault::Fault;
    use crate::lock::{Expiry, Renew, ServerError};
    use crate::redis::Config;

    const BUSY: Reply = Reply::Busy { expires: Expiry::Never };
    const DELETED: Reply = Reply::Deleted { number: 5, awaited: false };

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_secs(1), Renew::Auto, &Config::new([])).unwrap()
    }

    /// The cleanup of a node, and the attempts in flight there.
    struct On {
        cleanup: Cleanup,
        calls: RedisCalls,
    }

    impl On {
        fn new(takes: &[u64]) -> Self {
            Self { cleanup: Cleanup::default(), calls: RedisCalls::with_takes(takes, ttl()) }
        }

        /// With these attempts in flight, and a delete of all numbers up to 5.
        fn deleting(takes: &[u64]) -> Self {
            let mut on = Self::new(takes);
            assert_eq!(on.schedule(5, true), Send::Now);
            on.delete_sent(0, 5, false);
            on
        }

        fn schedule(&mut self, number: u64, announce: bool) -> Send {
            self.cleanup.schedule(self.calls.takes(NodeId::new(0)), number, announce)
        }

        fn delete_sent(&mut self, at: u64, covers: u64, announce: bool) {
            self.cleanup.delete_sent(self.calls.takes(NodeId::new(0)), ms(at), covers, announce);
        }

        fn answered(&mut self, now: u64, reply: &Reply) -> Send {
            let delete = self.cleanup.deleting().unwrap();
            self.cleanup.answered(self.calls.takes(NodeId::new(0)), ms(now), delete, reply)
        }

        fn late_reply(&mut self, number: u64, reply: &Reply) -> Send {
            self.calls.settle(number).unwrap();
            if matches!(reply, Reply::Unknown(_)) {
                self.cleanup.ended_unknown(ttl());
            }
            self.cleanup.late_reply(self.calls.takes(NodeId::new(0)), number, reply)
        }

        fn is_clear(&self) -> bool {
            self.cleanup.is_clear() && self.calls.takes(NodeId::new(0)).is_empty()
        }

        fn numbers_to_delete(&self, retired: Retired) -> (u64, Option<Retired>) {
            self.cleanup.numbers_to_delete(self.calls.takes(NodeId::new(0)), retired)
        }
    }

    impl core::ops::Deref for On {
        type Target = Cleanup;

        fn deref(&self) -> &Cleanup {
            &self.cleanup
        }
    }

    fn rejected(class: ErrorClass) -> Reply {
        Reply::Rejected(ServerError { class, text: "no".into() })
    }

    #[test]
    fn delete_is_repeated_after_last_attempt_it_covers() {
        // A4
        let mut cleanup = On::deleting(&[4, 5, 6]);
        assert_eq!(cleanup.answered(10, &DELETED), Send::No);
        assert_eq!(cleanup.late_reply(4, &BUSY), Send::No);
        // Attempt 6 is live and not waited for.
        assert_eq!(cleanup.late_reply(5, &BUSY), Send::Now);
    }

    #[test]
    fn late_grant_is_deleted_at_once() {
        // A4
        let mut cleanup = On::deleting(&[5]);
        assert_eq!(cleanup.answered(10, &Reply::Absent), Send::No);
        assert_eq!(cleanup.late_reply(5, &Reply::Granted { fence: None }), Send::Now);
        // A delete in flight is repeated only if it did not find the token.
        for (found, then) in [(DELETED, Send::No), (Reply::Absent, Send::Now), (Reply::Taken, Send::Now)] {
            let mut cleanup = On::deleting(&[5]);
            assert_eq!(cleanup.late_reply(5, &Reply::Granted { fence: None }), Send::No);
            assert!(cleanup.has_granted() && cleanup.may_have_landed());
            assert_eq!(cleanup.answered(10, &found), then, "{found:?}");
            assert!(!cleanup.has_granted());
        }
    }

    /// A delete in flight did not find the token, and its repetition fails.
    #[test]
    fn failed_delete_of_late_grant_is_repeated() {
        // A4
        let failed = Reply::NotSent(Cause::Fault(Fault::Closed));
        let mut cleanup = On::deleting(&[5]);
        assert_eq!(cleanup.late_reply(5, &Reply::Granted { fence: None }), Send::No);
        assert_eq!(cleanup.answered(10, &Reply::Absent), Send::Now);
        cleanup.delete_sent(10, 5, false);
        assert_eq!(cleanup.answered(20, &failed), Send::No);
        assert_eq!((cleanup.is_clear(), cleanup.node_up()), (false, Send::Now));
        // The grant arrives after the failure.
        let mut cleanup = On::deleting(&[5]);
        assert_eq!(cleanup.answered(10, &failed), Send::No);
        assert_eq!(cleanup.late_reply(5, &Reply::Granted { fence: None }), Send::Now);
        cleanup.delete_sent(10, 5, false);
        assert_eq!(cleanup.answered(20, &failed), Send::No);
        assert_eq!((cleanup.is_clear(), cleanup.node_up()), (false, Send::Now));
    }

    /// The delete in flight covers older numbers than the one just granted.
    #[test]
    fn delete_reply_does_not_resolve_newer_grant() {
        // A4
        let mut cleanup = On::deleting(&[]);
        cleanup.cleanup.granted(6);
        assert_eq!(cleanup.answered(10, &Reply::Taken), Send::No);
        assert!(cleanup.has_granted() && cleanup.may_have_landed() && !cleanup.is_clear());
        // The next delete removes a retired token.
        let mut cleanup = On::deleting(&[6]);
        assert_eq!(cleanup.late_reply(6, &Reply::Granted { fence: None }), Send::No);
        assert_eq!(cleanup.answered(10, &DELETED), Send::Now);
        cleanup.delete_sent(10, 6, false);
        assert_eq!(cleanup.answered(20, &DELETED), Send::No);
        assert!(cleanup.is_clear());
    }

    #[test]
    fn unknown_attempt_is_checked_again_one_ttl_later() {
        // A4
        let mut cleanup = On::deleting(&[5]);
        assert_eq!(cleanup.late_reply(5, &Reply::Unknown(Cause::Fault(Fault::Closed))), Send::No);
        // Cleanup scheduled meanwhile needs a newer delete.
        assert_eq!(cleanup.answered(10, &DELETED), Send::Now);
        cleanup.delete_sent(10, 5, false);
        assert_eq!(cleanup.answered(20, &Reply::Absent), Send::No);
        assert_eq!((cleanup.deadline(), cleanup.is_only_a_check(), cleanup.is_clear()), (Some(ms(1_020)), true, false));
        cleanup.delete_sent(1_020, 5, false);
        assert_eq!(cleanup.answered(1_030, &Reply::Absent), Send::No);
        assert!(cleanup.is_clear() && !cleanup.announces() && !cleanup.may_have_landed());
    }

    /// The name is taken and released within that TTL. The check is still made.
    /// While the check was pending, the delete of each lost attempt announced, too. On a quorum it
    /// woke the waiter that had made the attempt, which tried again at once. (Scenario
    /// `redis-late`, seed 1300166.)
    #[test]
    fn release_is_announced_once() {
        // A7
        let mut cleanup = On::deleting(&[5]);
        let _ = cleanup.late_reply(5, &Reply::Unknown(Fault::TimedOut.into()));
        assert!(cleanup.announces());
        let _ = cleanup.answered(10, &Reply::Absent);
        cleanup.delete_sent(10, 5, true);
        let _ = cleanup.answered(20, &Reply::Absent);
        assert!(cleanup.is_only_a_check());
        let _ = cleanup.schedule(6, false);
        assert!(!cleanup.announces());
    }

    #[test]
    fn pending_check_survives_reuse_of_name() {
        // A4
        let mut cleanup = On::new(&[]);
        cleanup.cleanup.ended_unknown(ttl());
        for (emitted, confirmed) in [(0, 10), (200, 210), (1_009, 1_020)] {
            assert_eq!(cleanup.schedule(5, true), Send::Now);
            cleanup.delete_sent(emitted, 5, false);
            assert_eq!(cleanup.answered(confirmed, &DELETED), Send::No);
            assert_eq!((cleanup.deadline(), cleanup.is_clear()), (Some(ms(1_010)), false), "{emitted}");
            // Until the check, deletes look for all retired numbers.
            let retired = Retired::all_to(5);
            assert_eq!(cleanup.numbers_to_delete(retired), (5, Some(retired)));
        }
        // A later attempt that ends `Unknown` is checked a TTL after the next delete.
        cleanup.cleanup.ended_unknown(ttl());
        assert_eq!(cleanup.schedule(6, true), Send::Now);
        cleanup.delete_sent(1_030, 6, false);
        assert_eq!(cleanup.answered(1_040, &DELETED), Send::No);
        assert_eq!(cleanup.deadline(), Some(ms(2_040)));
        // A delete sent when the check is due replaces it.
        assert_eq!(cleanup.schedule(6, true), Send::Now);
        cleanup.delete_sent(2_040, 6, false);
        assert_eq!(cleanup.answered(2_050, &Reply::Absent), Send::No);
        assert!(cleanup.is_clear() && !cleanup.announces());
    }

    /// Without a likely number, the delete looks for all retired ones.
    #[test]
    fn delete_names_likely_number_or_all_retired_numbers() {
        // A4
        let retired = Retired { upto: 2, after: 3, last: 4 };
        let numbers_to_delete = |number| {
            let on = On { cleanup: Cleanup { number, ..Cleanup::default() }, ..On::new(&[]) };
            on.numbers_to_delete(retired)
        };
        assert_eq!([0, 2].map(numbers_to_delete), [(0, Some(retired)), (2, None)]);
    }

    #[test]
    fn transiently_rejected_delete_is_retried_with_backoff() {
        // A4
        let mut cleanup = On::deleting(&[]);
        for (at, pause) in [(10, 40), (100, 80), (200, 160)] {
            assert_eq!(cleanup.answered(at, &rejected(ErrorClass::Transient)), Send::No);
            assert_eq!((cleanup.deadline(), cleanup.is_stalled()), (Some(ms(at + pause)), false));
            assert_eq!(cleanup.node_up(), Send::Now);
            cleanup.delete_sent(at + pause, 5, false);
            assert_eq!(cleanup.node_up(), Send::No);
        }
        // After a connection loss, the delete waits for the reconnect.
        assert_eq!(cleanup.answered(500, &Reply::NotSent(Cause::Fault(Fault::Closed))), Send::No);
        assert_eq!((cleanup.deadline(), cleanup.is_stalled(), cleanup.node_up()), (None, true, Send::Now));
    }

    /// Regression: the token of a lost hold was forgotten if the next waiter's attempt was in
    /// flight when the guard was returned, and the connection failed.
    #[test]
    fn failed_delete_is_repeated_unless_the_attempt_itself_was_in_flight() {
        // A4, U1
        for (in_flight, stalled) in [(6, true), (5, false)] {
            let mut cleanup = On::deleting(&[in_flight]);
            let not_sent = Reply::NotSent(Cause::Fault(Fault::Closed));
            assert_eq!(cleanup.late_reply(in_flight, &not_sent), Send::No);
            assert_eq!(cleanup.answered(500, &not_sent), Send::No);
            assert_eq!((cleanup.is_stalled(), cleanup.is_clear()), (stalled, !stalled));
        }
    }

    #[test]
    fn refused_delete_is_dropped_unless_attempt_is_in_flight() {
        let mut cleanup = On::deleting(&[]);
        assert_eq!(cleanup.answered(10, &rejected(ErrorClass::Refused)), Send::No);
        assert!(cleanup.is_clear() && !cleanup.announces());
        let mut cleanup = On::deleting(&[5]);
        assert_eq!(cleanup.answered(10, &rejected(ErrorClass::Refused)), Send::No);
        assert_eq!((cleanup.is_clear(), cleanup.deadline()), (false, Some(ms(50))));
    }

    /// The announcement's keys are forbidden, but the lock's key may be allowed.
    #[test]
    fn refused_delete_with_announcement_is_repeated() {
        // U1
        let mut cleanup = On::new(&[]);
        assert_eq!(cleanup.schedule(5, true), Send::Now);
        cleanup.delete_sent(0, 5, true);
        assert_eq!(cleanup.answered(10, &rejected(ErrorClass::Transient)), Send::No);
        cleanup.delete_sent(50, 5, true);
        assert_eq!(cleanup.answered(60, &rejected(ErrorClass::Refused)), Send::Now);
        cleanup.delete_sent(60, 5, false);
        assert_eq!(cleanup.answered(70, &rejected(ErrorClass::Refused)), Send::No);
        assert!(cleanup.is_clear());
    }

    #[test]
    fn tidy_removes_clear_cleanups() {
        let mut cleanups = Cleanups::default();
        for node in [0, 1, 2] {
            let _ = cleanups.of(NodeId::new(node));
        }
        cleanups.of(NodeId::new(1)).granted(1);
        assert!(!cleanups.is_empty());
        cleanups.tidy();
        assert_eq!(
            (cleanups.iter().count(), cleanups.get(NodeId::new(1)).is_some_and(Cleanup::has_granted)),
            (1, true)
        );
        *cleanups.of(NodeId::new(1)) = Cleanup::default();
        assert!(cleanups.is_empty());
        cleanups.tidy();
        assert_eq!(cleanups.iter().count(), 0);
    }
}
