//! Simulated servers, clients and network in virtual time.
//!
//! [`World`] holds the parts that every store shares: clients, network, checkers and log. The
//! servers are a value inside it: [`RedisServers`], [`EtcdServers`], [`Zookeeper`] or [`Registers`].
#![allow(private_bounds, private_interfaces, reason = "the stores are those of this crate")]

mod builder;
mod bytes;
mod calm;
mod check;
mod credentials;
mod elections;
pub(super) mod etcd;
mod events;
mod faults;
mod handover;
mod handshake;
mod process;
mod queries;
pub(super) mod redis;
pub(super) mod register;
mod run;
pub(super) mod store;
pub(super) mod zookeeper;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::agenda::Agenda;
use super::check::{Checker, Rule, Stage, Violation};
use super::journal::Journal;
use super::network::Network;
use super::record::{HistoryRecord, RecordHabits};
use super::rng::Rng;
use super::trace::{Lane, Point, Recorder};
use check::Expected;
use credentials::Logins;
use handover::CallCause;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::Misuse;
use lock_proto::{Acquire, LockClient as _, Wait};
use process::{Process, ProcessHost};
use store::{Planned, ServerKind, SimServers};

pub use builder::Builder;
pub use credentials::{Provider, Source};
pub use etcd::EtcdServers;
pub use handover::Handovers;
pub use handshake::Handshake;
pub use redis::RedisServers;
pub use register::Registers;
pub use store::SimStore;
pub use zookeeper::Zookeeper;

/// When clients close idle connections, unless set otherwise. Short, so that it happens, and a world
/// comes to rest.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Servers, clients and the network between them, in virtual time and driven by one seed.
///
/// Clients and servers are identified by index. Time jumps from one event or deadline to the next.
///
/// Checkers are always on (see [`Rule`]). A name never has two valid holders in true
/// time. Fencing tokens increase. Every acquisition gets a legal sequence of events with exactly
/// one end. Losses are reported in time. Each store adds its own checks. A violation panics with
/// the seed and the end of the log, unless [`expect_violation`](Self::expect_violation) was called.
///
/// The worlds of the stores are [`sim::World`](super::World),
/// [`sim::etcd::World`](super::etcd::World), [`sim::zookeeper::World`](super::zookeeper::World) and
/// [`sim::register::World`](super::register::World).
///
/// # Panics
///
/// Methods panic with the end of the log on an unknown client or server; verbs also on [`Misuse`].
#[derive(Clone, Debug)]
pub struct World<S: ServerKind> {
    seed: u64,
    now: Instant,
    rng: Rng,
    network: Network<S::Packet>,
    hosts: Vec<ProcessHost<S::Packet>>,
    /// By client and server.
    handshakes: BTreeMap<(usize, usize), Handshake>,
    clients: Vec<Process<S>>,
    checker: Checker,
    journal: Journal,
    auto_claim: bool,
    expect_violation: bool,
    violations: Vec<Violation>,
    recorder: Recorder,
    agenda: Agenda<Planned<S>>,
    /// Steps since time last advanced.
    steps_at_instant: u32,
    steps: u64,
    /// Set when a machine broke its contract. Nothing happens after that.
    halted: bool,
    /// Service time of a server for one command.
    service: Duration,
    /// Longest time from the arrival of a command to its completion.
    slowest: Duration,
    expected: Expected,
    /// Deliver data of closed connections to the machines.
    stale: bool,
    cause: CallCause,
    handovers: Handovers,
    logins: Logins,
    store: S,
}

impl<S: SimServers> World<S> {
    /// Client `client` requests a lock.
    pub fn acquire(&mut self, client: usize, want: Acquire) -> LockId {
        self.start(client, &want, "acquire", None, |machine, now| machine.acquire(now, &want))
    }

    /// Like [`acquire`](Self::acquire), but releases the lock `hold` after the grant, held or lost.
    pub fn acquire_for(&mut self, client: usize, want: Acquire, hold: Duration) -> LockId {
        self.start(client, &want, "acquire", Some(hold), |machine, now| machine.acquire(now, &want))
    }

    /// Requests a lock for client `client`; the client may refuse.
    ///
    /// `claim`: claim the lock this long after it is offered. `hold`: release it this long after
    /// the claim, or after the grant if there is none. `write_every`: interval of writes to the protected resource while the lock is held.
    ///
    /// # Errors
    ///
    /// Returns the error of the client.
    pub fn try_acquire(
        &mut self,
        client: usize,
        want: &Acquire,
        claim: Option<Duration>,
        hold: Option<Duration>,
        write_every: Option<Duration>,
    ) -> Result<LockId, Misuse> {
        let habits = RecordHabits { claim, hold, write_every };
        self.try_start(client, want, "acquire", habits, |machine, now| machine.acquire(now, want))
    }

    fn start(
        &mut self,
        client: usize,
        want: &Acquire,
        verb: &str,
        hold: Option<Duration>,
        request: impl FnOnce(&mut S::Client, Instant) -> Result<LockId, Misuse>,
    ) -> LockId {
        let habits = RecordHabits { claim: self.claims(hold), hold, write_every: None };
        match self.try_start(client, want, verb, habits, request) {
            Ok(lock) => lock,
            Err(misuse) => self.fail(&format!("client {client} cannot {verb} {}: {misuse}", want.name.escape_ascii())),
        }
    }

    fn try_start(
        &mut self,
        client: usize,
        want: &Acquire,
        verb: &str,
        habits: RecordHabits,
        request: impl FnOnce(&mut S::Client, Instant) -> Result<LockId, Misuse>,
    ) -> Result<LockId, Misuse> {
        let name = self.full_name(client, &want.name);
        let lock = self.verb(client, request)?;
        self.journal.write(self.now, format_args!("c{client} {lock} {verb} {}", name.escape_ascii()));
        // A wait of zero means one attempt, which takes until the reply.
        let wait_ends = match want.wait {
            Wait::For(time) if !time.is_zero() => Some(self.after(client, time)),
            Wait::For(_) | Wait::Try | Wait::Forever => None,
        };
        self.checker.requested(self.now, client, lock, &name, wait_ends);
        self.store.requested(&name);
        self.clients[client].records.insert(lock, HistoryRecord::new(self.now, name, want, habits));
        self.point(client, lock, || Point::Requested);
        self.check();
        self.pump_client(client);
        Ok(lock)
    }

    /// Returns when the application of a test claims.
    fn claims(&self, hold: Option<Duration>) -> Option<Duration> {
        (self.auto_claim || hold.is_some()).then_some(Duration::ZERO)
    }

    /// The application claims an offer after a while. By then its validity may be over.
    fn claim_late(&mut self, client: usize, lock: LockId) {
        let process = &self.clients[client];
        let told = process.records.get(&lock).and_then(HistoryRecord::valid_until);
        let over = told.is_none_or(|until| until <= process.local(self.now));
        let due = self.is_client_due(client);
        self.journal.write(self.now, format_args!("c{client} {lock} claim"));
        match self.verb(client, |machine, now| machine.claim(now, lock)) {
            Ok(()) if over => self.checker.report(
                self.now,
                Rule::Validity,
                format!("client {client} {lock} could claim an offer whose validity was over"),
            ),
            Ok(()) => {
                self.checker.claimed(client, lock);
                self.point(client, lock, || Point::Claimed);
            }
            // It is about to be withdrawn.
            Err(_) if over || due => {}
            Err(misuse) => self.halt(format!("client {client} {lock}: {misuse}")),
        }
    }

    /// Claims an offered lock. Needed only if [`auto_claim`](Self::auto_claim) is off.
    pub fn claim(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} claim"));
        self.take(client, lock);
        self.pump_client(client);
    }

    fn take(&mut self, client: usize, lock: LockId) {
        self.must(client, lock, |machine, now| machine.claim(now, lock));
        self.checker.claimed(client, lock);
        self.point(client, lock, || Point::Claimed);
    }

    /// Releases a lock.
    pub fn release(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} release"));
        let answer_by = self.after(client, self.clients[client].machine.info().release_within);
        self.check_overdue(client);
        self.checker.release_requested(client, lock, Some(answer_by));
        self.point(client, lock, || Point::Released);
        self.must(client, lock, |machine, now| machine.release(now, lock));
        self.pump_client(client);
    }

    /// Drops an acquisition or a guard, as by a cancelled wait. It gets no further events.
    pub fn abandon(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} abandon"));
        if self.stage(client, lock).is_some_and(|stage| stage != Stage::Over) {
            self.point(client, lock, || Point::Released);
        }
        self.check_overdue(client);
        self.checker.abandoned(client, lock);
        self.call_machine(client, |machine, now| machine.abandon(now, lock));
    }

    /// The application writes to the protected resource. The write may be late, as when the process
    /// is paused after it has checked that it holds the lock.
    ///
    /// The resource rejects fencing tokens that are too small. On etcd, the write is a transaction
    /// that compares the holder's key
    /// ([`Client::owner_guard`](lock_proto::etcd::Client::owner_guard)), and the lock must be held.
    pub fn write(&mut self, client: usize, lock: LockId) {
        S::write(self, client, lock);
    }

    /// Requests an extension of the TTL.
    pub fn extend(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} extend"));
        self.must(client, lock, |machine, now| machine.extend(now, lock));
        let process = &mut self.clients[client];
        let (local, drift) = (process.local(self.now), process.machine.info().drift);
        if let Some(record) = process.records.get_mut(&lock) {
            let ttl = S::granted(record.ttl, record.grant.as_ref(), &process.own);
            let slack = ttl / drift.divisor + drift.margin;
            record.extends.push_back(local + ttl.saturating_sub(slack));
        }
        self.pump_client(client);
    }

    /// Shuts the client down. Its applications release their locks within `within`.
    pub fn shutdown(&mut self, client: usize, within: Duration) {
        self.journal.write(self.now, format_args!("c{client} shutdown"));
        self.note_fault();
        self.annotate(Some(Lane::Client(client)), || "is shut down".into());
        let stop_by = self.after(client, within);
        self.check_overdue(client);
        self.checker.shut_down(client, stop_by);
        // Lost holds are left to their guards.
        // H6
        let held: Vec<LockId> =
            self.checker.live(client).filter(|(_, stage)| *stage == Stage::Held).map(|(id, _)| id).collect();
        for lock in held {
            self.point(client, lock, || Point::Released);
            self.checker.release_requested(client, lock, Some(stop_by));
        }
        self.call_machine(client, |machine, now| machine.shutdown(now, within));
    }

    /// Calls any verb on a client's machine at the client's local time and carries out its outputs.
    ///
    /// # Errors
    ///
    /// Returns the error of the verb.
    pub fn try_verb<T>(
        &mut self,
        client: usize,
        verb: impl FnOnce(&mut S::Client, Instant) -> Result<T, Misuse>,
    ) -> Result<T, Misuse> {
        let done = self.verb(client, verb);
        self.pump_client(client);
        done
    }

    /// Sets whether locks are claimed as soon as they are offered. Default: yes.
    pub const fn auto_claim(&mut self, on: bool) {
        self.auto_claim = on;
    }

    fn full_name(&self, client: usize, name: &[u8]) -> Arc<[u8]> {
        S::key(&self.clients[client].machine, name).into()
    }

    /// Returns the true time at which the client's clock will have advanced by `by`.
    fn after(&self, client: usize, by: Duration) -> Instant {
        let process = &self.clients[client];
        process.when(process.local(self.now) + by)
    }

    fn verb<T>(
        &mut self,
        client: usize,
        verb: impl FnOnce(&mut S::Client, Instant) -> Result<T, Misuse>,
    ) -> Result<T, Misuse> {
        self.steps += 1;
        self.cause = CallCause::Application;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        verb(&mut process.machine, local)
    }

    fn must(&mut self, client: usize, lock: LockId, verb: impl FnOnce(&mut S::Client, Instant) -> Result<(), Misuse>) {
        if let Err(misuse) = self.verb(client, verb) {
            self.halt(format!("client {client} {lock}: {misuse}"));
        }
    }

    fn call_machine(&mut self, client: usize, verb: impl FnOnce(&mut S::Client, Instant)) {
        let _ = self.try_verb(client, |machine, now| {
            verb(machine, now);
            Ok(())
        });
    }
}
