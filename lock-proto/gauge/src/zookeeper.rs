//! A client of one ZooKeeper server, whose tree no other client uses.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use lock_proto::zookeeper::codec::{
    ConnectRequest, ConnectResponse, CreateMode, ErrorCode, Frames, MultiOp, MultiResult, Op, ReplyBody, ReplyFrame,
    ReplyHeader, RequestFrame, Stat,
};
use lock_proto::zookeeper::{Client, Config, Output};
use lock_proto::{Acquire, ByteClient, ClientId, ConnId, Event, Instant, LockClient, LockId, Machine};

use crate::rig::{self, Rig as _};

const SESSION: i64 = 1;

/// A client with one open connection and a session, and its clock.
pub struct Rig {
    client: Client,
    conn: ConnId,
    now: Instant,
    server: Server,
    events: VecDeque<(LockId, Event)>,
}

#[derive(Default)]
struct Server {
    frames: Frames,
    connected: bool,
    zxid: i64,
    queues: BTreeMap<Box<str>, Queue>,
}

/// The names of the children, and the number of the next one.
#[derive(Default)]
struct Queue {
    children: Vec<Box<str>>,
    next: u32,
}

impl rig::Rig for Rig {
    type Client = Client;

    fn ready() -> Self {
        let now = Instant::from_millis(1_000);
        let config = Config::parse("zk://127.0.0.1:2181").expect("a good URL");
        let mut client = Client::new(now, config, ClientId::from_bits(1), 2).expect("good settings");
        let lock = client.acquire(now, &Acquire::new("warm-up")).expect("a valid request");
        let Some(Output::Connect { conn, .. }) = client.poll_output() else { panic!("a connection first") };
        client.handle_connected(now, conn);
        let events = VecDeque::with_capacity(16);
        let mut rig = Self { client, conn, now, server: Server::default(), events };
        assert_eq!(rig.granted(), lock);
        rig.release(lock);
        rig
    }

    fn client(&mut self) -> (&mut Client, Instant) {
        (&mut self.client, self.now)
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    fn granted(&mut self) -> LockId {
        self.serve();
        let Some((lock, Event::Granted(_))) = self.events.pop_front() else { panic!("not granted") };
        self.client.claim(self.now, lock).expect("an offer");
        lock
    }

    fn released(&mut self) {
        self.serve();
        let Some((_, Event::Released(_))) = self.events.pop_front() else { panic!("not released") };
    }
}

impl Rig {
    /// Carries out what the client sends, until it sends nothing.
    fn serve(&mut self) {
        loop {
            while let Some(output) = self.client.poll_output() {
                let Output::Event { lock, event } = output else { panic!("unexpected: {output:?}") };
                self.events.push_back((lock, event));
            }
            let bytes = self.client.outgoing(self.conn);
            if bytes.is_empty() {
                return;
            }
            let taken = bytes.len();
            let replies = self.server.execute(bytes);
            self.client.consume(self.conn, taken);
            self.client.handle_received(self.now, self.conn, &replies);
        }
    }
}

impl Server {
    fn execute(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(frame) = self.frames.next(&mut bytes, usize::MAX).expect("a frame").map(<[u8]>::to_vec) {
            if !self.connected {
                let request = ConnectRequest::decode(&frame).expect("a connect request");
                let (timeout_ms, password) = (request.timeout_ms, vec![0; 16].into());
                ConnectResponse { timeout_ms, session_id: SESSION, password, read_only: false }.encode(&mut out);
                self.connected = true;
                continue;
            }
            let RequestFrame { xid, op } = RequestFrame::decode(&frame).expect("a request");
            let body = self.body(op);
            let header = ReplyHeader { xid, zxid: self.zxid, code: ErrorCode::OK };
            ReplyFrame { header, body }.encode(&mut out);
        }
        out
    }

    fn body(&mut self, op: Op) -> ReplyBody {
        match op {
            Op::Write(MultiOp::Create { path, mode, .. }) => {
                self.zxid += 1;
                let path = if mode == CreateMode::EphemeralSequential {
                    let (queue, name) = path.rsplit_once('/').expect("an absolute path");
                    let Queue { children, next } = self.queues.entry(queue.into()).or_default();
                    let name = format!("{name}{next:010}");
                    *next += 1;
                    let path = format!("{queue}/{name}").into();
                    children.push(name.into());
                    path
                } else {
                    path
                };
                ReplyBody::Created { path, stat: self.stat() }
            }
            Op::Write(MultiOp::Delete { path, .. }) => {
                self.zxid += 1;
                let (queue, name) = path.rsplit_once('/').expect("an absolute path");
                self.queues.get_mut(queue).expect("a queue").children.retain(|other| **other != *name);
                ReplyBody::Empty
            }
            Op::GetChildren { path, .. } => {
                ReplyBody::Children(self.queues.get(&path).iter().flat_map(|queue| &queue.children).collect())
            }
            Op::GetData { .. } => ReplyBody::Data { data: "".into(), stat: self.stat() },
            Op::Multi(checks) => ReplyBody::Multi(checks.iter().map(|_| MultiResult::Checked).collect()),
            Op::Sync { path } => ReplyBody::Synced { path },
            Op::Ping => ReplyBody::Empty,
            Op::Write(_) | Op::Exists { .. } | Op::RemoveWatches { .. } | Op::Auth { .. } | Op::CloseSession => {
                panic!("unexpected: {op:?}")
            }
        }
    }

    fn stat(&self) -> Stat {
        Stat { czxid: self.zxid, mzxid: self.zxid, pzxid: self.zxid, ephemeral_owner: SESSION, ..Stat::default() }
    }
}

/// Acquire, release, on a name that was locked before.
pub fn cycles() -> Box<dyn FnMut()> {
    let mut rig = Rig::ready();
    Box::new(move || (0..1_000).for_each(|_| rig.cycle()))
}
