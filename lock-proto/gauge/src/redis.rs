//! A client of one Redis node, which sends predefined replies.

use core::time::Duration;
use lock_proto::{Acquire, ByteClient, ClientId, ConnId, Event, Instant, LockClient, LockId, Machine};

use lock_proto::redis::{Client, Config, Endpoint, Output};

use crate::rig::{self, Rig as _};

const GRANTED: &[u8] = b"+OK\r\n";
/// The reply to the first take, which is a script.
const GRANTED_FIRST: &[u8] = b"*2\r\n:1\r\n:0\r\n";
const GRANTED_FENCED: &[u8] = b"*4\r\n:1\r\n:1700000000000000\r\n:1000\r\n:0\r\n";
const RENEWED: &[u8] = b":1\r\n";
const RELEASED: &[u8] = b":-2\r\n";

/// A client with one open connection, and its clock.
pub struct Rig {
    client: Client,
    conn: ConnId,
    now: Instant,
    fencing: bool,
}

impl rig::Rig for Rig {
    type Client = Client;

    fn ready() -> Self {
        Self::new(true)
    }

    fn client(&mut self) -> (&mut Client, Instant) {
        (&mut self.client, self.now)
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    fn granted(&mut self) -> LockId {
        self.write();
        self.client.handle_received(self.now, self.conn, self.reply());
        self.granted_next()
    }

    fn released(&mut self) {
        self.write();
        self.client.handle_received(self.now, self.conn, RELEASED);
        let Some(Output::Event { event: Event::Released(_), .. }) = self.client.poll_output() else {
            panic!("not released")
        };
    }
}

impl Rig {
    /// A client that has acquired and released a lock twice, so that its connection has loaded the
    /// scripts.
    pub fn new(fencing: bool) -> Self {
        let endpoint = Endpoint::parse("redis://127.0.0.1:6379").expect("a good URL");
        let now = Instant::from_millis(1_000);
        let config = Config::new([endpoint]).fencing(fencing).max_locks(200_000);
        let mut client = Client::new(now, config, ClientId::from_bits(1), 2).expect("good settings");
        let lock = client.acquire(now, &Acquire::new("warm-up")).expect("a valid request");
        let Some(Output::Connect { conn, .. }) = client.poll_output() else { panic!("a connection first") };
        client.handle_connected(now, conn);
        let mut rig = Self { client, conn, now, fencing };
        rig.write();
        rig.answer(if fencing { GRANTED_FENCED } else { GRANTED_FIRST });
        rig.client.abandon(rig.now, lock);
        rig.write();
        rig.answer(RELEASED);
        rig.cycle();
        rig.identify();
        rig
    }

    /// The first renewal asks for the server's identity. Extends once, to get that done.
    fn identify(&mut self) {
        self.client.acquire(self.now, &Acquire::new("warm-up")).expect("a valid request");
        self.write();
        self.client.handle_received(self.now, self.conn, self.reply());
        let lock = self.granted_next();
        self.client.extend(self.now, lock).expect("held");
        self.write();
        // Replies to `INFO server` and to the extend.
        self.answer(b"$-1\r\n");
        self.answer(RENEWED);
        self.client.abandon(self.now, lock);
        self.write();
        self.answer(RELEASED);
    }

    const fn reply(&self) -> &'static [u8] {
        if self.fencing { GRANTED_FENCED } else { GRANTED }
    }

    /// Consumes all output bytes, as a socket would.
    fn write(&mut self) {
        self.write_to(|_| {});
    }

    fn write_to(&mut self, mut look: impl FnMut(&[u8])) {
        loop {
            let bytes = self.client.outgoing(self.conn);
            if bytes.is_empty() {
                return;
            }
            look(bytes);
            let taken = bytes.len();
            self.client.consume(self.conn, taken);
        }
    }

    fn answer(&mut self, bytes: &[u8]) {
        self.client.handle_received(self.now, self.conn, bytes);
        while self.client.poll_output().is_some() {}
    }

    fn granted_next(&mut self) -> LockId {
        let Some(Output::Event { lock, event: Event::Granted(_) }) = self.client.poll_output() else {
            panic!("not granted")
        };
        self.client.claim(self.now, lock).expect("an offer");
        lock
    }

    /// Drains the events of a release, and claims the lock for its next holder.
    fn holder_next(&mut self) -> LockId {
        let mut holder = None;
        while let Some(output) = self.client.poll_output() {
            if let Output::Event { lock, event: Event::Granted(_) } = output {
                assert!(holder.replace(lock).is_none(), "one holder");
            }
        }
        let holder = holder.expect("granted");
        self.client.claim(self.now, holder).expect("an offer");
        holder
    }

    /// When the next renewal is due.
    pub fn next_deadline(&self) -> Instant {
        self.client.next_deadline().expect("locks are held")
    }

    /// Renews the locks of the next coalescing interval. Returns their number.
    pub fn renew_next(&mut self) -> usize {
        self.now = self.next_deadline();
        self.client.handle_timeout(self.now);
        let mut due = 0;
        self.write_to(|bytes| due += bytes.iter().filter(|byte| **byte == b'*').count());
        assert!(due > 0, "a renewal is due");
        self.answer(&RENEWED.repeat(due));
        due
    }
}

/// Sequential acquire and release cycles.
pub fn cycles(fencing: bool) -> Box<dyn FnMut()> {
    let mut rig = Rig::new(fencing);
    Box::new(move || (0..1_000).for_each(|_| rig.cycle()))
}

/// 10 000 locks acquired at the same time, whose renewals are due together.
pub fn renewals() -> Box<dyn FnMut()> {
    const LOCKS: usize = 10_000;
    let mut rig = Rig::new(false);
    (0..LOCKS).for_each(|n| {
        rig.hold(&format!("lock:{n}"));
    });
    let answers = RENEWED.repeat(LOCKS);
    Box::new(move || {
        // A third of the TTL, less its jitter.
        rig.now = rig.now + Duration::from_millis(3_400);
        rig.client.handle_timeout(rig.now);
        rig.write();
        rig.answer(&answers);
    })
}

/// `count` locks whose renewals are spread evenly over time.
pub fn held(count: u32) -> Rig {
    let mut rig = Rig::new(false);
    for n in 0..count {
        rig.now = rig.now + Duration::from_secs(3) / count;
        rig.hold(&format!("lock:{n}"));
    }
    // Renews each lock once, to reach the steady state.
    let mut renewed = 0;
    while renewed < count as usize {
        renewed += rig.renew_next();
    }
    rig
}

/// 1 000 waiters for one name in one client. The holder releases, the next waiter gets the lock,
/// and a new waiter joins.
pub fn turns() -> Box<dyn FnMut()> {
    const WAITERS: usize = 1_000;
    let mut rig = Rig::new(false);
    let request = Acquire::new("invoice:42");
    rig.client.acquire(rig.now, &request).expect("a valid request");
    rig.write();
    rig.client.handle_received(rig.now, rig.conn, GRANTED);
    let mut holder = rig.granted_next();
    for _ in 0..WAITERS {
        rig.client.acquire(rig.now, &request).expect("a valid request");
    }
    Box::new(move || {
        for _ in 0..1_000 {
            rig.client.release(rig.now, holder).expect("held");
            holder = rig.holder_next();
            rig.client.acquire(rig.now, &request).expect("a valid request");
        }
    })
}
