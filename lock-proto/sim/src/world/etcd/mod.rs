//! A world of etcd members.

mod builder;
mod calm;
mod client;
mod events;
mod faults;
mod label;
mod member;
mod pump;
mod queries;
mod queue_log;
mod record;
mod resource;
mod tap;
mod wire;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::time::Duration;

use bytes::Bytes;

use super::World as AnyWorld;
use super::handover::Woken;
use super::process::Process;
use super::store::{Events, Judge, ServerKind, Services, SimStore};
use crate::check::Rule;
use crate::etcd::{Cluster, Lease};
use crate::journal::Keep;
use crate::network::Packet;
use crate::rng::Rng;
use builder::EtcdSetup;
use lock_proto::Instant;
use lock_proto::etcd::{Client, Config, OwnerKey, Queue, RpcId, StreamId};
use lock_proto::{ClientId, ConnId, LockId};
use lock_proto::{Event, Grant};
use member::WorldMember;
use queue_log::QueueLog;
use record::Recorded;
use resource::{LeaderResource, Proclaimed, Write};

pub use client::EtcdClient;
pub(crate) use wire::EtcdMessage;

/// A [`world::World`](crate::world::World) of etcd members and [`Client`] machines.
///
/// A client has one connection to the cluster. Calls, streams and their messages are delayed,
/// partitioned, and lost with their connection. Concurrent calls may be executed in any order.
///
/// It adds three checks: a grant must be proven by a revision at which its key was first in its
/// queue; one deletion triggers at most one waiter; no watch starts in the past.
///
/// Candidacies follow the rules of acquisitions; a release is a resignation.
///
/// ```
/// use core::time::Duration;
/// use lock_proto::Acquire;
/// use lock_sim::etcd::World;
///
/// let mut w = World::cluster(3).clients(2).seed(7).build();
/// let first = w.acquire(0, Acquire::new("stock:42"));
/// w.expect(Duration::from_secs(1), "the first holds", |w| w.is_held(0, first));
/// let second = w.acquire(1, Acquire::new("stock:42"));
///
/// // The leader dies: the holder keeps the lock.
/// w.kill_member(w.cluster_now().leader().unwrap());
/// w.run_for(Duration::from_secs(60));
/// assert!(w.is_held(0, first) && !w.is_held(1, second));
///
/// // The holder dies: its lease expires, and the waiter gets the lock.
/// w.kill_client(0);
/// w.expect(Duration::from_secs(12), "the second holds", |w| w.is_held(1, second));
/// ```
pub type World<C = Client> = AnyWorld<EtcdServers<C>>;
/// Builds a [`World`].
pub type Builder<C = Client> = super::Builder<EtcdServers<C>>;

/// The members of an etcd cluster in a [`World`].
#[derive(Clone, Debug)]
pub struct EtcdServers<C = Client> {
    cluster: Cluster,
    /// Next deadline of the cluster. Updated after every call to it.
    cluster_due: Option<Instant>,
    members: Vec<WorldMember>,
    /// Calls that a member has received but not yet executed, by time and connection.
    delayed_calls: BTreeMap<(Instant, u64), (u64, EtcdMessage)>,
    /// Replies and messages that a member has yet to send, by time.
    delayed_replies: BTreeMap<(Instant, u64), (u64, EtcdMessage)>,
    /// When a client's kernel gives up a closed connection with undelivered data.
    lingering: BTreeMap<(Instant, u64), u64>,
    linger: Duration,
    /// Longest delay of a call on its member, of its reply, and of a message.
    late: Duration,
    /// Connections that end after their last call is executed.
    hung_up: BTreeSet<u64>,
    /// Calls and streams by the world's own numbers.
    rpcs: BTreeMap<u64, RpcId>,
    streams: BTreeMap<u64, StreamId>,
    /// The passwords of unanswered logins.
    logins: BTreeMap<u64, Box<str>>,
    number: u64,
    queue_log: QueueLog,
    recorded: i64,
    resource: LeaderResource,
    proclaimed: Proclaimed,
    /// Clients that reacted to the deletion of a key.
    woken: Woken<(Bytes, i64)>,
    recorded_state: Recorded,
    /// When leases that were revoked by hand would have expired.
    revoked: BTreeMap<i64, Instant>,
    clients: PhantomData<C>,
}

#[derive(Clone, Debug)]
pub(crate) struct EtcdParts {
    config: Config,
    /// Keys of holders, including those that lost the lock but still have a guard.
    owners: BTreeMap<LockId, OwnerKey>,
    /// Open streams by the world's numbers.
    streams: BTreeMap<StreamId, u64>,
    sent: u64,
    /// Unanswered requests on each stream, oldest first: the world's numbers, and the leases of
    /// keep-alives.
    pending: BTreeMap<StreamId, Vec<(u64, Option<i64>)>>,
    /// Leases that the client knows to be granted, and how long it knows that they live.
    granted: BTreeMap<i64, Instant>,
    /// The leases of revocations in flight, and those whose revocation was confirmed.
    revoking: BTreeMap<u64, i64>,
    revoked: BTreeSet<i64>,
    /// The last deletion of each key that a watch of this key has told it of.
    told: BTreeMap<Bytes, i64>,
    /// Watches of whole elections. They serve observers, not holders.
    observing: BTreeSet<(StreamId, i64)>,
}

/// The application writes to the protected resource if it believes to hold the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteAgain(LockId);

impl<C: EtcdClient> SimStore for EtcdServers<C> {
    type Client = C;
    type Config = Config;
}

impl<C: EtcdClient> ServerKind for EtcdServers<C> {
    type Setup = EtcdSetup;
    type Packet = EtcdMessage;
    type Own = EtcdParts;
    type Chore = WriteAgain;
    type Write = Write;
    const USER: &str = "app";
    const ONE_LOGIN: bool = true;
    const NODE: char = 'm';
    const SUSPENDED: &str = "suspended";
    const LEFT: &str = "may be left";
    const DIRECTIONS: [&str; 2] = ["to the node", "to the client"];
    const EXCUSED: &[Rule] = C::EXCUSED;

    fn plain(setup: &mut EtcdSetup, rng: &mut Rng, _: bool) -> (usize, Config) {
        setup.plain(rng)
    }

    fn own(_: ClientId, config: &Config) -> EtcdParts {
        let config = config.clone();
        EtcdParts {
            config,
            owners: BTreeMap::new(),
            streams: BTreeMap::new(),
            sent: 0,
            pending: BTreeMap::new(),
            granted: BTreeMap::new(),
            revoking: BTreeMap::new(),
            revoked: BTreeSet::new(),
            told: BTreeMap::new(),
            observing: BTreeSet::new(),
        }
    }

    fn servers(setup: EtcdSetup, _: Keep, _: &[Process<Self>]) -> Self {
        let (members, linger, late) = (setup.members(), setup.linger, setup.late);
        let cluster = Cluster::new(Instant::ZERO, setup.cluster());
        Self {
            recorded: cluster.revision(),
            cluster_due: cluster.next_deadline(),
            cluster,
            members: (0..members).map(|_| WorldMember::default()).collect(),
            delayed_calls: BTreeMap::new(),
            delayed_replies: BTreeMap::new(),
            lingering: BTreeMap::new(),
            linger,
            late,
            hung_up: BTreeSet::new(),
            rpcs: BTreeMap::new(),
            streams: BTreeMap::new(),
            logins: BTreeMap::new(),
            number: 0,
            queue_log: QueueLog::default(),
            resource: LeaderResource::default(),
            proclaimed: Proclaimed::new(),
            woken: Woken::default(),
            recorded_state: Recorded::default(),
            revoked: BTreeMap::new(),
            clients: PhantomData,
        }
    }

    fn silence(own: &EtcdParts) -> Duration {
        own.config.request_timeout
    }

    fn poll_violation(client: &mut C) -> Option<(Rule, String)> {
        client.poll_violation()
    }

    fn lock(name: &[u8]) -> Vec<u8> {
        Queue::new(b"", name).prefix().to_vec()
    }

    fn is_candidate(name: &[u8], key: &[u8]) -> bool {
        !Queue::new(b"", name).is_foreign(key)
    }
}

impl<C: EtcdClient> Events for EtcdServers<C> {
    fn begin(w: &mut World<C>) {
        w.record_cluster();
    }

    fn next_due(w: &World<C>) -> Option<Instant> {
        w.members_due()
    }

    fn act_first(w: &mut World<C>) -> bool {
        w.act_first()
    }

    fn act(w: &mut World<C>) {
        if w.members_due().is_some_and(|at| at <= w.now) {
            w.wake_cluster();
        }
    }

    fn receive_on_server(w: &mut World<C>, link: u64, member: usize, packet: Packet<EtcdMessage>) {
        w.receive_on_member(link, member, packet);
    }

    fn receive_on_client(w: &mut World<C>, client: usize, _: ConnId, wire: EtcdMessage) {
        w.receive(client, wire);
    }

    fn hang_up(w: &mut World<C>, link: u64, _: usize) {
        w.hang_up(link);
        w.pump_cluster();
    }

    fn pump_client(w: &mut World<C>, client: usize) {
        w.pump_calls(client);
    }

    fn ended(w: &mut World<C>, client: usize, link: u64, by_client: bool) {
        w.ended(client, link, by_client);
    }
}

impl<C: EtcdClient> Services for EtcdServers<C> {
    fn do_chore(w: &mut World<C>, client: usize, WriteAgain(lock): WriteAgain) {
        w.write_again(client, lock);
    }

    fn write(w: &mut World<C>, client: usize, lock: LockId) {
        w.write_guarded(client, lock);
    }

    fn write_arrives(w: &mut World<C>, write: Write) {
        w.write_arrives(write);
    }

    fn calm(w: &mut World<C>) {
        w.calm_members();
    }

    fn accept_password(w: &mut World<C>, password: &str, on: bool) {
        w.store.cluster.set_password(w.now, Self::USER, password, on);
        w.pump_cluster();
    }

    fn proclaiming(w: &mut World<C>, client: usize, lock: LockId, value: &Bytes) {
        if let Some(owner) = w.clients[client].machine.owner(lock) {
            w.store.proclaimed.insert(value.clone(), (client, lock, owner.create_revision));
        }
    }
}

impl<C: EtcdClient> Judge for EtcdServers<C> {
    fn order(w: &World<C>, client: usize, lock: LockId, event: &Event) -> Option<u64> {
        // The store orders grants by the revisions that prove them.
        let owner = w.clients[client].machine.owner(lock).filter(|_| matches!(event, Event::Granted(_)))?;
        Some(owner.revision.unsigned_abs())
    }

    fn is_stored(w: &World<C>, client: usize, lock: LockId, _: &Event) -> bool {
        w.clients[client].own.owners.get(&lock).is_some_and(|owner| w.store.queue_log.exists(owner))
    }

    fn left_of(w: &World<C>, client: usize) -> Option<String> {
        // Without a leader no lease ends, although its client knows that its time is over.
        let own = &w.clients[client].own;
        // A repeated grant may be executed after the revocation. A lease without keys is in nobody's
        // way.
        // E1
        let is_late = |lease: &Lease| lease.keys.is_empty() && own.revoked.contains(&lease.id);
        let lives = |lease: &Lease| own.granted.get(&lease.id).is_some_and(|until| w.now < *until);
        let is_left = |lease: &Lease| lives(lease) && !is_late(lease);
        let left = w.store.cluster.leases().into_iter().find(is_left)?;
        Some(format!("lease {:x}", left.id))
    }

    fn kept_until(w: &mut World<C>, client: usize, lock: LockId, _: &Event) -> Option<Instant> {
        let owner = w.clients[client].machine.owner(lock)?;
        if w.clients[client].own.told.get(&owner.key).is_some_and(|deleted| *deleted > owner.create_revision) {
            return Some(Instant::ZERO);
        }
        let lease = owner.lease.get();
        let revoked = w.store.revoked.get(&lease).copied();
        Some(w.store.cluster.lease_expires(lease).or(revoked).unwrap_or(w.now))
    }

    fn check_minted(w: &World<C>, client: usize, lock: LockId, grant: &Grant) -> Result<(), String> {
        // E8
        let process = &w.clients[client];
        let (Some(fence), Some(mut owner)) = (grant.fence, process.machine.owner(lock)) else { return Ok(()) };
        let Some(record) = process.records.get(&lock) else { return Ok(()) };
        let revision = i64::try_from(fence.get() >> 16).unwrap_or(i64::MAX);
        if revision > w.store.recorded {
            return Err(format!("has a fencing token of revision {revision}, which is yet to come"));
        }
        owner.revision = revision;
        w.store.queue_log.proves(&Queue::new(b"", &record.name), &owner)
    }

    fn after_event(w: &mut World<C>, client: usize, lock: LockId, event: &Event) {
        w.after_event(client, lock, event);
    }
}

impl World {
    /// Returns a builder for a cluster with this many members.
    pub fn cluster(members: usize) -> Builder {
        Builder::new(EtcdSetup::new(members), Client::new)
    }
}
