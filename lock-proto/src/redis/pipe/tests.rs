#![allow(clippy::unwrap_used, reason = "tests")]

mod avoided;
mod credentials;
mod framing;
mod hostile;
mod idle;
mod outgoing;
mod scripts;
mod slow;
mod together;

use super::*;
use crate::id::ClientId;
use crate::lock::{ErrorClass, Expiry};
use crate::redis::script;
use crate::redis::{KeyLayout, Protocol, Retired};
use alloc::format;
use alloc::string::String;
use alloc::vec;

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_millis(500);

/// Asserts that `work` takes linear time: about as long on the whole as on its eight parts. Load on
/// the machine slows both runs alike; a retry may be needed.
fn assert_linear(most: usize, work: impl Fn(usize)) {
    let timed = |size, times| {
        let start = std::time::Instant::now();
        (0..times).for_each(|_| work(size));
        start.elapsed().as_secs_f64()
    };
    let ratio = || timed(most, 1) / timed(most / 8, 8);
    let tried: Vec<f64> = core::iter::repeat_with(ratio).take(10).take_while(|ratio| *ratio >= 2.0).collect();
    assert!(tried.len() < 10, "the whole took so many times as long as its eight parts: {tried:?}");
}

/// A pipe, a clock, and the host's side of the contract.
struct PipeRig {
    pipe: Pipe,
    now: Instant,
    serial: u64,
}

impl PipeRig {
    fn new(url: &str) -> Self {
        Self::with(url, Role::Commands, false)
    }

    fn with(url: &str, role: Role, server_info: bool) -> Self {
        let config = PipeConfig {
            endpoint: Endpoint::parse(url).unwrap(),
            node: NodeId::new(0),
            role,
            server_info,
            request_credentials: false,
            idle_checks: None,
            connect_timeout: Duration::from_secs(2),
            request_timeout: TIMEOUT,
            reconnect: Backoff::exponential(10 * MS, Duration::from_secs(1)),
            limits: Limits::default(),
        };
        let identity = Identity::new(ClientId::from_bits(1), KeyLayout::default(), b"");
        Self { pipe: Pipe::new(config, identity, 42), now: Instant::from_millis(1000), serial: 0 }
    }

    /// An open connection without a handshake. Each request is a command of its own.
    fn up() -> (Self, ConnId) {
        let (mut rig, conn) = Self::together();
        rig.pipe.state.wire.disable_batching();
        (rig, conn)
    }

    /// Like `up`, but with batching.
    fn together() -> (Self, ConnId) {
        let mut rig = Self::new("redis://h");
        let conn = rig.opened();
        assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default())]);
        (rig, conn)
    }

    fn opened(&mut self) -> ConnId {
        self.pipe.open(self.now);
        let Some(PipeOutput::Connect(conn)) = self.pipe.poll_output() else { panic!("no connect: {:?}", self.pipe) };
        self.pipe.handle_connected(self.now, conn);
        conn
    }

    fn outputs(&mut self) -> Vec<PipeOutput> {
        core::iter::from_fn(|| self.pipe.poll_output()).collect()
    }

    fn call(&mut self) -> CallId {
        self.serial += 1;
        CallId::new(NodeId::new(0), self.serial)
    }

    fn send(&mut self, request: Request) -> CallId {
        let call = self.call();
        self.pipe.send(self.now, call, request);
        call
    }

    fn written(&mut self, conn: ConnId) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let part = self.pipe.outgoing(conn).to_vec();
            if part.is_empty() {
                return all;
            }
            self.pipe.consume(conn, part.len());
            all.extend(part);
        }
    }

    fn commands(&mut self, conn: ConnId) -> Vec<String> {
        commands(&self.written(conn)).into_iter().map(|mut args| args.swap_remove(0)).collect()
    }

    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        self.pipe.handle_received(self.now, conn, bytes);
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now + by;
        self.pipe.handle_timeout(self.now);
    }

    /// Advances the time until the pipe reopens the connection.
    fn reopened(&mut self) -> ConnId {
        let due = self.pipe.next_deadline().unwrap();
        self.pass(due.since(self.now));
        let outputs = self.outputs();
        let [PipeOutput::Connect(conn)] = outputs[..] else { panic!("{outputs:?}") };
        conn
    }
}

fn commands(mut bytes: &[u8]) -> Vec<Vec<String>> {
    fn number(bytes: &mut &[u8], kind: u8) -> usize {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap();
        assert_eq!(bytes[0], kind);
        let number = core::str::from_utf8(&bytes[1..end]).unwrap().parse().unwrap();
        *bytes = &bytes[end + 2..];
        number
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let count = number(&mut bytes, b'*');
        all.push(
            (0..count)
                .map(|_| {
                    let len = number(&mut bytes, b'$');
                    let (arg, rest) = bytes.split_at(len);
                    bytes = rest.strip_prefix(b"\r\n").unwrap();
                    String::from_utf8(arg.to_vec()).unwrap()
                })
                .collect(),
        );
    }
    all
}

fn key(name: &str) -> Key {
    Key::new(b"", name.as_bytes())
}

fn take(name: &str) -> Request {
    Request::Take {
        key: key(name),
        number: 1,
        retired: Retired::default(),
        ttl_ms: 10_000,
        fence_block: 0,
        clean: true,
        waiting_ms: 0,
    }
}

/// A take of a lock with a TTL of 100 ms.
fn short(name: &str) -> Request {
    let retired = Retired::default();
    Request::Take { key: key(name), number: 1, retired, ttl_ms: 100, fence_block: 0, clean: true, waiting_ms: 0 }
}

fn extend(name: &str) -> Request {
    Request::Extend { key: key(name), number: 1, ttl_ms: 10_000, fence_block: 0 }
}

fn release(name: &str) -> Request {
    Request::Release { key: key(name), number: 1, retired: Some(Retired::all_to(1)), announce: false }
}

fn reply(call: CallId, reply: Reply) -> PipeOutput {
    PipeOutput::Reply { call, reply }
}

fn granted(call: CallId) -> PipeOutput {
    reply(call, Reply::Granted { fence: None })
}

fn fault(why: Fault) -> Cause {
    Cause::Fault(why)
}

fn server(text: &str) -> Cause {
    ServerError::classify(text).into()
}

#[test]
fn plain_connection_is_up_at_once_and_replies_in_order() {
    let (mut rig, conn) = PipeRig::up();
    let (a, b) = (rig.send(take("a")), rig.send(take("b")));
    assert_eq!(rig.pipe.in_flight(), 0, "nothing was written yet");
    assert_eq!(rig.commands(conn), ["SET", "SET"]);
    assert_eq!(rig.pipe.in_flight(), 2);
    rig.receive(conn, b"+OK\r\n$-1\r\n");
    assert_eq!(rig.outputs(), [granted(a), reply(b, Reply::Busy { expires: Expiry::Unknown })]);
    assert_eq!(rig.pipe.in_flight(), 0);
    assert_eq!(rig.pipe.next_deadline(), None, "nothing is left to wait for");
}

#[test]
fn handshake_is_sent_in_one_write_before_any_request() {
    // P1, Q6
    let mut rig = PipeRig::with("redis://u:pw@h/3?client_name=me", Role::Wake, true);
    let call = rig.send(take("a"));
    let Some(PipeOutput::Connect(conn)) = rig.pipe.poll_output() else { panic!() };
    assert!(rig.pipe.outgoing(conn).is_empty(), "nothing can be written before the connection is open");
    rig.pipe.handle_connected(rig.now, conn);
    let written = commands(&rig.written(conn));
    let expected: [&[&str]; 5] =
        [&["AUTH", "u", "pw"], &["SELECT", "3"], &["CLIENT", "SETNAME", "me"], &["CLIENT", "ID"], &["INFO", "server"]];
    assert_eq!(written, expected);
    rig.receive(conn, b"+OK\r\n+OK\r\n+OK\r\n:77\r\n");
    assert!(!rig.pipe.is_up() && rig.outputs().is_empty());
    let info = "# Server\r\nrun_id:0123abcd\r\nuptime_in_seconds:61\r\nuptime_in_days:0\r\n";
    rig.receive(conn, format!("${}\r\n{info}\r\n", info.len()).as_bytes());
    let info = ServerInfo { run_id: "0123abcd".into(), uptime: Duration::from_secs(61) };
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello { client_id: Some(77), server: Some(Ok(info)) })]);
    assert_eq!(rig.commands(conn), ["SET"]);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [granted(call)]);
}

#[test]
fn resp3_handshake_uses_hello() {
    // P1
    let mut rig = PipeRig::with("redis://:pw@h/3?protocol=resp3&client_name=me", Role::Wake, true);
    let conn = rig.opened();
    let written = commands(&rig.written(conn));
    let expected: [&[&str]; 5] = [
        &["HELLO", "3", "AUTH", "default", "pw"],
        &["SELECT", "3"],
        &["CLIENT", "SETNAME", "me"],
        &["CLIENT", "ID"],
        &["INFO", "server"],
    ];
    assert_eq!(written, expected);
    // The format of redis-server 7.0: a map, and a verbatim string.
    rig.receive(conn, b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*0\r\n+OK\r\n+OK\r\n:9\r\n");
    let info = "txt:# Server\r\nrun_id:ff\r\nuptime_in_seconds:0\r\n";
    rig.receive(conn, format!("={}\r\n{info}\r\n", info.len()).as_bytes());
    let info = ServerInfo { run_id: "ff".into(), uptime: Duration::ZERO };
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello { client_id: Some(9), server: Some(Ok(info)) })]);
    let (a, b) = (rig.send(extend("a")), rig.send(take("b")));
    assert_eq!(rig.commands(conn), ["EVAL", "SET"]);
    rig.receive(conn, b":1\r\n_\r\n");
    assert_eq!(rig.outputs(), [reply(a, Reply::Extended), reply(b, Reply::Busy { expires: Expiry::Unknown })]);
}

#[test]
fn refused_handshake_fails_pending_requests_and_is_retried() {
    for (url, answers, text) in [
        ("redis://:pw@h", "-WRONGPASS invalid username-password pair or user is disabled.\r\n", "WRONGPASS"),
        ("redis://:pw@h", "-ERR AUTH <password> called without any password configured\r\n", "ERR AUTH"),
        ("redis://h/99", "-ERR DB index is out of range\r\n", "ERR DB index"),
        (
            "redis://h?protocol=resp3",
            "-NOPROTO unsupported protocol version\r\n",
            "RESP3 is not available, use protocol=resp2 (NOPROTO",
        ),
        (
            "redis://h?protocol=resp3",
            "-ERR unknown command `HELLO`, with args\r\n",
            "RESP3 is not available, use protocol=resp2 (ERR unknown",
        ),
        ("redis://:pw@h?protocol=resp3", "-WRONGPASS invalid username-password pair\r\n", "WRONGPASS"),
        (
            "redis://h?protocol=resp3",
            "-NOAUTH HELLO must be called with the client already authenticated\r\n",
            "NOAUTH",
        ),
        ("redis://h?client_name=me", "-NOAUTH Authentication required.\r\n", "NOAUTH"),
        (
            "redis://h?protocol=resp3",
            "%2\r\n$5\r\nproto\r\n:3\r\n$4\r\nmode\r\n$7\r\ncluster\r\n",
            "HELLO reports mode cluster (Redis Cluster is not supported)",
        ),
    ] {
        let mut rig = PipeRig::new(url);
        let waiting = rig.send(take("a"));
        let conn = rig.opened();
        rig.written(conn);
        rig.receive(conn, answers.as_bytes());
        let outputs = rig.outputs();
        let [PipeOutput::Disconnect(closed, _), PipeOutput::Down(Cause::Server(error)), answered] = &outputs[..] else {
            panic!("{url}: {outputs:?}");
        };
        assert_eq!((*closed, error.class), (conn, ErrorClass::Refused), "{url}");
        assert!(error.text.starts_with(text), "{url}: {error}");
        let cause = Cause::Server(error.clone());
        assert_eq!(*answered, reply(waiting, Reply::NotSent(cause.clone())), "{url}");
        // During the pause a request fails at once.
        let refused = rig.send(take("b"));
        assert_eq!(rig.outputs(), [reply(refused, Reply::NotSent(cause))], "{url}");
        let again = rig.reopened();
        assert_ne!(again, conn);
    }
}

#[test]
fn refused_client_name_id_or_info_is_tolerated() {
    let mut rig = PipeRig::with("redis://h?client_name=me", Role::Wake, true);
    let conn = rig.opened();
    rig.written(conn);
    rig.receive(conn, b"-NOPERM no\r\n-NOPERM no\r\n-NOPERM no permissions to run the 'info' command\r\n");
    let error = ServerError::classify("NOPERM no permissions to run the 'info' command");
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello { client_id: None, server: Some(Err(error)) })]);
}

#[test]
fn info_without_required_fields_is_reported_as_error() {
    for info in ["", "run_id:\r\nuptime_in_seconds:5\r\n", "run_id:a\r\nuptime_in_seconds:-5\r\n", "xrun_id:a\r\n"] {
        let mut rig = PipeRig::with("redis://h", Role::Commands, true);
        let conn = rig.opened();
        rig.written(conn);
        rig.receive(conn, format!("${}\r\n{info}\r\n", info.len()).as_bytes());
        let outputs = rig.outputs();
        assert!(matches!(&outputs[..], [PipeOutput::Up(Hello { server: Some(Err(_)), .. })]), "{info:?}: {outputs:?}");
    }
}

#[test]
fn debug_output_hides_password() {
    let mut rig = PipeRig::new("redis://u:sesame@h");
    let conn = rig.opened();
    let unsent = format!("{:?}", rig.pipe);
    let written = String::from_utf8(rig.pipe.outgoing(conn).to_vec()).unwrap();
    assert!(written.contains("sesame"), "it is to be sent, after all");
    rig.receive(conn, b"$20\r\nsesame");
    for shown in [unsent, format!("{:?}", rig.pipe), format!("{:?}", rig.pipe.config())] {
        assert!(!shown.contains("sesame") && !shown.contains("115, 101, 115"), "{shown}");
    }
}

#[test]
fn connecting_is_aborted_after_connect_timeout() {
    for connected in [false, true] {
        let mut rig = PipeRig::new("redis://:pw@h");
        rig.pipe.open(rig.now);
        let Some(PipeOutput::Connect(conn)) = rig.pipe.poll_output() else { panic!() };
        if connected {
            rig.pipe.handle_connected(rig.now, conn);
            rig.written(conn);
        }
        assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 2000 * MS));
        rig.pass(1999 * MS);
        assert_eq!(rig.outputs(), []);
        rig.pass(MS);
        assert_eq!(
            rig.outputs(),
            [PipeOutput::Disconnect(conn, Some(fault(Fault::TimedOut))), PipeOutput::Down(fault(Fault::TimedOut))]
        );
    }
}

/// A lock with a short TTL waits less than the others.
#[test]
fn request_times_out_alone_while_connecting() {
    let mut rig = PipeRig::new("redis://h");
    let (a, b, c) = (rig.send(take("a")), rig.send(short("b")), rig.send(take("c")));
    let Some(PipeOutput::Connect(conn)) = rig.pipe.poll_output() else { panic!() };
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 20 * MS));
    rig.pass(20 * MS);
    assert_eq!(rig.outputs(), [reply(b, Reply::NotSent(fault(Fault::TimedOut)))]);
    rig.pipe.handle_connected(rig.now, conn);
    rig.pipe.state.wire.disable_batching();
    assert_eq!(rig.commands(conn), ["SET", "SET"]);
    rig.receive(conn, b"+OK\r\n+OK\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default()), granted(a), granted(c)]);
}

#[test]
fn unanswered_request_drops_connection_and_fails_all_in_order() {
    // M8
    let (mut rig, conn) = PipeRig::up();
    let a = rig.send(take("a"));
    let written = rig.written(conn);
    rig.pass(100 * MS);
    let b = rig.send(take("b"));
    let whole = rig.pipe.outgoing(conn).len();
    assert_eq!(whole, written.len());
    rig.pipe.consume(conn, 1);
    let c = rig.send(take("c"));
    rig.pipe.outgoing(conn);
    let d = rig.send(take("d"));
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 400 * MS), "nothing has come since the first request");
    rig.pass(400 * MS);
    let gone = || fault(Fault::TimedOut);
    let expected = [
        PipeOutput::Disconnect(conn, Some(gone())),
        PipeOutput::Down(gone()),
        reply(a, Reply::Unknown(gone())),
        reply(b, Reply::Unknown(gone())),
        reply(c, Reply::Unknown(gone())),
        reply(d, Reply::NotSent(gone())),
    ];
    assert_eq!(rig.outputs(), expected);
    assert!(rig.pipe.outgoing(conn).is_empty(), "a dropped connection has nothing to send");
}

#[test]
fn node_that_does_not_drain_times_out_with_bounded_buffer() {
    // P3
    let (mut rig, conn) = PipeRig::up();
    let calls: Vec<CallId> = (0..2000).map(|_| rig.send(take("a"))).collect();
    let limit = Limits::default().outgoing + 200;
    let first = rig.pipe.outgoing(conn).len();
    assert!((Limits::default().outgoing..limit).contains(&first), "{first} bytes are encoded");
    for _ in 0..10 {
        rig.pipe.consume(conn, 3);
        assert!(rig.pipe.outgoing(conn).len() < limit, "the buffer is bounded");
    }
    rig.pass(TIMEOUT);
    let outputs = rig.outputs();
    assert_eq!(outputs.len(), 2 + calls.len());
    let answers = || outputs[2..].iter().zip(&calls);
    let seen = answers().filter(|(out, call)| **out == reply(**call, Reply::Unknown(fault(Fault::TimedOut)))).count();
    assert!((1..calls.len() / 2).contains(&seen), "the host has seen {seen}");
    let unseen = Reply::NotSent(fault(Fault::TimedOut));
    assert!(answers().skip(seen).all(|(out, call)| *out == reply(*call, unseen.clone())));
}

#[test]
fn reconnect_backoff_grows_and_resets_after_lasting_connection() {
    // P1
    let mut rig = PipeRig::new("redis://h");
    rig.pipe.open(rig.now);
    let mut pauses = Vec::new();
    let Some(PipeOutput::Connect(mut conn)) = rig.pipe.poll_output() else { panic!() };
    for _ in 0..12 {
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Refused);
        assert_eq!(rig.outputs(), [PipeOutput::Down(fault(Fault::Refused))]);
        let before = rig.now;
        let new = rig.reopened();
        assert!(new.generation > conn.generation);
        conn = new;
        pauses.push(rig.now.since(before));
    }
    for (n, pause) in pauses.iter().enumerate() {
        let full = Duration::from_secs(1).min(10 * MS * 2u32.pow(n as u32));
        assert!(*pause <= full && *pause >= full * 3 / 4, "pause {n} is {pause:?} of {full:?}");
    }
    // The backoff continues after a connection that failed early, and restarts after a long one.
    for (lasted, least) in [(999, 750), (1000, 7)] {
        rig.pipe.handle_connected(rig.now, conn);
        rig.pass(lasted * MS);
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Reset);
        rig.outputs();
        let before = rig.now;
        conn = rig.reopened();
        let pause = rig.now.since(before);
        assert!(pause >= least * MS && pause <= least * MS * 3 / 2, "after {lasted} ms up: {pause:?}");
    }
}

#[test]
fn close_fails_all_requests_and_lasts_until_next_request() {
    let (mut rig, conn) = PipeRig::up();
    let a = rig.send(take("a"));
    rig.written(conn);
    let b = rig.send(take("b"));
    rig.pipe.close(rig.now);
    let unneeded = || fault(Fault::NotNeeded);
    let expected = [
        PipeOutput::Disconnect(conn, None),
        reply(a, Reply::Unknown(unneeded())),
        reply(b, Reply::NotSent(unneeded())),
    ];
    assert_eq!(rig.outputs(), expected);
    assert!(rig.pipe.is_closed());
    rig.pass(Duration::from_secs(60));
    assert_eq!((rig.outputs(), rig.pipe.next_deadline()), (vec![], None));
    rig.send(take("c"));
    assert!(matches!(rig.outputs()[..], [PipeOutput::Connect(new)] if new != conn));
    // Close while connecting, and while backing off.
    rig.pipe.close(rig.now);
    assert_eq!(rig.outputs().len(), 2);
    let conn = rig.opened();
    rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
    rig.pipe.close(rig.now);
    rig.outputs();
    assert!(rig.pipe.is_closed() && rig.pipe.next_deadline().is_none());
}

#[test]
fn deadline_covers_queued_output() {
    let mut rig = PipeRig::new("redis://h");
    rig.pipe.open(rig.now);
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now));
    rig.outputs();
    assert!(rig.pipe.next_deadline() > Some(rig.now));
}

#[test]
fn backwards_time_is_ignored() {
    // M1
    let (mut rig, conn) = PipeRig::up();
    rig.pass(Duration::from_secs(5));
    let call = rig.call();
    rig.pipe.send(Instant::ZERO, call, take("a"));
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + TIMEOUT));
    rig.written(conn);
    rig.pipe.handle_timeout(Instant::ZERO);
    assert_eq!(rig.outputs(), []);
}

#[test]
fn demoted_master_is_disconnected_after_replies_already_received() {
    // P2
    let (mut rig, conn) = PipeRig::up();
    let (a, b, c) = (rig.send(take("a")), rig.send(take("b")), rig.send(take("c")));
    rig.written(conn);
    let text = "READONLY You can't write against a read only replica.";
    rig.receive(conn, format!("-{text}\r\n-{text}\r\n").as_bytes());
    let error = ServerError::classify(text);
    let expected = [
        reply(a, Reply::Rejected(error.clone())),
        reply(b, Reply::Rejected(error)),
        PipeOutput::Disconnect(conn, Some(server(text))),
        PipeOutput::Down(server(text)),
        reply(c, Reply::Unknown(server(text))),
    ];
    assert_eq!(rig.outputs(), expected);
    rig.reopened();
}

/// A required login leads to a new connection that logs in. Without a password it is a refusal.
#[test]
fn logged_out_connection_is_replaced_by_one_that_logs_in() {
    // P2
    for text in ["NOAUTH Authentication required.", "ERR Protocol error: unauthenticated multibulk length"] {
        let mut rig = PipeRig::new("redis://:pw@h");
        let mut conn = rig.opened();
        for pause in [10, 20, 40] {
            assert_eq!(rig.commands(conn), ["AUTH"]);
            rig.receive(conn, b"+OK\r\n");
            rig.pipe.state.wire.disable_batching();
            let (a, b) = (rig.send(take("a")), rig.send(take("b")));
            rig.written(conn);
            rig.outputs();
            rig.receive(conn, format!("-{text}\r\n").as_bytes());
            let error = ServerError { class: ErrorClass::Reconnect, ..ServerError::classify(text) };
            let expected = [
                reply(a, Reply::Rejected(error.clone())),
                PipeOutput::Disconnect(conn, Some(error.clone().into())),
                PipeOutput::Down(error.clone().into()),
                reply(b, Reply::Unknown(error.into())),
            ];
            assert_eq!(rig.outputs(), expected);
            let wait = rig.pipe.next_deadline().unwrap().since(rig.now);
            assert!(wait <= pause * MS && wait >= pause * MS * 3 / 4, "{wait:?}");
            conn = rig.reopened();
            rig.pipe.handle_connected(rig.now, conn);
        }
    }
}

#[test]
fn other_refusals_do_not_drop_connection() {
    let (mut rig, conn) = PipeRig::up();
    for text in ["NOAUTH Authentication required.", "LOADING Redis is loading the dataset in memory", "NOPERM no"] {
        let call = rig.send(take("a"));
        rig.written(conn);
        rig.receive(conn, format!("-{text}\r\n").as_bytes());
        assert_eq!(rig.outputs(), [reply(call, Reply::Rejected(ServerError::classify(text)))]);
    }
    assert!(rig.pipe.is_up());
}

#[test]
fn unsolicited_server_error_is_reported_as_cause() {
    let (mut rig, conn) = PipeRig::up();
    let unsent = rig.send(take("a"));
    rig.receive(conn, b"-ERR max number of clients reached\r\n");
    let why = server("ERR max number of clients reached");
    let expected = [
        PipeOutput::Disconnect(conn, Some(why.clone())),
        PipeOutput::Down(why.clone()),
        reply(unsent, Reply::NotSent(why)),
    ];
    assert_eq!(rig.outputs(), expected);
}

#[test]
fn wake_connection_blocks_and_is_woken() {
    let mut rig = PipeRig::with("redis://h", Role::Wake, false);
    let conn = rig.opened();
    rig.written(conn);
    rig.receive(conn, b":5\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello { client_id: Some(5), server: None })]);
    let block = |rig: &mut PipeRig, timeout| {
        rig.pipe.block(rig.now, vec![key("a"), key("b")], timeout);
        commands(&rig.written(conn))
    };
    assert_eq!(
        block(&mut rig, 30_250 * MS),
        [["BLPOP", "a:lock-proto:waiting:signal", "b:lock-proto:waiting:signal", "30.250"]]
    );
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 30_850 * MS), "the server may take its time");
    rig.receive(conn, b"*2\r\n$27\r\nb:lock-proto:waiting:signal\r\n$1\r\n1\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::Woken(Some(Bytes::from_static(b"b:lock-proto:waiting:signal")))]);
    assert_eq!(block(&mut rig, Duration::ZERO)[0][3], "0.001", "0 would block for ever");
    rig.receive(conn, b"*-1\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::Woken(None)]);
    block(&mut rig, MS);
    rig.receive(conn, b"-NOPERM this user has no permissions to run the 'blpop' command\r\n");
    let error = ServerError::classify("NOPERM this user has no permissions to run the 'blpop' command");
    assert_eq!(rig.outputs(), [PipeOutput::BlockRefused(error)]);
    block(&mut rig, 100 * MS);
    rig.pass(699 * MS);
    assert_eq!(rig.outputs(), [], "the server may be 100 ms late");
    rig.pass(MS);
    assert_eq!(
        rig.outputs(),
        [PipeOutput::Disconnect(conn, Some(fault(Fault::TimedOut))), PipeOutput::Down(fault(Fault::TimedOut))]
    );
}

#[test]
fn wake_up_reply_must_start_with_list_name() {
    let (mut rig, conn) = PipeRig::up();
    rig.pipe.block(rig.now, vec![key("a")], 100 * MS);
    rig.written(conn);
    rig.receive(conn, b"*2\r\n:1\r\n$27\r\na:lock-proto:waiting:signal\r\n");
    let why = fault(Fault::Protocol(Breach::WrongReply));
    assert_eq!(rig.outputs(), [PipeOutput::Disconnect(conn, Some(why.clone())), PipeOutput::Down(why)]);
}

#[test]
fn unblock_reports_not_blocked_and_refusal() {
    let (mut rig, conn) = PipeRig::up();
    rig.pipe.unblock(rig.now, 12);
    assert_eq!(commands(&rig.written(conn)), [["CLIENT", "UNBLOCK", "12"]]);
    rig.pipe.unblock(rig.now, 12);
    rig.written(conn);
    rig.receive(conn, b":1\r\n:0\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::NotBlocked]);
    rig.pipe.unblock(rig.now, 12);
    rig.written(conn);
    rig.receive(conn, b"-NOPERM no\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::UnblockRefused(ServerError::classify("NOPERM no"))]);
}

/// After a failover, that id is the one of another program's connection.
#[test]
fn unblock_is_not_sent_on_later_connection() {
    let mut rig = PipeRig::new("redis://h");
    rig.pipe.unblock(rig.now, 12);
    let conn = rig.opened();
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default())]);
    assert_eq!(rig.written(conn), b"");
}

#[test]
fn reconnect_pause_is_shortened_for_lock_with_short_ttl() {
    // H2
    let mut rig = PipeRig::new("redis://h");
    let mut conn = rig.opened();
    for _ in 0..10 {
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Refused);
        rig.outputs();
        if rig.pipe.next_deadline().unwrap() > rig.now + 300 * MS {
            break;
        }
        conn = rig.reopened();
    }
    rig.send(short("a"));
    assert!(matches!(rig.outputs()[..], [PipeOutput::Reply { reply: Reply::NotSent(_), .. }]));
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 20 * MS));
}
