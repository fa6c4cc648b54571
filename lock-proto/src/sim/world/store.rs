//! What the servers of a store add to a world.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::time::Duration;

use super::super::direction::Direction;
use super::super::journal::Keep;
use super::super::network::{Packet, Payload};
use super::super::rng::Rng;
use super::World;
use super::process::{Fact, Process};
use crate::id::{ClientId, ConnId, LockId};
use crate::lock::{Event, Machine};
use crate::time::Instant;

/// A kind of servers, and the clients that speak to them.
pub trait Store: Clone + Debug {
    /// A client.
    type Client: Machine + Clone + Debug;
    /// The settings of a client.
    type Config: Clone;
}

/// What a store's servers add to a world. Most hooks get the whole world.
pub(crate) trait Servers: Store + Sized {
    /// What a builder knows of the servers.
    type Setup;
    /// What is said over a connection.
    type Packet: Payload;
    /// What is known of a client process, beside what all have.
    type Own: Clone + Debug;
    /// What else an application or its host does by itself.
    type Chore: Clone + Debug;
    /// A write on its way to what a lock protects.
    type Write: Clone + Debug;

    /// How the log names a server, a client whose clock stops, what a shutdown leaves, and the two
    /// ways.
    const NODE: char;
    const SUSPENDED: &str;
    const LEFT: &str;
    const DIRECTIONS: [&str; 2];

    // ---- how a world is made ----

    /// How many servers there are, and the settings of a client that nobody has changed.
    fn plain(setup: &mut Self::Setup, rng: &mut Rng) -> (usize, Self::Config);
    fn own(id: ClientId, config: &Self::Config) -> Self::Own;
    fn servers(setup: Self::Setup, keep: Keep, clients: &[Process<Self>]) -> Self;
    /// The world is there.
    fn begin(w: &mut World<Self>);

    // ---- what happens in it ----

    /// When the servers next do something by themselves.
    fn next_due(w: &World<Self>) -> Option<Instant>;
    /// What is due before applications and clients do what they do; whether there was any.
    fn act_first(_: &mut World<Self>) -> bool {
        false
    }
    /// What is due after that.
    fn act(w: &mut World<Self>);
    /// A packet reaches a server that runs.
    fn server_takes(w: &mut World<Self>, link: u64, node: usize, packet: Packet<Self::Packet>);
    /// A packet reaches a client that runs.
    fn client_takes(w: &mut World<Self>, client: usize, conn: ConnId, packet: Self::Packet);
    /// Carries out what a machine asks for, until it asks for nothing more.
    fn pump_client(w: &mut World<Self>, client: usize);
    fn do_chore(w: &mut World<Self>, client: usize, chore: Self::Chore);
    fn write_arrives(w: &mut World<Self>, write: Self::Write);
    /// Every fault of a server ends, and every cut.
    fn calm(w: &mut World<Self>);

    // ---- what it must know ----

    /// Somebody has asked for this lock.
    fn asked(&mut self, _name: &Arc<[u8]>) {}
    /// A connection on which nothing came for so long may be given up.
    fn silence(w: &World<Self>, client: usize) -> Duration;
    /// What the reasons of a client call this lock.
    fn lock(name: &[u8]) -> Vec<u8>;
    /// The place of a grant in the order of the store, if it is known.
    fn order(w: &World<Self>, client: usize, lock: LockId, event: &Event) -> Option<u64>;
    /// A client was told an event, and its checks are done.
    fn was_told(w: &mut World<Self>, client: usize, lock: LockId, event: &Event);
    /// Where the address of a node leads a client.
    fn leads(&self, _client: usize, node: usize) -> usize {
        node
    }
    /// A client has closed a connection, or is told that it has ended.
    fn ended(_: &mut World<Self>, _client: usize, _link: u64, _by_client: bool) {}
}

/// What happens by itself when its time comes.
#[derive(Clone, Debug)]
pub(super) enum Planned<S: Servers> {
    /// A client process does something.
    Fact(usize, Fact<S>),
    /// A write reaches what a lock protects.
    Write(S::Write),
}

/// What a packet shows in a picture.
pub(super) fn label<P: Payload>(packet: &Packet<P>, direction: Direction) -> String {
    match (packet, direction) {
        (Packet::Open, Direction::ToNode) => "connect".into(),
        (Packet::Open, Direction::ToClient) => "connected".into(),
        (Packet::Data(data), _) => data.label(direction),
        (Packet::Close(why), _) => format!("close ({why})"),
    }
}
