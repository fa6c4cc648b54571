//! The two directions between a client and a server.

use core::fmt;

/// A direction between a client and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the client to the node.
    ToNode,
    /// From the node to the client.
    ToClient,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::ToNode, Self::ToClient];

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::ToNode => 0,
            Self::ToClient => 1,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToNode => "to the node",
            Self::ToClient => "to the client",
        })
    }
}
