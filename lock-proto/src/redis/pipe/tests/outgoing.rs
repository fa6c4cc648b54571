//! Bytes that wait for the socket.

use super::*;

#[test]
fn unconsumed_output_is_retained() {
    let (mut rig, conn) = PipeRig::up();
    rig.send(take("a"));
    let all = rig.pipe.outgoing(conn).to_vec();
    for taken in [1, 5, all.len() - 7] {
        let left = rig.pipe.outgoing(conn).to_vec();
        rig.pipe.consume(conn, taken.min(left.len() - 1));
        assert_eq!(rig.pipe.outgoing(conn), &left[taken.min(left.len() - 1)..]);
    }
    rig.send(take("b"));
    let last = all[all.len() - 1..].to_vec();
    let written = rig.written(conn);
    assert_eq!((&written[..1], commands(&written[1..]).len()), (&last[..], 1));
}

/// A reply is accepted only if its command was sent completely, to the byte.
#[test]
fn reply_to_command_encoded_behind_partial_write_is_accepted() {
    // P2
    let (mut rig, conn) = PipeRig::up();
    let a = rig.send(take("a"));
    rig.pipe.outgoing(conn);
    rig.pipe.consume(conn, 5);
    let b = rig.send(take("b"));
    rig.written(conn);
    rig.receive(conn, b"+OK\r\n+OK\r\n");
    assert_eq!(rig.outputs(), [granted(a), granted(b)]);
}

#[test]
fn encoding_stops_at_outgoing_limit() {
    // P3
    let (mut rig, conn) = PipeRig::up();
    rig.send(take("a"));
    let len = rig.written(conn).len();
    for (limit, encoded) in [(len - 1, 1), (len, 1), (len + 1, 2)] {
        rig.pipe.state.config.limits.outgoing = limit;
        for name in ["b", "c", "d"] {
            rig.send(take(name));
        }
        assert_eq!(rig.pipe.outgoing(conn).len(), encoded * len, "{limit}");
        // Consumed bytes make room for the second command.
        rig.pipe.consume(conn, 2);
        assert_eq!(rig.pipe.outgoing(conn).len(), 2 * len - 2, "{limit}");
        rig.written(conn);
    }
}

/// `INFO server` goes ahead of queued requests, which do not wait for its reply.
// Q7
#[test]
fn server_info_query_does_not_delay_requests() {
    // Q7
    let info = "run_id:0123abcd\r\nuptime_in_seconds:61\r\n";
    let known = Ok(ServerInfo { run_id: "0123abcd".into(), uptime: Duration::from_secs(61) });
    let no_uptime = ServerInfo::parse(b"");
    for (answer, server) in [
        (format!("${}\r\n{info}\r\n", info.len()), known),
        ("-NOPERM no\r\n".into(), Err(ServerError::classify("NOPERM no"))),
        ("$-1\r\n".into(), no_uptime.clone()),
        (":1\r\n".into(), no_uptime),
    ] {
        let mut rig = PipeRig::new("redis://h");
        rig.pipe.request_server_info(rig.now);
        let a = rig.send(take("a"));
        let Some(PipeOutput::Connect(conn)) = rig.pipe.poll_output() else { panic!() };
        rig.pipe.request_server_info(rig.now);
        rig.pipe.handle_connected(rig.now, conn);
        rig.pipe.request_server_info(rig.now);
        assert_eq!(rig.commands(conn), ["INFO", "SET"]);
        assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default())]);
        rig.receive(conn, format!("{answer}+OK\r\n").as_bytes());
        assert_eq!(rig.outputs(), [PipeOutput::Server(server), granted(a)], "{answer}");
    }
}
