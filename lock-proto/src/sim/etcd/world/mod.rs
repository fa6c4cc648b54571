//! A world of etcd members, whole clients and a network in virtual time.

mod builder;
mod calm;
mod faults;
mod label;
mod member;
mod process;
mod pump;
mod questions;
mod queue_log;
mod record;
mod resource;
mod told;
mod wire;

use crate::lock::Elections;
use crate::lock::Machine;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::Cluster;
use crate::error::Misuse;
use crate::etcd::{Client, QueryId, RpcId, StreamId};
use crate::id::LockId;
use crate::lock::{Acquire, Event, Grant, Wait};
use crate::sim::agenda::Agenda;
use crate::sim::check::{Checker, Rule, Stage, Violation};
use crate::sim::common::{MAX_SPINS, MAX_VIOLATIONS, common, signed};
use crate::sim::journal::Journal;
use crate::sim::network::Network;
use crate::sim::record::Record;
use crate::sim::rng::Rng;
use crate::sim::trace::{Lane, Point, Recorder, State, Trace, What};
use crate::time::Instant;
use member::Member;
use process::{Fact, Observed, Process};
use queue_log::QueueLog;
use record::Recorded;
use resource::Resource;
use wire::Wire;

pub use builder::Builder;

/// The members of an etcd cluster, whole clients and a network between them, in virtual time and from one seed.
///
/// Clients and members are named by their index. Time jumps from one event or deadline exactly to the next. A client is a process of its own with
/// its own clock; it speaks to the cluster over one connection, as its host would let it: calls, streams and their messages are delayed, cut,
/// and lost with their connection, and calls that were sent side by side may be executed in another order.
///
/// Checkers are always on (see [`Rule`]): one valid holder of a name in true time, fencing tokens that grow, a legal sequence of events with
/// one end for each acquisition, every end told in time. A grant must be proven by a revision at which its key was first in its queue;
/// local waiters are served in order; one deletion makes at most one waiter react; no client sends without end; no watch begins in the
/// past. What they find ends the run with the seed and the end of the log, unless [`expect_violation`](Self::expect_violation) is called.
///
/// What is said of acquisitions is true of candidacies too; who releases one resigns.
///
/// # Panics
///
/// Every method panics for a client or member that does not exist, and verbs for a [`Misuse`], with the log's end.
///
/// ```
/// use core::time::Duration;
/// use lock_proto::redis::Acquire;
/// use lock_proto::sim::etcd::World;
///
/// let mut w = World::cluster(3).clients(2).seed(7).build();
/// let first = w.acquire(0, Acquire::new("stock:42"));
/// w.expect(Duration::from_secs(1), "the first holds", |w| w.is_held(0, first));
/// let second = w.acquire(1, Acquire::new("stock:42"));
///
/// // The leader dies: nobody loses anything.
/// w.kill_member(w.cluster_now().leader().unwrap());
/// w.run_for(Duration::from_secs(60));
/// assert!(w.is_held(0, first) && !w.is_held(1, second));
///
/// // The holder dies without a word: its lease ends, and the lock goes to the next one.
/// w.kill_client(0);
/// w.expect(Duration::from_secs(12), "the second holds", |w| w.is_held(1, second));
/// ```
#[derive(Clone, Debug)]
pub struct World {
    seed: u64,
    now: Instant,
    rng: Rng,
    network: Network<Wire>,
    cluster: Cluster,
    /// When the cluster wants to be called: asked after every call.
    cluster_due: Option<Instant>,
    members: Vec<Member>,
    /// Calls that a member has received and not looked at yet, by connection.
    dawdling: BTreeMap<(Instant, u64), (u64, Wire)>,
    /// When the kernel of a client gives up a connection that its process has closed, if not everything has arrived by then.
    lingering: BTreeMap<(Instant, u64), u64>,
    linger: Duration,
    /// How much later a member may look at a call.
    late: Duration,
    /// Connections that are over once the member has looked at the last call.
    hung_up: BTreeSet<u64>,
    /// Calls and streams by the world's numbers.
    rpcs: BTreeMap<u64, RpcId>,
    streams: BTreeMap<u64, StreamId>,
    number: u64,
    clients: Vec<Process>,
    queue_log: QueueLog,
    /// The last revision in it.
    recorded: i64,
    resource: Resource,
    /// Who reacted to the deletion of a key.
    woken: BTreeMap<(Bytes, i64), Vec<usize>>,
    checker: Checker,
    journal: Journal,
    recorder: Recorder,
    told_of: Recorded,
    auto_claim: bool,
    expect_violation: bool,
    violations: Vec<Violation>,
    /// What applications will do by themselves.
    agenda: Agenda<(usize, Fact)>,
    /// Steps since time last moved.
    spins: u32,
    /// How often a machine was called.
    steps: u64,
    /// A machine has broken its contract so that the run cannot go on.
    halted: bool,
}

impl World {
    /// A world with a cluster of this many members.
    pub fn cluster(members: usize) -> Builder {
        Builder::new(members)
    }

    // ---- what applications do ----

    /// Client `client` asks for a lock.
    pub fn acquire(&mut self, client: usize, want: Acquire) -> LockId {
        self.start(client, want, None, None)
    }

    /// The same, and gives it back `hold` after the grant, held or lost.
    pub fn acquire_for(&mut self, client: usize, want: Acquire, hold: Duration) -> LockId {
        self.start(client, want, None, Some(hold))
    }

    /// Client `client` stands for election with this value.
    pub fn campaign(&mut self, client: usize, want: Acquire, value: impl AsRef<[u8]>) -> LockId {
        self.start(client, want, Some(Bytes::copy_from_slice(value.as_ref())), None)
    }

    /// The same, and resigns in two steps: it is asked to stop some time after it was elected, its work comes to an end, and only then the
    /// office is given up. `hold` is the time of both steps together.
    pub fn campaign_for(&mut self, client: usize, want: Acquire, value: impl AsRef<[u8]>, hold: Duration) -> LockId {
        self.start(client, want, Some(Bytes::copy_from_slice(value.as_ref())), Some(hold))
    }

    fn start(&mut self, client: usize, want: Acquire, value: Option<Bytes>, hold: Option<Duration>) -> LockId {
        let name = self.full_name(client, &want.name);
        let shown = format!("{}", name.escape_ascii());
        let verb = if value.is_some() { "campaign" } else { "acquire" };
        let candidate = value.clone();
        let asked = self.verb(client, |machine, now| match value {
            Some(value) => machine.campaign(now, &want, value),
            None => machine.acquire(now, &want),
        });
        let lock = match asked {
            Ok(lock) => lock,
            Err(misuse) => self.fail(&format!("client {client} cannot {verb} {shown}: {misuse}")),
        };
        self.journal.write(self.now, format_args!("c{client} {lock} {verb} {shown}"));
        // No time to wait is one attempt, which takes as long as an answer takes.
        let wait_ends = match want.wait {
            Wait::For(wait) if !wait.is_zero() => Some(self.after(client, wait)),
            Wait::For(_) | Wait::Try | Wait::Forever => None,
        };
        self.checker.asked(self.now, client, lock, &name, wait_ends);
        let claim = self.auto_claim || hold.is_some();
        self.clients[client].records.insert(lock, Record::new(name, &want, claim, hold));
        self.point(client, lock, || Point::Asked);
        if let Some(value) = candidate {
            self.word(Some(Lane::Client(client)), || format!("campaigns as {}", value.escape_ascii()));
        }
        self.pump_client(client);
        lock
    }

    /// A leader proclaims another value.
    pub fn proclaim(&mut self, client: usize, lock: LockId, value: impl AsRef<[u8]>) {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.journal.write(self.now, format_args!("c{client} {lock} proclaim {}", value.escape_ascii()));
        self.word(Some(Lane::Client(client)), || format!("proclaims {}", value.escape_ascii()));
        self.must(client, lock, |machine, now| machine.proclaim(now, lock, value));
        self.pump_client(client);
    }

    /// Asks who leads.
    pub fn leader(&mut self, client: usize, name: impl AsRef<[u8]>) -> QueryId {
        self.query(client, name.as_ref(), false)
    }

    /// Observes who leads.
    pub fn observe(&mut self, client: usize, name: impl AsRef<[u8]>) -> QueryId {
        self.query(client, name.as_ref(), true)
    }

    fn query(&mut self, client: usize, name: &[u8], observes: bool) -> QueryId {
        let asked = self.verb(client, |machine, now| match observes {
            true => machine.observe(now, name),
            false => machine.leader(now, name),
        });
        let query = match asked {
            Ok(query) => query,
            Err(misuse) => self.fail(&format!("client {client} cannot ask who leads: {misuse}")),
        };
        let verb = if observes { "observe" } else { "leader" };
        self.journal.write(self.now, format_args!("c{client} {query:?} {verb} {}", name.escape_ascii()));
        let name = self.full_name(client, name);
        let asks = if observes { "observes" } else { "asks who leads" };
        self.word(Some(Lane::Client(client)), || format!("{asks} {}", name.escape_ascii()));
        self.clients[client].queries.insert(query, Observed { name, observes, events: Vec::new(), over: false });
        self.pump_client(client);
        query
    }

    /// Ends a question or an observation.
    pub fn close_query(&mut self, client: usize, query: QueryId) {
        self.journal.write(self.now, format_args!("c{client} {query:?} close"));
        if let Some(observed) = self.clients[client].queries.get_mut(&query) {
            observed.over = true;
        }
        self.tell_machine(client, |machine, now| machine.close_query(now, query));
    }

    /// Shuts the client down, with this time to release what it holds.
    pub fn shutdown(&mut self, client: usize, within: Duration) {
        self.journal.write(self.now, format_args!("c{client} shutdown"));
        self.word(Some(Lane::Client(client)), || "is shut down".into());
        self.checker.shut_down(client, self.after(client, within));
        // What is held or lost is given back by the machine, and answered.
        let guards = self.checker.live(client).filter(|(_, stage)| matches!(stage, Stage::Held | Stage::Lost));
        for (lock, _) in guards.collect::<Vec<_>>() {
            self.point(client, lock, || Point::GaveBack);
            self.checker.gives_back(client, lock, None);
        }
        self.tell_machine(client, |machine, now| machine.shutdown(now, within));
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
            self.fail(&format!("client {client} {lock}: {misuse}"));
        }
    }
}

impl World {
    common!();
}
