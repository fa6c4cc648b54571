//! Identities: who a client is, and the opaque handles its machines give out.

use core::fmt;

/// What tells this client from every other one: 128 random bits, chosen by the caller.
///
/// It is part of every token that the client writes into a store, so it must be unique in the world:
/// take it from the operating system's entropy. A machine that is restored from a snapshot, or cloned to
/// act on its own, must be given a new one; two machines with one id can both hold the same lock (requirement M9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u128);

impl ClientId {
    /// An id from 128 random bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128 bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

/// One server of a client, by its place in the configured list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u16);

impl NodeId {
    /// The node at `index` of the configured list.
    #[must_use]
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// Its place in the configured list, from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// One acquisition of a lock, from `acquire` to its last event.
///
/// Opaque and generational: the slot of an ended acquisition is used again, its id never. A stale id
/// is a [`Misuse`](crate::Misuse), never another lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl LockId {
    /// For whoever uses a [step machine](crate::redis::step) alone: the caller sees to it that no id is used twice.
    #[must_use]
    pub const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }
}

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.slot, self.generation)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Carries the commands: every client has one to each node.
    Commands,
    /// Blocks in the server until a lock is given back; open only while somebody waits.
    Wake,
}

/// One connection. A reconnect is a new connection with a new id, so what comes late from an old socket
/// can never answer a request made on the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    pub(crate) node: NodeId,
    pub(crate) role: Role,
    pub(crate) generation: u64,
}

impl ConnId {
    /// For a client of your own: the caller sees to it that no id is used twice.
    #[must_use]
    pub const fn new(node: NodeId, role: Role, generation: u64) -> Self {
        Self { node, role, generation }
    }

    /// The server it goes to.
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// What it is for.
    pub const fn role(self) -> Role {
        self.role
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Commands => "c",
            Role::Wake => "w",
        };
        write!(f, "{}{}.{}", role, self.node.0, self.generation)
    }
}

/// One request of the hub to one node. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    pub(crate) owner: CallOwner,
    pub(crate) node: NodeId,
    pub(crate) serial: u64,
}

/// What a call belongs to, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "leases and elections are etcd's"))]
pub(crate) enum CallOwner {
    Lock(u32),
    /// A lease.
    Session(u32),
    /// A question about an election.
    Query(u32),
    /// Nobody waits for the answer.
    Nobody,
}

impl CallId {
    /// For whoever uses a [`Pipe`](crate::redis::Pipe) alone: the caller sees to it that no `serial` is used twice.
    #[must_use]
    pub const fn new(node: NodeId, serial: u64) -> Self {
        Self { owner: CallOwner::Nobody, node, serial }
    }

    /// The server that it goes to.
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// Its number.
    pub const fn serial(self) -> u64 {
        self.serial
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}", self.serial)
    }
}
