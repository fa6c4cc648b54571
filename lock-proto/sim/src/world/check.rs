//! Violations found by the checkers, and the log.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::super::check::{Rule, Violation};
use super::super::trace::{Lane, Point, Trace, TraceEvent};
use super::World;
use super::store::SimServers;
use lock_proto::LockId;

/// Maximum number of violations kept per rule. The limit is per rule, so that a harmless violation
/// cannot hide one of another rule.
const MAX_VIOLATIONS: usize = 100;

pub(super) fn signed(by: Duration) -> i64 {
    i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns whether a value contains this token, and not one that begins with it.
pub(super) fn contains(value: &[u8], token: &[u8]) -> bool {
    let ends = |at: usize| !value.get(at).is_some_and(u8::is_ascii_digit);
    value.windows(token.len()).enumerate().any(|(at, part)| part == token && ends(at + token.len()))
}

/// What is expected while nothing fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    prompt: Option<PromptCheck>,
    pub(super) once: bool,
    /// The longest round trip at which holds are kept.
    kept: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromptCheck {
    trips: u32,
    slack: Duration,
    most: Duration,
}

impl<S: SimServers> World<S> {
    /// Collects violations instead of panicking, for scenarios that exceed the bounds.
    pub const fn expect_violation(&mut self) {
        self.expect_violation = true;
    }

    /// Requires prompt grants until the first fault: a free lock must be granted to a waiter within
    /// `trips` round trips plus `slack`. The round trip is the slowest of this world and includes
    /// service time. If it exceeds `most`, nothing is required.
    pub fn expect_prompt(&mut self, trips: u32, slack: Duration, most: Duration) {
        self.expected.prompt = Some(PromptCheck { trips, slack, most });
        self.checker.expect_prompt(Duration::ZERO, Duration::ZERO);
        self.update_limits();
    }

    /// Requires, until work is lost with its connection or server, that no client repeats work or
    /// abandons a request that is being answered.
    pub const fn expect_once(&mut self) {
        self.expected.once = true;
        self.checker.expect_once();
    }

    /// Requires, until the first fault, that no hold is lost that its client renews. If the slowest
    /// round trip exceeds `most`, nothing is required. Passwords that change or expire are no fault
    /// as long as the source of credentials works.
    pub fn expect_kept(&mut self, most: Duration) {
        self.expected.kept = Some(most);
        self.checker.expect_kept();
        self.update_limits();
    }

    /// Returns the violations found so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Returns how often a lock was granted or extended while another client believed to hold it.
    #[must_use]
    pub const fn overlaps(&self) -> u64 {
        self.checker.overlaps()
    }

    /// Reports a violation found by the caller.
    pub fn report(&mut self, rule: Rule, text: String) {
        self.checker.report(self.now, rule, text);
        self.check();
    }

    /// Returns whether a machine broke its contract, which stops the world.
    #[must_use]
    pub const fn is_halted(&self) -> bool {
        self.halted
    }

    /// Adds a line to the log.
    pub fn note(&mut self, what: &str) {
        self.journal.write(self.now, format_args!("-- {what}"));
        self.annotate(None, || what.into());
    }

    /// Returns the part of the log that is kept. The same seed and calls give the same bytes.
    #[must_use]
    pub fn log(&self) -> String {
        self.journal.text()
    }

    /// Returns the last lines of the log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.journal.tail(lines)
    }

    /// Returns a digest of every line of the log, and the number of lines.
    #[must_use]
    pub const fn log_digest(&self) -> (u64, u64) {
        self.journal.digest()
    }

    /// Returns a digest of the clients' requests and events. It does not depend on names.
    #[must_use]
    pub const fn fingerprint(&self) -> u64 {
        self.journal.fingerprint.get()
    }

    /// Ends and returns the recording, if [`Builder::traced`](super::Builder::traced) enabled it.
    pub fn take_trace(&mut self) -> Trace {
        self.recorder.finish(self.now)
    }

    /// Requires no prompt grants any more, not even after the faults: one of them does not end.
    pub(crate) const fn forgo_prompt(&mut self) {
        self.expected.prompt = None;
        self.checker.waive_prompt();
    }

    pub(super) const fn expects_prompt(&self) -> bool {
        self.expected.prompt.is_some()
    }

    /// Requires again what was required until the first fault. The faults are over.
    pub(super) fn expect_again(&mut self) {
        self.slowest = self.service;
        let Expected { prompt, once, kept } = self.expected;
        if let Some(PromptCheck { trips, slack, most }) = prompt {
            self.expect_prompt(trips, slack, most);
        }
        if once {
            self.expect_once();
        }
        if let Some(most) = kept {
            self.expect_kept(most);
        }
    }

    pub(super) fn longest_trip(&self) -> Duration {
        self.network.round_trip() + self.slowest
    }

    fn update_limits(&mut self) {
        let trip = self.longest_trip();
        if self.expected.kept.is_some_and(|most| trip > most) {
            self.checker.waive_kept();
        }
        let Some(PromptCheck { trips, slack, most }) = self.expected.prompt else { return };
        if trip > most {
            self.checker.waive_prompt();
        } else if self.checker.is_prompt() {
            let each = if S::WAKES_ONE_A_TRIP { trip } else { Duration::ZERO };
            self.checker.expect_prompt(trip * trips + slack, each);
        }
    }

    pub(super) fn served(&mut self, after: Duration) {
        if after > self.slowest {
            self.slowest = after;
            self.update_limits();
        }
    }

    /// Notes a fault: from now on replies may be late and requests may be repeated.
    pub(super) fn note_fault(&mut self) {
        self.checker.waive_prompt();
        self.checker.waive_once();
        self.checker.waive_kept();
    }

    pub(super) fn check(&mut self) {
        while let Some(found) = self.checker.poll_violation() {
            self.journal.write(self.now, format_args!("VIOLATION {found}"));
            self.recorder.note(self.now, || TraceEvent::Violation(found.clone()));
            if !self.expect_violation && !S::EXCUSED.contains(&found.rule) {
                self.fail(&format!("{found}"));
            }
            if self.violations.iter().filter(|known| known.rule == found.rule).count() < MAX_VIOLATIONS {
                self.violations.push(found);
            }
        }
    }

    /// Stops the world after a machine broke its contract.
    pub(super) fn halt(&mut self, text: String) {
        self.halted = true;
        self.report(Rule::Contract, text);
    }

    #[track_caller]
    pub(super) fn fail(&self, what: &str) -> ! {
        panic!("{what}\n  seed {}, at {}; the end of the log:\n{}", self.seed, self.now, self.journal.tail(80));
    }

    pub(super) fn point(&mut self, client: usize, lock: LockId, point: impl FnOnce() -> Point) {
        let Some(record) = self.clients[client].records.get(&lock) else { return };
        self.recorder.note(self.now, || TraceEvent::Lock { client, lock, name: record.escaped_name(), point: point() });
    }

    pub(super) fn annotate(&mut self, lane: Option<Lane>, text: impl FnOnce() -> String) {
        self.recorder.note(self.now, || TraceEvent::Note { lane, text: text() });
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::time::Duration;

    use super::MAX_VIOLATIONS;
    use crate::check::Stage;
    use crate::world::{World, store::SimServers};
    use crate::{Rule, etcd, zookeeper};
    use lock_proto::{Acquire, Event, LockClient as _, Loss, Release, Renew};

    fn check<S: SimServers>(mut w: World<S>) {
        w.expect_violation();
        for _ in 0..2 * MAX_VIOLATIONS {
            w.report(Rule::MutualExclusion, "again".into());
        }
        w.report(Rule::Contract, "once".into());
        assert_eq!(w.violations().len(), MAX_VIOLATIONS + 1);
        assert_eq!(w.violations().last().map(|found| found.rule), Some(Rule::Contract));
    }

    #[test]
    fn repeated_violations_of_one_rule_hide_no_other() {
        check(crate::World::redis(1).build());
        check(etcd::World::cluster(1).build());
    }

    fn report_gone<S: SimServers>(mut w: World<S>, event: &Event) {
        w.expect_violation();
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(Duration::from_secs(5), "held", |w| w.is_held(0, lock));
        w.deliver_event(0, lock, event.clone());
        let found: Vec<_> = w.violations().iter().map(|found| found.rule).collect();
        assert!(found.contains(&Rule::TrueLoss), "{found:?}");
    }

    #[test]
    fn key_that_is_reported_gone_must_be_gone() {
        // S3, U1
        let gone = [Event::Lost(Loss::Gone), Event::Released(Release::Released), Event::Released(Release::Expired)];
        for event in &gone {
            report_gone(crate::World::redis(1).build(), event);
            report_gone(etcd::World::cluster(1).build(), event);
        }
        for event in &gone[1..] {
            report_gone(crate::World::redis(3).build(), event);
        }
        for event in &gone {
            report_gone(zookeeper::World::zookeeper(1).build(), event);
        }
    }

    /// The client deletes the key, or ends the session, of a hold that the application has yet to
    /// return. `shuts_down`: it is shut down at that moment.
    fn delete_lost<S: SimServers>(mut w: World<S>, shuts_down: bool) {
        w.expect_violation();
        let lock = w.acquire(0, Acquire::new("a").renew(Renew::AtMost(Duration::from_secs(1))));
        w.expect(Duration::from_secs(5), "lost", |w| w.stage(0, lock) == Some(Stage::Lost));
        assert!(w.violations().is_empty());
        let _ = w.try_verb(0, |machine, now| machine.release(now, lock));
        if shuts_down {
            w.shutdown(0, Duration::from_secs(5));
        }
        w.run_for(Duration::from_millis(100));
        let found: Vec<_> = w.violations().iter().map(|found| found.rule).collect();
        assert!(found.contains(&Rule::ShortenedKey), "{found:?}");
    }

    #[test]
    fn key_of_lost_hold_must_be_left_alone() {
        // S3, H6
        for shuts_down in [false, true] {
            delete_lost(crate::World::redis(1).build(), shuts_down);
            delete_lost(crate::World::redis(3).build(), shuts_down);
            delete_lost(etcd::World::cluster(1).build(), shuts_down);
            delete_lost(zookeeper::World::zookeeper(1).build(), shuts_down);
        }
    }
}
