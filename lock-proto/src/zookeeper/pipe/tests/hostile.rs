//! Servers and proxies that break the protocol, or are none of ZooKeeper.

use super::*;
use crate::zookeeper::codec::Names;
use alloc::string::ToString as _;

/// The cause for which the connection ended.
fn down(outputs: &[PipeOutput]) -> Option<Cause> {
    outputs.iter().find_map(|output| match output {
        PipeOutput::Session(SessionReport::Down(cause)) => Some(cause.clone()),
        _ => None,
    })
}

fn pong() -> Frame {
    Frame::ok(XID_PING, 5, ReplyBody::Empty)
}

/// Regression: the answers to pings kept a connection for ever on which a request was lost.
#[test]
fn answered_pings_keep_no_connection_whose_request_is_unanswered() {
    // ZK9
    let mut pipe = pipe(2);
    pipe.state.config.request_timeout = Duration::from_secs(60);
    up(&mut pipe, 0);
    let first = pipe.current();
    pipe.send(at(10), call(1), sync());
    sent(&mut pipe);
    let mut now = at(10);
    while now < at(3_600_000) && pipe.current() == first {
        now = pipe.next_deadline().unwrap();
        pipe.handle_timeout(now);
        if !sent(&mut pipe).is_empty() {
            receive(&mut pipe, now.as_nanos() / 1_000_000, &pong());
        }
    }
    assert_eq!(down(&outputs(&mut pipe)), Some(breach(Breach::Unsolicited)));
    assert!(now < at(3_000), "with the first answer");
    assert_ne!(pipe.current(), first);
}

#[test]
fn answers_to_pings_come_in_the_order_of_the_requests() {
    // ZK9
    let mut pipe = pipe(1);
    up(&mut pipe, 0);
    pipe.handle_timeout(at(2_000));
    pipe.send(at(2_000), call(1), sync());
    assert_eq!(sent(&mut pipe).len(), 2);
    assert_eq!(pipe.in_flight(), 1, "a ping is no request of a lock");
    receive(&mut pipe, 2_001, &pong());
    receive(&mut pipe, 2_001, &synced(1, 6));
    assert_eq!(down(&outputs(&mut pipe)), None);
    pipe.handle_timeout(at(4_000));
    pipe.send(at(4_000), call(2), sync());
    sent(&mut pipe);
    receive(&mut pipe, 4_001, &synced(2, 6));
    assert_eq!(down(&outputs(&mut pipe)), Some(breach(Breach::Unsolicited)), "before the ping's");
}

/// Regression: any number was accepted, and each caused a request.
#[test]
fn each_watch_is_triggered_once() {
    // ZK9
    let mut pipe = pipe(1);
    up(&mut pipe, 0);
    for n in 1..=2 {
        pipe.send(at(1), call(n), watch());
        sent(&mut pipe);
        receive(&mut pipe, 1, &Frame::error(n as i32, 1, ErrorCode::NO_NODE));
    }
    for _ in 0..2 {
        receive(&mut pipe, 2, &Frame::event(event()));
    }
    assert_eq!(down(&outputs(&mut pipe)), None);
    receive(&mut pipe, 2, &Frame::event(event()));
    assert_eq!(down(&outputs(&mut pipe)), Some(breach(Breach::TooManyPushes)));
}

/// Regression: the session counted as ended, and a release as done.
#[test]
fn end_that_is_refused_is_requested_from_next_server() {
    // ZK6
    let ended = PipeOutput::Session(SessionReport::Ended { confirmed: true });
    for code in [ErrorCode::THROTTLED_OP, ErrorCode::NO_AUTH, ErrorCode::UNIMPLEMENTED] {
        let mut pipe = pipe(2);
        up(&mut pipe, 1);
        pipe.end(at(2));
        sent(&mut pipe);
        receive(&mut pipe, 3, &Frame::error(1, 1, code));
        let first = outputs(&mut pipe);
        assert!(down(&first).is_some() && !first.contains(&ended), "{code}: {first:?}");
        pipe.handle_timeout(at(3));
        let conn = pipe.current().unwrap();
        pipe.handle_connected(at(4), conn);
        sent(&mut pipe);
        accept(&mut pipe, 5, SESSION, 15_000);
        assert_eq!(requests(&mut pipe), [RequestFrame { xid: 2, op: Op::CloseSession }]);
        receive(&mut pipe, 6, &Frame::ok(2, 5, ReplyBody::Empty));
        assert!(outputs(&mut pipe).contains(&ended), "{code}");
    }
}

/// ClickHouse Keeper answers each connect request with a new session.
#[test]
fn server_that_does_not_continue_sessions_is_refused_with_the_reason() {
    // ZK6
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    let conn = pipe.current().unwrap();
    pipe.handle_disconnected(at(2), conn, Fault::Reset);
    connect(&mut pipe, 900);
    outputs(&mut pipe);
    accept(&mut pipe, 901, SESSION + 1, 15_000);
    let cause = down(&outputs(&mut pipe)).unwrap();
    let text = cause.to_string();
    assert!(cause.is_refusal() && text.contains("ClickHouse Keeper") && text.contains("not supported"), "{text}");
}

fn list() -> Op {
    Op::GetChildren { path: "/a".into(), watch: false }
}

/// A list of more than 4 MiB.
fn long_list(xid: i32) -> Vec<u8> {
    let name = "n".repeat(1 << 10);
    let mut bytes = Vec::new();
    Frame::ok(xid, 8, ReplyBody::Children((0..5 << 10).map(|_| &name).collect::<Names>())).encode(&mut bytes);
    bytes
}

/// Regression: the connection ended, and with it that of all locks.
#[test]
fn list_that_is_too_long_is_an_error_of_its_request_alone() {
    // ZK9
    for portion in [7, 4096, usize::MAX] {
        let mut pipe = pipe(1);
        up(&mut pipe, 1);
        pipe.send(at(2), call(1), list());
        pipe.send(at(2), call(2), sync());
        sent(&mut pipe);
        let conn = pipe.current().unwrap();
        let mut bytes = long_list(1);
        synced(2, 9).encode(&mut bytes);
        for bytes in bytes.chunks(portion.min(bytes.len())) {
            pipe.handle_received(at(3), conn, bytes);
        }
        let replies: Vec<_> = outputs(&mut pipe)
            .into_iter()
            .filter_map(|output| if let PipeOutput::Reply { reply, .. } = output { Some(reply) } else { None })
            .collect();
        let synced = Reply::Done(ReplyBody::Synced { path: "/".into() });
        assert_eq!(replies, [Reply::Refused(ErrorCode::REPLY_TOO_LONG), synced], "{portion}");
        assert_eq!(pipe.current(), Some(conn));
    }
}

#[test]
fn long_reply_that_no_read_is_waiting_for_ends_connection() {
    // ZK9
    for (xid, op) in [(2, list()), (1, sync())] {
        let mut pipe = pipe(1);
        up(&mut pipe, 1);
        pipe.send(at(2), call(1), op);
        sent(&mut pipe);
        let conn = pipe.current().unwrap();
        pipe.handle_received(at(3), conn, &long_list(xid));
        assert_eq!(down(&outputs(&mut pipe)), Some(breach(Breach::TooLong)), "{xid}");
    }
}
