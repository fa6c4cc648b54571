//! Clients that speak to an ensemble through the codec.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::zookeeper::{Ensemble, EnsembleConfig, EnsembleOutput};
use lock_proto::Instant;
use lock_proto::zookeeper::codec::{
    Acl, ConnectRequest, ConnectResponse, CreateMode, ErrorCode, EventType, MultiOp, MultiResult, Op, OpCode,
    ReplyBody, ReplyFrame, ReplyHeader, RequestFrame, Stat, XID_EVENT,
};

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn create(path: &str, mode: CreateMode) -> Op {
    Op::Write(MultiOp::Create { path: path.into(), data: vec![].into(), acl: Acl::open(), mode })
}

pub(super) fn delete(path: &str, version: i32) -> Op {
    Op::Write(MultiOp::Delete { path: path.into(), version })
}

pub(super) fn set(path: &str, data: &[u8], version: i32) -> Op {
    Op::Write(MultiOp::SetData { path: path.into(), data: data.to_vec().into(), version })
}

pub(super) fn check(path: &str, version: i32) -> Op {
    Op::Write(MultiOp::Check { path: path.into(), version })
}

pub(super) fn exists(path: &str, watch: bool) -> Op {
    Op::Exists { path: path.into(), watch }
}

pub(super) fn get(path: &str, watch: bool) -> Op {
    Op::GetData { path: path.into(), watch }
}

pub(super) fn list(path: &str, watch: bool) -> Op {
    Op::GetChildren { path: path.into(), watch }
}

#[derive(Default)]
struct Conn {
    started: Option<ConnectResponse>,
    xid: i32,
    pending: BTreeMap<i32, OpCode>,
    replies: BTreeMap<i32, ReplyFrame>,
    /// The numbers of what arrived, in order.
    order: Vec<i32>,
    events: Vec<(EventType, Box<str>)>,
    closed: bool,
}

pub(super) struct Kit {
    pub(super) ensemble: Ensemble,
    pub(super) now: Instant,
    /// Bytes arrive one by one.
    pub(super) chop: bool,
    conns: BTreeMap<u64, Conn>,
    used: BTreeSet<u64>,
}

impl Kit {
    pub(super) fn new(members: usize) -> Self {
        Self::with(members, |config| config)
    }

    pub(super) fn with(members: usize, change: impl FnOnce(EnsembleConfig) -> EnsembleConfig) -> Self {
        let now = Instant::from_millis(1);
        let ensemble = Ensemble::new(now, change(EnsembleConfig::new(members, 7)));
        Self { ensemble, now, chop: false, conns: BTreeMap::new(), used: BTreeSet::new() }
    }

    /// Connects to a member with a new session of 10 s.
    pub(super) fn client(&mut self, member: usize) -> u64 {
        self.connect(member, 10_000, 0, 0)
    }

    pub(super) fn connect(&mut self, member: usize, timeout_ms: i32, session_id: i64, last_zxid_seen: i64) -> u64 {
        let password = vec![0; 16].into();
        self.open(member, &ConnectRequest { last_zxid_seen, timeout_ms, session_id, password, read_only: false })
    }

    /// Continues the session of another connection.
    pub(super) fn reconnect(&mut self, conn: u64, member: usize) -> u64 {
        let started = self.conns[&conn].started.clone().unwrap();
        let ConnectResponse { timeout_ms, session_id, password, .. } = started;
        let request = ConnectRequest { last_zxid_seen: 0, timeout_ms, session_id, password, read_only: false };
        self.open(member, &request)
    }

    fn open(&mut self, member: usize, request: &ConnectRequest) -> u64 {
        let conn = self.used.len() as u64 + 1;
        self.used.insert(conn);
        self.conns.insert(conn, Conn::default());
        self.ensemble.handle_connected(self.now, member, conn);
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.raw(conn, &bytes);
        self.run(ms(10));
        conn
    }

    pub(super) fn disconnect(&mut self, conn: u64) {
        self.ensemble.handle_disconnected(self.now, conn);
    }

    pub(super) fn raw(&mut self, conn: u64, bytes: &[u8]) {
        for portion in bytes.chunks(if self.chop { 1 } else { usize::MAX }) {
            self.ensemble.handle_received(self.now, conn, portion);
        }
        self.collect();
    }

    pub(super) fn send(&mut self, conn: u64, op: Op) -> i32 {
        let state = self.conns.get_mut(&conn).unwrap();
        state.xid += 1;
        let xid = op.fixed_xid().unwrap_or(state.xid);
        state.pending.insert(xid, op.code());
        state.replies.remove(&xid);
        let mut bytes = Vec::new();
        RequestFrame { xid, op }.encode(&mut bytes);
        self.raw(conn, &bytes);
        xid
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.ensemble.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.ensemble.handle_timeout(self.now);
            self.collect();
        }
        self.now = end;
        self.ensemble.handle_timeout(end);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(output) = self.ensemble.poll_output() {
            let conn = self.conns.get_mut(&output.conn()).unwrap();
            match output {
                EnsembleOutput::Closed { .. } => conn.closed = true,
                EnsembleOutput::Send { bytes, .. } => conn.receive(&bytes[4..]),
            }
        }
    }

    /// Sends a request and waits for the reply.
    pub(super) fn call(&mut self, conn: u64, op: Op) -> ReplyFrame {
        let xid = self.send(conn, op);
        self.run(ms(10));
        self.reply(conn, xid)
    }

    #[track_caller]
    pub(super) fn reply(&self, conn: u64, xid: i32) -> ReplyFrame {
        self.conns[&conn].replies.get(&xid).unwrap_or_else(|| panic!("no reply to {xid}")).clone()
    }

    pub(super) fn has_reply(&self, conn: u64, xid: i32) -> bool {
        self.conns[&conn].replies.contains_key(&xid)
    }

    #[track_caller]
    pub(super) fn ok(&mut self, conn: u64, op: Op) -> ReplyBody {
        let reply = self.call(conn, op);
        assert_eq!(reply.header.code, ErrorCode::OK, "{reply:?}");
        reply.body
    }

    #[track_caller]
    pub(super) fn fails(&mut self, conn: u64, op: Op) -> ErrorCode {
        self.call(conn, op).header.code
    }

    #[track_caller]
    pub(super) fn stat(&mut self, conn: u64, op: Op) -> Stat {
        match self.ok(conn, op) {
            ReplyBody::Stat(stat) | ReplyBody::Created { stat, .. } | ReplyBody::Data { stat, .. } => stat,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn path(&mut self, conn: u64, op: Op) -> String {
        let xid = self.send(conn, op);
        self.created(conn, xid)
    }

    #[track_caller]
    pub(super) fn created(&mut self, conn: u64, xid: i32) -> String {
        self.run(ms(10));
        match self.reply(conn, xid).body {
            ReplyBody::Created { path, .. } => path.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn names(&mut self, conn: u64, path: &str) -> BTreeSet<String> {
        match self.ok(conn, list(path, false)) {
            ReplyBody::Children(names) => names.iter().map(String::from).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn multi(&mut self, conn: u64, op: Op) -> Vec<MultiResult> {
        match self.ok(conn, op) {
            ReplyBody::Multi(results) => results,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn pipelined(&mut self, conn: u64, ops: &[Op]) -> Vec<ReplyBody> {
        let xids: Vec<i32> = ops.iter().map(|op| self.send(conn, op.clone())).collect();
        self.run(ms(10));
        assert!(self.conns[&conn].order.ends_with(&xids), "replies come in the order of the requests");
        xids.into_iter().map(|xid| self.reply(conn, xid).body).collect()
    }

    pub(super) fn events(&mut self, conn: u64) -> Vec<(EventType, Box<str>)> {
        core::mem::take(&mut self.conns.get_mut(&conn).unwrap().events)
    }

    pub(super) fn order(&self, conn: u64) -> &[i32] {
        &self.conns[&conn].order
    }

    pub(super) fn is_closed(&self, conn: u64) -> bool {
        self.conns[&conn].closed
    }

    pub(super) fn session(&self, conn: u64) -> i64 {
        self.conns[&conn].started.as_ref().unwrap().session_id
    }

    pub(super) fn timeout(&self, conn: u64) -> i32 {
        self.conns[&conn].started.as_ref().unwrap().timeout_ms
    }
}

impl Conn {
    fn receive(&mut self, frame: &[u8]) {
        if self.started.is_none() {
            self.started = Some(ConnectResponse::decode(frame).unwrap());
            return;
        }
        let (header, body) = ReplyHeader::decode(frame).unwrap();
        self.order.push(header.xid);
        if header.xid == XID_EVENT {
            let event = ReplyBody::decode_event(body).unwrap();
            return self.events.push((event.kind, event.path));
        }
        let code = self.pending.remove(&header.xid).unwrap();
        let body = if header.code == ErrorCode::OK { ReplyBody::decode(code, body).unwrap() } else { ReplyBody::Empty };
        self.replies.insert(header.xid, ReplyFrame { header, body });
    }
}
