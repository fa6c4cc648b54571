//! A world of Redis nodes.

mod builder;
mod calm;
mod client;
mod faults;
mod label;
mod model;
mod pump;
mod server;
pub(crate) mod tap;
mod truth;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::time::Duration;

use super::IDLE_TIMEOUT;
use super::World as AnyWorld;
use super::bytes::{ByteServers, BytesWrite, Chore};
use super::check::contains;
use super::handover::CallCause;
use super::process::Process;
use super::store::{Events, Judge, ServerKind, Services, SimStore};
use crate::check::Rule;
use crate::journal::Keep;
use crate::network::Packet;
use crate::redis::{Node, NodeConfig};
use crate::rng::Rng;
use builder::RedisSetup;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::redis::{CLIENT_PART, Client, Config, Identity, KeyLayout};
use lock_proto::{ClientId, ConnId, LockId};
use lock_proto::{Event, Grant};
use model::{LockModel, has_token};
use server::Server;
use tap::RedisTap;
use truth::Truth;

pub use client::RedisClient;

/// A [`world::World`](super::World) of Redis nodes and [`Client`] machines.
///
/// It also checks that no client shortens the TTL of a key.
pub type World<C = Client> = AnyWorld<RedisServers<C>>;
/// Builds a [`World`].
pub type Builder<C = Client> = super::Builder<RedisServers<C>>;

/// The Redis nodes of a [`World`].
#[derive(Clone, Debug)]
pub struct RedisServers<C = Client> {
    nodes: Vec<Server>,
    names: BTreeSet<Arc<[u8]>>,
    /// Fence counter keys of all clients.
    counters: BTreeSet<Vec<u8>>,
    /// Overrides of node addresses, by client and node.
    redirects: BTreeMap<(usize, usize), usize>,
    gather: Duration,
    /// The naive model that runs beside the clients, if it does.
    model: Option<Box<LockModel>>,
    truth: Truth,
    clients: PhantomData<C>,
}

#[derive(Clone, Debug)]
pub(crate) struct RedisParts {
    /// Why the host has a write scheduled, if it has.
    pending_flush: Option<CallCause>,
    request_timeout: Duration,
    /// A node that may have lost a lock does not vote for so long.
    quarantine: Duration,
    taps: BTreeMap<u64, RedisTap>,
    token_prefix: Vec<u8>,
}

impl<C: RedisClient> SimStore for RedisServers<C> {
    type Client = C;
    type Config = Config;
}

impl<C: RedisClient> ServerKind for RedisServers<C> {
    type Setup = RedisSetup;
    type Packet = Vec<u8>;
    type Own = RedisParts;
    type Chore = Chore;
    type Write = BytesWrite;
    const USER: &str = "default";
    const ONE_LOGIN: bool = false;
    const NODE: char = 'n';
    const SUSPENDED: &str = "suspended with its clock";
    const LEFT: &str = "not released";
    const DIRECTIONS: [&str; 2] = ["ToNode", "ToClient"];

    /// By `BLPOP`.
    const WAKES_ONE_A_TRIP: bool = true;
    const FORGETS_RESET: bool = true;
    const EXCUSED: &[Rule] = C::EXCUSED;

    fn plain(setup: &mut RedisSetup, _: &mut Rng, tls: bool) -> (usize, Config) {
        if tls {
            setup.connect_by_tls();
        }
        (setup.nodes.len(), Config::new(setup.endpoints.iter().cloned()).idle_timeout(IDLE_TIMEOUT))
    }

    fn own(id: ClientId, config: &Config) -> RedisParts {
        let mut token_prefix =
            Identity::new(id, KeyLayout::default(), &config.prefix).token(0).to_string().into_bytes();
        token_prefix.truncate(CLIENT_PART);
        RedisParts {
            pending_flush: None,
            request_timeout: config.request_timeout,
            quarantine: config.store.quarantine,
            taps: BTreeMap::new(),
            token_prefix,
        }
    }

    fn servers(setup: RedisSetup, keep: Keep, clients: &[Process<Self>]) -> Self {
        let counter =
            |process: &Process<Self>| KeyLayout::default().counter(process.machine.info().prefix).lock().to_vec();
        let server = |config: NodeConfig| {
            Server::new(Node::new(Instant::ZERO, config.monitor(keep != Keep::Nothing).record_mints()))
        };
        Self {
            nodes: setup.nodes.into_iter().map(server).collect(),
            names: BTreeSet::new(),
            counters: clients.iter().map(counter).collect(),
            redirects: BTreeMap::new(),
            gather: setup.gather,
            model: None,
            truth: Truth::default(),
            clients: PhantomData,
        }
    }

    fn requested(&mut self, name: &Arc<[u8]>) {
        if !self.names.contains(name) {
            self.names.insert(name.clone());
        }
    }

    fn silence(own: &RedisParts) -> Duration {
        own.request_timeout
    }

    fn key(client: &C, name: &[u8]) -> Vec<u8> {
        client.key(name)
    }

    fn poll_violation(client: &mut C) -> Option<(Rule, String)> {
        client.poll_violation()
    }

    fn lock(name: &[u8]) -> Vec<u8> {
        name.to_vec()
    }

    fn resolve(&self, client: usize, node: usize) -> usize {
        self.redirects.get(&(client, node)).copied().unwrap_or(node)
    }
}

impl<C: RedisClient> Events for RedisServers<C> {
    fn begin(w: &mut World<C>) {
        for client in 0..w.clients.len() {
            w.pump_client(client);
        }
    }

    fn next_due(w: &World<C>) -> Option<Instant> {
        (0..w.hosts.len()).flat_map(|node| [w.node_deadline(node), w.work_ends_at(node)]).flatten().min()
    }

    fn act(w: &mut World<C>) {
        if let Some(node) = w.free_node() {
            w.finish_work(node);
        } else if let Some(node) = w.due_node() {
            w.wake_node(node);
        }
    }

    fn receive_on_server(w: &mut World<C>, link: u64, node: usize, packet: Packet<Vec<u8>>) {
        w.serve(link, node, packet);
    }

    fn receive_on_client(w: &mut World<C>, client: usize, conn: ConnId, bytes: Vec<u8>) {
        w.note_received(client, conn, &bytes);
        w.receive_bytes(client, conn, &bytes);
    }

    fn hang_up(w: &mut World<C>, link: u64, node: usize) {
        w.receive_on_node(link, node, Packet::Close(Fault::Reset));
    }

    fn pump_client(w: &mut World<C>, client: usize) {
        w.pump_bytes(client);
    }

    fn stepped(w: &mut World<C>) {
        w.compare();
    }

    fn ended(w: &mut World<C>, client: usize, link: u64, _: bool) {
        w.clients[client].own.taps.remove(&link);
    }
}

impl<C: RedisClient> Services for RedisServers<C> {
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
        w.calm_nodes();
    }

    fn accept_password(w: &mut World<C>, password: &str, on: bool) {
        for server in &mut w.store.nodes {
            server.node.set_password(w.now, Self::USER, password, on);
        }
    }
}

impl<C: RedisClient> Judge for RedisServers<C> {
    fn order(w: &World<C>, client: usize, lock: LockId, event: &Event) -> Option<u64> {
        // A quorum has no single order.
        let Event::Granted(grant) = event else { return None };
        let record = w.clients[client].records.get(&lock).filter(|_| w.hosts.len() == 1)?;
        let (name, token) = (&record.name, grant.token.to_string());
        if C::ONE_TOKEN {
            return w.checker.latest_order(name, token.as_bytes());
        }
        w.checker.order(name, token.as_bytes(), grant.fence.map(|fence| fence.get()))
    }

    fn is_stored(w: &World<C>, client: usize, lock: LockId, event: &Event) -> bool {
        let Some(record) = w.clients[client].records.get(&lock) else { return false };
        // The replies of some nodes of a quorum may have been lost.
        if w.hosts.len() > 1 && matches!(event, Event::Lost(_)) {
            return false;
        }
        // Two names may lead to one server.
        let nodes: BTreeSet<usize> = (0..w.hosts.len()).map(|node| w.store.resolve(client, node)).collect();
        let token = record.grant.as_ref().map(|grant| grant.token.to_string());
        // The value of another lock may contain more than the token.
        let is_own = |value: &[u8]| match &token {
            Some(token) if C::ONE_TOKEN => contains(value, token.as_bytes()),
            Some(_) | None => has_token(record, value),
        };
        let stored = |node: &usize| {
            // A late write may have repaired the key. A restored server has the key again that it
            // reported as gone.
            w.checker.missing_at(*node, &record.name) <= record.confirmed()
                && w.node(*node).string(w.now, &record.name).is_some_and(|(value, _)| is_own(value))
        };
        nodes.iter().filter(|node| stored(node)).count() > w.hosts.len() / 2
    }

    fn left_of(w: &World<C>, client: usize) -> Option<String> {
        let is_own = |node: usize, name: &Arc<[u8]>| {
            w.node(node).string(w.now, name).is_some_and(|(value, _)| {
                let own = value.starts_with(&w.clients[client].own.token_prefix);
                own && !w.store.truth.is_restored(node, name, value)
            })
        };
        // On a quorum a lock is released as soon as most nodes lack the key.
        let nodes = 0..w.hosts.len();
        let is_left = |name: &&Arc<[u8]>| nodes.clone().filter(|node| is_own(*node, name)).count() > nodes.len() / 2;
        w.store.names.iter().find(is_left).map(|name| format!("{}", name.escape_ascii()))
    }

    fn kept_until(w: &mut World<C>, client: usize, lock: LockId, event: &Event) -> Option<Instant> {
        let (nodes, process) = (w.hosts.len(), &w.clients[client]);
        let record = process.records.get(&lock)?;
        let granted = if let Event::Granted(grant) = event { Some(grant) } else { None };
        let token = granted.or(record.grant.as_ref())?.token.to_string();
        // Clocks differ by up to a hundredth.
        let quarantine = process.own.quarantine - process.own.quarantine / 50;
        let (key, take) = (&record.name, granted.is_some());
        Some(w.store.truth.end(w.now, nodes, key, token.as_bytes(), take, quarantine))
    }

    fn check_minted(w: &World<C>, client: usize, lock: LockId, grant: &Grant) -> Result<(), String> {
        let (Some(fence), Some(record)) = (grant.fence, w.clients[client].records.get(&lock)) else { return Ok(()) };
        let (fence, token) = (fence.get(), grant.token.to_string());
        if w.store.truth.is_minted(&record.name, token.as_bytes(), fence) {
            return Ok(());
        }
        Err(format!("has the fencing token {fence}, which was not minted for it"))
    }

    fn after_event(w: &mut World<C>, client: usize, lock: LockId, event: &Event) {
        if matches!(event, Event::Granted(_)) {
            w.write_while_held(client, lock);
        }
    }
}

impl<C: RedisClient> ByteServers for RedisServers<C> {
    fn gather(&self) -> Duration {
        self.gather
    }

    fn pending_flush(own: &mut RedisParts) -> &mut Option<CallCause> {
        &mut own.pending_flush
    }

    fn note_requests(w: &mut World<C>, client: usize, link: u64, conn: ConnId, bytes: &[u8]) {
        w.note_requests(client, link, conn, bytes);
    }

    fn pumped(w: &mut World<C>, client: usize) {
        if !w.clients[client].machine.has_work() {
            (0..w.hosts.len()).for_each(|node| w.check_leftover_keys(node));
        }
    }
}

impl World {
    /// Returns a builder for this many Redis nodes: one, or an odd number for a quorum.
    pub fn redis(nodes: usize) -> Builder {
        Builder::new(RedisSetup::new(nodes), Client::new)
    }
}

impl<C: RedisClient> World<C> {
    /// Returns a node.
    #[must_use]
    pub fn node(&self, node: usize) -> &Node {
        &self.store.nodes[node].node
    }

    /// Returns the string under `key` on a node.
    #[must_use]
    pub fn get(&self, node: usize, key: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.store.nodes[node].node.get(self.now, key)
    }

    /// Returns the names of all keys on a node, as text.
    #[must_use]
    pub fn keys(&self, node: usize) -> Vec<String> {
        self.store.nodes[node].node.keys(self.now).iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Returns how often clients sent this command to a node.
    #[must_use]
    pub fn calls(&self, node: usize, command: &str) -> u64 {
        self.store.nodes[node].node.calls().get(command).copied().unwrap_or(0)
    }

    /// Returns how many commands clients sent to a node, apart from those that open a connection.
    #[must_use]
    pub fn total_calls(&self, node: usize) -> u64 {
        let opening = ["hello", "auth", "select", "client|setname", "client|setinfo", "client|id", "info", "ping"];
        let calls = self.store.nodes[node].node.calls();
        calls.iter().filter(|(name, _)| !opening.contains(&name.as_str())).map(|(_, count)| *count).sum()
    }
}
