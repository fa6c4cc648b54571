//! The end of all faults and of all applications.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::super::check::{Rule, Stage};
use super::super::record::HistoryRecord;
use super::super::trace::ProcessState;
use super::World;
use super::elections::Observed;
use super::process::Input;
use super::store::{Planned, SimServers};
use lock_proto::LockId;
use lock_proto::{Acquire, DEFAULT_TTL, Machine as _};

/// How long an application holds a lock while the world winds down.
const FINAL_HOLD: Duration = Duration::from_millis(10);
/// Observers that read less often than this must learn of every change by an event.
// S8
pub(super) const LONGEST_RECHECK: Duration = Duration::from_secs(30);
/// Longer than any pause before a connection or a stream is opened again.
const RECONNECT: Duration = Duration::from_secs(2);
/// How often each lock is handed over after the faults, from one client to another.
const HAND_OVERS: usize = 4;
/// More than enough for a hand-over.
const HANDED_OVER: Duration = Duration::from_secs(60);

impl<S: SimServers> World<S> {
    /// Ends every fault: partitions heal, paused processes resume, dead servers restart with their
    /// data, nothing is refused, and latencies are back to their initial values. Dead clients stay
    /// dead.
    pub fn calm(&mut self) {
        self.note("calm");
        self.recorder.calm(self.now);
        self.network.reset_latencies();
        self.repair_handshakes();
        self.repair_source();
        S::calm(self);
        for client in 0..self.clients.len() {
            if self.clients[client].state == ProcessState::Paused {
                self.resume_client(client);
            }
        }
    }

    /// Releases all held and lost locks, and claims and releases later grants at once.
    pub(super) fn wind_locks_down(&mut self) {
        for client in 0..self.clients.len() {
            for record in self.clients[client].records.values_mut() {
                let habits = &mut record.habits;
                (habits.claim, habits.hold) =
                    (Some(Duration::ZERO), Some(habits.hold.map_or(FINAL_HOLD, |hold| hold.min(FINAL_HOLD))));
            }
            for (lock, stage) in self.checker.live(client).collect::<Vec<(LockId, Stage)>>() {
                match stage {
                    Stage::Waiting | Stage::Releasing | Stage::Over => continue,
                    Stage::Offered if self.is_running(client) => self.claim(client, lock),
                    Stage::Offered | Stage::Held | Stage::Lost => {}
                }
                self.plan(self.now + FINAL_HOLD, client, Input::Release(lock));
            }
        }
    }

    /// Checks that clients answer what their applications have asked: queries for a leader,
    /// extensions and proclaims. Call this after the faults, before the holders release.
    pub(super) fn check_answers(&mut self, within: Duration) {
        self.require_none(within, |w| Box::new(w.unanswered()));
    }

    /// Reports what is still found after this time.
    pub(super) fn require_none(
        &mut self,
        within: Duration,
        found: impl Fn(&Self) -> Box<dyn Iterator<Item = String> + '_>,
    ) {
        if !self.run_until(within, |w| found(w).next().is_none()) {
            for text in found(self).collect::<Vec<_>>() {
                self.report(Rule::Liveness, text);
            }
        }
    }

    fn unanswered(&self) -> impl Iterator<Item = String> {
        let alive = self.alive().into_iter().filter(|client| !self.checker.is_stopping(*client));
        alive.flat_map(|client| {
            let process = &self.clients[client];
            let held = self.checker.live(client).filter(|(_, stage)| *stage == Stage::Held);
            let asked = held.filter_map(move |(lock, _)| {
                let record = process.records.get(&lock)?;
                let what = match (record.extends.len(), record.proclaims) {
                    (0, false) => return None,
                    (0, true) => "a proclaim",
                    _ => "an extension",
                };
                Some(format!("client {client} {lock} ({}) has no answer to {what}", record.escaped_name()))
            });
            let queries = process.queries.values().filter_map(Observed::unanswered).map(move |name| {
                format!("client {client} has no answer to a query for the leader of {}", name.escape_ascii())
            });
            asked.chain(queries)
        })
    }

    /// Winds down all applications: held, lost and later granted locks are released, and election
    /// queries are closed.
    pub fn wind_down(&mut self) {
        self.wind_locks_down();
        self.close_queries();
    }

    /// Requires again what held until the first fault, while two clients hand every lock over. Each
    /// lock is then held for `kept`, longer than any TTL. Begins once `is_free` returns true and no
    /// request is in flight. Does nothing if prompt grants were never required.
    // S8, S9
    pub(super) fn hand_over_again(&mut self, kept: Duration, is_free: impl Fn(&Self) -> bool) {
        if !self.expects_prompt() {
            return;
        }
        self.run_for(RECONNECT);
        self.run_until(kept, |w| w.network.is_quiet() && is_free(w));
        self.expect_again();
        let alive = self.alive();
        let wait = self.longest_trip() * 8 + FINAL_HOLD;
        for want in self.contended_locks() {
            for (turn, client) in alive.iter().take(2).copied().cycle().take(HAND_OVERS + 1).enumerate() {
                let lock = self.acquire_for(client, want.clone(), if turn < HAND_OVERS { wait } else { kept });
                let done = |w: &Self| w.is_held(client, lock) || w.is_over(client, lock);
                if !self.run_until(HANDED_OVER, done) {
                    return self.report(Rule::Liveness, format!("not handed over: {}", self.unfinished()));
                }
            }
        }
        if !self.run_until(kept + HANDED_OVER, Self::is_idle) {
            self.report(Rule::Liveness, format!("not released: {}", self.unfinished()));
        }
    }

    /// Returns the clients that can acquire locks.
    pub(super) fn alive(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|client| self.is_running(*client) && self.stopped(*client).is_none()).collect()
    }

    /// Returns requests for the locks that were requested more than once.
    pub(super) fn contended_locks(&self) -> Vec<Acquire> {
        let mut wanted: BTreeMap<&[u8], (u32, Duration)> = BTreeMap::new();
        for process in &self.clients {
            for record in process.records.values() {
                let (count, ttl) = wanted.entry(&record.wanted_name).or_insert((0, Duration::MAX));
                (*count, *ttl) = (*count + 1, (*ttl).min(record.wanted_ttl));
            }
        }
        let contended = wanted.into_iter().filter(|(_, (count, _))| *count > 1).map(|(name, (_, ttl))| {
            let want = Acquire::new(name);
            if ttl == DEFAULT_TTL { want } else { want.ttl(ttl) }
        });
        contended.collect()
    }

    /// Returns whether every acquisition has ended and every shutdown is complete.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        (0..self.clients.len())
            .all(|client| self.checker.live(client).next().is_none() && !self.checker.is_stopping(client))
    }

    /// Lists the acquisitions that have not ended.
    pub(super) fn unfinished(&self) -> String {
        let live = (0..self.clients.len()).flat_map(|client| {
            self.checker.live(client).map(move |(lock, stage)| {
                let name = self.clients[client].records.get(&lock).map(HistoryRecord::escaped_name).unwrap_or_default();
                format!("client {client} {lock} ({name}) is {stage:?}")
            })
        });
        live.collect::<Vec<_>>().join(", ")
    }

    /// Shuts down all clients that live, and checks that they leave nothing behind.
    pub(super) fn shut_clients_down(&mut self, within: Duration) {
        let alive = self.alive();
        for client in &alive {
            self.shutdown(*client, within);
        }
        self.run_until(within, |w| alive.iter().all(|client| w.stopped(*client).is_some()));
        for client in alive {
            match self.stopped(client) {
                Some(0) => {}
                Some(left) => self.report(Rule::Leftover, format!("client {client} leaves {left} behind")),
                None => self.report(Rule::Liveness, format!("client {client} does not stop")),
            }
        }
    }

    /// Returns whether the world is idle: no timer runs and nothing is in flight. Passwords may still
    /// expire.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.network.is_quiet()
            && self.agenda.iter().all(|planned| matches!(planned, Planned::Retire(_)))
            && self.clients.iter().all(|process| process.deadline().is_none())
            && S::next_due(self).is_none()
    }

    /// Describes what the clients wait for, by their clocks.
    pub(super) fn timers(&self) -> String {
        let waits = self.clients.iter().enumerate().filter_map(|(client, process)| {
            let (at, why) = process.machine.next_deadline_reason()?;
            let at = Duration::from_nanos(at.as_nanos()).as_secs_f64();
            Some(format!("client {client} has {why} at {at:.3}s"))
        });
        let waits: Vec<String> = waits.collect();
        if waits.is_empty() { "no client has a timer".into() } else { waits.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use crate::world::store::SimServers;
    use crate::world::{Builder, World};
    use crate::{etcd, zookeeper};
    use lock_proto::Acquire;

    fn stay_busy<S: SimServers>(builder: Builder<S>) {
        const BUSY: Duration = Duration::from_millis(50);
        let mut w = builder.service(BUSY).build();
        w.calm();
        let began = w.now();
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(Duration::from_secs(20), "held", |w: &World<S>| w.is_held(0, lock));
        assert!(w.now().since(began) > BUSY);
    }

    #[test]
    fn servers_take_as_long_for_a_command_after_the_faults() {
        // S2
        stay_busy(crate::World::redis(1));
        stay_busy(etcd::World::cluster(1));
        stay_busy(zookeeper::World::zookeeper(1));
    }
}
