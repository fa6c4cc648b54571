//! Late replies still count.
// E13

use super::*;

/// The shortest request timeout does not decide when the connection ends.
#[test]
fn short_request_timeout_does_not_close_connection() {
    // E13
    let (mut rig, conn) = ChannelRig::up(1);
    let short = rig.send_for(grant(1), 20 * MS);
    let long = rig.send_for(grant(2), 900 * MS);
    let requests = rig.requests();
    assert_eq!(requests.len(), 2);
    rig.pass(999 * MS);
    assert_eq!(rig.all(), [], "in flight");
    for (request, n) in requests.into_iter().zip([1, 2]) {
        let Output::Call { rpc, .. } = request else { panic!("{request:?}") };
        rig.answer(rpc, granted(n));
    }
    assert_eq!(rig.all(), [short, long].map(|call| ChannelOutput::Reply { call, reply: LEASE }));
    assert_eq!(rig.channel.current(), Some(conn));
}

/// A slow server receives no request twice.
#[test]
fn connection_with_slow_replies_stays_open() {
    // E13
    let (mut rig, conn) = ChannelRig::up(2);
    let calls: Vec<CallId> = (0..8).map(|_| rig.send(grant(1))).collect();
    let requests = rig.requests();
    assert_eq!(requests.len(), 8);
    for (request, call) in requests.into_iter().zip(calls) {
        rig.pass(990 * MS);
        assert_eq!(rig.all(), [], "the last of them waits for eight seconds");
        let Output::Call { rpc, .. } = request else { panic!("{request:?}") };
        rig.answer(rpc, granted(1));
        assert_eq!(rig.all(), [ChannelOutput::Reply { call, reply: LEASE }]);
    }
    assert_eq!((rig.channel.current(), rig.channel.next_deadline()), (Some(conn), None));
}

/// Silence is measured from the first outstanding reply.
#[test]
fn idle_time_does_not_count_as_silence() {
    // E13
    let (mut rig, conn) = ChannelRig::up(1);
    rig.pass(100 * SECOND);
    let call = rig.send(grant(1));
    let rpc = rig.call();
    rig.pass(999 * MS);
    assert_eq!((rig.all().len(), rig.channel.current()), (0, Some(conn)));
    rig.answer(rpc, granted(1));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call, reply: LEASE }]);
}

/// After all endpoints were silent, the allowed silence doubles, up to eight times.
#[test]
fn silence_limit_doubles_after_all_endpoints_were_silent() {
    // E13
    for (endpoints, expected) in [(1, [1, 2, 4, 8, 8, 8]), (3, [1, 1, 1, 2, 2, 2])] {
        let (mut rig, _) = ChannelRig::up(endpoints);
        for allowed in expected {
            let call = rig.send_for(grant(1), 30 * SECOND);
            if !rig.channel.is_up() {
                let connecting = |output: &ChannelOutput| matches!(output, ChannelOutput::Do(Output::Connect { .. }));
                while !rig.all().iter().any(connecting) {
                    rig.until_due();
                }
                rig.channel.handle_connected(rig.now, rig.channel.current().unwrap());
            }
            rig.call();
            assert_eq!(rig.channel.next_deadline(), Some(rig.now + allowed * SECOND), "{endpoints}");
            rig.until_due();
            assert!(rig.all().contains(&unknown(call, Fault::TimedOut)));
        }
    }
}

/// Regression: a watch that was opened again at once ended the patience. So writes that take longer
/// than the request timeout were never answered.
#[test]
fn fast_watch_does_not_shorten_silence_limit_of_slow_writes() {
    // E13
    let mut rig = ChannelRig::new(1);
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    for allowed in [1, 2, 4, 8, 8] {
        let connecting = |output: &ChannelOutput| matches!(output, ChannelOutput::Do(Output::Connect { .. }));
        while !rig.all().iter().any(connecting) {
            rig.until_due();
        }
        rig.channel.handle_connected(rig.now, rig.channel.current().unwrap());
        let stream = rig.stream(StreamKind::Watch);
        watch::created(&mut rig, stream, 5);
        let call = rig.send_for(grant(1), 30 * SECOND);
        rig.call();
        assert_eq!(rig.channel.state.longest_silence(), allowed * SECOND);
        rig.pass(allowed * SECOND);
        assert!(rig.all().contains(&unknown(call, Fault::TimedOut)));
    }
}

/// The allowed silence is four times the slowest reply, and shrinks once the server is fast again.
#[test]
fn silence_limit_follows_slowest_reply() {
    // E13
    let (mut rig, conn) = ChannelRig::up(1);
    for (takes, allowed) in [(300, 1000), (700, 1200), (1_100, 2_800), (2_500, 4_400), (10, 8_000), (10, 7_000)] {
        rig.send(grant(1));
        let rpc = rig.call();
        assert_eq!(rig.channel.next_deadline(), Some(rig.now + allowed * MS), "{takes}");
        rig.pass(takes * MS);
        rig.answer(rpc, granted(1));
        rig.all();
    }
    for _ in 0..30 {
        rig.answered_after(Duration::ZERO);
    }
    rig.send(grant(1));
    rig.call();
    assert_eq!((rig.channel.next_deadline(), rig.channel.current()), (Some(rig.now + SECOND), Some(conn)));
}

/// A hung watch stream is reopened without affecting the rest of the connection.
#[test]
fn hung_watch_stream_is_closed_but_connection_stays() {
    // E13
    let (mut rig, conn) = ChannelRig::up(1);
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    let stream = rig.stream(StreamKind::Watch);
    assert_eq!(rig.requests().len(), 1, "the creation");
    for _ in 0..21 {
        rig.answered_after(490 * MS);
    }
    rig.send(grant(1));
    rig.call();
    rig.pass(200 * MS);
    let outputs = rig.all();
    assert!(outputs.contains(&ChannelOutput::Do(Output::Close { stream })), "{outputs:?}");
    assert_eq!(rig.channel.current(), Some(conn));
}

/// The connection works, but its watch streams do not.
#[test]
fn member_without_messages_on_watch_streams_is_left() {
    // E9
    let (mut rig, conn) = ChannelRig::up(2);
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    let closes = (1..=4).find(|_| {
        rig.stream(StreamKind::Watch);
        assert_eq!(rig.requests().len(), 1, "the creation");
        for _ in 0..21 {
            rig.answered_after(490 * MS);
        }
        rig.pass(200 * MS);
        let left = rig.channel.current() != Some(conn);
        rig.all();
        rig.pass(SECOND);
        left
    });
    assert_eq!(closes, Some(4));
}

/// A proxy may end streams that are idle.
#[test]
fn member_whose_idle_watch_streams_end_is_kept() {
    // E9
    let (mut rig, conn) = ChannelRig::up_with(ChannelConfig { watch_quiet: 120 * SECOND, ..config(2) });
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    for _ in 0..5 {
        let stream = rig.stream(StreamKind::Watch);
        watch::created(&mut rig, stream, 5);
        rig.pass(60 * SECOND);
        rig.end(stream, Code::Internal, "RST_STREAM");
        rig.pass(SECOND);
        rig.notifications();
        assert_eq!(rig.channel.current(), Some(conn));
    }
}

/// A silent connection ends when it should, although the watch stream is overdue as well.
#[test]
fn overdue_watch_stream_does_not_prolong_silence() {
    // E13
    let (mut rig, conn) = ChannelRig::up_with(ChannelConfig { watch_quiet: SECOND, ..config(1) });
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    rig.stream(StreamKind::Watch);
    assert_eq!(rig.requests().len(), 1, "the creation");
    rig.answered_after(10 * MS);
    rig.pass(SECOND);
    assert_eq!(rig.channel.poll_output(), Some(disconnect_for(conn, Fault::TimedOut)));
}

/// A slow server is slow on the watch stream too. (Scenario `etcd-slow`, seed 328.)
#[test]
fn watch_stream_timeout_follows_connection_silence_limit() {
    // E13
    let (mut rig, conn) = ChannelRig::up_with(ChannelConfig { watch_quiet: SECOND, ..config(1) });
    for takes in [700, 1_100, 2_500] {
        rig.answered_after(takes * MS);
    }
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    rig.stream(StreamKind::Watch);
    assert_eq!(rig.requests().len(), 1, "the creation");
    for _ in 0..3 {
        rig.answered_after(990 * MS);
    }
    assert_eq!(rig.channel.current(), Some(conn));
}

/// While the whole connection is silent, its limit decides. Closing the watch stream before would
/// discard the replies that prove that the connection works. (Scenario `etcd-slow`, seed 1273.)
#[test]
fn watch_stream_stays_open_while_connection_is_silent() {
    // E13
    let (mut rig, conn) = ChannelRig::up_with(ChannelConfig { watch_quiet: SECOND, ..config(1) });
    rig.answered_after(900 * MS);
    let early = rig.send(grant(1));
    let rpc = rig.call();
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    let stream = rig.stream(StreamKind::Watch);
    assert_eq!(rig.requests().len(), 1, "the creation");
    rig.pass(SECOND);
    rig.answer(rpc, granted(1));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call: early, reply: LEASE }]);
    // The creation is overdue after four seconds, the connection after five.
    let late = rig.send(grant(1));
    let rpc = rig.call();
    rig.pass(3_900 * MS);
    assert_eq!(rig.all(), []);
    // This reply took so long that the limit is eight seconds.
    rig.answer(rpc, granted(1));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call: late, reply: LEASE }]);
    rig.answered_after(4 * SECOND);
    rig.send(grant(1));
    rig.call();
    rig.pass(4 * SECOND);
    let outputs = rig.all();
    assert!(outputs.contains(&ChannelOutput::Do(Output::Close { stream })), "{outputs:?}");
    assert_eq!(rig.channel.current(), Some(conn));
}
