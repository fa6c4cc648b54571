//! One connection to an arbitrary server.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_proto::redis::{
    Endpoint, Identity, Key, KeyLayout, Limits, Pipe, PipeConfig, PipeOutput, Reply, Request, Retired,
};
use lock_proto::{Backoff, CallId, Cause, ClientId, ConnId, Credentials, Fault, Instant, NodeId, Role};

const URLS: [&str; 7] = [
    "redis://h",
    "redis://h?protocol=resp3",
    "redis://user:password@h/3?client_name=fuzz",
    "redis://user:password@h/3?client_name=fuzz&protocol=resp3",
    "redis://:password@h",
    "redis://user@h?password_file=/run/secret",
    "redis+unix:///s?db=1",
];

/// Predefined replies, which the fuzzer need not spell out.
const ANSWERS: [&[u8]; 16] = [
    b"+OK\r\n",
    b"$-1\r\n",
    b"_\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-1\r\n",
    b"*4\r\n:1\r\n:7\r\n:1\r\n:0\r\n",
    b"*2\r\n:0\r\n:250\r\n",
    b"%1\r\n+proto\r\n:3\r\n",
    b"$40\r\nrun_id:0123456789\r\nuptime_in_seconds:77\r\n\r\n",
    b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
    b"-READONLY You can't write against a read only replica.\r\n",
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-ERR odd\r\n",
    b">1\r\n+push\r\n",
    b"*2\r\n$1\r\na\r\n$1\r\n1\r\n",
];

const LIMITS: Limits = Limits { frame: 4096, depth: 4, elements: 64, pushes: 8, outgoing: 2048, in_flight: 16 };

/// Exceeds the longest command here: a script and its arguments, or `BLPOP` of 255 lists.
const ONE_COMMAND: usize = 16 * 1024;

/// Drives a [`Pipe`] by `data`: a configuration byte, then operations, each a letter and its
/// arguments (see `fuzz/README.md`).
///
/// Checks that nothing panics, that every call gets exactly one reply, and that connection ids
/// grow. A call answered `NotSent` was not written completely, or was refused by an error. The
/// bytes that wait for the socket are bounded. A machine without a deadline has answered every
/// call.
pub fn pipe(data: &[u8]) {
    let mut input = Input { rest: data };
    let mut world = World::new(input.byte());
    let mut raw: &[u8] = b"";
    while let Some(op) = input.next() {
        match op {
            b's' => world.send(input.byte(), input.byte()),
            b'b' => world.block(input.byte()),
            b'u' => world.pipe.unblock(world.now, i64::from(input.byte())),
            b'o' => world.pipe.open(world.now),
            b'c' => world.pipe.close(world.now),
            b'w' => world.write(usize::from(input.byte()) * 16),
            b'1' => world.write(1),
            b'C' => world.fact(|pipe, now, conn| pipe.handle_connected(now, conn)),
            b'D' => {
                let why =
                    [Fault::Closed, Fault::Refused, Fault::Reset, Fault::Transport][usize::from(input.byte()) % 4];
                world.fact(|pipe, now, conn| pipe.handle_disconnected(now, conn, why));
            }
            b'a' => world.receive(ANSWERS[usize::from(input.byte()) % ANSWERS.len()], usize::MAX),
            b'r' => {
                let (step, len) = (input.byte(), input.byte());
                raw = input.take(usize::from(len));
                world.receive(raw, usize::from(step));
            }
            // Receives the same bytes many more times.
            b'R' => world.receive(&raw.repeat(1 + usize::from(input.byte()) * 16), usize::MAX),
            b't' => {
                world.now = world.now + Duration::from_millis(u64::from(input.byte()) * 8);
                world.pipe.handle_timeout(world.now);
            }
            b'd' => {
                if let Some(due) = world.pipe.next_deadline() {
                    world.now = world.now.max(due);
                    world.pipe.handle_timeout(world.now);
                }
            }
            // Later facts are about an old connection.
            b'O' => world.stale = !world.stale,
            _ => continue,
        }
        world.check();
    }
    world.finish();
}

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}

struct World {
    pipe: Pipe,
    now: Instant,
    serial: u64,
    /// Unanswered calls. With the token of the command, if the written bytes contain it literally.
    pending: BTreeMap<CallId, Option<String>>,
    /// Bytes written on any connection since the server's last error. A batch that is refused by an
    /// error is not executed, and each of its calls is sent again alone.
    written: Vec<u8>,
    newest: Option<ConnId>,
    old: Option<ConnId>,
    stale: bool,
}

impl World {
    fn new(how: u8) -> Self {
        let endpoint = Endpoint::parse(URLS[usize::from(how) % URLS.len()]).expect("a good URL");
        let config = PipeConfig {
            endpoint,
            node: NodeId::new(0),
            role: if how & 0x40 == 0 { Role::Commands } else { Role::Wake },
            server_info: how & 0x80 != 0,
            request_credentials: false,
            idle_checks: Some([Duration::from_millis(70), Duration::from_millis(100)]),
            connect_timeout: Duration::from_millis(300),
            request_timeout: Duration::from_millis(100),
            reconnect: Backoff::exponential(Duration::from_millis(10), Duration::from_millis(100)),
            limits: LIMITS,
        };
        Self {
            pipe: Pipe::new(config, Identity::new(ClientId::from_bits(7), KeyLayout::default(), b""), 1),
            now: Instant::from_millis(1),
            serial: 0,
            pending: BTreeMap::new(),
            written: Vec::new(),
            newest: None,
            old: None,
            stale: false,
        }
    }

    fn send(&mut self, kind: u8, ttl: u8) {
        self.serial += 1;
        let call = CallId::new(NodeId::new(0), self.serial);
        let key = Key::new(b"", &[b'a' + kind % 4]);
        let ttl_ms = u64::from(ttl);
        // Equally long, so that no number is a prefix of another.
        let (number, retired) = (1_000_000 + self.serial, Retired::default());
        let mut token = None;
        let request = match kind / 4 % 5 {
            0 => {
                token = Some(format!("{}:{number}\r\n", ClientId::from_bits(7)));
                Request::Take { key, number, retired, ttl_ms, fence_block: 0, clean: true, waiting_ms: 0 }
            }
            1 => {
                let waiting_ms = u64::from(kind / 128);
                Request::Take { key, number, retired, ttl_ms, fence_block: 1, clean: false, waiting_ms }
            }
            2 => Request::Extend { key, number, ttl_ms, fence_block: u32::from(kind / 128) },
            3 => {
                let retired = (kind / 64).is_multiple_of(2).then_some(retired);
                Request::Release { key, number: 0, retired, announce: kind / 128 == 0 }
            }
            _ => Request::Announce { key },
        };
        self.pending.insert(call, token);
        self.pipe.send(self.now, call, request);
    }

    fn block(&mut self, count: u8) {
        let keys = (0..=count).map(|n| Key::new(b"", &[b'a', n])).collect();
        let wait = Duration::from_millis(u64::from(count) * 10);
        self.pipe.block(self.now, keys, wait);
    }

    fn conn(&self) -> Option<ConnId> {
        if self.stale { self.old } else { self.newest }
    }

    fn fact(&mut self, f: impl FnOnce(&mut Pipe, Instant, ConnId)) {
        let Some(conn) = self.conn() else { return };
        let before = (self.pipe.current() != Some(conn)).then(|| self.pipe.clone());
        f(&mut self.pipe, self.now, conn);
        if let Some(before) = before {
            // Only the clock may have advanced.
            let mut before = before;
            before.handle_received(self.now, conn, b"");
            assert_eq!(self.pipe, before, "a connection that is not the current one changed something");
        }
    }

    fn receive(&mut self, bytes: &[u8], step: usize) {
        // An error is a line that begins so. The bytes may begin a line.
        let mut pairs = [b'\n'].iter().chain(bytes).zip(bytes);
        if pairs.any(|(before, byte)| *before == b'\n' && matches!(byte, b'-' | b'!')) {
            self.written.clear();
        }
        for part in bytes.chunks(step.max(1)) {
            self.fact(|pipe, now, conn| pipe.handle_received(now, conn, part));
        }
    }

    fn write(&mut self, most: usize) {
        let Some(conn) = self.conn() else { return };
        let bytes = self.pipe.outgoing(conn);
        let n = bytes.len().min(most);
        self.written.extend_from_slice(&bytes[..n]);
        self.pipe.consume(conn, n);
    }

    fn check(&mut self) {
        while let Some(output) = self.pipe.poll_output() {
            match output {
                PipeOutput::Connect(conn) => {
                    assert!(self.newest < Some(conn), "connection ids grow");
                    self.old = self.newest.or(self.old);
                    self.newest = Some(conn);
                }
                // Every third time the host has none.
                PipeOutput::Credentials(conn, _) => {
                    self.serial += 1;
                    let credentials = Credentials::new("password").valid_for(Duration::from_millis(self.serial % 200));
                    self.pipe.handle_credentials(
                        self.now,
                        conn,
                        Some(credentials).filter(|_| !self.serial.is_multiple_of(3)),
                    );
                }
                PipeOutput::Disconnect(conn, _) => assert!(Some(conn) <= self.newest, "only what was opened is closed"),
                PipeOutput::Reply { call, reply } => {
                    let token = self.pending.remove(&call).expect("every call is answered once");
                    if let (Reply::NotSent(cause), Some(token)) = (reply, token) {
                        let found = self.written.windows(token.len()).any(|part| part == token.as_bytes());
                        assert!(!found, "{call} was written, but is answered NotSent: {cause}");
                    }
                }
                PipeOutput::Down(Cause::Server(error)) => assert!(error.text.len() <= 400),
                PipeOutput::Up(_)
                | PipeOutput::Server(_)
                | PipeOutput::Down(_)
                | PipeOutput::Woken(_)
                | PipeOutput::BlockRefused(_)
                | PipeOutput::UnblockRefused(_)
                | PipeOutput::NotBlocked => {}
                PipeOutput::Idle(_) => self.pipe.ping(self.now),
            }
        }
        let waiting = self.newest.map_or(0, |conn| self.pipe.outgoing(conn).len());
        assert!(waiting <= LIMITS.outgoing + ONE_COMMAND, "{waiting} bytes wait for the socket");
        if self.pipe.next_deadline().is_none() {
            assert!(self.pending.is_empty(), "nothing is due, but {:?} wait", self.pending.keys());
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
        assert!(self.pending.is_empty(), "{:?} are never answered", self.pending.keys());
        self.pipe.close(self.now);
        self.check();
        assert!(self.pipe.is_closed() && self.pipe.next_deadline().is_none());
        let shown = format!("{:?}", self.pipe);
        assert!(!shown.contains("password\"") && !shown.contains("AUTH"), "{shown}");
    }
}
