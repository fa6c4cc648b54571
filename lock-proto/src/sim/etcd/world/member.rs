//! A member's process: whether it runs, and what waits for it if not. What it does is the [`Cluster`](super::super::Cluster)'s business.

use alloc::collections::VecDeque;

use super::wire::Wire;
use crate::sim::network::Packet;
use crate::sim::trace::State;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) state: State,
    /// Cut off from the other members.
    pub(super) cut_off: bool,
    /// What has come while it was stopped, by connection: its kernel took it.
    pub(super) inbox: VecDeque<(u64, Packet<Wire>)>,
    /// What it would say, and cannot while it is stopped.
    pub(super) outbox: VecDeque<(u64, Packet<Wire>)>,
}

impl Member {
    pub(super) const fn new() -> Self {
        Self { state: State::Running, cut_off: false, inbox: VecDeque::new(), outbox: VecDeque::new() }
    }
}
