//! A world of servers, clients and a network in virtual time.

mod builder;
mod calm;
mod faults;
mod label;
mod process;
mod pump;
mod server;

use crate::lock::Machine;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::agenda::Agenda;
use super::check::{Checker, Permit, Rule, Stage, Violation};
use super::common::{MAX_SPINS, MAX_VIOLATIONS, common, signed};
use super::journal::Journal;
use super::network::Network;
use super::record::Record;
use super::redis::Node;
use super::rng::Rng;
use super::trace::{Lane, Point, Recorder, State, Trace, What};
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::{Acquire, Event, Grant, Wait};
use crate::redis::Client;
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
    /// The key of every client's counter of fencing tokens.
    counters: BTreeSet<Vec<u8>>,
    /// Where the address of a node leads a client, if not to that node.
    leads: BTreeMap<(usize, usize), usize>,
    /// What will happen by itself.
    agenda: Agenda<Planned>,
    /// Steps since time last moved.
    spins: u32,
    /// How often a machine was called.
    steps: u64,
    /// A machine broke its contract: nothing happens any more.
    halted: bool,
    /// How long hosts gather what they write.
    gather: Duration,
}

/// What happens by itself when its time comes.
#[derive(Clone, Debug)]
enum Planned {
    /// An application does something.
    Chore(usize, Chore),
    /// A write reaches what a lock protects.
    Write(Arc<[u8]>, Permit, Option<super::trace::MessageId>),
}

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
        let name = self.full_name(client, &want.name);
        let lock = self.verb(client, |machine, now| machine.acquire(now, want))?;
        self.journal.write(self.now, format_args!("c{client} {lock} acquire {}", name.escape_ascii()));
        let wait_ends = match want.wait {
            Wait::For(time) if !time.is_zero() => Some(self.after(client, time)),
            Wait::For(_) | Wait::Try | Wait::Forever => None,
        };
        self.checker.asked(self.now, client, lock, &name, wait_ends);
        if !self.names.contains(&name) {
            self.names.insert(name.clone());
        }
        let record = Record { write_every, ..Record::new(name, want, claim, hold) };
        self.clients[client].records.insert(lock, record);
        self.point(client, lock, || Point::Asked);
        self.check();
        self.pump_client(client);
        Ok(lock)
    }

    /// The application looks whether it holds the lock, and if so writes a moment later to what it protects: the write may come late, as when the
    /// process is stopped in between. What takes the write looks at the fencing token, if there is one.
    pub fn write(&mut self, client: usize, lock: LockId) {
        self.tell_process(client, process::Fact::Chore(Chore::Look(lock, None)));
    }

    /// Shuts the client down, with this time to release what it holds. Its applications give back everything by that.
    pub fn shutdown(&mut self, client: usize, within: Duration) {
        self.journal.write(self.now, format_args!("c{client} shutdown"));
        self.word(Some(Lane::Client(client)), || "is shut down".into());
        let stop_by = self.after(client, within);
        self.checker.shut_down(client, stop_by);
        let held: Vec<LockId> =
            self.checker.live(client).filter(|(_, stage)| stage.is_out()).map(|(id, _)| id).collect();
        for lock in held {
            self.point(client, lock, || Point::GaveBack);
            self.checker.gives_back(client, lock, Some(stop_by));
        }
        self.tell_machine(client, |machine, now| machine.shutdown(now, within));
    }

    // ---- questions ----

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
            self.halt(format!("client {client} {lock}: {misuse}"));
        }
    }

    fn set_node(&mut self, node: usize, state: State) {
        self.nodes[node].state = state;
        self.recorder.note(self.now, || What::State { lane: Lane::Node(node), state });
    }
}

impl World {
    common!();
}
