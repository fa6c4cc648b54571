//! Scripts: sent as source first, then by hash, and resent if the server has lost them.
// P1

use super::*;

const NOSCRIPT: &[u8] = b"-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// A connection on which the server knows the scripts of `extend` and `release`.
fn known() -> (PipeRig, ConnId) {
    let (mut rig, conn) = PipeRig::up();
    rig.send(extend("x"));
    rig.send(release("x"));
    assert_eq!(rig.commands(conn), ["EVAL", "EVAL"]);
    rig.receive(conn, b":1\r\n:1\r\n");
    assert_eq!(rig.outputs().len(), 2);
    (rig, conn)
}

#[test]
fn first_use_on_connection_carries_script_source() {
    // P1
    let (mut rig, conn) = PipeRig::up();
    rig.send(extend("a"));
    rig.send(extend("b"));
    rig.send(release("a"));
    let written = commands(&rig.written(conn));
    let heads: Vec<[&str; 2]> = written.iter().map(|args| [args[0].as_str(), args[1].as_str()]).collect();
    let expected =
        [["EVAL", script::EXTEND.source], ["EVALSHA", script::EXTEND.sha1], ["EVAL", script::RELEASE.source]];
    assert_eq!(heads, expected);
    rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
    rig.outputs();
    let conn = rig.reopened();
    rig.pipe.handle_connected(rig.now, conn);
    rig.send(extend("a"));
    assert_eq!(rig.commands(conn), ["EVAL"], "a new connection may be to a new server");
}

#[test]
fn flushed_script_is_resent_ahead_of_unsent_requests() {
    // P1
    let (mut rig, conn) = known();
    let (a, b) = (rig.send(extend("a")), rig.send(extend("b")));
    assert_eq!(rig.commands(conn), ["EVALSHA", "EVALSHA"]);
    let c = rig.send(take("c"));
    rig.receive(conn, NOSCRIPT);
    rig.receive(conn, NOSCRIPT);
    assert_eq!(rig.outputs(), [], "no output");
    let again = commands(&rig.written(conn));
    let names: Vec<[&str; 2]> = again.iter().map(|args| [&*args[0], args.get(3).map_or("", |key| key)]).collect();
    assert_eq!(names, [["EVAL", "a"], ["EVALSHA", "b"], ["SET", "NX"]], "in the old order, the source once");
    rig.receive(conn, b":1\r\n:0\r\n+OK\r\n");
    assert_eq!(rig.outputs(), [reply(a, Reply::Extended), reply(b, Reply::Absent), granted(c)]);
}

/// The second command was sent before the source. When resent, the server knows the script.
#[test]
fn source_of_flushed_script_is_resent_only_once() {
    // P1
    let (mut rig, conn) = known();
    rig.send(extend("a"));
    rig.send(extend("b"));
    assert_eq!(rig.commands(conn), ["EVALSHA", "EVALSHA"]);
    rig.receive(conn, NOSCRIPT);
    assert_eq!(rig.commands(conn), ["EVAL"]);
    rig.receive(conn, NOSCRIPT);
    assert_eq!(rig.commands(conn), ["EVALSHA"]);
}

#[test]
fn script_fallback_never_overtakes_later_release() {
    // Q5
    let (mut rig, conn) = known();
    let (a, b) = (rig.send(extend("a")), rig.send(extend("b")));
    let later = rig.send(release("a"));
    assert_eq!(rig.commands(conn), ["EVALSHA", "EVALSHA", "EVALSHA"]);
    rig.receive(conn, NOSCRIPT);
    let rejected = Reply::Rejected(ServerError::classify("NOSCRIPT No matching script. Please use EVAL."));
    assert_eq!(rig.outputs(), [reply(a, rejected)], "its lock's release is on its way already");
    rig.receive(conn, NOSCRIPT);
    assert_eq!(rig.outputs(), []);
    rig.receive(conn, b":1\r\n");
    assert_eq!(rig.outputs(), [reply(later, Reply::Deleted { number: 1, awaited: false })]);
    assert_eq!(rig.commands(conn), ["EVAL"]);
    rig.receive(conn, b":1\r\n");
    assert_eq!(rig.outputs(), [reply(b, Reply::Extended)]);
    // No command overtakes the next one on that lock.
    let next = rig.send(extend("a"));
    rig.written(conn);
    rig.receive(conn, NOSCRIPT);
    assert_eq!(rig.outputs(), []);
    rig.written(conn);
    rig.receive(conn, b":1\r\n");
    assert_eq!(rig.outputs(), [reply(next, Reply::Extended)]);
}

#[test]
fn script_fallback_never_overtakes_take_sent_after_noscript() {
    let (mut rig, conn) = known();
    let (a, b) = (rig.send(extend("a")), rig.send(extend("b")));
    rig.written(conn);
    rig.receive(conn, NOSCRIPT);
    let later = rig.send(take("b"));
    assert_eq!(rig.commands(conn), ["EVAL", "SET"]);
    rig.receive(conn, NOSCRIPT);
    let outputs = rig.outputs();
    assert!(
        matches!(&outputs[..], [PipeOutput::Reply { call, reply: Reply::Rejected(_) }] if *call == b),
        "{outputs:?}"
    );
    rig.receive(conn, b":1\r\n+OK\r\n");
    assert_eq!(rig.outputs(), [reply(a, Reply::Extended), granted(later)]);
}

/// A release and the next take were sent by hash, and the release again before the take's reply.
#[test]
fn take_is_resent_behind_later_delete_of_earlier_tokens() {
    // P1
    for (number, resent) in [(2, true), (1, false)] {
        let (mut rig, conn) = known();
        let next = |number| Request::Take {
            key: key("a"),
            number,
            retired: Retired::default(),
            ttl_ms: 10_000,
            fence_block: 0,
            clean: false,
            waiting_ms: 0,
        };
        rig.send(next(3));
        assert_eq!(rig.commands(conn), ["EVAL"]);
        rig.receive(conn, b"*2\r\n:0\r\n:1\r\n");
        assert_eq!(rig.outputs().len(), 1);
        rig.send(next(number));
        rig.send(release("a"));
        assert_eq!(rig.commands(conn), ["EVALSHA", "EVALSHA"]);
        rig.receive(conn, NOSCRIPT);
        assert_eq!(rig.outputs().is_empty(), resent, "{number}");
        assert_eq!(rig.commands(conn).len(), usize::from(resent));
    }
}

#[test]
fn resends_to_server_without_scripts_are_bounded() {
    let (mut rig, conn) = known();
    let calls: Vec<CallId> = ["a", "b", "c"].map(|name| rig.send(extend(name))).into();
    let mut sent = 0;
    let mut answered = Vec::new();
    for _ in 0..20 {
        let commands = rig.commands(conn).len();
        sent += commands;
        for _ in 0..commands {
            rig.receive(conn, NOSCRIPT);
        }
        answered.extend(rig.outputs());
    }
    let rejected = Reply::Rejected(ServerError::classify("NOSCRIPT No matching script. Please use EVAL."));
    assert_eq!(answered.len(), calls.len());
    assert!(calls.iter().all(|call| answered.contains(&reply(*call, rejected.clone()))), "{answered:?}");
    assert!(sent <= 3 * calls.len(), "{sent} commands were sent");
}

#[test]
fn noscript_reply_to_set_or_eval_is_not_retried() {
    let (mut rig, conn) = known();
    let plain = rig.send(take("a"));
    rig.send(Request::Announce { key: key("b") });
    assert_eq!(rig.commands(conn), ["SET", "EVAL"]);
    rig.receive(conn, &NOSCRIPT.repeat(2));
    let outputs = rig.outputs();
    let rejected = Reply::Rejected(ServerError::classify("NOSCRIPT No matching script. Please use EVAL."));
    assert_eq!((outputs.len(), &outputs[0]), (2, &reply(plain, rejected)));
    assert!(rig.pipe.outgoing(conn).is_empty(), "neither is sent again");
}
