//! Broken and malicious servers cause no panic, no growth and no busy loop.

#![allow(clippy::wildcard_enum_match_arm, reason = "a host that carries out only what the test is about")]

use super::*;

/// Runs for `span`, with a host that does `what` for each output. Returns the number of connects,
/// opened streams and outputs.
fn run(rig: &mut ChannelRig, span: Duration, mut what: impl FnMut(&mut ChannelRig, &Output)) -> (usize, usize, usize) {
    let end = rig.now + span;
    let (mut connects, mut opens, mut all) = (0, 0, 0);
    loop {
        while let Some(output) = rig.channel.poll_output() {
            all += 1;
            if let ChannelOutput::Do(output) = output {
                connects += usize::from(matches!(output, Output::Connect { .. }));
                opens += usize::from(matches!(output, Output::Open { .. }));
                what(rig, &output);
            }
        }
        match rig.channel.next_deadline() {
            Some(due) if due <= end => rig.pass(due.since(rig.now)),
            Some(_) | None => return (connects, opens, all),
        }
    }
}

#[test]
fn refusing_endpoints_do_not_spin() {
    let mut rig = ChannelRig::new(3);
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    let (connects, _, all) = run(&mut rig, 60 * SECOND, |rig, output| {
        if let Output::Connect { conn, .. } = output {
            rig.channel.handle_disconnected(rig.now, *conn, Fault::Refused);
        }
    });
    assert!((50..100).contains(&connects) && all == connects, "{connects} of {all}");
}

#[test]
fn streams_ending_at_once_do_not_spin() {
    for (endpoints, code) in
        [(1, Code::Internal), (3, Code::Internal), (3, Code::Ok), (1, Code::Unavailable), (3, Code::Unavailable)]
    {
        let mut rig = ChannelRig::new(endpoints);
        rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
        let (connects, opens, all) = run(&mut rig, 60 * SECOND, |rig, output| match output {
            Output::Connect { conn, .. } => rig.channel.handle_connected(rig.now, *conn),
            Output::Open { stream, .. } => {
                rig.send(Request::KeepAlive { lease: lease(1), ttl: 10 * SECOND });
                rig.end(*stream, code, "");
            }
            other => assert!(matches!(other, Output::Send { .. } | Output::Disconnect { .. }), "{other:?}"),
        });
        assert!(opens >= 50 && connects + opens < 1000 && all < 3000, "{code:?}: {connects} + {opens} of {all}");
    }
}

#[test]
fn watches_cancelled_at_once_do_not_spin() {
    let mut rig = ChannelRig::new(1);
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    let (_, _, all) = run(&mut rig, 60 * SECOND, |rig, output| match output {
        Output::Connect { conn, .. } => rig.channel.handle_connected(rig.now, *conn),
        Output::Send { stream, message: StreamSend::Watch(message) } => {
            let Some(WatchRequestUnion::Create(create)) = &message.request else { return };
            let header = Some(ResponseHeader { member_id: 1, revision: 1 });
            let open = WatchResponse { header, watch_id: create.watch_id, created: true, ..WatchResponse::default() };
            let cancel = WatchResponse { watch_id: create.watch_id, canceled: true, ..WatchResponse::default() };
            rig.receive_watch(*stream, open);
            rig.receive_watch(*stream, cancel);
        }
        _ => {}
    });
    assert!((150..400).contains(&all), "{all}");
}

#[test]
fn invalid_tokens_do_not_spin() {
    let login = Login::new("app", "pw");
    let mut rig = ChannelRig::with(ChannelConfig { login, ..config(2) });
    for n in 0..5 {
        rig.send(grant(n));
        rig.channel.watch(rig.now, WatchId::new(n), "k".into(), Bytes::new(), false);
    }
    let (connects, _, all) = run(&mut rig, 60 * SECOND, |rig, output| match output {
        Output::Connect { conn, .. } => rig.channel.handle_connected(rig.now, *conn),
        Output::Call { rpc, request: Rpc::Authenticate(_), .. } => {
            let answer = AuthenticateResponse { header: None, token: "t".into() };
            rig.answer(*rpc, Ok(RpcReply::Authenticate(answer)));
        }
        Output::Call { rpc, .. } => rig.fail(*rpc, Code::Unauthenticated, "etcdserver: invalid auth token"),
        Output::Open { stream, .. } => rig.end(*stream, Code::Unauthenticated, "etcdserver: invalid auth token"),
        _ => {}
    });
    assert!(connects == 1 && all < 40, "{connects} of {all}");
    assert_eq!(rig.channel.next_deadline(), None, "everything has been refused");
}

#[test]
fn unsolicited_replies_are_dropped() {
    let (mut rig, conn) = ChannelRig::up(1);
    let call = rig.send(Request::KeepAlive { lease: lease(7), ttl: 10 * SECOND });
    let stream = rig.stream(StreamKind::KeepAlive);
    rig.requests();
    let before = rig.channel.clone();
    for n in 0..100_000 {
        let id = if n % 2 == 0 { 8 } else { n };
        let message = LeaseKeepAliveResponse { header: None, id: if id == 7 { 8 } else { id }, ttl: n };
        rig.channel.handle_message(rig.now, stream, StreamReceived::KeepAlive(message));
        rig.answer(RpcId { conn, serial: n as u64 }, granted(1));
    }
    assert_eq!(rig.channel, before);
    let message = LeaseKeepAliveResponse { header: None, id: 7, ttl: 10 };
    rig.channel.handle_message(rig.now, stream, StreamReceived::KeepAlive(message));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call, reply: LEASE }]);
}

#[test]
fn events_of_unknown_watches_are_dropped() {
    let (mut rig, _, stream, wire) = ChannelRig::watching(1);
    let before = rig.channel.clone();
    for n in 0..100_000 {
        let watch_id = match n % 4 {
            0 => -1,
            1 => -2,
            2 => i64::MIN,
            _ => wire + 1 + n,
        };
        let events = alloc::vec![crate::etcd::message::WatchEvent { kind: 7, kv: None, prev_kv: None }];
        let (created, canceled) = (n % 15 == 0 && watch_id < 0, n % 5 == 0);
        rig.receive_watch(stream, WatchResponse { watch_id, created, canceled, events, ..WatchResponse::default() });
    }
    assert_eq!(rig.channel, before);
}

#[test]
fn invalid_reply_is_unknown_and_closes_connection() {
    for answer in [
        RpcReply::Range(Default::default()),
        RpcReply::Txn(Default::default()),
        RpcReply::Authenticate(AuthenticateResponse::default()),
        RpcReply::Grant(LeaseGrantResponse { header: None, id: 9, ttl: 10 }),
        RpcReply::Grant(LeaseGrantResponse { header: None, id: 2, ttl: 0 }),
    ] {
        let (mut rig, conn) = ChannelRig::up(1);
        let call = rig.send(grant(2));
        let rpc = rig.call();
        rig.answer(rpc, Ok(answer));
        let breach = Fault::Protocol(Breach::WrongReply);
        assert_eq!(rig.all(), [unknown(call, breach), disconnect_for(conn, breach)]);
    }
}
