//! The interface between a world and the servers of a store.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::time::Duration;

use bytes::Bytes;

use super::super::check::Rule;
use super::super::direction::Direction;
use super::super::journal::Keep;
use super::super::network::{Packet, Payload};
use super::super::rng::Rng;
use super::World;
use super::process::{Input, Process};
use lock_proto::Instant;
use lock_proto::{ClientId, ConnId, LockId};
use lock_proto::{Event, Grant, LockClient, Machine};

/// A kind of server and the clients that speak to it.
pub trait SimStore: Clone + Debug {
    /// Client machine.
    type Client: Machine + Clone + Debug;
    /// Settings of a client.
    type Config: Clone;
}

/// What a store's servers are made of: types, names, and what does not depend on the state of a world.
pub(crate) trait ServerKind: SimStore + Sized {
    type Setup;
    type Packet: Payload;
    /// Store-specific state of a client process.
    type Own: Clone + Debug;
    /// Store-specific scheduled actions of an application or its host.
    type Chore: Clone + Debug;
    /// A write in flight to the protected resource.
    type Write: Clone + Debug;

    /// The user for whom hosts obtain credentials.
    const USER: &str;
    /// Whether the connections of a client share one login, or log in by themselves.
    const ONE_LOGIN: bool;
    /// Log names of a server, of a client with a stopped clock, of leftovers after a shutdown, and
    /// of the two directions.
    const NODE: char;
    const SUSPENDED: &str;
    const LEFT: &str;
    const DIRECTIONS: [&str; 2];

    /// The servers report one release to a client, and the next one after a round trip.
    const WAKES_ONE_A_TRIP: bool = false;

    /// A paused server sends nothing on a connection that was reset, whatever it executes.
    const FORGETS_RESET: bool = false;

    /// Rules that the clients do not promise.
    const EXCUSED: &[Rule] = &[];

    /// Returns the number of servers and the default settings of a client, which connects by TLS
    /// or not.
    fn plain(setup: &mut Self::Setup, rng: &mut Rng, tls: bool) -> (usize, Self::Config);

    fn own(id: ClientId, config: &Self::Config) -> Self::Own;
    fn servers(setup: Self::Setup, keep: Keep, clients: &[Process<Self>]) -> Self;

    /// A client requested this lock.
    fn requested(&mut self, _name: &Arc<[u8]>) {}

    /// Returns the key of a lock of this name.
    fn key(client: &Self::Client, name: &[u8]) -> Vec<u8> {
        [client.info().prefix, name].concat()
    }

    /// Returns what a client has found of itself, and forgets it.
    fn poll_violation(_: &mut Self::Client) -> Option<(Rule, String)> {
        None
    }

    /// Returns how long a connection may be silent before the client may give it up.
    fn silence(own: &Self::Own) -> Duration;

    /// Returns the key that `Reasons` uses for this lock.
    fn lock(name: &[u8]) -> Vec<u8>;

    /// Returns whether a candidate of this election may have this key.
    fn is_candidate(_name: &[u8], _key: &[u8]) -> bool {
        true
    }

    /// Returns how long a lock with this TTL is valid after an extension, drift aside.
    fn granted(ttl: Duration, _grant: Option<&Grant>, _own: &Self::Own) -> Duration {
        ttl
    }

    /// Returns the node that a client reaches at the address of `node`.
    fn resolve(&self, _client: usize, node: usize) -> usize {
        node
    }
}

/// The part of a store's servers in the event loop. Most hooks get the whole world.
pub(crate) trait Events: ServerKind {
    fn begin(w: &mut World<Self>);

    /// Returns when the servers next act without input.
    fn next_due(w: &World<Self>) -> Option<Instant>;

    /// Runs what is due before the applications and clients. Returns true if there was anything.
    fn act_first(_: &mut World<Self>) -> bool {
        false
    }

    /// Runs what is due after the applications and clients.
    fn act(w: &mut World<Self>);

    fn receive_on_server(w: &mut World<Self>, link: u64, node: usize, packet: Packet<Self::Packet>);
    fn receive_on_client(w: &mut World<Self>, client: usize, conn: ConnId, packet: Self::Packet);

    /// A running server learns that a connection was reset.
    fn hang_up(w: &mut World<Self>, link: u64, node: usize);

    /// Carries out the outputs of a machine until there are none left.
    fn pump_client(w: &mut World<Self>, client: usize);

    /// Called after each step of the world.
    fn stepped(_: &mut World<Self>) {}

    /// A client closed a connection or learned of its end.
    fn ended(_: &mut World<Self>, _client: usize, _link: u64, _by_client: bool) {}
}

/// What applications and operators ask of a store's servers.
pub(crate) trait Services: ServerKind {
    fn do_chore(w: &mut World<Self>, client: usize, chore: Self::Chore);
    fn write(w: &mut World<Self>, client: usize, lock: LockId);
    fn write_arrives(w: &mut World<Self>, write: Self::Write);
    /// Ends the faults of the servers.
    fn calm(w: &mut World<Self>);

    /// Every server accepts a password from now on, or rejects it. Redis keeps the logins of
    /// connections; on etcd, tokens become invalid with the password.
    fn accept_password(w: &mut World<Self>, password: &str, on: bool);

    /// A leader is about to proclaim this value.
    fn proclaiming(_: &mut World<Self>, _client: usize, _lock: LockId, _value: &Bytes) {}
}

/// What the checkers ask a store's servers.
pub(crate) trait Judge: ServerKind {
    /// Returns the position of a grant in the store's order, if known.
    fn order(w: &World<Self>, client: usize, lock: LockId, event: &Event) -> Option<u64>;

    /// Returns whether this event, which says that the key or node of a hold is gone, is wrong: it
    /// has been there since the hold was last confirmed. On a quorum, a client may report a loss if
    /// it cannot prove that most nodes have the key.
    fn is_stored(w: &World<Self>, client: usize, lock: LockId, event: &Event) -> bool;

    /// Returns until when the servers keep the hold of this event, as they know it, in true time;
    /// `ZERO` if they do not. `None` if it is unknown. What something else than its client ended
    /// counts until its client is told.
    fn kept_until(w: &mut World<Self>, client: usize, lock: LockId, event: &Event) -> Option<Instant>;

    /// Checks that the fencing token of a grant is the server's, if it has one.
    fn check_minted(w: &World<Self>, client: usize, lock: LockId, grant: &Grant) -> Result<(), String>;

    /// Called after an event was delivered to a client and checked.
    fn after_event(w: &mut World<Self>, client: usize, lock: LockId, event: &Event);

    /// Returns a key, lease or session of a client that the servers have, if there is any.
    fn left_of(w: &World<Self>, client: usize) -> Option<String>;
}

/// All of it.
pub(crate) trait SimServers: Events + Services + Judge {}

impl<S: Events + Services + Judge> SimServers for S {}

#[derive(Clone, Debug)]
pub(super) enum Planned<S: ServerKind> {
    Input(usize, Input<S>),
    Write(S::Write),
    /// The sockets of a client to a node take bytes again.
    Writable(usize, usize),
    /// Servers stop accepting a password.
    Retire(String),
}

pub(super) fn label<P: Payload>(packet: &Packet<P>, direction: Direction) -> String {
    match (packet, direction) {
        (Packet::Open, Direction::ToNode) => "connect".into(),
        (Packet::Open, Direction::ToClient) => "connected".into(),
        (Packet::Handshake(_), _) => "TLS handshake".into(),
        (Packet::Data(data), _) => data.label(direction),
        (Packet::Close(why), _) => format!("close ({why})"),
    }
}
