//! A client of five Redis nodes, which send predefined replies.

use core::time::Duration;
use lock_proto::ByteClient;
use lock_proto::Machine;

use lock_proto::redis::{Acquire, Client, Config, Endpoint, Event, Output};
use lock_proto::{ClientId, ConnId, Instant, LockId};

const NODES: u16 = 5;

/// A client with five open connections, and its clock.
pub struct Rig {
    client: Client,
    conns: Vec<ConnId>,
    now: Instant,
}

impl Rig {
    /// A client that has acquired and released a lock, so that its connections have loaded the
    /// scripts.
    pub fn ready() -> Self {
        let endpoints = (1..=NODES).map(|n| Endpoint::parse(&format!("redis://127.0.0.{n}:6379")).expect("a good URL"));
        let now = Instant::from_millis(1_000);
        let mut client =
            Client::new(now, Config::new(endpoints), ClientId::from_bits(1), 2).expect("five are a good number");
        client.acquire(now, &Acquire::new("invoice:42")).expect("a valid request");
        let mut conns = Vec::new();
        while let Some(output) = client.poll_output() {
            let Output::Connect { conn, .. } = output else { panic!("connections first: {output:?}") };
            conns.push(conn);
        }
        let mut rig = Self { client, conns, now };
        for (n, conn) in rig.conns.clone().into_iter().enumerate() {
            rig.client.handle_connected(now, conn);
            rig.write(conn);
            // A run id, and an uptime that shows that the node has not just restarted.
            let info = format!("run_id:{n:040}\r\nuptime_in_seconds:100000\r\n");
            let info = format!("${}\r\n{info}\r\n", info.len());
            rig.client.handle_received(now, conn, info.as_bytes());
        }
        // The first take is a script.
        rig.give_back(b"*2\r\n:1\r\n:0\r\n");
        rig.cycle();
        rig
    }

    fn write(&mut self, conn: ConnId) {
        loop {
            let n = self.client.outgoing(conn).len();
            if n == 0 {
                return;
            }
            self.client.consume(conn, n);
        }
    }

    /// Every node replies to its request. Returns the event that follows.
    fn exchange(&mut self, answer: &[u8]) -> Option<(LockId, Event)> {
        let mut result = None;
        for index in 0..self.conns.len() {
            self.write(self.conns[index]);
        }
        for index in 0..self.conns.len() {
            self.client.handle_received(self.now, self.conns[index], answer);
            while let Some(output) = self.client.poll_output() {
                let Output::Event { lock, event } = output else { panic!("nothing else is to be done: {output:?}") };
                assert!(result.replace((lock, event)).is_none(), "one event");
            }
        }
        result
    }

    fn granted(&mut self, granted: &[u8]) -> LockId {
        let Some((lock, Event::Granted(_))) = self.exchange(granted) else { panic!("not granted") };
        self.client.claim(self.now, lock).expect("an offer");
        lock
    }

    fn give_back(&mut self, granted: &[u8]) {
        let lock = self.granted(granted);
        self.release(lock);
    }

    /// Acquires a lock on all nodes and keeps it.
    pub fn hold(&mut self, name: String) -> LockId {
        self.wait(name);
        self.granted(b"+OK\r\n")
    }

    /// Requests a lock. The servers do not answer.
    pub fn wait(&mut self, name: String) {
        self.client.acquire(self.now, &Acquire::new(name)).expect("a valid request");
    }

    /// Releases a lock on all nodes.
    pub fn release(&mut self, lock: LockId) {
        self.client.release(self.now, lock).expect("held");
        let Some((_, Event::Released(_))) = self.exchange(b":-2\r\n") else { panic!("not released") };
    }

    /// Acquires a lock on all nodes and releases it.
    pub fn cycle(&mut self) {
        self.now = self.now + Duration::from_micros(50);
        self.client.acquire(self.now, &Acquire::new("invoice:42")).expect("a valid request");
        self.give_back(b"+OK\r\n");
    }
}

/// Sequential acquire and release cycles.
pub fn cycles() -> Box<dyn FnMut()> {
    let mut rig = Rig::ready();
    Box::new(move || (0..200).for_each(|_| rig.cycle()))
}
