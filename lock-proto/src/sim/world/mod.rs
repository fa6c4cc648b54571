//! A world of servers, clients and a network in virtual time.

mod builder;
mod calm;
mod faults;
mod label;
mod process;
mod pump;
mod server;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::check::{Checker, Permit, Rule, Stage, Violation};
use super::journal::Journal;
use super::network::Network;
use super::record::Record;
use super::redis::Node;
use super::rng::Rng;
use super::trace::{Lane, Point, Recorder, State, Trace, What};
use crate::error::Misuse;
use crate::id::LockId;
use crate::redis::{Acquire, Client, Event, Grant, Wait};
use crate::time::Instant;
use process::{Chore, Process};
use server::Server;

pub use builder::Builder;

/// Servers, clients and a network between them, in virtual time and from one seed.
///
/// Clients and nodes are named by their index. Time jumps from one event or deadline exactly to the next. Checkers are always
/// on: no two valid holders of a name in true time, fencing tokens that grow, every acquisition told a legal sequence of events with
/// one end, every end of validity told in time, and no key's life shortened by a client. What they find ends the run with the seed
/// and the end of the log, unless [`expect_violation`](Self::expect_violation) is called.
///
/// # Panics
///
/// Every method panics for a client or node that does not exist, and verbs for a [`Misuse`], with the log's end.
#[derive(Clone, Debug)]
pub struct World {
    seed: u64,
    now: Instant,
    rng: Rng,
    network: Network<Vec<u8>>,
    nodes: Vec<Server>,
    clients: Vec<Process>,
    checker: Checker,
    journal: Journal,
    auto_claim: bool,
    expect_violation: bool,
    violations: Vec<Violation>,
    recorder: Recorder,
    /// Every key that somebody wanted to lock.
    names: BTreeSet<Arc<[u8]>>,
    /// What will happen by itself.
    plans: BTreeMap<(Instant, u64), Planned>,
    plan_serial: u64,
    /// Steps since time last moved.
    spins: u32,
    /// How often a machine was called.
    steps: u64,
    /// A machine broke its contract: nothing happens any more.
    halted: bool,
}

/// What happens by itself when its time comes.
#[derive(Clone, Debug)]
enum Planned {
    /// An application does something.
    Chore(usize, Chore),
    /// A write reaches what a lock protects.
    Write(Arc<[u8]>, Permit, Option<super::trace::MessageId>),
}

/// More violations than these are not kept.
const MAX_VIOLATIONS: usize = 100;

impl World {
    /// A world with this many Redis nodes: one, or an odd number for a quorum.
    pub fn redis(nodes: usize) -> Builder {
        Builder::new(nodes)
    }

    // ---- what applications do ----

    /// Client `client` asks for a lock.
    pub fn acquire(&mut self, client: usize, want: Acquire) -> LockId {
        self.start(client, want, None)
    }

    /// The same, and gives it back `hold` after the grant, held or lost.
    pub fn acquire_for(&mut self, client: usize, want: Acquire, hold: Duration) -> LockId {
        self.start(client, want, Some(hold))
    }

    fn start(&mut self, client: usize, want: Acquire, hold: Option<Duration>) -> LockId {
        let claim = self.auto_claim || hold.is_some();
        match self.try_acquire(client, &want, claim, hold, None) {
            Ok(lock) => lock,
            Err(misuse) => self.fail(&format!("client {client} cannot acquire {}: {misuse}", want.name.escape_ascii())),
        }
    }

    /// Client `client` asks for a lock, which may be refused. `claim`: take it as soon as it is offered. `hold`: give it back so long after the
    /// grant. `write_every`: while it is held, write to what it protects this often (see [`write`](Self::write)).
    ///
    /// # Errors
    ///
    /// What the client answers.
    pub fn try_acquire(
        &mut self,
        client: usize,
        want: &Acquire,
        claim: bool,
        hold: Option<Duration>,
        write_every: Option<Duration>,
    ) -> Result<LockId, Misuse> {
        let name: Arc<[u8]> = [&self.clients[client].machine.config().prefix[..], &want.name[..]].concat().into();
        let local = self.clients[client].local(self.now);
        let lock = self.verb(client, |machine, now| machine.acquire(now, want))?;
        self.journal.write(self.now, format_args!("c{client} {lock} acquire {}", name.escape_ascii()));
        let wait_ends = match want.wait {
            Wait::For(time) if !time.is_zero() => Some(self.clients[client].when(local + time)),
            Wait::For(_) | Wait::Try | Wait::Forever => None,
        };
        self.checker.asked(self.now, client, lock, &name, wait_ends);
        if !self.names.contains(&name) {
            self.names.insert(name.clone());
        }
        let record = Record { write_every, ..Record::new(name, claim, hold) };
        self.clients[client].records.insert(lock, record);
        self.point(client, lock, || Point::Asked);
        self.check();
        self.pump_client(client);
        Ok(lock)
    }

    /// Takes an offered lock. Needed only if [`auto_claim`](Self::auto_claim) is off.
    pub fn claim(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} claim"));
        self.must(client, lock, |machine, now| machine.claim(now, lock));
        self.claimed(client, lock);
        self.pump_client(client);
    }

    /// Gives a lock back.
    pub fn release(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} release"));
        let process = &self.clients[client];
        // Its own time, on its own clock.
        let answer_by = process.when(process.local(self.now) + process.machine.config().release_within);
        self.checker.gives_back(client, lock, Some(answer_by));
        self.point(client, lock, || Point::GaveBack);
        self.must(client, lock, |machine, now| machine.release(now, lock));
        self.pump_client(client);
    }

    /// Drops an acquisition: a cancelled wait, or a guard that went out of scope. Nothing more is told of it.
    pub fn abandon(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} abandon"));
        if self.checker.stage(client, lock).is_some_and(|stage| stage != Stage::Over) {
            self.point(client, lock, || Point::GaveBack);
        }
        self.checker.abandoned(client, lock);
        let _ = self.verb(client, |machine, now| {
            machine.abandon(now, lock);
            Ok(())
        });
        self.pump_client(client);
    }

    /// Asks for more time.
    pub fn extend(&mut self, client: usize, lock: LockId) {
        self.journal.write(self.now, format_args!("c{client} {lock} extend"));
        self.must(client, lock, |machine, now| machine.extend(now, lock));
        self.pump_client(client);
    }

    /// The application looks whether it holds the lock, and if so writes a moment later to what it protects: the write may come late, as when the
    /// process is stopped in between. What takes the write looks at the fencing token, if there is one.
    pub fn write(&mut self, client: usize, lock: LockId) {
        self.tell_process(client, process::Fact::Chore(Chore::Look(lock, None)));
    }

    /// Shuts the client down, with this time to release what it holds. Its applications give back everything by that.
    pub fn shutdown(&mut self, client: usize, within: Duration) {
        self.journal.write(self.now, format_args!("c{client} shutdown"));
        self.recorder.note(self.now, || What::Note { lane: Some(Lane::Client(client)), text: "is shut down".into() });
        let process = &mut self.clients[client];
        let stop_by = process.when(process.local(self.now) + within);
        process.stop_by = Some(process.stop_by.map_or(stop_by, |earlier| earlier.min(stop_by)));
        let held: Vec<LockId> =
            self.checker.live(client).filter(|(_, stage)| stage.is_out()).map(|(id, _)| id).collect();
        for lock in held {
            self.point(client, lock, || Point::GaveBack);
            self.checker.gives_back(client, lock, Some(stop_by));
        }
        let _ = self.verb(client, |machine, now| {
            machine.shutdown(now, within);
            Ok(())
        });
        self.pump_client(client);
    }

    /// Any verb on the machine of a client, with the client's own time; what it asks for is carried out.
    ///
    /// # Errors
    ///
    /// What the verb answers.
    pub fn try_verb<T>(
        &mut self,
        client: usize,
        verb: impl FnOnce(&mut Client, Instant) -> Result<T, Misuse>,
    ) -> Result<T, Misuse> {
        let done = self.verb(client, verb);
        self.pump_client(client);
        done
    }

    /// Whether locks are claimed as soon as they are offered. Default: yes.
    pub const fn auto_claim(&mut self, on: bool) {
        self.auto_claim = on;
    }

    // ---- time ----

    /// True time since the start.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Lets `time` pass.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
    }

    /// Lets time pass until `condition` holds, at most this long; whether it did.
    pub fn run_until(&mut self, within: Duration, mut condition: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + within;
        loop {
            if condition(self) {
                return true;
            }
            if !self.step(end) {
                return condition(self);
            }
        }
    }

    /// Lets time pass until `condition` holds.
    ///
    /// # Panics
    ///
    /// If it does not within this time.
    #[track_caller]
    pub fn expect(&mut self, within: Duration, what: &str, condition: impl FnMut(&Self) -> bool) {
        if !self.run_until(within, condition) {
            self.fail(&format!("not within {within:?}: {what}"));
        }
    }

    // ---- questions ----

    /// Everything that was told of an acquisition so far.
    #[must_use]
    pub fn events(&self, client: usize, lock: LockId) -> &[Event] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.events)
    }

    /// When each of [`events`](Self::events) was told, in true time.
    #[must_use]
    pub fn event_times(&self, client: usize, lock: LockId) -> &[Instant] {
        self.clients[client].records.get(&lock).map_or(&[], |record| &record.times)
    }

    /// What was granted, if it was.
    #[must_use]
    pub fn grant(&self, client: usize, lock: LockId) -> Option<&Grant> {
        self.clients[client].records.get(&lock)?.grant.as_ref()
    }

    /// Whether the lock is claimed and valid by the client's own clock, and neither lost nor given back.
    #[must_use]
    pub fn is_held(&self, client: usize, lock: LockId) -> bool {
        let process = &self.clients[client];
        self.checker.stage(client, lock) == Some(Stage::Held)
            && process.machine.valid_until(lock).is_some_and(|until| until > process.local(self.now))
    }

    /// Whether nothing more will be told of it.
    #[must_use]
    pub fn is_over(&self, client: usize, lock: LockId) -> bool {
        self.checker.stage(client, lock) == Some(Stage::Over)
    }

    /// Where an acquisition stands; `None` if nobody asked for it.
    #[must_use]
    pub fn stage(&self, client: usize, lock: LockId) -> Option<Stage> {
        self.checker.stage(client, lock)
    }

    /// Every acquisition that this client was asked for.
    pub fn locks(&self, client: usize) -> impl Iterator<Item = LockId> {
        self.clients[client].records.keys().copied()
    }

    /// Whether the client has said that its shutdown is over, and how many locks it could not release.
    #[must_use]
    pub fn stopped(&self, client: usize) -> Option<u32> {
        self.clients[client].stopped
    }

    /// The machine of a client.
    #[must_use]
    pub fn machine(&self, client: usize) -> &Client {
        &self.clients[client].machine
    }

    /// A node, to look at.
    #[must_use]
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node].node
    }

    /// The string under `key` on a node now.
    #[must_use]
    pub fn get(&self, node: usize, key: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.nodes[node].node.get(self.now, key)
    }

    /// The names of all keys on a node now, as text.
    #[must_use]
    pub fn keys(&self, node: usize) -> Vec<String> {
        self.nodes[node].node.keys(self.now).iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// How often clients sent this command to a node.
    #[must_use]
    pub fn calls(&self, node: usize, command: &str) -> u64 {
        self.nodes[node].node.calls().get(command).copied().unwrap_or(0)
    }

    /// How many commands clients sent to a node, but for those that open a connection.
    #[must_use]
    pub fn total_calls(&self, node: usize) -> u64 {
        let opening = ["hello", "auth", "select", "client|setname", "client|setinfo", "client|id", "info", "ping"];
        let calls = self.nodes[node].node.calls();
        calls.iter().filter(|(name, _)| !opening.contains(&name.as_str())).map(|(_, count)| *count).sum()
    }

    /// How often a lock was granted in this world.
    #[must_use]
    pub const fn grants(&self) -> u64 {
        self.checker.grants()
    }

    // ---- checks and log ----

    /// From now on violations are collected, not the end of the run: for scenarios that break the bounds.
    pub const fn expect_violation(&mut self) {
        self.expect_violation = true;
    }

    /// What the checkers have found.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How often somebody was granted a lock, or more time for it, while another believed to hold it.
    #[must_use]
    pub const fn overlaps(&self) -> u64 {
        self.checker.overlaps()
    }

    /// The log so far, as far as it is kept. The same seed and the same calls give the same bytes.
    #[must_use]
    pub fn log(&self) -> String {
        self.journal.text()
    }

    /// A digest of every line of the log, and their number.
    #[must_use]
    pub const fn log_digest(&self) -> (u64, u64) {
        self.journal.digest()
    }

    /// Adds a line to the log.
    pub fn note(&mut self, what: &str) {
        self.journal.write(self.now, format_args!("-- {what}"));
        self.recorder.note(self.now, || What::Note { lane: None, text: what.into() });
    }

    /// The end of the log, as far as it is kept.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.journal.tail(lines)
    }

    /// How often a machine was called so far: clients and nodes.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether a machine broke its contract, so that nothing happens any more.
    #[must_use]
    pub const fn is_halted(&self) -> bool {
        self.halted
    }

    /// Something that the one who drives the world has found.
    pub fn report(&mut self, rule: Rule, text: String) {
        self.checker.report(self.now, rule, text);
        self.check();
    }

    /// The record of the run so far, if it was asked for by [`Builder::traced`]. It ends here.
    pub fn take_trace(&mut self) -> Trace {
        self.recorder.finish(self.now)
    }

    // ---- inside ----

    fn verb<T>(
        &mut self,
        client: usize,
        verb: impl FnOnce(&mut Client, Instant) -> Result<T, Misuse>,
    ) -> Result<T, Misuse> {
        self.steps += 1;
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        verb(&mut process.machine, local)
    }

    fn must(&mut self, client: usize, lock: LockId, verb: impl FnOnce(&mut Client, Instant) -> Result<(), Misuse>) {
        if let Err(misuse) = self.verb(client, verb) {
            self.breach(&format!("client {client} {lock}: {misuse}"));
        }
    }

    fn plan(&mut self, at: Instant, what: Planned) {
        self.plan_serial += 1;
        self.plans.insert((at, self.plan_serial), what);
    }

    fn claimed(&mut self, client: usize, lock: LockId) {
        self.checker.claimed(client, lock);
        self.point(client, lock, || Point::Claimed);
    }

    /// Puts into the record how far an acquisition is.
    fn point(&mut self, client: usize, lock: LockId, point: impl FnOnce() -> Point) {
        let Some(record) = self.clients[client].records.get(&lock) else { return };
        self.recorder.note(self.now, || What::Lock { client, lock, name: record.shown(), point: point() });
    }

    fn record_state(&mut self, lane: Lane, state: State) {
        self.recorder.note(self.now, || What::State { lane, state });
    }

    /// Takes in what the checkers have found.
    fn check(&mut self) {
        while let Some(found) = self.checker.poll_violation() {
            self.journal.write(self.now, format_args!("VIOLATION {found}"));
            if !self.expect_violation {
                self.fail(&format!("{found}"));
            }
            self.recorder.note(self.now, || What::Violation(found.clone()));
            if self.violations.len() < MAX_VIOLATIONS {
                self.violations.push(found);
            }
        }
    }

    /// A machine does what it must never do: no sense in going on.
    fn breach(&mut self, what: &str) {
        self.halted = true;
        self.report(Rule::Contract, what.into());
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!("{what}\n  seed {}, at {}; the end of the log:\n{}", self.seed, self.now, self.journal.tail(80));
    }
}
