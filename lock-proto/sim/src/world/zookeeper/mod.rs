//! A world of ZooKeeper servers.

mod builder;
mod calm;
mod faults;
mod label;
mod pump;
mod queries;
mod queue_log;
mod tap;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::marker::PhantomData;
use core::time::Duration;

use super::bytes::{ByteServers, BytesWrite, Chore};
use super::handover::{CallCause, Woken};
use super::process::Process;
use super::store::{Events, Judge, ServerKind, Services, SimStore};
use super::{IDLE_TIMEOUT, World as AnyWorld};
use crate::check::Rule;
use crate::journal::Keep;
use crate::network::Packet;
use crate::record::HistoryRecord;
use crate::rng::Rng;
use crate::zookeeper::{Ensemble, OpenSession};
use builder::ZooKeeperSetup;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::Target;
use lock_proto::Tls;
use lock_proto::zookeeper::{Client, Config};
use lock_proto::{ByteClient, Event, Grant};
use lock_proto::{ClientId, ConnId, LockId};
use queue_log::{NodeLog, queue_of};
use tap::ZooKeeperTap;

/// A [`world::World`](crate::world::World) of ZooKeeper servers and [`Client`] machines.
///
/// It adds three checks: a grant must be proven by the queue; one deletion triggers at most one
/// waiter; clients that have nothing to do leave no watch.
///
/// ```
/// use core::time::Duration;
/// use lock_proto::Acquire;
/// use lock_sim::zookeeper::World;
///
/// let mut w = World::zookeeper(3).clients(2).seed(7).build();
/// let first = w.acquire(0, Acquire::new("stock:42"));
/// w.expect(Duration::from_secs(1), "the first holds", |w| w.is_held(0, first));
/// let second = w.acquire(1, Acquire::new("stock:42"));
///
/// // The leader dies: the holder keeps the lock.
/// w.kill_member(w.ensemble().leader().unwrap());
/// w.run_for(Duration::from_secs(60));
/// assert!(w.is_held(0, first) && !w.is_held(1, second));
///
/// // The holder dies: its session expires, and the waiter gets the lock.
/// w.kill_client(0);
/// w.expect(Duration::from_secs(20), "the second holds", |w| w.is_held(1, second));
/// ```
pub type World<C = Client> = AnyWorld<Zookeeper<C>>;
/// Builds a [`World`].
pub type Builder<C = Client> = super::Builder<Zookeeper<C>>;

/// A client of ZooKeeper: any [`ByteClient`] that implements `Clone` and `Debug`. See
/// [`Builder::machine`](super::Builder::machine) and
/// [`Plan::run_zookeeper`](crate::Plan::run_zookeeper).
pub trait ZookeeperClient: ByteClient + Clone + Debug {}

impl<C: ByteClient + Clone + Debug> ZookeeperClient for C {}

/// The ZooKeeper servers of a [`World`].
#[derive(Clone, Debug)]
pub struct Zookeeper<C = Client> {
    ensemble: Ensemble,
    /// Next deadline of the ensemble. Updated after every call to it.
    due: Option<Instant>,
    /// Frames that a member has received but not yet handled, by time.
    delayed: VecDeque<(Instant, u64, Packet<Vec<u8>>)>,
    queue_log: NodeLog,
    /// Clients that reacted to the deletion of a node, by its path.
    woken: Woken<Box<str>>,
    /// When sessions that were ended by hand would have expired.
    ended: BTreeMap<i64, Instant>,
    clients: PhantomData<C>,
}

#[derive(Clone, Debug)]
pub(crate) struct ZooKeeperParts {
    pending_flush: Option<CallCause>,
    /// How long a connection may be silent.
    silence: Duration,
    recheck: Duration,
    tick: Duration,
    revalidate: bool,
    taps: BTreeMap<u64, ZooKeeperTap>,
    /// All sessions that the client has had, and when it last sent something on each, by its clock;
    /// `None` once a server has refused it as expired.
    sessions: BTreeMap<i64, Option<Instant>>,
    /// Queues about which it sent a request, since the last watch event.
    asked: BTreeSet<Box<str>>,
    sent: u64,
    /// Nodes of whose deletion a watch has told it.
    told: BTreeSet<Box<str>>,
}

impl<C: ZookeeperClient> SimStore for Zookeeper<C> {
    type Client = C;
    type Config = Config;
}

impl<C: ZookeeperClient> ServerKind for Zookeeper<C> {
    type Setup = ZooKeeperSetup;
    type Packet = Vec<u8>;
    type Own = ZooKeeperParts;
    type Chore = Chore;
    type Write = BytesWrite;
    const USER: &str = "app";
    const ONE_LOGIN: bool = false;
    const NODE: char = 'z';
    const SUSPENDED: &str = "suspended";
    const LEFT: &str = "may be left";
    const DIRECTIONS: [&str; 2] = ["to the node", "to the client"];

    fn plain(setup: &mut ZooKeeperSetup, rng: &mut Rng, tls: bool) -> (usize, Config) {
        setup.draw(rng);
        let target = |i: usize| {
            let (host, port) = (format!("member{i}").into(), 2181);
            if tls { Target::Tls { host, port, tls: Tls::default() } } else { Target::Tcp { host, port } }
        };
        let config = Config::new((0..setup.members).map(target)).idle_timeout(IDLE_TIMEOUT);
        (setup.members, config.tick(Duration::from_secs(2)))
    }

    fn own(_: ClientId, config: &Config) -> ZooKeeperParts {
        ZooKeeperParts {
            pending_flush: None,
            silence: config.request_timeout.min(config.validity(config.min_ttl()) / 2),
            recheck: config.store.recheck,
            tick: config.store.own.tick,
            revalidate: config.store.own.revalidate,
            taps: BTreeMap::new(),
            sessions: BTreeMap::new(),
            asked: BTreeSet::new(),
            sent: 0,
            told: BTreeSet::new(),
        }
    }

    fn servers(setup: ZooKeeperSetup, _: Keep, _: &[Process<Self>]) -> Self {
        let ensemble = Ensemble::new(Instant::ZERO, setup.ensemble());
        Self {
            due: ensemble.next_deadline(),
            ensemble,
            delayed: VecDeque::new(),
            queue_log: NodeLog::default(),
            woken: Woken::default(),
            ended: BTreeMap::new(),
            clients: PhantomData,
        }
    }

    fn silence(own: &ZooKeeperParts) -> Duration {
        own.silence
    }

    fn lock(name: &[u8]) -> Vec<u8> {
        [b"/", name].concat()
    }

    // ZK1
    fn granted(ttl: Duration, grant: Option<&Grant>, own: &ZooKeeperParts) -> Duration {
        // The drift is that of the whole session timeout.
        grant.map_or(ttl, |grant| grant.ttl.min(ttl)).saturating_sub(own.tick * 2 + own.tick / 10)
    }

    fn is_candidate(name: &[u8], key: &[u8]) -> bool {
        key.strip_prefix(&*Self::lock(name)).is_some_and(|node| node.starts_with(b"/"))
    }
}

impl<C: ZookeeperClient> Events for Zookeeper<C> {
    fn begin(w: &mut World<C>) {
        for client in 0..w.clients.len() {
            w.pump_client(client);
        }
    }

    fn next_due(w: &World<C>) -> Option<Instant> {
        w.ensemble_due()
    }

    fn act_first(w: &mut World<C>) -> bool {
        w.handle_delayed()
    }

    fn act(w: &mut World<C>) {
        if w.store.due.is_some_and(|at| at <= w.now) {
            w.wake_ensemble();
        }
    }

    fn receive_on_server(w: &mut World<C>, link: u64, member: usize, packet: Packet<Vec<u8>>) {
        w.serve(link, member, packet);
    }

    fn receive_on_client(w: &mut World<C>, client: usize, conn: ConnId, bytes: Vec<u8>) {
        w.receive_on_client(client, conn, &bytes);
    }

    fn hang_up(w: &mut World<C>, link: u64, _: usize) {
        w.receive_on_member(link, Packet::Close(Fault::Reset));
    }

    fn pump_client(w: &mut World<C>, client: usize) {
        w.pump_bytes(client);
    }

    fn ended(w: &mut World<C>, client: usize, link: u64, _: bool) {
        w.clients[client].own.taps.remove(&link);
    }
}

impl<C: ZookeeperClient> Services for Zookeeper<C> {
    fn do_chore(w: &mut World<C>, client: usize, chore: Chore) {
        w.do_byte_chore(client, chore);
    }

    fn write(w: &mut World<C>, client: usize, lock: LockId) {
        w.write_with_token(client, lock);
    }

    fn write_arrives(w: &mut World<C>, write: BytesWrite) {
        w.byte_write_arrives(write);
    }

    fn calm(w: &mut World<C>) {
        w.calm_members();
    }

    // Any login succeeds: the password decides which nodes are accessible.
    fn accept_password(_: &mut World<C>, _: &str, _: bool) {}
}

impl<C: ZookeeperClient> Judge for Zookeeper<C> {
    fn order(w: &World<C>, client: usize, lock: LockId, event: &Event) -> Option<u64> {
        // The store orders grants by the creation of their nodes.
        let Event::Granted(grant) = event else { return None };
        let record = w.clients[client].records.get(&lock)?;
        // Nothing proves a grant beyond the bounds, when the node is gone.
        w.proof(client, record, grant).ok().flatten().or_else(|| created(grant)).map(i64::unsigned_abs)
    }

    fn is_stored(w: &World<C>, client: usize, lock: LockId, _: &Event) -> bool {
        let grant = w.clients[client].records.get(&lock).and_then(|record| record.grant);
        let mut stored = w.store.queue_log.created(|_, _| true);
        grant.as_ref().and_then(created).is_some_and(|czxid| stored.any(|known| known == czxid))
    }

    fn left_of(w: &World<C>, client: usize) -> Option<String> {
        let process = &w.clients[client];
        let now = process.local(w.now);
        // To the client, the time of a session is over, although a leader that was elected later
        // gives it more. Without a leader none ends.
        let may_live = |session: &OpenSession| {
            let last = process.own.sessions.get(&session.id).copied().flatten();
            last.is_some_and(|last| now < last + session.timeout)
        };
        let is_left = |session: &OpenSession| may_live(session) && session.expires.is_some();
        let left = w.store.ensemble.sessions().into_iter().find(is_left)?;
        Some(format!("session {:x}", left.id))
    }

    fn kept_until(w: &mut World<C>, client: usize, lock: LockId, event: &Event) -> Option<Instant> {
        let process = &w.clients[client];
        let granted = if let Event::Granted(grant) = event { Some(grant) } else { None };
        let grant = granted.or(process.records.get(&lock)?.grant.as_ref())?;
        let Some((path, session)) = w.store.queue_log.created_by(created(grant)?) else { return Some(Instant::ZERO) };
        if process.own.told.contains(path) {
            return Some(Instant::ZERO);
        }
        let ended = w.store.ended.get(&session).copied();
        let expires = w.store.ensemble.session_expires(session)?;
        // A leader that goes on has not heard yet what its followers have. The client counts on it to
        // run until it has, unless it is told not to.
        // ZK1
        if expires.is_some() && !process.own.revalidate && w.store.ensemble.is_catching_up(w.now) {
            return None;
        }
        Some(expires.or(ended).unwrap_or(w.now))
    }

    fn check_minted(w: &World<C>, client: usize, lock: LockId, grant: &Grant) -> Result<(), String> {
        // ZK4
        let process = &w.clients[client];
        let (Some(czxid), Some(record)) = (created(grant), process.records.get(&lock)) else { return Ok(()) };
        let queue = [b"/", &record.name[..]].concat();
        let found = w.store.queue_log.created_by(czxid);
        match found {
            Some((path, session))
                if queue_of(path).as_bytes() == queue && process.own.sessions.contains_key(&session) =>
            {
                Ok(())
            }
            Some((path, _)) => Err(format!("has a fencing token of {path}, which is not its node")),
            None => Err(format!("has a fencing token of transaction {czxid:x}, which created no node")),
        }
    }

    fn after_event(w: &mut World<C>, client: usize, lock: LockId, event: &Event) {
        let Event::Granted(grant) = event else { return };
        let Some(record) = w.clients[client].records.get(&lock) else { return };
        if let Err(text) = w.proof(client, record, grant) {
            w.report(Rule::Fifo, format!("client {client} {lock} {text}"));
        }
        w.write_while_held(client, lock);
    }
}

impl<C: ZookeeperClient> ByteServers for Zookeeper<C> {
    fn pending_flush(own: &mut ZooKeeperParts) -> &mut Option<CallCause> {
        &mut own.pending_flush
    }

    fn note_requests(w: &mut World<C>, client: usize, link: u64, _: ConnId, bytes: &[u8]) {
        w.note_requests(client, link, bytes);
    }
}

impl World {
    /// Returns a builder for an ensemble with this many members.
    pub fn zookeeper(members: usize) -> Builder {
        Builder::new(ZooKeeperSetup::new(members), Client::new)
    }
}

/// Returns the transaction that created the node of a hold, which begins its fencing token.
// ZK4
fn created(grant: &Grant) -> Option<i64> {
    i64::try_from(grant.fence?.get() >> 16).ok()
}

impl<C: ZookeeperClient> World<C> {
    /// Returns what proves that a client leads the queue of a lock.
    fn proof(&self, client: usize, record: &HistoryRecord, grant: &Grant) -> Result<Option<i64>, String> {
        let queue = format!("/{}", core::str::from_utf8(&record.name).unwrap_or_default());
        let own = &self.clients[client].own.sessions;
        self.store.queue_log.proves(&queue, record.requested, created(grant), |session| own.contains_key(&session))
    }
}
