//! One connection to an arbitrary ZooKeeper server.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_proto::zookeeper::codec::{
    Acl, ConnectResponse, CreateMode, ErrorCode, EventType, KeeperState, MultiOp, MultiResult, Op, ReplyBody,
    ReplyFrame as Frame, ReplyHeader, Stat, WatchKind, WatcherEvent, XID_AUTH, XID_EVENT, XID_PING,
};
use lock_proto::zookeeper::{Config, Limits, Pipe, PipeConfig, PipeOutput, SessionReport};
use lock_proto::{Backoff, CallId, ConnId, Credentials, Fault, Instant, Login, NodeId};

const LIMITS: Limits = Limits { frame: 4096, outgoing: 2048, in_flight: 16 };

/// Exceeds the longest request here.
const ONE_REQUEST: usize = 4096;

/// Drives a [`Pipe`] by `data`: a configuration byte, then operations, each a letter and its
/// arguments (see `fuzz/README.md`).
///
/// Checks that nothing panics, that every call gets exactly one reply, and that the numbers of
/// connections grow. The bytes that wait for the socket are bounded. Facts about a connection that
/// is not the current one change nothing. A machine without a deadline has answered every call.
pub fn zk_pipe(data: &[u8]) {
    let mut input = data.iter().copied();
    let mut byte = move || input.next();
    let mut world = World::new(byte().unwrap_or(0));
    while let Some(op) = byte() {
        let mut argument = || byte().unwrap_or(0);
        match op {
            b's' => world.send(argument()),
            b'w' => world.write(usize::from(argument()) * 16),
            b'1' => world.write(1),
            b'C' => world.fact(|pipe, now, conn| pipe.handle_connected(now, conn)),
            b'D' => {
                let why = [Fault::Closed, Fault::Refused, Fault::Reset, Fault::Transport];
                let why = why[usize::from(argument()) % 4];
                world.fact(|pipe, now, conn| pipe.handle_disconnected(now, conn, why));
            }
            // The answer to the connect request: timeout and session.
            b'a' => world.accept(argument(), argument()),
            // A reply of this kind to the request of this number.
            b'r' => world.answer(argument(), argument()),
            // These bytes, in portions.
            b'b' => {
                let (step, len) = (argument(), argument());
                let bytes: Vec<u8> = (0..len).map(|_| argument()).collect();
                world.receive(&bytes, usize::from(step));
            }
            b't' => {
                world.now = world.now + Duration::from_millis(u64::from(argument()) * 8);
                world.pipe.handle_timeout(world.now);
            }
            b'd' => {
                if let Some(due) = world.pipe.next_deadline() {
                    world.now = world.now.max(due);
                    world.pipe.handle_timeout(world.now);
                }
            }
            b'o' => world.pipe.open(world.now),
            b'q' => world.pipe.quiet(world.now),
            b'e' => world.pipe.end(world.now),
            // Later facts are about an old connection.
            b'O' => world.stale = !world.stale,
            _ => continue,
        }
        world.check();
    }
    world.finish();
}

struct World {
    pipe: Pipe,
    now: Instant,
    serial: u64,
    pending: BTreeSet<CallId>,
    newest: Option<ConnId>,
    old: Option<ConnId>,
    stale: bool,
}

impl World {
    fn new(how: u8) -> Self {
        let urls = ["zk://h", "zk://h,i,j", "zk://h,i/chroot"];
        let config = Config::parse(urls[usize::from(how) % urls.len()]).expect("a good URL");
        let login = if how & 0x20 == 0 { Login::default() } else { Login::new("user", "password") };
        let config = PipeConfig {
            servers: config.servers().to_vec(),
            login,
            request_credentials: how & 0x40 != 0,
            timeout: Duration::from_secs(2),
            tick: Duration::from_millis(300),
            ping_after: Duration::from_millis(200),
            connect_timeout: Duration::from_millis(300),
            request_timeout: Duration::from_millis(100),
            reconnect: Backoff::exponential(Duration::from_millis(10), Duration::from_millis(100)),
            limits: LIMITS,
            generation: 0,
        };
        let mut pipe = Pipe::new(config, 1);
        let now = Instant::from_millis(1);
        pipe.open(now);
        let mut world = Self { pipe, now, serial: 0, pending: BTreeSet::new(), newest: None, old: None, stale: false };
        world.check();
        world
    }

    fn send(&mut self, kind: u8) {
        self.serial += 1;
        let call = CallId::new(NodeId::new(0), self.serial);
        let (path, watch) = ("/a".into(), kind >= 128);
        let op = match kind % 8 {
            0 => Op::Write(MultiOp::Create {
                path,
                data: Vec::new().into(),
                acl: Acl::open(),
                mode: CreateMode::EphemeralSequential,
            }),
            1 => Op::Write(MultiOp::Delete { path, version: -1 }),
            2 => Op::GetData { path, watch },
            3 => Op::GetChildren { path, watch },
            4 => Op::Multi(vec![MultiOp::Check { path, version: 0 }]),
            5 => Op::RemoveWatches { path, kind: WatchKind::Any },
            6 => Op::Exists { path, watch },
            _ => Op::Sync { path },
        };
        self.pending.insert(call);
        self.pipe.send(self.now, call, op);
    }

    fn conn(&self) -> Option<ConnId> {
        if self.stale { self.old } else { self.newest }
    }

    fn fact(&mut self, f: impl FnOnce(&mut Pipe, Instant, ConnId)) {
        let Some(conn) = self.conn() else { return };
        let before = (self.pipe.current() != Some(conn)).then(|| self.pipe.clone());
        f(&mut self.pipe, self.now, conn);
        if let Some(mut before) = before {
            // Only the clock may have advanced.
            before.handle_received(self.now, conn, b"");
            assert_eq!(self.pipe, before, "a connection that is not the current one changed something");
        }
    }

    fn receive(&mut self, bytes: &[u8], step: usize) {
        for part in bytes.chunks(step.max(1)) {
            self.fact(|pipe, now, conn| pipe.handle_received(now, conn, part));
        }
    }

    fn accept(&mut self, timeout: u8, session: u8) {
        let response = ConnectResponse {
            timeout_ms: i32::from(timeout) * 16,
            session_id: session.into(),
            password: vec![session; 16].into(),
            read_only: timeout == 255,
        };
        let mut bytes = Vec::new();
        response.encode(&mut bytes);
        self.receive(&bytes, usize::MAX);
    }

    fn answer(&mut self, kind: u8, xid: u8) {
        let (stat, path) = (Stat::default(), "/a");
        let codes = [
            ErrorCode::NO_NODE,
            ErrorCode::SESSION_EXPIRED,
            ErrorCode::SESSION_MOVED,
            ErrorCode::NO_AUTH,
            ErrorCode::AUTH_FAILED,
            ErrorCode::CONNECTION_LOSS,
            ErrorCode(-999),
        ];
        let (code, body) = match kind % 16 {
            0 => (ErrorCode::OK, ReplyBody::Empty),
            1 => (ErrorCode::OK, ReplyBody::Created { path: path.into(), stat }),
            2 => (ErrorCode::OK, ReplyBody::Data { data: vec![1].into(), stat }),
            3 => (ErrorCode::OK, ReplyBody::Children(["x"].into_iter().collect())),
            4 => (ErrorCode::OK, ReplyBody::Multi(vec![MultiResult::Checked])),
            5 => (ErrorCode::OK, ReplyBody::Stat(stat)),
            6 => (ErrorCode::OK, ReplyBody::Synced { path: path.into() }),
            7 | 8 => {
                let kind = if kind % 16 == 7 { EventType::Deleted } else { EventType::DataChanged };
                let event = WatcherEvent { kind, state: KeeperState::SyncConnected, path: path.into() };
                (ErrorCode::OK, ReplyBody::Event(event))
            }
            other => (codes[usize::from(other) % codes.len()], ReplyBody::Empty),
        };
        let xid = match (xid, &body) {
            (_, ReplyBody::Event(_)) => XID_EVENT,
            (254, _) => XID_PING,
            (253, _) => XID_AUTH,
            (xid, _) => xid.into(),
        };
        let header = ReplyHeader { xid, zxid: i64::from(kind), code };
        let mut bytes = Vec::new();
        Frame { header, body }.encode(&mut bytes);
        self.receive(&bytes, usize::MAX);
    }

    fn write(&mut self, most: usize) {
        let Some(conn) = self.conn() else { return };
        let n = self.pipe.outgoing(conn).len().min(most);
        self.pipe.consume(conn, n);
    }

    fn check(&mut self) {
        while let Some(output) = self.pipe.poll_output() {
            match output {
                PipeOutput::Connect(conn, _) => {
                    assert!(self.newest.map(generation) < Some(generation(conn)), "generations grow");
                    self.old = self.newest.or(self.old);
                    self.newest = Some(conn);
                }
                // Every third time the host has none.
                PipeOutput::Credentials(conn, _) => {
                    self.serial += 1;
                    let credentials = Some(Credentials::new("password"));
                    let credentials = credentials.filter(|_| !self.serial.is_multiple_of(3));
                    self.pipe.handle_credentials(self.now, conn, credentials);
                }
                PipeOutput::Disconnect(conn, _) => {
                    assert!(Some(generation(conn)) <= self.newest.map(generation), "only what was opened is closed")
                }
                PipeOutput::Reply { call, .. } => assert!(self.pending.remove(&call), "every call is answered once"),
                PipeOutput::Session(SessionReport::Contact(emitted)) => {
                    assert!(emitted <= self.now, "a request left before its reply");
                }
                PipeOutput::Session(_) | PipeOutput::Event(_) => {}
            }
        }
        let waiting = self.newest.map_or(0, |conn| self.pipe.outgoing(conn).len());
        assert!(waiting <= LIMITS.outgoing + ONE_REQUEST, "{waiting} bytes wait for the socket");
        if self.pipe.next_deadline().is_none() {
            assert!(self.pending.is_empty(), "nothing is due, but {:?} wait", self.pending);
        }
    }

    /// The server falls silent: deadlines alone must answer everything.
    fn finish(mut self) {
        for _ in 0..10_000 {
            if self.pending.is_empty() {
                break;
            }
            let due = self.pipe.next_deadline().expect("what waits has a deadline");
            self.now = self.now.max(due);
            self.pipe.handle_timeout(self.now);
            self.check();
        }
        assert!(self.pending.is_empty(), "{:?} are never answered", self.pending);
        self.pipe.close(self.now);
        self.check();
        assert!(self.pipe.next_deadline().is_none());
        let shown = format!("{:?}", self.pipe);
        assert!(!shown.contains("user:password"), "{shown}");
    }
}

/// The number of a connection among those of its pipe, to whichever member it leads.
fn generation(conn: ConnId) -> u64 {
    let text = conn.to_string();
    text.rsplit_once('.').and_then(|(_, number)| number.parse().ok()).expect("the last part of an id")
}
