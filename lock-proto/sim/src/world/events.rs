//! Delivery and checks of the events of a machine.

use alloc::format;
use core::time::Duration;

use super::super::check::Rule;
use super::super::record::{HistoryRecord, end_of_validity};
use super::super::trace::{Lane, Point};
use super::World;
use super::process::Input;
use super::store::SimServers;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::{Event, LockClient as _, Loss, Release};

/// Servers count in ms.
const ROUNDING: Duration = Duration::from_millis(1);

impl<S: SimServers> World<S> {
    pub(super) fn deliver_event(&mut self, client: usize, lock: LockId, event: Event) {
        self.journal.write(self.now, format_args!("c{client} {lock} {event:?}"));
        self.journal.fingerprint.event(self.now, client, lock, &event);
        let until = self.valid_until(client, &event);
        if matches!(event, Event::Granted(_)) {
            self.count_hand_over(client, lock);
        }
        let order = S::order(self, client, lock, &event);
        self.checker.notified(self.now, client, lock, &event, until, order);
        self.check_extend(client, lock, &event);
        self.check_kept(client, lock, &event);
        self.check_gone(client, lock, &event);
        self.check_servers(client, lock, &event, until);
        self.record_event(client, lock, &event, until);
        self.check();
        let Some(record) = self.clients[client].records.get_mut(&lock) else { return };
        record.proclaims &= !matches!(event, Event::Proclaimed { .. } | Event::ProclaimFailed(_));
        record.events.push(event.clone());
        record.times.push(self.now);
        if let Event::Granted(grant) = &event {
            record.grant = Some(*grant);
            let habits = record.habits;
            if let Some(hold) = habits.hold {
                self.plan(self.now + habits.claim.unwrap_or_default() + hold, client, Input::Release(lock));
            }
            match habits.claim {
                Some(Duration::ZERO) => self.take(client, lock),
                Some(after) => self.plan(self.now + after, client, Input::Claim(lock)),
                None => {}
            }
        }
        S::after_event(self, client, lock, &event);
    }

    /// Checks that a key is gone when its loss or release says so.
    fn check_gone(&mut self, client: usize, lock: LockId, event: &Event) {
        let ended = matches!(event, Event::Lost(Loss::Gone));
        let released = matches!(event, Event::Released(Release::Released | Release::Expired));
        // A released lock may have been handed over within the client.
        let is_gone = ended || (released && !self.has_rival(client, lock));
        if is_gone && S::is_stored(self, client, lock, event) {
            let text = format!("client {client} {lock} reports that its key is gone, and it exists: {event:?}");
            self.checker.report(self.now, Rule::TrueLoss, text);
        }
    }

    /// Checks what a holder is told against what the servers know.
    // S3
    pub(super) fn check_servers(&mut self, client: usize, lock: LockId, event: &Event, until: Option<Instant>) {
        if S::EXCUSED.contains(&Rule::Validity) {
            return;
        }
        if let Event::Granted(grant) = event
            && let Err(text) = S::check_minted(self, client, lock, grant)
        {
            self.checker.report(self.now, Rule::FenceMinted, format!("client {client} {lock} {text}"));
        }
        let Some(until) = until else { return };
        let Some(kept) = S::kept_until(self, client, lock, event) else { return };
        if until > self.now && until > kept + ROUNDING {
            let name = self.clients[client].records.get(&lock).map(HistoryRecord::escaped_name).unwrap_or_default();
            let but = if kept == Instant::ZERO { "do not keep it".into() } else { format!("keep it until {kept}") };
            let text = format!("client {client} {lock} believes to hold {name} until {until}, but the servers {but}");
            self.checker.report(self.now, Rule::Validity, text);
        }
    }

    /// Returns whether the client has another live acquisition of the lock.
    fn has_rival(&self, client: usize, lock: LockId) -> bool {
        let records = &self.clients[client].records;
        let name = |lock: &LockId| records.get(lock).map(|record| &record.name);
        self.checker.live(client).any(|(other, _)| other != lock && name(&other) == name(&lock))
    }

    fn check_kept(&mut self, client: usize, lock: LockId, event: &Event) {
        let renewed = |record: &HistoryRecord| record.renewed;
        if let Event::Lost(why) = event
            && self.clients[client].records.get(&lock).is_some_and(renewed)
        {
            self.checker.lost(self.now, client, lock, *why);
        }
    }

    pub(super) fn has_stopped(&mut self, client: usize, unreleased: u32) {
        self.journal.write(self.now, format_args!("c{client} stopped, {unreleased} {}", S::LEFT));
        self.journal.fingerprint.stopped(self.now, client, unreleased);
        self.clients[client].stopped = Some(unreleased);
        self.annotate(Some(Lane::Client(client)), || "has stopped".into());
        self.checker.stopped(self.now, client);
        // Other locks need not be tidy, so their clients do not count what is left.
        if unreleased == 0
            && !S::EXCUSED.contains(&Rule::Ghost)
            && let Some(left) = S::left_of(self, client)
        {
            let text = format!("client {client} stopped and left nothing, by its own account, but {left} is there");
            self.checker.report(self.now, Rule::Leftover, text);
        }
        self.check();
    }

    /// Counts a hand-over from another client by its cause.
    fn count_hand_over(&mut self, client: usize, lock: LockId) {
        let process = &mut self.clients[client];
        let Some(record) = process.records.get(&lock) else { return };
        let cause = process.reasons.granted(&S::lock(&record.name));
        if self.checker.is_prompt() && self.checker.is_hand_over(client, lock) {
            self.handovers.add(cause);
        }
    }

    fn valid_until(&self, client: usize, event: &Event) -> Option<Instant> {
        end_of_validity(event).map(|until| self.clients[client].when(until))
    }

    /// Checks an extend reply: its request must have been sent after the application's call.
    fn check_extend(&mut self, client: usize, lock: LockId, event: &Event) {
        if !matches!(event, Event::Extended | Event::ExtendFailed(_)) {
            return;
        }
        let until = self.clients[client].machine.valid_until(lock);
        let Some(record) = self.clients[client].records.get_mut(&lock) else { return };
        let Some(least) = record.extends.pop_front().filter(|_| *event == Event::Extended) else { return };
        if until.is_some_and(|until| until < least) {
            let text = format!("client {client} {lock} was extended by a request sent before the call");
            self.checker.report(self.now, Rule::Notified, text);
        }
    }

    /// Records the state of an acquisition after an event. `until` is the true end of validity.
    fn record_event(&mut self, client: usize, lock: LockId, event: &Event, until: Option<Instant>) {
        let valid_until = until.unwrap_or(self.now);
        match event {
            Event::Granted(grant) => {
                let fence = grant.fence.map(|fence| fence.get());
                self.point(client, lock, || Point::Granted { fence, valid_until });
            }
            Event::Renewed { .. } => self.point(client, lock, || Point::Renewed { valid_until }),
            Event::Lost(why) => self.point(client, lock, || Point::Lost(format!("{why}"))),
            Event::Withdrawn => self.point(client, lock, || Point::Ended("withdrawn".into())),
            Event::Failed(failure) => self.point(client, lock, || Point::Ended(format!("{failure}"))),
            Event::Released(release) => self.point(client, lock, || Point::Ended(format!("{release:?}"))),
            Event::Proclaimed { .. } => self.annotate(Some(Lane::Client(client)), || "has proclaimed".into()),
            Event::ProclaimFailed(why) => {
                self.annotate(Some(Lane::Client(client)), || format!("has not proclaimed: {why:?}"));
            }
            Event::Blocked(_) | Event::Extended | Event::ExtendFailed(_) | Event::AtRisk { .. } => {}
        }
    }
}
