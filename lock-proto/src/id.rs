//! Identifiers: of clients, and of what their machines hand out.

use core::fmt;

/// Identity of a client: 128 random bits, chosen by the caller.
///
/// Every token that the client writes into a store contains it, so it must be globally unique. Take
/// it from the operating system's entropy. A machine that is restored from a snapshot, or cloned to
/// run independently, needs a new one: two machines with the same id can both hold the same lock.
// M9
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u128);

impl ClientId {
    /// Creates an id from 128 random bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Returns the 128 bits.
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

/// One server of a client, identified by its position in the configured list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u16);

impl NodeId {
    /// Returns the id of the node at `index` of the configured list.
    #[must_use]
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// Returns its position in the configured list, from 0.
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
/// Opaque and generational: a slot is reused, an id never. Using the id of an ended acquisition is
/// a [`Misuse`](crate::Misuse); it never refers to another lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl LockId {
    /// Creates an id for a [step machine](crate::redis::step) that runs without a hub. The caller
    /// must not use an id twice.
    #[must_use]
    pub const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    /// Returns the place of the acquisition in its client: below the most that there were at once.
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Returns how many acquisitions had this place before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.slot, self.generation)
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Carries the commands. Every client has one such connection to each node.
    Commands,
    /// Blocks in the server until a lock is released. Open only while an acquisition waits.
    Wake,
}

/// On ZooKeeper, the generation of a session's connection is this times the number of the session,
/// plus a count. The numbers of sessions grow.
pub(crate) const GENERATIONS: u64 = 1 << 32;

/// One connection. A reconnect gets a new id, so late input from an old socket never answers a
/// request made on the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    pub(crate) node: NodeId,
    pub(crate) role: Role,
    pub(crate) generation: u64,
}

impl ConnId {
    /// Creates an id for a custom client. The caller must not use an id twice.
    #[must_use]
    pub const fn new(node: NodeId, role: Role, generation: u64) -> Self {
        Self { node, role, generation }
    }

    /// Returns the server it connects to.
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// Returns its purpose.
    pub const fn role(self) -> Role {
        self.role
    }

    /// Returns the number that tells it from earlier connections.
    pub const fn generation(self) -> u64 {
        self.generation
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Commands => "c",
            Role::Wake => "w",
        };
        let (node, count) = (self.node.0, self.generation % GENERATIONS);
        match self.generation / GENERATIONS {
            0 => write!(f, "{role}{node}.{count}"),
            session => write!(f, "{role}{node}.{session}.{count}"),
        }
    }
}

/// One request of the hub to one node. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    pub(crate) owner: CallOwner,
    pub(crate) node: NodeId,
    pub(crate) serial: u64,
}

/// The machine that made a call, by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(not(any(feature = "etcd", feature = "zookeeper")), allow(dead_code, reason = "Redis has no sessions"))]
pub(crate) enum CallOwner {
    Lock(u32),
    /// A session.
    Session(u32),
    /// An operation.
    Operation(u32),
    /// No machine waits for the reply.
    Nobody,
}

impl CallId {
    /// Creates an id for a [`Pipe`](crate::redis::Pipe) that runs without a hub. The caller must
    /// not use a `serial` twice.
    #[must_use]
    pub const fn new(node: NodeId, serial: u64) -> Self {
        Self { owner: CallOwner::Nobody, node, serial }
    }

    /// Returns the server it goes to.
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// Returns its serial number.
    pub const fn serial(self) -> u64 {
        self.serial
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}", self.serial)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn connection_of_session_shows_its_number() {
        for (generation, expected) in [(7, "c2.7"), ((1 << 32) + 1, "c2.1.1"), ((3 << 32) + 12, "c2.3.12")] {
            assert_eq!(ConnId::new(NodeId::new(2), Role::Commands, generation).to_string(), expected);
        }
    }
}
