//! A world of clients of a store with compare-and-set.

mod builder;
mod calm;
mod client;
mod faults;
mod ledger;
mod pump;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::time::Duration;

use bytes::Bytes;

use super::World as AnyWorld;
use super::bytes::{BytesWrite, Chore};
use super::process::Process;
use super::store::{Events, Judge, ServerKind, Services, SimStore};
use crate::check::Rule;
use crate::direction::Direction;
use crate::journal::Keep;
use crate::network::{Packet, Payload};
use crate::register::SimRegister;
use crate::rng::Rng;
use builder::RegisterSetup;
use ledger::{Ledger, fence_of};
use lock_proto::Instant;
use lock_proto::register::{Client, Config, Reply, Request, Revision};
use lock_proto::{CallId, ClientId, ConnId, LockId};
use lock_proto::{Event, Grant};

pub use client::RegisterClient;

/// A [`world::World`](crate::world::World) of [`Client`] machines and a store with compare-and-set.
///
/// The host of a client sends each request on a connection of its own, as a pool of connections
/// does. So requests are executed in any order, and one that the client has given up may be executed
/// later. A request that is lost with its connection has an unknown outcome.
///
/// ```
/// use core::time::Duration;
/// use lock_proto::Acquire;
/// use lock_sim::register::World;
///
/// let mut w = World::register().clients(2).seed(7).build();
/// let first = w.acquire(0, Acquire::new("stock:42"));
/// w.expect(Duration::from_secs(1), "the first holds", |w| w.is_held(0, first));
/// let second = w.acquire(1, Acquire::new("stock:42"));
///
/// // The holder dies: its record is replaced once it is a TTL old.
/// w.kill_client(0);
/// w.expect(Duration::from_secs(13), "the second holds", |w| w.is_held(1, second));
/// ```
pub type World<C = Client> = AnyWorld<Registers<C>>;
/// Builds a [`World`].
pub type Builder<C = Client> = super::Builder<Registers<C>>;

/// The store of a [`World`].
#[derive(Clone, Debug)]
pub struct Registers<C = Client> {
    register: SimRegister,
    /// Requests that the store has received but not yet executed, by time.
    delayed: BTreeMap<(Instant, u64), (u64, RegisterMessage)>,
    number: u64,
    /// Longest delay of a request in the store.
    late: Duration,
    /// The keys that clients watch, by connection, and the revision that they know.
    watches: BTreeMap<u64, (Bytes, Option<Revision>)>,
    /// Watches miss changes.
    loses_hints: bool,
    ledger: Ledger,
    clients: PhantomData<C>,
}

/// A message on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RegisterMessage {
    // To the store.
    Call { request: Request, sent: Instant },
    Watch { key: Bytes, seen: Option<Revision> },
    // To the client.
    Reply(Reply),
    Changed,
}

impl Payload for RegisterMessage {
    fn size(&self) -> usize {
        1
    }

    fn label(&self, _: Direction) -> String {
        match self {
            Self::Call { request: Request::Read { key }, .. } => format!("read {}", key.escape_ascii()),
            Self::Call { request: Request::Write { key, record, .. }, .. } => {
                let what = if record.held { "hold" } else { "free" };
                format!("write {}: {what}, version {}", key.escape_ascii(), record.version)
            }
            Self::Watch { key, .. } => format!("watch {}", key.escape_ascii()),
            Self::Reply(Reply::Record(entry)) if entry.record.held => format!("held, version {}", entry.record.version),
            Self::Reply(Reply::Record(entry)) => format!("free, version {}", entry.record.version),
            Self::Reply(Reply::Absent) => "absent".into(),
            Self::Reply(Reply::Written(_)) => "written".into(),
            Self::Reply(Reply::Conflict) => "conflict".into(),
            Self::Reply(Reply::Rejected(error)) => format!("{error}"),
            Self::Reply(Reply::NotSent(_)) => "not applied".into(),
            Self::Reply(Reply::Unknown(_)) => "unknown".into(),
            Self::Changed => "changed".into(),
        }
    }
}

/// What a connection is used for.
#[derive(Clone, Debug)]
enum Use {
    Call(CallId),
    Watch(Bytes),
}

#[derive(Clone, Debug)]
pub(crate) struct RegisterParts {
    id: ClientId,
    silence: Duration,
    generation: u64,
    /// The connections in use. Others that are open are idle.
    uses: BTreeMap<ConnId, Use>,
    idle: Vec<ConnId>,
    /// When the host last reported the time of day.
    told_time: Option<Instant>,
    /// By how much the host's time of day is ahead.
    skew: Duration,
    sent: u64,
}

impl<C: RegisterClient> SimStore for Registers<C> {
    type Client = C;
    type Config = Config;
}

impl<C: RegisterClient> ServerKind for Registers<C> {
    type Setup = RegisterSetup;
    type Packet = RegisterMessage;
    type Own = RegisterParts;
    type Chore = Chore;
    type Write = BytesWrite;
    const USER: &str = "app";
    const ONE_LOGIN: bool = false;
    const NODE: char = 's';
    const SUSPENDED: &str = "suspended";
    const LEFT: &str = "may be left";
    const DIRECTIONS: [&str; 2] = ["to the store", "to the client"];

    fn plain(setup: &mut RegisterSetup, rng: &mut Rng, _: bool) -> (usize, Config) {
        setup.seed = rng.next();
        (1, Config::new())
    }

    fn own(id: ClientId, config: &Config) -> RegisterParts {
        let silence = config.request_timeout;
        RegisterParts {
            id,
            silence,
            generation: 0,
            uses: BTreeMap::new(),
            idle: Vec::new(),
            told_time: None,
            skew: Duration::ZERO,
            sent: 0,
        }
    }

    fn servers(setup: RegisterSetup, _: Keep, clients: &[Process<Self>]) -> Self {
        let RegisterSetup { config, seed, late } = setup;
        Self {
            register: SimRegister::new(config, seed),
            delayed: BTreeMap::new(),
            number: 0,
            late,
            watches: BTreeMap::new(),
            loses_hints: false,
            ledger: Ledger::new(clients.iter().map(|process| process.own.id)),
            clients: PhantomData,
        }
    }

    fn silence(own: &RegisterParts) -> Duration {
        own.silence
    }

    fn lock(name: &[u8]) -> Vec<u8> {
        name.to_vec()
    }
}

impl<C: RegisterClient> Events for Registers<C> {
    fn begin(_: &mut World<C>) {}

    fn next_due(w: &World<C>) -> Option<Instant> {
        w.store.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    fn act_first(w: &mut World<C>) -> bool {
        w.execute_delayed()
    }

    fn act(_: &mut World<C>) {}

    fn receive_on_server(w: &mut World<C>, link: u64, _: usize, packet: Packet<RegisterMessage>) {
        w.receive_on_store(link, packet);
    }

    fn receive_on_client(w: &mut World<C>, client: usize, conn: ConnId, message: RegisterMessage) {
        w.receive_on_client(client, conn, message);
    }

    fn hang_up(w: &mut World<C>, link: u64, _: usize) {
        w.receive_on_store(link, Packet::Close(lock_proto::Fault::Reset));
    }

    fn pump_client(w: &mut World<C>, client: usize) {
        w.pump_requests(client);
    }

    fn ended(w: &mut World<C>, client: usize, link: u64, _: bool) {
        w.connection_ended(client, link);
    }
}

impl<C: RegisterClient> Services for Registers<C> {
    fn do_chore(w: &mut World<C>, client: usize, chore: Chore) {
        w.do_application_chore(client, chore);
    }

    fn write(w: &mut World<C>, client: usize, lock: LockId) {
        w.write_with_token(client, lock);
    }

    fn write_arrives(w: &mut World<C>, write: BytesWrite) {
        w.byte_write_arrives(write);
    }

    fn calm(w: &mut World<C>) {
        w.calm_store();
    }

    // A store's own client logs in.
    fn accept_password(_: &mut World<C>, _: &str, _: bool) {}
}

impl<C: RegisterClient> Judge for Registers<C> {
    fn order(w: &World<C>, client: usize, lock: LockId, event: &Event) -> Option<u64> {
        // The store orders grants by the writes that took the lock.
        let Event::Granted(grant) = event else { return None };
        let record = w.clients[client].records.get(&lock)?;
        w.checker.order(&record.name, &ledger::value(client, fence_of(grant)?), None)
    }

    fn is_stored(w: &World<C>, client: usize, lock: LockId, _: &Event) -> bool {
        let record = w.clients[client].records.get(&lock);
        let of_grant = |grant: &Grant| fence_of(grant);
        let held = record.and_then(|record| Some((&record.name, record.grant.as_ref().and_then(of_grant)?)));
        let there = held.and_then(|(name, fence)| Some((w.store.register.record(name)?, fence)));
        let id = w.clients[client].own.id;
        there.is_some_and(|(record, fence)| record.held && record.writer.client == id && record.fence == fence)
    }

    fn kept_until(w: &mut World<C>, client: usize, lock: LockId, event: &Event) -> Option<Instant> {
        let record = w.clients[client].records.get(&lock)?;
        let granted = if let Event::Granted(grant) = event { Some(grant) } else { record.grant.as_ref() };
        w.store.ledger.kept_until(&record.name, client, fence_of(granted?)?)
    }

    fn check_minted(w: &World<C>, client: usize, lock: LockId, grant: &Grant) -> Result<(), String> {
        // RG5
        let (Some(fence), Some(record)) = (fence_of(grant), w.clients[client].records.get(&lock)) else {
            return Ok(());
        };
        if w.store.ledger.has_minted(&record.name, client, fence) {
            return Ok(());
        }
        Err(format!("has the fence {fence}, which none of its records had"))
    }

    fn after_event(w: &mut World<C>, client: usize, lock: LockId, event: &Event) {
        if matches!(event, Event::Granted(_)) {
            w.write_while_held(client, lock);
        }
    }

    fn left_of(w: &World<C>, client: usize) -> Option<String> {
        let left = w.left_record(client)?;
        Some(format!("the record of {}", left.escape_ascii()))
    }
}

impl World {
    /// Returns a builder for a store with compare-and-set.
    pub fn register() -> Builder {
        Builder::new(RegisterSetup::new(), Client::new)
    }
}

impl<C: RegisterClient> World<C> {
    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &SimRegister {
        &self.store.register
    }

    /// Returns the number of requests that a client has sent.
    #[must_use]
    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].own.sent
    }

    /// Returns a lock that the record of a client keeps others out of.
    fn left_record(&self, client: usize) -> Option<&Bytes> {
        let id = self.clients[client].own.id;
        let is_there = |key: &&Bytes| {
            let record = self.store.register.record(key);
            record.is_some_and(|record| record.held && record.writer.client == id)
        };
        self.store.ledger.of_client(client, self.now).find(is_there)
    }

    fn report_ghosts(&mut self) {
        let idle = |client: &usize| {
            let process = &self.clients[*client];
            self.is_running(*client) && process.stopped.is_none() && process.machine.is_idle()
        };
        let ghost = (0..self.clients.len()).filter(idle).find_map(|client| {
            let left = self.left_record(client)?;
            Some(format!("client {client} is idle, and the record of {} is its own", left.escape_ascii()))
        });
        if let Some(text) = ghost {
            self.report(Rule::Ghost, text);
        }
    }
}
