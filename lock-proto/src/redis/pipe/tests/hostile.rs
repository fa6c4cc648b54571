//! Untrusted servers: bounded memory, a dropped connection, `Unknown` replies, and recovery.
// P3

use super::*;

fn with_request(url: &str) -> (PipeRig, ConnId, CallId) {
    let mut rig = PipeRig::new(url);
    let conn = rig.opened();
    rig.written(conn);
    if url.contains("resp3") {
        rig.receive(conn, b"%0\r\n");
    }
    assert!(matches!(rig.outputs()[..], [PipeOutput::Up(_)]));
    let call = rig.send(take("a"));
    rig.written(conn);
    (rig, conn, call)
}

/// Asserts that this breach drops the connection, and that a new connection works.
fn dropped(mut rig: PipeRig, conn: ConnId, call: CallId, breach: Breach) {
    let why = || fault(Fault::Protocol(breach));
    let expected =
        [PipeOutput::Disconnect(conn, Some(why())), PipeOutput::Down(why()), reply(call, Reply::Unknown(why()))];
    assert_eq!(rig.outputs(), expected);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [], "a dropped connection has no output");
    let conn = rig.reopened();
    rig.pipe.handle_connected(rig.now, conn);
    rig.written(conn);
    if rig.pipe.config().endpoint.protocol == Protocol::Resp3 {
        rig.receive(conn, b"%0\r\n");
    }
    let call = rig.send(take("b"));
    rig.written(conn);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default()), granted(call)]);
}

#[test]
fn deep_nesting_drops_connection() {
    // P3
    for url in ["redis://h", "redis://h?protocol=resp3"] {
        let (mut rig, conn, call) = with_request(url);
        rig.receive(conn, &b"*1\r\n".repeat(10_000));
        dropped(rig, conn, call, Breach::TooDeep);
    }
    let (mut rig, conn, call) = with_request("redis://h?protocol=resp3");
    rig.receive(conn, &b"|0\r\n".repeat(10_000));
    dropped(rig, conn, call, Breach::TooDeep);
}

#[test]
fn huge_bulk_length_drops_connection() {
    // P3
    let (mut rig, conn, call) = with_request("redis://h");
    rig.receive(conn, b"$4611686018427387904\r\n");
    dropped(rig, conn, call, Breach::TooLong);
}

#[test]
fn huge_array_length_drops_connection() {
    let (mut rig, conn, call) = with_request("redis://h");
    rig.receive(conn, b"*4611686018427387904\r\n");
    dropped(rig, conn, call, Breach::TooLong);
}

#[test]
fn endless_line_drops_connection() {
    // P3
    let (mut rig, conn, call) = with_request("redis://h");
    rig.receive(conn, &[b'x'; 100_000]);
    dropped(rig, conn, call, Breach::Malformed);
    let (mut rig, conn, call) = with_request("redis://h");
    let mut received = 0;
    rig.receive(conn, b"+");
    while rig.pipe.is_up() {
        rig.receive(conn, &[b'x'; 1000]);
        received += 1000;
        assert!(received <= 66_000, "{received} bytes were taken in");
    }
    dropped(rig, conn, call, Breach::TooLong);
}

#[test]
fn unsolicited_reply_drops_connection() {
    // P3
    for frame in [&b"+OK\r\n"[..], b":1\r\n", b"*0\r\n", b"$-1\r\n"] {
        let (mut rig, conn) = PipeRig::up();
        rig.receive(conn, frame);
        let why = fault(Fault::Protocol(Breach::Unsolicited));
        assert_eq!(rig.outputs(), [PipeOutput::Disconnect(conn, Some(why.clone())), PipeOutput::Down(why)]);
    }
    let (mut rig, conn, _) = with_request("redis://h");
    rig.receive(conn, b"+OK\r\n+OK\r\n");
    assert!(matches!(rig.outputs()[..], [PipeOutput::Reply { .. }, PipeOutput::Disconnect(..), PipeOutput::Down(_)]));
}

#[test]
fn reply_to_partly_sent_request_drops_connection() {
    let (mut rig, conn) = PipeRig::up();
    let call = rig.send(take("a"));
    let len = rig.pipe.outgoing(conn).len();
    rig.pipe.consume(conn, len - 1);
    rig.receive(conn, b"+OK\r\n");
    dropped(rig, conn, call, Breach::Unsolicited);
}

#[test]
fn bytes_before_connect_drop_connection() {
    let mut rig = PipeRig::new("redis://h");
    rig.pipe.open(rig.now);
    let Some(PipeOutput::Connect(conn)) = rig.pipe.poll_output() else { panic!() };
    rig.receive(conn, b"+OK\r\n");
    let why = fault(Fault::Protocol(Breach::Unsolicited));
    assert_eq!(rig.outputs(), [PipeOutput::Disconnect(conn, Some(why.clone())), PipeOutput::Down(why)]);
}

#[test]
fn half_reply_times_out_and_next_connection_starts_clean() {
    // P3, M6
    let (mut rig, conn, call) = with_request("redis://h");
    rig.receive(conn, b"$2\r\nO");
    rig.pass(TIMEOUT);
    let why = || fault(Fault::TimedOut);
    let expected =
        [PipeOutput::Disconnect(conn, Some(why())), PipeOutput::Down(why()), reply(call, Reply::Unknown(why()))];
    assert_eq!(rig.outputs(), expected);
    // The second half arrives late. The new connection starts clean.
    let new = rig.reopened();
    rig.receive(conn, b"K\r\n");
    rig.pipe.handle_connected(rig.now, new);
    let call = rig.send(take("b"));
    rig.written(new);
    rig.receive(conn, b"+OK\r\n");
    rig.receive(new, b"$-1\r\n");
    assert_eq!(
        rig.outputs(),
        [PipeOutput::Up(Hello::default()), reply(call, Reply::Busy { expires: Expiry::Unknown })]
    );
}

#[test]
fn too_many_pushes_drop_connection() {
    // P3
    let (mut rig, conn, call) = with_request("redis://h?protocol=resp3");
    let pushes = b">1\r\n+x\r\n".repeat(1000);
    let mut received = 0;
    while rig.pipe.is_up() && received < 1_000_000 {
        rig.receive(conn, &pushes);
        received += 1000;
    }
    assert_eq!(received, 2000, "the 1 025th is too many");
    dropped(rig, conn, call, Breach::TooManyPushes);
}

#[test]
fn pushes_between_replies_are_ignored() {
    let (mut rig, conn, call) = with_request("redis://h?protocol=resp3");
    let pushes = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n".repeat(1024);
    rig.receive(conn, &pushes);
    rig.receive(conn, b"+OK\r\n");
    rig.receive(conn, &pushes);
    assert_eq!(rig.outputs(), [granted(call)]);
    assert!(rig.pipe.is_up());
}

#[test]
fn push_in_resp2_drops_connection() {
    let (mut rig, conn, call) = with_request("redis://h");
    rig.receive(conn, b">1\r\n+x\r\n");
    dropped(rig, conn, call, Breach::Malformed);
}

#[test]
fn reply_of_wrong_type_drops_connection() {
    for frame in [
        &b":1\r\n"[..],
        b"*0\r\n",
        b"+QUEUED\r\n",
        b"*2\r\n$1\r\na\r\n:1\r\n",
        b"*9\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
    ] {
        let (mut rig, conn, call) = with_request("redis://h");
        rig.receive(conn, frame);
        let why = || fault(Fault::Protocol(Breach::WrongReply));
        let expected =
            [reply(call, Reply::Unknown(why())), PipeOutput::Disconnect(conn, Some(why())), PipeOutput::Down(why())];
        assert_eq!(rig.outputs(), expected, "{}", frame.escape_ascii());
    }
}

#[test]
fn handshake_reply_of_wrong_type_drops_connection() {
    let cases: [(&str, &[u8]); 5] = [
        ("redis://:pw@h", b":1\r\n"),
        ("redis://h/1", b"$-1\r\n"),
        ("redis://h?client_name=n", b":1\r\n"),
        ("redis://h?protocol=resp3", b"+OK\r\n"),
        ("redis://h?protocol=resp3", b"*2\r\n+a\r\n+b\r\n"),
    ];
    for (url, frame) in cases {
        let mut rig = PipeRig::new(url);
        let conn = rig.opened();
        rig.written(conn);
        rig.receive(conn, frame);
        let why = fault(Fault::Protocol(Breach::WrongReply));
        assert_eq!(rig.outputs(), [PipeOutput::Disconnect(conn, Some(why.clone())), PipeOutput::Down(why)], "{url}");
    }
}

#[test]
fn invalid_utf8_in_error_text_is_cut_off() {
    let (mut rig, conn, call) = with_request("redis://h");
    rig.receive(conn, b"-OOM \xff\xfe\x00\r\n");
    assert_eq!(rig.outputs(), [reply(call, Reply::Rejected(ServerError::classify("OOM ")))]);
}

#[test]
fn late_input_from_old_connection_is_ignored() {
    // M6
    let (mut rig, old, call) = with_request("redis://h");
    rig.pipe.handle_disconnected(rig.now, old, Fault::Reset);
    let why = || fault(Fault::Reset);
    assert_eq!(rig.outputs(), [PipeOutput::Down(why()), reply(call, Reply::Unknown(why()))]);
    for stage in 0..3 {
        let before = rig.pipe.clone();
        rig.pipe.handle_connected(rig.now, old);
        rig.receive(old, b"+OK\r\n*1\r\n*1\r\n");
        rig.pipe.handle_disconnected(rig.now, old, Fault::Closed);
        rig.pipe.consume(old, 10);
        assert!(rig.pipe.outgoing(old).is_empty());
        assert_eq!(rig.pipe, before, "stage {stage}: the old connection changed something");
        match stage {
            0 => {
                rig.reopened();
            }
            1 => {
                let new = rig.pipe.current().unwrap();
                rig.pipe.handle_connected(rig.now, new);
                assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default())]);
                rig.pipe.handle_connected(rig.now, new);
                assert_eq!(rig.outputs(), [], "connected twice is connected once");
                rig.send(take("b"));
            }
            _ => {}
        }
    }
    // A connection of another node or role is not current.
    let new = rig.pipe.current().unwrap();
    for other in [ConnId { node: NodeId::new(1), ..new }, ConnId { role: Role::Wake, ..new }] {
        assert!(rig.pipe.outgoing(other).is_empty());
        rig.pipe.handle_disconnected(rig.now, other, Fault::Closed);
        assert!(rig.pipe.is_up());
    }
}

#[test]
fn consuming_more_than_handed_out_is_harmless() {
    let (mut rig, conn) = PipeRig::up();
    let call = rig.send(take("a"));
    rig.pipe.consume(conn, usize::MAX);
    assert_eq!(rig.commands(conn), ["SET"], "what was not handed out is still there");
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [granted(call)]);
}

/// Without `HELLO`, `INFO` detects cluster mode. A quorum must know its servers, so it waits for
/// one that is busy.
#[test]
fn cluster_mode_and_busy_servers_are_refused_before_any_request() {
    // P2, Q6
    let busy = "BUSY Redis is busy running a script.";
    let cluster = "INFO says redis_mode cluster (Redis Cluster is not supported)";
    let mode = |field| {
        let info = format!("# Server\r\nrun_id:ff\r\n{field}:cluster\r\nuptime_in_seconds:0\r\n");
        format!("${}\r\n{info}\r\n", info.len())
    };
    for (answer, class, text) in [
        (mode("redis_mode"), ErrorClass::Refused, cluster),
        (mode("server_mode"), ErrorClass::Refused, cluster),
        (format!("-{busy}\r\n"), ErrorClass::Transient, busy),
    ] {
        let mut rig = PipeRig::with("redis://h", Role::Commands, true);
        let waiting = rig.send(take("a"));
        let conn = rig.opened();
        assert_eq!(rig.commands(conn), ["INFO"]);
        rig.receive(conn, answer.as_bytes());
        let why = Cause::Server(ServerError { class, text: text.into() });
        let down = [
            PipeOutput::Disconnect(conn, Some(why.clone())),
            PipeOutput::Down(why.clone()),
            reply(waiting, Reply::NotSent(why)),
        ];
        assert_eq!(rig.outputs(), down);
    }
}
