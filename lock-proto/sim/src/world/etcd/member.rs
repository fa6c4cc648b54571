//! Network state of a member. Its behaviour is in [`Cluster`](crate::etcd::Cluster).

use alloc::collections::VecDeque;

use super::wire::EtcdMessage;
use crate::network::Packet;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorldMember {
    /// Cut off from the other members.
    pub(super) cut_off: bool,
    /// Packets, by connection, that it sends once it is resumed.
    pub(super) outbox: VecDeque<(u64, Packet<EtcdMessage>)>,
}
