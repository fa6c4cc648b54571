//! The connection of a client of own locks to a cluster.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use crate::own::Call;
use crate::own::transport::Transport;
use lock_proto::Event;
use lock_proto::Instant;
use lock_proto::etcd::message::{
    LeaseKeepAliveRequest, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchRequestUnion, WatchResponse,
};
use lock_proto::etcd::{Endpoint, Output, Rpc, RpcId, StreamId, StreamKind, StreamReceived, StreamSend};
use lock_proto::{ConnId, LockId, NodeId, Role};

use super::lock::Watched;

/// The calls and streams of a client of own locks on etcd, on one connection to one member.
/// [`Context`](super::Context) sends on it. When it ends, the next member is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Calls {
    members: Vec<Endpoint>,
    /// How long a connection may take to open.
    connect_timeout: Duration,
    /// How many were opened so far.
    opened: u64,
    /// The last number of a call, stream or watch.
    last: u64,
    connection: Option<Connection>,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Connection {
    conn: ConnId,
    /// When it must be open; `None` once it is.
    open_by: Option<Instant>,
    /// What is sent when it is open.
    unsent: Vec<Output>,
    calls: BTreeMap<RpcId, (LockId, Call)>,
    streams: BTreeMap<StreamKind, StreamId>,
    /// Unanswered keep-alives: the lease, the acquisition, and when it was sent.
    keep_alives: Vec<(i64, LockId, Instant)>,
    /// Watches by number: the acquisition and the tag.
    watches: BTreeMap<i64, (LockId, u64)>,
}

/// Something that ended with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Call(Call),
    Watch(u64),
}

/// Something that arrived on a stream, for an acquisition.
pub(super) enum Received {
    KeepAlive { lease: i64, sent: Instant, ttl: i64 },
    Watch(u64, Watched),
}

impl Calls {
    pub(super) const fn new(members: Vec<Endpoint>, connect_timeout: Duration) -> Self {
        Self { members, connect_timeout, opened: 0, last: 0, connection: None, outputs: VecDeque::new() }
    }

    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the next output if it is sent to the member.
    pub(in crate::own) fn poll_request(&mut self) -> Option<Output> {
        match self.outputs.front()? {
            Output::Call { .. } | Output::Open { .. } | Output::Send { .. } | Output::Close { .. } => {
                self.outputs.pop_front()
            }
            Output::Connect { .. }
            | Output::Disconnect { .. }
            | Output::Event { .. }
            | Output::Operation { .. }
            | Output::Credentials { .. }
            | Output::Stopped { .. } => None,
        }
    }

    const fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the connection, and opens one if there is none.
    fn connect(&mut self, now: Instant) -> &mut Connection {
        let member = self.opened as usize % self.members.len();
        self.connection.get_or_insert_with(|| {
            self.opened += 1;
            let node = NodeId::new(u16::try_from(member).unwrap_or(u16::MAX));
            let conn = ConnId::new(node, Role::Commands, self.opened);
            let endpoint = Box::new(self.members[member].clone());
            self.outputs.push_back(Output::Connect { node, conn, endpoint });
            Connection {
                conn,
                open_by: Some(now + self.connect_timeout),
                unsent: Vec::new(),
                calls: BTreeMap::new(),
                streams: BTreeMap::new(),
                keep_alives: Vec::new(),
                watches: BTreeMap::new(),
            }
        })
    }

    /// Sends when the connection is open.
    fn send(&mut self, output: Output) {
        match self.connection.as_mut().filter(|connection| connection.open_by.is_some()) {
            Some(connection) => connection.unsent.push(output),
            None => self.outputs.push_back(output),
        }
    }

    pub(super) fn call(&mut self, now: Instant, lock: LockId, tag: u64, request: Rpc) {
        let serial = self.next_number();
        let connection = self.connect(now);
        let rpc = RpcId::new(connection.conn, serial);
        connection.calls.insert(rpc, (lock, Call { node: rpc.conn().node().index(), tag, sent: now }));
        self.send(Output::Call { rpc, request, token: None });
    }

    /// Sends a message on the stream of this kind, and opens it if there is none.
    fn send_on(&mut self, now: Instant, kind: StreamKind, message: StreamSend) {
        let serial = self.next_number();
        let connection = self.connect(now);
        let new = StreamId::new(connection.conn, kind, serial);
        let stream = *connection.streams.entry(kind).or_insert(new);
        if stream == new {
            self.send(Output::Open { stream, token: None });
        }
        self.send(Output::Send { stream, message });
    }

    pub(super) fn keep_alive(&mut self, now: Instant, lock: LockId, lease: i64) {
        self.connect(now).keep_alives.push((lease, lock, now));
        self.send_on(now, StreamKind::KeepAlive, StreamSend::KeepAlive(LeaseKeepAliveRequest { id: lease }));
    }

    pub(super) fn watch(&mut self, now: Instant, lock: LockId, tag: u64, key: &[u8], from: i64) {
        let watch_id = self.next_number().cast_signed();
        self.connect(now).watches.insert(watch_id, (lock, tag));
        let key = Bytes::copy_from_slice(key);
        let create = WatchCreateRequest { key, start_revision: from, watch_id, ..WatchCreateRequest::default() };
        let request = WatchRequest { request: Some(WatchRequestUnion::Create(create)) };
        self.send_on(now, StreamKind::Watch, StreamSend::Watch(request));
    }

    /// Ends the watches of an acquisition with this tag, or all.
    pub(super) fn unwatch(&mut self, lock: LockId, tag: Option<u64>) {
        let Some(connection) = &mut self.connection else { return };
        let ends = |watch: &(LockId, u64)| watch.0 == lock && tag.is_none_or(|tag| watch.1 == tag);
        let ended: Vec<i64> = connection.watches.iter().filter(|(_, watch)| ends(watch)).map(|(id, _)| *id).collect();
        let Some(stream) = connection.streams.get(&StreamKind::Watch).copied() else { return };
        for watch_id in ended {
            if let Some(connection) = &mut self.connection {
                connection.watches.remove(&watch_id);
            }
            let request = WatchRequestUnion::Cancel(WatchCancelRequest { watch_id });
            self.send(Output::Send { stream, message: StreamSend::Watch(WatchRequest { request: Some(request) }) });
        }
    }

    pub(super) fn handle_reply(&mut self, rpc: RpcId) -> Option<(LockId, Call)> {
        self.connection.as_mut()?.calls.remove(&rpc)
    }

    pub(super) fn handle_message(&mut self, stream: StreamId, message: StreamReceived) -> Vec<(LockId, Received)> {
        let connection = self.connection.as_mut().filter(|connection| connection.conn == stream.conn());
        let Some(connection) = connection else { return Vec::new() };
        let received = match message {
            StreamReceived::KeepAlive(alive) => {
                let place = connection.keep_alives.iter().position(|(lease, _, _)| *lease == alive.id);
                let asked = place.map(|place| connection.keep_alives.remove(place));
                let ttl = alive.ttl.max(0);
                asked.map(|(lease, lock, sent)| (lock, Received::KeepAlive { lease, sent, ttl }))
            }
            StreamReceived::Watch(response) => connection.watched(response),
        };
        received.into_iter().collect()
    }

    pub(super) fn handle_stream_ended(&mut self, stream: StreamId) -> Vec<(LockId, Received)> {
        let connection = self.connection.as_mut().filter(|connection| connection.conn == stream.conn());
        let Some(connection) = connection else { return Vec::new() };
        connection.streams.remove(&stream.kind());
        match stream.kind() {
            StreamKind::KeepAlive => {
                connection.keep_alives.clear();
                Vec::new()
            }
            StreamKind::Watch => {
                let ended = core::mem::take(&mut connection.watches).into_values();
                ended.map(|(lock, tag)| (lock, Received::Watch(tag, Watched::Ended))).collect()
            }
        }
    }
}

impl Connection {
    fn watched(&mut self, response: WatchResponse) -> Option<(LockId, Received)> {
        let (lock, tag) = *self.watches.get(&response.watch_id)?;
        let revision = response.header.unwrap_or_default().revision;
        let watched = if response.canceled {
            self.watches.remove(&response.watch_id);
            Watched::Ended
        } else if response.created {
            Watched::Open(revision)
        } else if response.events.is_empty() {
            return None;
        } else {
            Watched::Changed(response.events)
        };
        Some((lock, Received::Watch(tag, watched)))
    }
}

impl Transport for Calls {
    type Gone = Gone;

    fn emit(&mut self, lock: LockId, event: Event) {
        self.outputs.push_back(Output::Event { lock, event });
    }

    fn close(&mut self, lock: LockId) {
        self.unwatch(lock, None);
    }

    fn stop(&mut self, unreleased: u32) {
        if let Some(connection) = self.connection.take() {
            self.outputs.push_back(Output::Disconnect { conn: connection.conn, why: None });
        }
        self.outputs.push_back(Output::Stopped { unreleased });
    }

    fn handle_connected(&mut self, _: Instant, conn: ConnId) {
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.conn == conn) {
            connection.open_by = None;
            self.outputs.extend(core::mem::take(&mut connection.unsent));
        }
    }

    fn handle_disconnected(&mut self, conn: ConnId) -> Vec<(LockId, Gone)> {
        let Some(gone) = self.connection.take_if(|connection| connection.conn == conn) else { return Vec::new() };
        let calls = gone.calls.into_values().map(|(lock, call)| (lock, Gone::Call(call)));
        let watches = gone.watches.into_values().map(|(lock, tag)| (lock, Gone::Watch(tag)));
        calls.chain(watches).collect()
    }

    fn give_up(&mut self, now: Instant) -> Option<ConnId> {
        let late = |connection: &&Connection| connection.open_by.is_some_and(|at| at <= now);
        let conn = self.connection.as_ref().filter(late)?.conn;
        self.outputs.push_back(Output::Disconnect { conn, why: None });
        Some(conn)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.connection.as_ref()?.open_by
    }
}
