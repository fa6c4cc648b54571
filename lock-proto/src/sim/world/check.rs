//! What the checkers have found, and the log.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::super::check::{Rule, Violation};
use super::super::trace::{Lane, Point, Trace, What};
use super::World;
use super::store::Servers;
use crate::id::LockId;

/// More violations of one rule than these are not kept. Those of the others are: a promise may be
/// broken after one that was none.
const MAX_VIOLATIONS: usize = 100;

/// How far a clock is set, for the record.
pub(super) fn signed(by: Duration) -> i64 {
    i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)
}

/// How promptness is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompt {
    trips: u32,
    slack: Duration,
    most: Duration,
}

/// Checks and log.
impl<S: Servers> World<S> {
    /// From now on violations are collected, not the end of the run: for scenarios that break the
    /// bounds.
    pub const fn expect_violation(&mut self) {
        self.expect_violation = true;
    }

    /// Until something goes wrong, a lock that is free is granted to somebody who waits for it
    /// within so many round trips, and `slack` on top. The round trip is the slowest of this world,
    /// with the time that servers take. Once that is longer than `most`, servers count as too slow
    /// for any promise.
    pub fn expect_prompt(&mut self, trips: u32, slack: Duration, most: Duration) {
        self.prompt = Prompt { trips, slack, most };
        self.checker.expect_prompt(Duration::ZERO);
        self.judge_prompt();
    }

    /// Until work is lost with its connection or its server, no client does any twice, and none
    /// gives up what is being answered.
    pub const fn expect_once(&mut self) {
        self.checker.expect_once();
    }

    /// What the checkers have found.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How often somebody was granted a lock, or more time for it, while another believed to hold
    /// it.
    #[must_use]
    pub const fn overlaps(&self) -> u64 {
        self.checker.overlaps()
    }

    /// Something that the one who drives the world has found.
    pub fn report(&mut self, rule: Rule, text: String) {
        self.checker.report(self.now, rule, text);
        self.check();
    }

    /// Whether a machine broke its contract, so that nothing happens any more.
    #[must_use]
    pub const fn is_halted(&self) -> bool {
        self.halted
    }

    /// Adds a line to the log.
    pub fn note(&mut self, what: &str) {
        self.journal.write(self.now, format_args!("-- {what}"));
        self.word(None, || what.into());
    }

    /// The log so far, as far as it is kept. The same seed and the same calls give the same bytes.
    #[must_use]
    pub fn log(&self) -> String {
        self.journal.text()
    }

    /// The end of the log, as far as it is kept.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.journal.tail(lines)
    }

    /// A digest of every line of the log, and their number.
    #[must_use]
    pub const fn log_digest(&self) -> (u64, u64) {
        self.journal.digest()
    }

    /// A digest of what the clients sent and what their applications were told, which does not
    /// depend on names.
    #[must_use]
    pub const fn fingerprint(&self) -> u64 {
        self.journal.facts.get()
    }

    /// The record of the run so far, if it was asked for by
    /// [`Builder::traced`](super::Builder::traced). It ends here.
    pub fn take_trace(&mut self) -> Trace {
        self.recorder.finish(self.now)
    }

    // ---- inside ----

    fn judge_prompt(&mut self) {
        let Prompt { trips, slack, most } = self.prompt;
        let trip = self.network.round_trip() + self.slowest;
        if trip > most {
            self.checker.troubled();
        } else if self.checker.is_prompt() {
            self.checker.expect_prompt(trip * trips + slack);
        }
    }

    /// A command has waited so long for its server.
    pub(super) fn served(&mut self, after: Duration) {
        if after > self.slowest {
            self.slowest = after;
            self.judge_prompt();
        }
    }

    /// Something goes wrong: from now on answers may take long, and what was asked for may have to
    /// be asked for again.
    pub(super) fn troubled(&mut self) {
        self.checker.troubled();
        self.checker.repeats();
    }

    /// Takes in what the checkers have found.
    pub(super) fn check(&mut self) {
        while let Some(found) = self.checker.poll_violation() {
            self.journal.write(self.now, format_args!("VIOLATION {found}"));
            self.recorder.note(self.now, || What::Violation(found.clone()));
            if !self.expect_violation {
                self.fail(&format!("{found}"));
            }
            if self.violations.iter().filter(|known| known.rule == found.rule).count() < MAX_VIOLATIONS {
                self.violations.push(found);
            }
        }
    }

    /// A machine does what it must never do: no sense in going on.
    pub(super) fn halt(&mut self, text: String) {
        self.halted = true;
        self.report(Rule::Contract, text);
    }

    #[track_caller]
    pub(super) fn fail(&self, what: &str) -> ! {
        panic!("{what}\n  seed {}, at {}; the end of the log:\n{}", self.seed, self.now, self.journal.tail(80));
    }

    /// Puts into the record how far an acquisition is.
    pub(super) fn point(&mut self, client: usize, lock: LockId, point: impl FnOnce() -> Point) {
        let Some(record) = self.clients[client].records.get(&lock) else { return };
        self.recorder.note(self.now, || What::Lock { client, lock, name: record.shown(), point: point() });
    }

    /// Puts a word about somebody, or about no one in particular, into the record.
    pub(super) fn word(&mut self, lane: Option<Lane>, text: impl FnOnce() -> String) {
        self.recorder.note(self.now, || What::Note { lane, text: text() });
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_VIOLATIONS;
    use crate::sim::world::{World, store::Servers};
    use crate::sim::{Rule, etcd};

    fn check<S: Servers>(mut w: World<S>) {
        w.expect_violation();
        for _ in 0..2 * MAX_VIOLATIONS {
            w.report(Rule::MutualExclusion, "again".into());
        }
        w.report(Rule::Contract, "once".into());
        assert_eq!(w.violations().len(), MAX_VIOLATIONS + 1);
        assert_eq!(w.violations().last().map(|found| found.rule), Some(Rule::Contract));
    }

    #[test]
    fn a_rule_that_is_broken_without_end_hides_no_other() {
        check(crate::sim::World::redis(1).build());
        check(etcd::World::cluster(1).build());
    }
}
