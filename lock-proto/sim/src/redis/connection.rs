//! Server-side state of a connection.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::transaction::{Transaction, WatchedKeys};
use lock_proto::Instant;
use lock_proto::redis::Protocol;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RedisPeer {
    /// The id in the reply to `CLIENT ID`.
    pub(super) id: i64,
    pub(super) name: Vec<u8>,
    pub(super) user: Option<Arc<str>>,
    /// When the server closes the connection, unless it logs in again.
    pub(super) login_until: Option<Instant>,
    pub(super) db: u32,
    pub(super) protocol: Protocol,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) blocked: Option<BlockedCommand>,
    pub(super) channels: BTreeSet<Vec<u8>>,
    pub(super) patterns: BTreeSet<Vec<u8>>,
    /// Replication offset after its last command.
    pub(super) written: u64,
    /// No more input is read.
    pub(super) closing: bool,
    /// Set between `MULTI` and `EXEC`.
    pub(super) transaction: Option<Transaction>,
    pub(super) watched: WatchedKeys,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockedCommand {
    pub(super) cause: BlockCause,
    /// Unix time in ms after which the wait times out.
    pub(super) until: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum BlockCause {
    /// `BLPOP`: an element.
    Keys { db: u32, keys: Vec<Vec<u8>> },
    /// `WAIT`: this many replicas at this offset.
    Acks { replicas: i64, offset: u64 },
}

impl RedisPeer {
    pub(super) fn new(id: i64, user: Option<Arc<str>>) -> Self {
        Self {
            id,
            name: Vec::new(),
            user,
            login_until: None,
            db: 0,
            protocol: Protocol::Resp2,
            input: Vec::new(),
            output: Vec::new(),
            blocked: None,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            written: 0,
            closing: false,
            transaction: None,
            watched: WatchedKeys::default(),
        }
    }

    pub(super) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }
}
