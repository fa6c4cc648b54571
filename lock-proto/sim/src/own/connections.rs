//! The connections of a client of own locks.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::lock::Call;
use super::transport::Transport;
use crate::redis::RespReply;
use crate::redis::effect::encode;
use lock_proto::Event;
use lock_proto::Instant;
use lock_proto::lock::Output;
use lock_proto::redis::Endpoint;
use lock_proto::{ConnId, LockId, NodeId, Role};

/// The connections of a client of own locks to Redis. [`Context`](super::Context) sends on them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connections {
    endpoints: Vec<Endpoint>,
    /// How long a connection may take to open.
    connect_timeout: Duration,
    /// How many were opened so far.
    opened: u64,
    open: BTreeMap<ConnId, Connection>,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Connection {
    /// The only acquisition that uses it, if it is not shared.
    owner: Option<LockId>,
    /// When it must be open; `None` once it is.
    open_by: Option<Instant>,
    subscribed: bool,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Unanswered commands; `None` for a login.
    pending: VecDeque<Option<(LockId, Call)>>,
}

/// Something that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Reply(LockId, Call, RespReply),
    Message(LockId, usize, RespReply),
}

impl Connection {
    /// Sends the password, unless there is none, or a login is unanswered.
    fn log_in(&mut self, endpoint: &Endpoint) {
        if let Some(password) = &endpoint.login.password
            && !self.pending.contains(&None)
        {
            self.pending.push_back(None);
            encode(&mut self.output, &[b"AUTH", password.expose().as_bytes()]);
        }
    }
}

impl Connections {
    pub(super) const fn new(endpoints: Vec<Endpoint>, connect_timeout: Duration) -> Self {
        Self { endpoints, connect_timeout, opened: 0, open: BTreeMap::new(), outputs: VecDeque::new() }
    }

    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(super) fn nodes(&self) -> usize {
        self.endpoints.len()
    }

    /// Encodes a command for the shared connection to a node, or for that of `owner`, and opens it
    /// if there is none.
    pub(super) fn send<A: AsRef<[u8]>>(
        &mut self,
        now: Instant,
        node: usize,
        owner: Option<LockId>,
        lock: LockId,
        tag: u64,
        args: &[A],
    ) {
        let conn = self.find(node, owner).unwrap_or_else(|| self.connect(now, node, owner));
        let Some(connection) = self.open.get_mut(&conn) else { return };
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        connection.subscribed |= args.first().is_some_and(|verb| verb.to_ascii_uppercase().ends_with(b"SUBSCRIBE"));
        connection.pending.push_back(Some((lock, Call { node, tag, sent: now })));
        encode(&mut connection.output, &args);
    }

    fn find(&self, node: usize, owner: Option<LockId>) -> Option<ConnId> {
        let wanted = |(conn, open): &(&ConnId, &Connection)| conn.node().index() == node && open.owner == owner;
        self.open.iter().find(wanted).map(|(conn, _)| *conn)
    }

    fn connect(&mut self, now: Instant, node: usize, owner: Option<LockId>) -> ConnId {
        let nodes = self.endpoints.len();
        let endpoint = self.endpoints.get(node);
        let endpoint = endpoint.unwrap_or_else(|| panic!("a command for node {node}; there are {nodes}, from 0"));
        self.opened += 1;
        let id = NodeId::new(u16::try_from(node).unwrap_or(u16::MAX));
        let conn = ConnId::new(id, if owner.is_some() { Role::Wake } else { Role::Commands }, self.opened);
        let mut connection = Connection {
            owner,
            open_by: Some(now + self.connect_timeout),
            subscribed: false,
            output: Vec::new(),
            input: Vec::new(),
            pending: VecDeque::new(),
        };
        connection.log_in(endpoint);
        self.outputs.push_back(Output::Connect { node: id, conn, target: Box::new(endpoint.target.clone()) });
        self.open.insert(conn, connection);
        conn
    }

    /// Adds received bytes. Returns what is complete.
    pub(super) fn handle_received(&mut self, conn: ConnId, bytes: &[u8]) -> Vec<Received> {
        let mut found = Vec::new();
        let Some(connection) = self.open.get_mut(&conn) else { return found };
        connection.input.extend_from_slice(bytes);
        while let Some((reply, len)) = RespReply::decode(&connection.input) {
            connection.input.drain(..len);
            let logged_out = matches!(&reply, RespReply::Error(text) if text.starts_with("NOAUTH"));
            if logged_out && let Some(endpoint) = self.endpoints.get(conn.node().index()) {
                connection.log_in(endpoint);
            }
            match connection.owner.filter(|_| connection.subscribed && is_message(&reply)) {
                Some(owner) => found.push(Received::Message(owner, conn.node().index(), reply)),
                None => {
                    let call = connection.pending.pop_front().flatten();
                    found.extend(call.map(|(lock, call)| Received::Reply(lock, call, reply)));
                }
            }
        }
        found
    }

    pub(super) fn outgoing(&self, conn: ConnId) -> &[u8] {
        self.open
            .get(&conn)
            .filter(|connection| connection.open_by.is_none())
            .map_or(&[], |connection| &connection.output)
    }

    pub(super) fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.output.drain(..n.min(connection.output.len()));
        }
    }

    fn retain(&mut self, mut stays: impl FnMut(&Connection) -> bool) {
        let outputs = &mut self.outputs;
        self.open.retain(|conn, connection| {
            let stays = stays(connection);
            if !stays {
                outputs.push_back(Output::Disconnect { conn: *conn, why: None });
            }
            stays
        });
    }
}

impl Transport for Connections {
    type Gone = Call;

    fn emit(&mut self, lock: LockId, event: Event) {
        self.outputs.push_back(Output::Event { lock, event });
    }

    fn close(&mut self, lock: LockId) {
        self.retain(|connection| connection.owner != Some(lock));
    }

    fn stop(&mut self, unreleased: u32) {
        self.retain(|_| false);
        self.outputs.push_back(Output::Stopped { unreleased });
    }

    fn handle_connected(&mut self, _: Instant, conn: ConnId) {
        if let Some(connection) = self.open.get_mut(&conn) {
            connection.open_by = None;
        }
    }

    fn handle_disconnected(&mut self, conn: ConnId) -> Vec<(LockId, Call)> {
        self.open.remove(&conn).into_iter().flat_map(|gone| gone.pending).flatten().collect()
    }

    fn give_up(&mut self, now: Instant) -> Option<ConnId> {
        let late = |connection: &Connection| connection.open_by.is_some_and(|at| at <= now);
        let conn = self.open.iter().find(|(_, connection)| late(connection)).map(|(conn, _)| *conn)?;
        self.outputs.push_back(Output::Disconnect { conn, why: None });
        Some(conn)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.open.values().filter_map(|connection| connection.open_by).min()
    }
}

fn is_message(reply: &RespReply) -> bool {
    matches!(reply.items(), [RespReply::Bulk(kind), _, _, ..] if kind == b"message" || kind == b"pmessage")
}
