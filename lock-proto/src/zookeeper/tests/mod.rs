//! Tests of the whole client in simulated bytes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "tests")]

mod client;
mod elections;
mod hub;
mod locks;
mod server;
mod sessions;
mod tail;
mod undecided;
mod validity;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use self::server::TestEnsemble;
use super::codec::{ErrorCode, OpCode};
use super::{Client, Config};
use crate::error::Misuse;
use crate::fault::{Breach, Fault};
use crate::id::{ClientId, ConnId, LockId};
use crate::lock::{
    Acquire, Answer, Blocked, ByteClient as _, Elections as _, Event, Failure, Fence, LockClient as _, Loss,
    Machine as _, Operation, OperationEvent, OperationId, Output, Release, Renew, Wait,
};
use crate::time::Instant;

const LOCK: &str = "/app/l";

/// Some clients of one server.
struct ZooKeeperClients {
    now: Instant,
    server: TestEnsemble,
    clients: Vec<Client>,
    conns: BTreeMap<(usize, ConnId), ()>,
    events: Vec<(usize, LockId, Event)>,
    elections: Vec<(OperationId, OperationEvent)>,
    stopped: Option<u32>,
    /// No connection can be opened.
    unreachable: bool,
    /// Nothing travels on these connections.
    silent: Vec<(usize, ConnId)>,
    /// Connections that were opened.
    connects: usize,
}

impl ZooKeeperClients {
    fn new(clients: u32) -> Self {
        Self::with(clients, |config| config)
    }

    fn with(clients: u32, change: impl Fn(Config) -> Config) -> Self {
        let now = Instant::from_millis(1_000);
        let client = |n: u32| {
            let config = change(Config::parse("zk://h/app").unwrap());
            Client::new(now, config, ClientId::from_bits(u128::from(n) + 1), u64::from(n)).unwrap()
        };
        Self {
            now,
            server: TestEnsemble::new(),
            clients: (0..clients).map(client).collect(),
            conns: BTreeMap::new(),
            events: Vec::new(),
            elections: Vec::new(),
            stopped: None,
            unreachable: false,
            silent: Vec::new(),
            connects: 0,
        }
    }

    /// Creates the queue's node, by a lock that is released again.
    fn make_queue(&mut self) {
        let (lock, _) = self.hold(0);
        self.release(0, lock);
    }

    /// A client waits for the reply to a create, which was executed or not.
    fn with_unanswered_create(executed: bool) -> (Self, LockId) {
        let mut w = Self::new(1);
        w.make_queue();
        w.server.mute = Some((OpCode::Create, executed));
        let lock = w.acquire(0);
        w.server.mute = None;
        (w, lock)
    }

    /// Carries everything until all are idle.
    fn run(&mut self) {
        for _ in 0..1_000 {
            let mut busy = false;
            for client in 0..self.clients.len() {
                busy |= self.outputs(client);
                busy |= self.bytes(client);
            }
            if !busy {
                // M7
                assert!(self.clients.iter().all(|client| client.links.timers_are_true()));
                return;
            }
        }
        panic!("it never ends");
    }

    fn outputs(&mut self, client: usize) -> bool {
        let mut busy = false;
        while let Some(output) = self.clients[client].poll_output() {
            busy = true;
            match output {
                Output::Connect { conn, target, .. } if self.unreachable || target.to_string().starts_with("dead") => {
                    self.clients[client].handle_disconnected(self.now, conn, Fault::Refused);
                }
                Output::Connect { conn, .. } => {
                    self.connects += 1;
                    self.server.connect(Self::of(client, conn));
                    self.conns.insert((client, conn), ());
                    self.clients[client].handle_connected(self.now, conn);
                }
                Output::Disconnect { conn, .. } => self.closed(client, conn),
                Output::Event { lock, event } => self.events.push((client, lock, event)),
                Output::Operation { id, event } => self.elections.push((id, event)),
                Output::Stopped { unreleased } => self.stopped = Some(unreleased),
                Output::Credentials { .. } => panic!("no credentials are asked for"),
            }
        }
        busy
    }

    /// Checks the server, and returns the result so far.
    fn ping(&mut self, client: usize, run: impl FnOnce(&mut Self)) -> Option<OperationEvent> {
        let ping = self.clients[client].start(self.now, Operation::Ping).unwrap();
        run(self);
        self.elections.iter().find(|(id, _)| *id == ping).map(|(_, event)| event.clone())
    }

    /// Connections of different clients have the same ids.
    fn of(client: usize, conn: ConnId) -> ConnId {
        ConnId { generation: conn.generation | (client as u64) << 56, ..conn }
    }

    fn closed(&mut self, client: usize, conn: ConnId) {
        self.conns.remove(&(client, conn));
        self.server.disconnect(Self::of(client, conn));
    }

    fn bytes(&mut self, client: usize) -> bool {
        let mut busy = false;
        for conn in self.of_client(client) {
            if self.silent.contains(&(client, conn)) {
                continue;
            }
            let sent = self.clients[client].outgoing(conn).to_vec();
            self.clients[client].consume(conn, sent.len());
            self.server.receive(Self::of(client, conn), &sent);
            let received = self.server.outgoing(Self::of(client, conn));
            if !received.is_empty() {
                self.clients[client].handle_received(self.now, conn, &received);
            }
            busy |= !sent.is_empty() || !received.is_empty();
        }
        busy
    }

    fn of_client(&self, client: usize) -> Vec<ConnId> {
        self.conns.keys().filter(|(own, _)| *own == client).map(|(_, conn)| *conn).collect()
    }

    /// Makes the servers of all connections fall silent.
    fn silence(&mut self) {
        self.silent = self.conns.keys().copied().collect();
    }

    /// Cuts the connections of a client.
    fn cut(&mut self, client: usize) {
        for conn in self.of_client(client) {
            self.closed(client, conn);
            self.clients[client].handle_disconnected(self.now, conn, Fault::Reset);
        }
    }

    /// Takes a lock with a session of its own, whose validity ends while no server can be reached.
    fn expired_hold(&mut self, ms: u64) -> LockId {
        let lock = self.request(0, &Acquire::new("l").renew(Renew::Manual));
        self.granted(0, lock).unwrap();
        self.unreachable = true;
        self.cut(0);
        self.pass(ms);
        assert_eq!(self.lost(0, lock), Some(Loss::Expired));
        lock
    }

    /// Lets time pass, timer by timer.
    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            self.run();
            let next = self.clients.iter().filter_map(crate::Machine::next_deadline).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            for client in &mut self.clients {
                client.handle_timeout(self.now);
            }
        }
        self.now = end;
        for client in &mut self.clients {
            client.handle_timeout(end);
        }
        self.run();
    }

    fn request(&mut self, client: usize, request: &Acquire) -> LockId {
        let lock = self.clients[client].acquire(self.now, request).unwrap();
        self.run();
        lock
    }

    fn acquire(&mut self, client: usize) -> LockId {
        self.request(client, &Acquire::new("l"))
    }

    /// The fencing token of the grant, which is claimed.
    fn granted(&mut self, client: usize, lock: LockId) -> Option<u64> {
        let fence = self.of_lock(client, lock).iter().rev().find_map(|event| match event {
            Event::Granted(grant) => grant.fence.map(Fence::get),
            _ => None,
        })?;
        self.clients[client].claim(self.now, lock).ok()?;
        self.run();
        Some(fence)
    }

    fn hold(&mut self, client: usize) -> (LockId, u64) {
        let lock = self.acquire(client);
        let fence = self.granted(client, lock).unwrap_or_else(|| panic!("{:?}", self.events));
        (lock, fence)
    }

    fn release(&mut self, client: usize, lock: LockId) {
        self.clients[client].release(self.now, lock).unwrap();
        self.run();
    }

    fn of_lock(&self, client: usize, lock: LockId) -> Vec<&Event> {
        self.events.iter().filter(|(own, id, _)| (*own, *id) == (client, lock)).map(|(_, _, event)| event).collect()
    }

    fn last(&self, client: usize, lock: LockId) -> Option<&Event> {
        self.of_lock(client, lock).last().copied()
    }

    fn lost(&self, client: usize, lock: LockId) -> Option<Loss> {
        self.of_lock(client, lock).iter().find_map(|event| match event {
            Event::Lost(loss) => Some(*loss),
            _ => None,
        })
    }

    fn released(&self, client: usize, lock: LockId) -> Option<Release> {
        match self.last(client, lock) {
            Some(Event::Released(release)) => Some(*release),
            _ => None,
        }
    }

    fn failure(&self, client: usize, lock: LockId) -> Option<&Failure> {
        match self.last(client, lock) {
            Some(Event::Failed(failure)) => Some(failure),
            _ => None,
        }
    }

    /// Nothing is left that would keep the session of the only client.
    fn idles_out(&mut self) {
        self.pass(6 * 60_000);
        assert_eq!(self.clients[0].next_deadline(), None);
    }

    fn queue(&self) -> Vec<String> {
        self.server.children(LOCK)
    }
}
