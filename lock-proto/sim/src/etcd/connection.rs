//! Server-side state of a connection.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;

use super::ClusterOutput;
use super::keep_alive::StreamKeepAlives;
use super::watch::KeyWatches;
use lock_proto::Instant;
use lock_proto::etcd::{Rpc, StreamKind, StreamSend};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EtcdPeer {
    pub(super) member: usize,
    pub(super) streams: BTreeMap<u64, PeerStream>,
    /// Delayed input of a slow member, with the time of processing.
    pub(super) inbox: VecDeque<(Instant, Inbound)>,
    /// Delayed output of a slow member, with the time of sending.
    pub(super) outbox: VecDeque<(Instant, ClusterOutput)>,
}

impl EtcdPeer {
    pub(super) const fn new(member: usize) -> Self {
        Self { member, streams: BTreeMap::new(), inbox: VecDeque::new(), outbox: VecDeque::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerStream {
    pub(super) token: Option<String>,
    pub(super) kind: CallKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CallKind {
    KeepAlive(StreamKeepAlives),
    /// The watches, and the time of the next progress notification.
    Watch(KeyWatches, Instant),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Inbound {
    Call { rpc: u64, token: Option<String>, request: Rpc },
    Open { stream: u64, kind: StreamKind, token: Option<String> },
    Send { stream: u64, message: StreamSend },
    Close { stream: u64 },
}

/// A call that waits for a leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) member: usize,
    pub(super) conn: u64,
    pub(super) rpc: u64,
    pub(super) token: Option<String>,
    pub(super) request: Rpc,
    pub(super) until: Instant,
    /// It was forwarded to a presumed leader, so it may be in the log of a member.
    pub(super) forwarded: bool,
}
