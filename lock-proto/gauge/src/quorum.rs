//! A client of five Redis nodes, which send predefined replies.

use core::time::Duration;
use lock_proto::{Acquire, ByteClient, ClientId, ConnId, Event, Instant, LockClient, LockId, Machine};

use lock_proto::redis::{Client, Config, Endpoint, Output};

use crate::rig::{self, Rig as _};

const NODES: u16 = 5;

/// A client with five open connections, and its clock.
pub struct Rig {
    client: Client,
    conns: Vec<ConnId>,
    now: Instant,
}

impl rig::Rig for Rig {
    type Client = Client;

    fn ready() -> Self {
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
        let lock = rig.granted_by(b"*2\r\n:1\r\n:0\r\n");
        rig.release(lock);
        rig.cycle();
        rig
    }

    fn client(&mut self) -> (&mut Client, Instant) {
        (&mut self.client, self.now)
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    fn granted(&mut self) -> LockId {
        self.granted_by(b"+OK\r\n")
    }

    fn released(&mut self) {
        let Some((_, Event::Released(_))) = self.exchange(b":-2\r\n") else { panic!("not released") };
    }
}

impl Rig {
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

    fn granted_by(&mut self, granted: &[u8]) -> LockId {
        let Some((lock, Event::Granted(_))) = self.exchange(granted) else { panic!("not granted") };
        self.client.claim(self.now, lock).expect("an offer");
        lock
    }
}

/// Sequential acquire and release cycles.
pub fn cycles() -> Box<dyn FnMut()> {
    let mut rig = Rig::ready();
    Box::new(move || (0..200).for_each(|_| rig.cycle()))
}
