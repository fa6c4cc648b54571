#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "tests")]

mod hostile;

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::wire::JuteWire;
use super::*;
use crate::connection::Protocol as _;
use crate::id::CallOwner;
use crate::lock::Credentials;
use crate::url::Login;
use crate::zookeeper::codec::ConnectRequest;
use crate::zookeeper::codec::{
    ANY_VERSION, EventType, KeeperState, MultiOp, MultiResult, ReplyBody, ReplyFrame as Frame, RequestFrame, Stat,
    WatcherEvent, XID_AUTH, XID_PING,
};
use crate::zookeeper::request::Reply;
use crate::zookeeper::url::parse_server;

const SESSION: i64 = 0x100;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn pipe(servers: usize) -> Pipe {
    let ms = Duration::from_millis;
    let config = PipeConfig {
        servers: (0..servers).map(|n| parse_server(&alloc::format!("h{n}")).unwrap()).collect(),
        login: Login::default(),
        request_credentials: false,
        timeout: ms(15_000),
        tick: ms(3_000),
        ping_after: ms(2_000),
        connect_timeout: ms(2_000),
        request_timeout: ms(1_000),
        reconnect: crate::lock::Backoff::fixed(ms(100)),
        limits: Limits::default(),
        generation: 0,
    };
    Pipe::new(config, 7)
}

fn outputs(pipe: &mut Pipe) -> Vec<PipeOutput> {
    core::iter::from_fn(|| pipe.poll_output()).collect()
}

/// Takes all bytes, and returns the frames' contents.
fn sent(pipe: &mut Pipe) -> Vec<Vec<u8>> {
    let conn = pipe.current().unwrap();
    let bytes = pipe.outgoing(conn).to_vec();
    pipe.consume(conn, bytes.len());
    let (mut frames, mut rest, mut all) = (crate::zookeeper::codec::Frames::default(), &bytes[..], Vec::new());
    while let Some(frame) = frames.next(&mut rest, MAX).unwrap() {
        all.push(frame.to_vec());
    }
    assert!(rest.is_empty());
    all
}

const MAX: usize = 1 << 20;

fn requests(pipe: &mut Pipe) -> Vec<RequestFrame> {
    sent(pipe).iter().map(|frame| RequestFrame::decode(frame).unwrap()).collect()
}

fn receive(pipe: &mut Pipe, now: u64, reply: &Frame) {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    let conn = pipe.current().unwrap();
    pipe.handle_received(at(now), conn, &bytes);
}

fn accept(pipe: &mut Pipe, now: u64, session: i64, timeout_ms: i32) {
    respond(pipe, now, session, timeout_ms, false);
}

fn respond(pipe: &mut Pipe, now: u64, session_id: i64, timeout_ms: i32, read_only: bool) {
    let response = ConnectResponse { timeout_ms, session_id, password: vec![9; 16].into(), read_only };
    let mut bytes = Vec::new();
    response.encode(&mut bytes);
    let conn = pipe.current().unwrap();
    pipe.handle_received(at(now), conn, &bytes);
}

/// Connects, and returns the request for the session.
fn connect(pipe: &mut Pipe, now: u64) -> ConnectRequest {
    pipe.open(at(now));
    pipe.handle_timeout(at(now));
    let conn = pipe.current().unwrap();
    pipe.handle_connected(at(now), conn);
    ConnectRequest::decode(&sent(pipe)[0]).unwrap()
}

fn up(pipe: &mut Pipe, now: u64) {
    connect(pipe, now);
    accept(pipe, now, SESSION, 15_000);
    outputs(pipe);
}

fn call(n: u64) -> CallId {
    CallId::new(NodeId::new(0), n)
}

fn sync() -> Op {
    Op::Sync { path: "/".into() }
}

fn watch() -> Op {
    Op::Exists { path: "/a".into(), watch: true }
}

fn event() -> WatcherEvent {
    WatcherEvent { kind: EventType::Created, state: KeeperState::SyncConnected, path: "/a".into() }
}

fn synced(xid: i32, zxid: i64) -> Frame {
    Frame::ok(xid, zxid, ReplyBody::Synced { path: "/".into() })
}

#[test]
fn session_is_requested_and_continued_with_its_password_and_last_transaction() {
    // ZK6
    let mut pipe = pipe(1);
    let request = connect(&mut pipe, 5);
    assert_eq!((request.session_id, request.timeout_ms, request.last_zxid_seen), (0, 15_000, 0));
    accept(&mut pipe, 9, SESSION, 12_000);
    let up =
        PipeOutput::Session(SessionReport::Up { emitted: at(5), timeout: Duration::from_secs(12), owner: SESSION });
    assert!(outputs(&mut pipe).contains(&up));
    pipe.send(at(10), call(1), sync());
    assert_eq!(requests(&mut pipe), [RequestFrame { xid: 1, op: sync() }]);
    receive(&mut pipe, 11, &synced(1, 77));
    let conn = pipe.current().unwrap();
    pipe.handle_disconnected(at(12), conn, Fault::Reset);
    pipe.handle_timeout(pipe.next_deadline().unwrap());
    outputs(&mut pipe);
    let again = connect(&mut pipe, 200);
    assert_eq!((again.session_id, again.last_zxid_seen, &again.password[..]), (SESSION, 77, &[9; 16][..]));
    accept(&mut pipe, 201, SESSION, 12_000);
    pipe.send(at(202), call(2), sync());
    // A server would take a number of the session that is used again for the earlier request.
    assert_eq!(requests(&mut pipe), [RequestFrame { xid: 2, op: sync() }]);
}

#[test]
fn requests_end_unknown_if_the_host_has_seen_them_and_not_sent_otherwise() {
    // M8
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.send(at(2), call(1), sync());
    sent(&mut pipe);
    pipe.send(at(2), call(2), sync());
    let conn = pipe.current().unwrap();
    // The host may have sent them, and not reported it yet.
    let _seen_but_not_taken = pipe.outgoing(conn).len();
    pipe.send(at(2), call(3), sync());
    pipe.handle_disconnected(at(3), conn, Fault::Reset);
    let replies: Vec<_> = outputs(&mut pipe)
        .into_iter()
        .map(|output| match output {
            PipeOutput::Session(SessionReport::Down(_)) => 'd',
            PipeOutput::Reply { reply: Reply::Unknown(_), .. } => 'u',
            PipeOutput::Reply { reply: Reply::NotSent(_), .. } => 'n',
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(replies, ['d', 'u', 'u', 'n'], "the end of the connection is told first");
    pipe.send(at(4), call(4), sync());
    assert!(matches!(&outputs(&mut pipe)[..], [PipeOutput::Reply { reply: Reply::NotSent(_), .. }]));
}

#[test]
fn replies_out_of_order_end_connection() {
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.send(at(2), call(1), sync());
    pipe.send(at(2), call(2), sync());
    sent(&mut pipe);
    receive(&mut pipe, 3, &synced(2, 1));
    let down = PipeOutput::Session(SessionReport::Down(breach(Breach::Unsolicited)));
    assert!(outputs(&mut pipe).contains(&down));
    assert_eq!(pipe.current(), None);
}

#[test]
fn silent_session_is_pinged_and_silent_server_left() {
    // ZK1
    let mut pipe = pipe(2);
    up(&mut pipe, 1_000);
    assert_eq!(pipe.next_deadline(), Some(at(3_000)));
    pipe.handle_timeout(at(3_000));
    assert_eq!(requests(&mut pipe), [RequestFrame { xid: XID_PING, op: Op::Ping }]);
    receive(&mut pipe, 3_001, &Frame::ok(XID_PING, 5, ReplyBody::Empty));
    assert_eq!(outputs(&mut pipe), [PipeOutput::Session(SessionReport::Contact(at(3_000)))]);
    assert_eq!(pipe.next_deadline(), Some(at(5_000)));
    pipe.send(at(3_200), call(1), sync());
    sent(&mut pipe);
    receive(&mut pipe, 3_375, &synced(1, 6));
    assert!(
        matches!(outputs(&mut pipe)[..], [PipeOutput::Reply { .. }]),
        "no contact again within an eighth of a tick"
    );
    assert_eq!(pipe.next_deadline(), Some(at(5_200)));
    pipe.handle_timeout(at(5_200));
    sent(&mut pipe);
    let first = pipe.current().unwrap().node();
    pipe.handle_timeout(at(6_200));
    assert!(outputs(&mut pipe).contains(&PipeOutput::Session(SessionReport::Down(Fault::TimedOut.into()))));
    // The other server is tried at once.
    pipe.handle_timeout(pipe.next_deadline().unwrap().min(at(6_200)));
    assert_ne!(pipe.current().unwrap().node(), first);
}

/// Regression: the reply to an earlier ping counted as that to a later one, and proved too much.
#[test]
fn reply_to_ping_shows_no_more_than_that_this_ping_has_arrived() {
    // ZK1
    let mut pipe = pipe(1);
    pipe.state.config.request_timeout = pipe.state.config.ping_after * 2;
    up(&mut pipe, 0);
    let contact = |ms| [PipeOutput::Session(SessionReport::Contact(at(ms)))];
    let pong = Frame::ok(XID_PING, 5, ReplyBody::Empty);
    let ping = |pipe: &mut Pipe, ms| {
        pipe.handle_timeout(at(ms));
        assert_eq!(sent(pipe).len(), 1);
    };
    ping(&mut pipe, 2_000);
    ping(&mut pipe, 4_000);
    receive(&mut pipe, 4_500, &pong);
    assert_eq!(outputs(&mut pipe), contact(2_000));
    ping(&mut pipe, 6_000);
    receive(&mut pipe, 6_500, &pong);
    assert_eq!(outputs(&mut pipe), contact(4_000));
    receive(&mut pipe, 8_500, &pong);
    assert_eq!(outputs(&mut pipe), contact(6_000));
    receive(&mut pipe, 8_500, &pong);
    let down = PipeOutput::Session(SessionReport::Down(breach(Breach::Unsolicited)));
    assert!(outputs(&mut pipe).contains(&down), "there are no more");
}

/// A server that sends the bytes of a long frame one by one is not silent.
#[test]
fn pings_without_replies_are_limited() {
    let mut pipe = pipe(1);
    pipe.state.config.limits.in_flight = 3;
    up(&mut pipe, 0);
    let conn = pipe.current().unwrap();
    pipe.handle_received(at(1), conn, &[0, 0, 1, 0]);
    let pings = |n: u64| {
        pipe.handle_received(at(n * 2_000), conn, &[0]);
        pipe.handle_timeout(at(n * 2_000));
        sent(&mut pipe).len()
    };
    assert_eq!((1..=5).map(pings).collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
}

#[test]
fn patience_grows_after_all_servers_were_silent() {
    let mut pipe = pipe(2);
    pipe.open(at(0));
    let mut now = 0;
    let mut waited = Vec::new();
    for _ in 0..5 {
        outputs(&mut pipe);
        let until = pipe.next_deadline().unwrap();
        waited.push(until.since(at(now)).as_millis());
        pipe.handle_timeout(until);
        now = until.as_nanos() / 1_000_000 + 1_000;
        pipe.handle_timeout(at(now));
    }
    assert_eq!(waited, [2_000, 2_000, 4_000, 4_000, 8_000]);
}

/// Regression: the reply to the handshake ended the patience. So writes that take longer than the
/// request timeout were never answered.
#[test]
fn slow_writes_get_more_time_on_next_connection() {
    // E13
    let mut pipe = pipe(1);
    up(&mut pipe, 0);
    let mut write = |from: u64, takes: u64| {
        pipe.send(at(from), call(1), sync());
        sent(&mut pipe);
        let until = pipe.state.silent_until(pipe.heard).unwrap();
        if until > at(from + takes) {
            let xid = pipe.state.wire.first().unwrap().xid;
            receive(&mut pipe, from + takes, &synced(xid, 1));
        } else {
            pipe.handle_timeout(until);
            pipe.handle_timeout(pipe.next_deadline().unwrap().max(until + Duration::from_secs(1)));
            connect(&mut pipe, from + 4_000);
            accept(&mut pipe, from + 4_000, SESSION, 15_000);
        }
        outputs(&mut pipe);
        until.since(at(from)).as_millis()
    };
    assert_eq!([write(0, 1_800), write(5_000, 1_800)], [1_000, 2_000]);
    // The next ones get four times as much.
    assert_eq!(write(8_000, 10), 4 * 1_800);
}

#[test]
fn pings_that_have_not_left_are_not_sent_by_lost_session() {
    // H6
    let mut pipe = pipe(1);
    up(&mut pipe, 0);
    pipe.handle_timeout(at(2_000));
    pipe.quiet(at(2_000));
    assert!(sent(&mut pipe).is_empty());
}

#[test]
fn moved_session_and_unclear_errors_end_connection_with_unknown_outcome() {
    for code in [ErrorCode::SESSION_MOVED, ErrorCode::CONNECTION_LOSS, ErrorCode::SYSTEM_ERROR, ErrorCode(-999)] {
        let mut pipe = pipe(1);
        up(&mut pipe, 1);
        pipe.send(at(2), call(1), sync());
        sent(&mut pipe);
        receive(&mut pipe, 3, &Frame::error(1, 1, code));
        let outputs = outputs(&mut pipe);
        assert!(
            matches!(
                outputs[..],
                [
                    PipeOutput::Disconnect(..),
                    PipeOutput::Session(SessionReport::Down(_)),
                    PipeOutput::Reply { reply: Reply::Unknown(_), .. }
                ]
            ),
            "{code}: {outputs:?}"
        );
    }
}

#[test]
fn session_that_is_not_the_requested_one_ends_connection() {
    for (known, (session, timeout_ms, read_only), ends) in [
        (false, (SESSION, 15_000, false), false),
        (false, (0, 15_000, false), true),
        (false, (SESSION, 0, false), true),
        (false, (SESSION, 15_000, true), true),
        (true, (SESSION, 15_000, false), false),
        (true, (SESSION + 1, 15_000, false), true),
    ] {
        let mut pipe = pipe(1);
        if known {
            up(&mut pipe, 1);
            let conn = pipe.current().unwrap();
            pipe.handle_disconnected(at(2), conn, Fault::Reset);
        }
        connect(&mut pipe, 900);
        outputs(&mut pipe);
        respond(&mut pipe, 901, session, timeout_ms, read_only);
        let got = outputs(&mut pipe);
        let down = got.iter().any(|output| matches!(output, PipeOutput::Session(SessionReport::Down(_))));
        let up = got.iter().any(|output| matches!(output, PipeOutput::Session(SessionReport::Up { .. })));
        assert_eq!((down, up), (ends, !ends), "{session} {timeout_ms} {read_only}: {got:?}");
    }
}

#[test]
fn expired_session_is_over() {
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.send(at(2), call(1), sync());
    sent(&mut pipe);
    receive(&mut pipe, 3, &Frame::error(1, 1, ErrorCode::SESSION_EXPIRED));
    assert!(outputs(&mut pipe).contains(&PipeOutput::Session(SessionReport::Expired)));
    pipe.open(at(9));
    assert_eq!((pipe.current(), pipe.next_deadline()), (None, None));
    // Told by the answer to a reconnect.
    let mut pipe = self::pipe(1);
    up(&mut pipe, 1);
    let conn = pipe.current().unwrap();
    pipe.handle_disconnected(at(2), conn, Fault::Reset);
    outputs(&mut pipe);
    pipe.handle_timeout(at(900));
    connect(&mut pipe, 900);
    accept(&mut pipe, 901, 0, 0);
    assert!(outputs(&mut pipe).contains(&PipeOutput::Session(SessionReport::Expired)));
}

#[test]
fn quiet_session_neither_pings_nor_reconnects_and_still_ends() {
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.quiet(at(2));
    pipe.handle_timeout(at(9_000));
    assert!(sent(&mut pipe).is_empty());
    let conn = pipe.current().unwrap();
    pipe.handle_disconnected(at(9_001), conn, Fault::Reset);
    outputs(&mut pipe);
    assert_eq!((pipe.current(), pipe.next_deadline()), (None, None));
    pipe.end(at(9_002));
    connect(&mut pipe, 9_002);
    accept(&mut pipe, 9_003, SESSION, 15_000);
    assert_eq!(requests(&mut pipe), [RequestFrame { xid: 1, op: Op::CloseSession }]);
    receive(&mut pipe, 9_004, &Frame::ok(1, 5, ReplyBody::Empty));
    assert!(outputs(&mut pipe).contains(&PipeOutput::Session(SessionReport::Ended { confirmed: true })));
}

#[test]
fn end_that_nobody_confirms_is_given_up_after_session_timeout() {
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.end(at(10));
    sent(&mut pipe);
    while pipe.next_deadline().is_some() {
        pipe.handle_timeout(pipe.next_deadline().unwrap());
        if outputs(&mut pipe).contains(&PipeOutput::Session(SessionReport::Ended { confirmed: false })) {
            break;
        }
    }
    assert_eq!((pipe.current(), pipe.next_deadline()), (None, None));
}

#[test]
fn session_is_up_once_login_is_accepted() {
    for code in [ErrorCode::OK, ErrorCode::AUTH_FAILED] {
        let mut pipe = pipe(1);
        pipe.state.config.login = Login::new("app", "sesame");
        pipe.renewal = Renewal::new(pipe.state.config.login.clone());
        pipe.send(at(1), call(1), sync());
        let conn = pipe.current().unwrap();
        pipe.handle_connected(at(1), conn);
        let frames = sent(&mut pipe);
        let auth = Op::Auth { scheme: "digest".into(), auth: Bytes::from_static(b"app:sesame") };
        assert_eq!(RequestFrame::decode(&frames[1]), Ok(RequestFrame { xid: XID_AUTH, op: auth }));
        outputs(&mut pipe);
        accept(&mut pipe, 2, SESSION, 15_000);
        assert_eq!(outputs(&mut pipe), []);
        receive(&mut pipe, 3, &Frame::error(XID_AUTH, 0, code));
        let outputs = outputs(&mut pipe);
        if code == ErrorCode::OK {
            assert!(matches!(outputs[..], [PipeOutput::Session(SessionReport::Up { .. })]), "{outputs:?}");
            assert_eq!(requests(&mut pipe).len(), 1);
            continue;
        }
        assert!(
            matches!(&outputs[1], PipeOutput::Session(SessionReport::Down(cause)) if cause.is_refusal()),
            "{outputs:?}"
        );
        // The session exists. To end it needs no login.
        pipe.end(at(4));
        pipe.handle_timeout(at(2_000));
        pipe.handle_connected(at(2_000), pipe.current().unwrap());
        assert_eq!(sent(&mut pipe).len(), 1);
        accept(&mut pipe, 2_001, SESSION, 15_000);
        assert_eq!(requests(&mut pipe)[0].op, Op::CloseSession);
    }
}

/// Regression: it logged in as nobody, and the server refused each new node with `INVALID_ACL`.
#[test]
fn credentials_without_user_are_refused() {
    let mut pipe = pipe(1);
    pipe.state.config.request_credentials = true;
    pipe.send(at(1), call(1), sync());
    let conn = pipe.current().unwrap();
    pipe.handle_connected(at(1), conn);
    outputs(&mut pipe);
    pipe.handle_credentials(at(1), conn, Some(Credentials::new("sesame")));
    let outputs = outputs(&mut pipe);
    let [_, PipeOutput::Session(SessionReport::Down(cause)), ..] = &outputs[..] else { panic!("{outputs:?}") };
    assert!(cause.is_refusal() && alloc::format!("{cause}").contains("user"), "{cause}");
}

#[test]
fn first_rejection_of_credentials_from_host_refuses_nothing() {
    // N19
    let mut pipe = pipe(1);
    pipe.state.config.request_credentials = true;
    pipe.state.config.login.username = Some("app".into());
    pipe.send(at(1), call(1), sync());
    for known in [false, true] {
        let conn = pipe.current().unwrap();
        pipe.handle_connected(at(1), conn);
        let asked = outputs(&mut pipe);
        let Some(PipeOutput::Credentials(_, request)) = asked.last() else { panic!("{asked:?}") };
        assert_eq!(request.rejected.is_some(), known);
        pipe.handle_credentials(at(1), conn, Some(Credentials::new("cached")));
        assert!(!alloc::format!("{pipe:?}").contains("cached"));
        sent(&mut pipe);
        accept(&mut pipe, 1, SESSION, 15_000);
        receive(&mut pipe, 1, &Frame::error(XID_AUTH, 0, ErrorCode::AUTH_FAILED));
        if !known {
            assert!(pipe.current().is_some_and(|next| next != conn), "it logs in again at once");
        }
    }
    let outputs = outputs(&mut pipe);
    assert!(
        matches!(&outputs[1], PipeOutput::Session(SessionReport::Down(cause)) if cause.is_refusal()),
        "{outputs:?}"
    );
}

#[test]
fn session_that_moved_ends_connection_inside_of_transaction_too() {
    // ZK6
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.send(at(2), call(1), Op::Multi(Vec::new()));
    sent(&mut pipe);
    let results = ReplyBody::Multi(vec![MultiResult::Error(ErrorCode::SESSION_MOVED)]);
    receive(&mut pipe, 3, &Frame::ok(1, 1, results));
    let outputs = outputs(&mut pipe);
    assert!(matches!(&outputs[2..], [PipeOutput::Reply { reply: Reply::Unknown(_), .. }]), "{outputs:?}");
    assert_eq!(pipe.current(), None);
}

#[test]
fn ending_session_asks_for_no_credentials() {
    let mut pipe = pipe(1);
    pipe.state.config.request_credentials = true;
    pipe.send(at(1), call(1), sync());
    let conn = pipe.current().unwrap();
    pipe.handle_connected(at(1), conn);
    pipe.handle_credentials(at(1), conn, Some(Credentials::new("sesame").username("app")));
    sent(&mut pipe);
    accept(&mut pipe, 2, SESSION, 15_000);
    outputs(&mut pipe);
    pipe.handle_disconnected(at(3), conn, Fault::Reset);
    pipe.handle_timeout(at(2_000));
    outputs(&mut pipe);
    let conn = pipe.current().unwrap();
    pipe.handle_connected(at(2_000), conn);
    assert!(matches!(outputs(&mut pipe)[..], [PipeOutput::Credentials(..)]));
    pipe.end(at(2_001));
    assert_eq!(sent(&mut pipe).len(), 1, "the session is continued");
    pipe.handle_disconnected(at(2_002), conn, Fault::Reset);
    pipe.handle_timeout(at(4_000));
    let conn = pipe.current().unwrap();
    pipe.handle_connected(at(4_000), conn);
    assert_eq!(sent(&mut pipe).len(), 1, "also on the next connection");
}

#[test]
fn events_arrive_between_replies_and_numbers_skip_negatives() {
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    pipe.send(at(2), call(0), watch());
    sent(&mut pipe);
    receive(&mut pipe, 2, &Frame::error(1, 1, ErrorCode::NO_NODE));
    outputs(&mut pipe);
    receive(&mut pipe, 2, &Frame::event(event()));
    assert_eq!(outputs(&mut pipe), [PipeOutput::Event(event())]);
    pipe.state.wire = JuteWire::counting_from(i32::MAX - 1);
    pipe.send(at(3), call(1), sync());
    pipe.send(at(3), call(2), sync());
    assert_eq!(requests(&mut pipe).iter().map(|request| request.xid).collect::<Vec<_>>(), [i32::MAX, 1]);
    receive(&mut pipe, 4, &synced(i32::MAX, 1));
    receive(&mut pipe, 4, &Frame::ok(1, 1, ReplyBody::Stat(Stat::default())));
    assert!(
        outputs(&mut pipe).contains(&PipeOutput::Session(SessionReport::Down(breach(Breach::Malformed)))),
        "a reply of another form"
    );
}

#[test]
fn input_of_old_connections_is_dropped() {
    // M6
    let mut pipe = pipe(1);
    up(&mut pipe, 1);
    let old = pipe.current().unwrap();
    pipe.handle_disconnected(at(2), old, Fault::Reset);
    pipe.handle_timeout(at(900));
    outputs(&mut pipe);
    let before = pipe.clone();
    pipe.handle_received(at(900), old, &[0xff; 20]);
    pipe.handle_disconnected(at(900), old, Fault::Reset);
    pipe.handle_connected(at(900), old);
    pipe.consume(old, 3);
    assert_eq!(pipe, before);
    assert!(!pipe.has_outgoing(old));
}

/// Regression: behind a burst of requests it came too late, and the session was lost.
#[test]
fn renewal_overtakes_requests_that_have_not_left() {
    // ZK1
    let mut pipe = pipe(1);
    pipe.state.config.limits.in_flight = 2;
    up(&mut pipe, 5);
    for n in 0..5 {
        pipe.send(at(5), call(n), sync());
    }
    assert_eq!(requests(&mut pipe).len(), 2);
    let renewal = Op::Multi(vec![MultiOp::Check { path: "/".into(), version: ANY_VERSION }]);
    let of_session = CallId { owner: CallOwner::Session(0), ..call(9) };
    pipe.send(at(6), of_session, renewal.clone());
    receive(&mut pipe, 6, &synced(1, 1));
    assert_eq!(requests(&mut pipe), [RequestFrame { xid: 3, op: renewal }]);
}

/// The leader is to hear of the session, and nothing that is under way may be lost.
#[test]
fn session_is_continued_on_a_new_connection_once_its_requests_are_answered() {
    // ZK1
    let mut pipe = pipe(2);
    up(&mut pipe, 0);
    let old = pipe.current().unwrap();
    pipe.send(at(10), call(1), sync());
    requests(&mut pipe);
    pipe.reopen(at(11));
    assert_eq!((outputs(&mut pipe), pipe.next_deadline()), (vec![], Some(at(1_010))), "no pings, which would go on");
    receive(&mut pipe, 12, &synced(1, 5));
    let out = outputs(&mut pipe);
    let [.., PipeOutput::Reply { .. }, PipeOutput::Disconnect(closed, None), PipeOutput::Connect(new, _)] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!((*closed, new.node()), (old, old.node()), "the same server is as good as another one");
    assert_eq!(connect(&mut pipe, 13).session_id, SESSION);
    accept(&mut pipe, 14, SESSION, 15_000);
    assert!(outputs(&mut pipe).iter().any(|out| matches!(out, PipeOutput::Session(SessionReport::Up { .. }))));
    assert!(pipe.is_up());
    // Without a connection there is nothing to do.
    let conn = pipe.current().unwrap();
    pipe.handle_disconnected(at(20), conn, Fault::Reset);
    outputs(&mut pipe);
    pipe.reopen(at(20));
    assert_eq!((outputs(&mut pipe), pipe.current()), (vec![], None));
}
