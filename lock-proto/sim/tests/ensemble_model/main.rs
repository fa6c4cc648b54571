//! Compares the simulated ensemble with a real ZooKeeper server: both get the same generated
//! requests on several connections, and every reply and event must match.
// S14
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod frames;
mod generate;
mod real;

use core::time::Duration;
use std::collections::BTreeMap;

use frames::{Frame, Names};
use generate::{Generator, ROOT, Step};
use lock_proto::Instant;
use lock_proto::zookeeper::codec::{
    Acl, ConnectRequest, ConnectResponse, CreateMode, MultiOp, Op, OpCode, ReplyBody, RequestFrame, XID_PING,
};
use lock_sim::zookeeper::{Ensemble, EnsembleConfig, EnsembleOutput, ServerRelease};
use lock_testkit::ZooKeeper;
use real::Connection;

const CLIENTS: usize = 3;
/// No session ends during the test, in which hardly any time passes for the model.
const TIMEOUT_MS: i32 = 600_000;
const TICK: Duration = Duration::from_millis(TIMEOUT_MS as u64 / 20);

/// The same session on both servers.
struct Client {
    real: Connection,
    /// The connection to the model.
    model: u64,
    /// What the servers said about the session.
    started: [ConnectResponse; 2],
    xid: i32,
    sent: BTreeMap<i32, OpCode>,
}

struct Pair {
    server: ZooKeeper,
    model: Ensemble,
    now: Instant,
    /// Frames of the model that are not compared yet; `None` for the end of a connection.
    arrived: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    conns: u64,
    names: [Names; 2],
    clients: Vec<Client>,
    history: Vec<String>,
}

impl Pair {
    fn new(seed: u64) -> Self {
        // Neither deletes a container by itself.
        let server = ZooKeeper::builder().tick(TICK).container_check(Duration::from_secs(3_600));
        let server = server.line("maxSessionTimeout", TIMEOUT_MS.to_string()).start();
        let version = server.ask("srvr").unwrap();
        let is_old = ["3.5.", "3.6.", "3.7.", "3.8."].iter().any(|old| version.contains(&format!("version: {old}")));
        let release = if is_old { ServerRelease::V3_8 } else { ServerRelease::V3_9 };
        let now = Instant::from_millis(1);
        let config = EnsembleConfig::new(1, seed).tick(TICK).container_interval(None).release(release);
        let mut pair = Self {
            server,
            model: Ensemble::new(now, config),
            now,
            arrived: BTreeMap::new(),
            conns: 0,
            names: Default::default(),
            clients: Vec::new(),
            history: Vec::new(),
        };
        for _ in 0..CLIENTS {
            let client = pair.connect(None, false).unwrap();
            pair.clients.push(client);
        }
        let create =
            MultiOp::Create { path: ROOT.into(), data: "".into(), acl: Acl::open(), mode: CreateMode::Persistent };
        pair.request(0, Op::Write(create));
        pair
    }

    /// Connects with a new session, or continues one. `None` if both servers refuse.
    fn connect(&mut self, session: Option<&[ConnectResponse; 2]>, wrong: bool) -> Option<Client> {
        self.conns += 1;
        let mut real = Connection::open(self.server.address());
        self.model.handle_connected(self.now, 0, self.conns);
        let request = |place: usize| {
            let (session_id, password) = session.map_or_else(
                || (0, vec![0; 16].into()),
                |started| (started[place].session_id, started[place].password.clone()),
            );
            let password = if wrong { vec![7; 16].into() } else { password };
            let mut bytes = Vec::new();
            let timeout_ms = TIMEOUT_MS;
            ConnectRequest { last_zxid_seen: 0, timeout_ms, session_id, password, read_only: false }.encode(&mut bytes);
            bytes
        };
        real.send(&request(0));
        self.feed(self.conns, &request(1));
        let frames = [real.read(), self.model_frame(self.conns)];
        let [real_started, model_started] = frames.map(|frame| ConnectResponse::decode(&frame.unwrap()).unwrap());
        assert_eq!(real_started.timeout_ms, model_started.timeout_ms, "{}", self.shown());
        if real_started.timeout_ms == 0 {
            assert_eq!((real.read(), self.model_frame(self.conns)), (None, None), "{}", self.shown());
            return None;
        }
        let started = [real_started, model_started];
        for (names, started) in self.names.iter_mut().zip(&started) {
            let next = names.sessions.len() as i64 + 1;
            names.sessions.entry(started.session_id).or_insert(next);
        }
        Some(Client { real, model: self.conns, started, xid: 0, sent: BTreeMap::new() })
    }

    fn feed(&mut self, conn: u64, bytes: &[u8]) {
        self.model.handle_received(self.now, conn, bytes);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(output) = self.model.poll_output() {
            let frames = self.arrived.entry(output.conn()).or_default();
            match output {
                EnsembleOutput::Send { bytes, .. } => frames.push(Some(bytes[4..].to_vec())),
                EnsembleOutput::Closed { .. } => frames.push(None),
            }
        }
    }

    /// Returns the model's next frame; `None` if it has closed the connection.
    fn model_frame(&mut self, conn: u64) -> Option<Vec<u8>> {
        for _ in 0..1_000 {
            let frames = self.arrived.entry(conn).or_default();
            if !frames.is_empty() {
                return frames.remove(0);
            }
            self.now = self.now + Duration::from_micros(100);
            self.model.handle_timeout(self.now);
            self.collect();
        }
        panic!("the model sends nothing\n{}", self.shown())
    }

    fn step(&mut self, client: usize, step: Step) -> Vec<String> {
        self.history.push(format!("{client}: {step:?}"));
        match step {
            Step::Request(op) => return self.request(client, op),
            Step::Reconnect { wrong } => {
                let started = self.clients[client].started.clone();
                let continued = self.connect(Some(&started), wrong);
                // The connection before is closed in any case.
                self.ends(client);
                self.replace(client, continued);
            }
            Step::Cut => {
                let started = self.clients[client].started.clone();
                self.model.handle_disconnected(self.now, self.clients[client].model);
                let continued = self.connect(Some(&started), false);
                self.replace(client, continued);
            }
        }
        Vec::new()
    }

    /// Both servers have closed the connection of a client. Nothing else is left on it.
    fn ends(&mut self, client: usize) {
        let conn = self.clients[client].model;
        let ends = (self.clients[client].real.read(), self.model_frame(conn));
        assert_eq!(ends, (None, None), "{}", self.shown());
    }

    fn replace(&mut self, client: usize, by: Option<Client>) {
        let by = by.or_else(|| self.connect(None, false));
        let xid = self.clients[client].xid;
        self.clients[client] = Client { xid, ..by.unwrap() };
    }

    /// Sends a request to both servers, and compares what all clients receive. Returns the paths of
    /// created nodes.
    fn request(&mut self, client: usize, op: Op) -> Vec<String> {
        let one = &mut self.clients[client];
        one.xid += 1;
        let xid = op.fixed_xid().unwrap_or(one.xid);
        one.sent = BTreeMap::from([(xid, op.code())]);
        let mut bytes = Vec::new();
        RequestFrame { xid, op }.encode(&mut bytes);
        one.real.send(&bytes);
        let conn = one.model;
        self.feed(conn, &bytes);
        let mut created = Vec::new();
        let mut closed = false;
        // The requester's reply comes last, behind the events.
        for frame in self.compare(client, xid) {
            match frame {
                Frame::Reply { body: ReplyBody::Created { path, .. }, .. } => created.push(path.into()),
                Frame::Closed => closed = true,
                Frame::Reply { .. } | Frame::Event { .. } => {}
            }
        }
        let mut ping = Vec::new();
        RequestFrame { xid: XID_PING, op: Op::Ping }.encode(&mut ping);
        for other in 0..CLIENTS {
            if other == client && closed {
                continue;
            }
            self.clients[other].real.send(&ping);
            let conn = self.clients[other].model;
            self.feed(conn, &ping);
            closed |= self.compare(other, XID_PING).contains(&Frame::Closed);
        }
        if closed {
            let next = self.connect(None, false);
            self.replace(client, next);
        }
        created
    }

    /// Compares the frames for a client up to the reply with this number.
    fn compare(&mut self, client: usize, until: i32) -> Vec<Frame> {
        let [real, model] = [0, 1].map(|place| {
            let mut frames = Vec::new();
            loop {
                let frame = self.next_frame(client, place);
                let last = matches!(&frame, Frame::Reply { xid, .. } if *xid == until) || frame == Frame::Closed;
                frames.push(frame);
                if last {
                    break;
                }
            }
            // The nodes of a session are deleted in the order of a hash table.
            frames.sort_by_key(|frame| if let Frame::Event { path, .. } = frame { path.clone() } else { "~".into() });
            frames
        });
        assert_eq!(real, model, "client {client}: the real server on the left\n{}", self.shown());
        real
    }

    fn next_frame(&mut self, client: usize, place: usize) -> Frame {
        let conn = self.clients[client].model;
        let frame = if place == 0 { self.clients[client].real.read() } else { self.model_frame(conn) };
        let Some(frame) = frame else { return Frame::Closed };
        let (names, sent) = (&mut self.names[place], &self.clients[client].sent);
        if let (None, Frame::Reply { zxid: zxid @ 1.., .. }) = (names.first, names.read(&frame, sent)) {
            names.first = Some(zxid - 1);
        }
        names.read(&frame, sent)
    }

    fn shown(&self) -> String {
        self.history[self.history.len().saturating_sub(40)..].join("\n")
    }
}

/// Found by this test, in the simulated servers: `exists` needed a permission, transactions reported
/// the state of every created node, clients without a permission got events, `digest` without a
/// colon was refused, and so were paths of `removeWatches`.
#[test]
fn generated_requests_get_same_replies_and_events() {
    // More seeds: ENSEMBLE_MODEL_SEEDS=100 cargo test --features sim,zookeeper --test ensemble_model
    let seeds = std::env::var("ENSEMBLE_MODEL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    for seed in 1..=seeds {
        let (mut pair, mut generator) = (Pair::new(seed), Generator::new(seed));
        for _ in 0..1_500 {
            let (client, step) = (generator.client(CLIENTS), generator.step());
            let created = pair.step(client, step);
            generator.created.extend(created);
            let old = generator.created.len().saturating_sub(8);
            generator.created.drain(..old);
        }
    }
}
