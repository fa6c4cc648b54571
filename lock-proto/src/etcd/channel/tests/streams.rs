//! The keep-alive stream.

use super::*;

fn keep_alive(rig: &mut ChannelRig, id: u64) -> CallId {
    rig.send(Request::KeepAlive { lease: lease(id), ttl: 10 * SECOND })
}

fn sent(rig: &mut ChannelRig, stream: StreamId, id: u64) {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Send { stream: s, message: StreamSend::KeepAlive(message) })) => {
            assert_eq!((s, message.id), (stream, lease(id).get()));
        }
        other => panic!("no keep-alive: {other:?}"),
    }
}

fn alive(rig: &mut ChannelRig, stream: StreamId, id: i64, ttl: i64) {
    let message = StreamReceived::KeepAlive(LeaseKeepAliveResponse { header: None, id, ttl });
    rig.channel.handle_message(rig.now, stream, message);
}

fn lives(call: CallId, ttl: i64) -> ChannelOutput {
    ChannelOutput::Reply { call, reply: Reply::Done(Found::Lease { ttl }) }
}

#[test]
fn keep_alive_replies_match_requests_in_order_per_lease() {
    // E1
    let (mut rig, _) = ChannelRig::up(1);
    let calls = [1, 2, 1].map(|id| keep_alive(&mut rig, id));
    let stream = rig.stream(StreamKind::KeepAlive);
    for id in [1, 2, 1] {
        sent(&mut rig, stream, id);
    }
    assert_eq!(rig.all(), []);
    for (id, ttl) in [(0, 9), (1, 10), (1, 11), (2, 0), (2, 9), (3, 9), (0, 9), (-1, 9), (i64::MIN, 9)] {
        alive(&mut rig, stream, id, ttl);
    }
    // An unknown lease has a TTL of 0. Unsolicited replies are dropped.
    // E1
    assert_eq!(rig.all(), [lives(calls[0], 10), lives(calls[2], 11), lives(calls[1], 0)]);
    let next = keep_alive(&mut rig, 1);
    sent(&mut rig, stream, 1);
    alive(&mut rig, stream, 1, 10);
    assert_eq!(rig.all(), [lives(next, 10)]);
}

#[test]
fn ended_stream_settles_only_sent_keep_alives() {
    // M8
    let (mut rig, conn) = ChannelRig::up(1);
    let first = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    let second = keep_alive(&mut rig, 1);
    rig.end(stream, Code::Internal, "RST_STREAM");
    let outputs = rig.all();
    assert!(matches!(&outputs[..], [ChannelOutput::Reply { call, reply: Reply::Unknown(_) }] if *call == first));
    rig.until_due();
    let next = rig.stream(StreamKind::KeepAlive);
    assert!(next != stream && next.conn() == conn);
    sent(&mut rig, next, 1);
    // A reply on the old stream does not count for the new one.
    alive(&mut rig, stream, 1, 10);
    assert_eq!(rig.all(), []);
    alive(&mut rig, next, 1, 10);
    assert_eq!(rig.all(), [lives(second, 10)]);
}

fn no_keys() -> Result<RpcReply, Status> {
    Ok(RpcReply::Range(RangeResponse::default()))
}

/// Half of the limit is for the keep-alive alone, the rest from the probe on.
#[test]
fn unanswered_keep_alive_and_probe_close_connection() {
    // E9, E13
    let (mut rig, conn) = ChannelRig::up(2);
    let call = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    rig.pass(SECOND / 2);
    rig.call();
    rig.pass(SECOND);
    assert_eq!(rig.all(), [disconnect_for(conn, Fault::TimedOut), unknown(call, Fault::TimedOut)]);
}

/// As by etcd's gRPC proxy: the connection answers everything else.
#[test]
fn late_keep_alives_close_nothing() {
    // E13
    let (mut rig, conn) = ChannelRig::up(2);
    let call = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    // Each answer to a probe restarts the time, which does not grow.
    let replies = [no_keys(), Err(status(Code::PermissionDenied, "etcdserver: permission denied"))];
    for n in 0..9 {
        rig.pass(SECOND / 2);
        let probe = rig.call();
        assert_eq!(rig.all(), []);
        rig.answer(probe, replies[n % 2].clone());
        assert_eq!(rig.all(), [], "{n}");
    }
    alive(&mut rig, stream, 1, 10);
    assert_eq!(rig.all(), [lives(call, 10)]);
    // Other calls have the usual time.
    rig.send(grant(1));
    rig.call();
    assert_eq!((rig.channel.next_deadline(), rig.channel.current()), (Some(rig.now + SECOND), Some(conn)));
}

/// The time of the keep-alive counted for the call as well.
#[test]
fn call_after_late_keep_alive_has_its_own_time() {
    // E13
    let (mut rig, conn) = ChannelRig::up(2);
    keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    rig.pass(400 * MS);
    rig.answered_after(900 * MS);
    assert_eq!(rig.channel.current(), Some(conn));
}

/// Half of a TTL of ten seconds passes, while the server answers calls.
fn pass_half_of_ttl(rig: &mut ChannelRig) {
    for _ in 0..8 {
        rig.answered_after(620 * MS);
    }
    rig.pass(40 * MS);
}

/// Sends a call, which is answered at once. Returns the reply.
fn answer_call(rig: &mut ChannelRig) -> ChannelOutput {
    let call = rig.send(grant(1));
    let rpc = rig.call();
    rig.answer(rpc, granted(1));
    ChannelOutput::Reply { call, reply: LEASE }
}

/// After half of the TTL.
#[test]
fn stuck_keep_alive_stream_is_reopened_but_connection_stays() {
    // E13
    let (mut rig, conn) = ChannelRig::up(1);
    let before = rig.send(grant(1));
    let earlier = rig.call();
    let call = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    pass_half_of_ttl(&mut rig);
    // The reply to an earlier call shows nothing.
    rig.answer(earlier, granted(1));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call: before, reply: LEASE }]);
    let reply = answer_call(&mut rig);
    let close = ChannelOutput::Do(Output::Close { stream });
    assert_eq!(rig.all(), [reply, close, unknown(call, Fault::TimedOut)]);
    let next = keep_alive(&mut rig, 1);
    rig.until_due();
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    alive(&mut rig, stream, 1, 10);
    assert_eq!((rig.all(), rig.channel.current()), (vec![lives(next, 10)], Some(conn)));
}

/// The member was kept for ever, although each lock on it was lost.
#[test]
fn member_without_replies_to_keep_alives_is_left() {
    // E9
    let (mut rig, conn) = ChannelRig::up(2);
    let call = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    pass_half_of_ttl(&mut rig);
    let reply = answer_call(&mut rig);
    let outputs = rig.notifications();
    assert_eq!(outputs, [reply, disconnect_for(conn, Fault::TimedOut), unknown(call, Fault::TimedOut)]);
    keep_alive(&mut rig, 1);
    assert!(rig.connected().node() != conn.node());
}

#[test]
fn stuck_keep_alive_is_noticed_behind_one_of_longer_ttl() {
    // E13
    let (mut rig, _) = ChannelRig::up(1);
    let long = rig.send(Request::KeepAlive { lease: lease(2), ttl: 60 * SECOND });
    let short = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 2);
    sent(&mut rig, stream, 1);
    pass_half_of_ttl(&mut rig);
    let reply = answer_call(&mut rig);
    let close = ChannelOutput::Do(Output::Close { stream });
    assert_eq!(rig.all(), [reply, close, unknown(long, Fault::TimedOut), unknown(short, Fault::TimedOut)]);
}

#[test]
fn stream_ended_without_leader_switches_endpoint() {
    // E9
    let (mut rig, conn) = ChannelRig::up(2);
    let call = keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    sent(&mut rig, stream, 1);
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    rig.end(stream, Code::Unavailable, "etcdserver: no leader");
    let outputs = rig.all();
    assert!(
        matches!(&outputs[..], [
            ChannelOutput::Do(Output::Disconnect { .. }),
            ChannelOutput::Reply { call: c, reply: Reply::Unknown(Cause::Server(_)) },
            ChannelOutput::Do(Output::Connect { node, .. }),
        ] if *c == call && *node != conn.node()),
        "{outputs:?}"
    );
}

#[test]
fn message_of_wrong_kind_closes_connection() {
    let (mut rig, conn) = ChannelRig::up(1);
    keep_alive(&mut rig, 1);
    let stream = rig.stream(StreamKind::KeepAlive);
    rig.channel.handle_message(rig.now, stream, StreamReceived::Watch(WatchResponse::default()));
    assert_eq!(rig.channel.poll_output(), Some(disconnect_for(conn, Fault::Protocol(Breach::WrongReply))));
}

/// If one member ends every watch stream, the channel tries another.
// E9
#[test]
fn watch_stream_failing_four_times_switches_endpoint() {
    // E9
    for members in [1, 2] {
        let mut rig = ChannelRig::new(members);
        rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
        let conn = rig.connected();
        for end in 1..=4 {
            let stream = rig.stream(StreamKind::Watch);
            assert_eq!(stream.conn(), conn);
            rig.end(stream, Code::Internal, "RST_STREAM");
            if end < 4 {
                rig.until_due();
            }
        }
        if members == 1 {
            assert_eq!(rig.all(), [], "there is no other");
        } else {
            assert_eq!(rig.channel.poll_output(), Some(disconnect_for(conn, Fault::Closed)));
            assert!(rig.connecting().node() != conn.node());
        }
    }
}
