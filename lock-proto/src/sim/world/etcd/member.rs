//! A member, beside its process. What it does is the [`Cluster`](crate::sim::etcd::Cluster)'s
//! business.

use alloc::collections::VecDeque;

use super::wire::Wire;
use crate::sim::network::Packet;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    /// Cut off from the other members.
    pub(super) cut_off: bool,
    /// What it would say, by connection, and cannot while it is stopped.
    pub(super) outbox: VecDeque<(u64, Packet<Wire>)>,
}
