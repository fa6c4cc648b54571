//! The watch stream.

use super::*;
use crate::etcd::message::{DELETED, WatchEvent, WatchRequest};

const HEADER: Option<ResponseHeader> = Some(ResponseHeader { member_id: 1, revision: 5 });

fn w(n: u64) -> WatchId {
    WatchId::new(n)
}

impl ChannelRig {
    fn watch(&mut self, n: u64) {
        self.channel.watch(self.now, w(n), "k".into(), Bytes::new(), false);
    }

    pub(super) fn receive_watch(&mut self, stream: StreamId, response: WatchResponse) {
        self.channel.handle_message(self.now, stream, StreamReceived::Watch(response));
    }

    /// With one open watch.
    pub(super) fn watching(endpoints: u16) -> (Self, ConnId, StreamId, i64) {
        let (mut rig, conn) = Self::up(endpoints);
        rig.watch(1);
        let stream = rig.stream(StreamKind::Watch);
        let wire = created(&mut rig, stream, 5);
        (rig, conn, stream, wire)
    }
}

fn watch_request(rig: &mut ChannelRig, stream: StreamId) -> WatchRequestUnion {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Send { stream: s, message: StreamSend::Watch(WatchRequest { request }) })) => {
            assert_eq!(s, stream);
            request.unwrap()
        }
        other => panic!("no request on the watch stream: {other:?}"),
    }
}

/// Expects the creation of a watch as the next output. Returns its id.
pub(super) fn creation(rig: &mut ChannelRig, stream: StreamId) -> i64 {
    match watch_request(rig, stream) {
        WatchRequestUnion::Create(create) => {
            assert_eq!((create.start_revision, create.fragment, create.progress_notify), (0, true, false));
            create.watch_id
        }
        other @ (WatchRequestUnion::Cancel(_) | WatchRequestUnion::Progress(_)) => panic!("no watch: {other:?}"),
    }
}

pub(super) fn cancelled(rig: &mut ChannelRig, stream: StreamId) -> i64 {
    match watch_request(rig, stream) {
        WatchRequestUnion::Cancel(cancel) => cancel.watch_id,
        other @ (WatchRequestUnion::Create(_) | WatchRequestUnion::Progress(_)) => panic!("no cancellation: {other:?}"),
    }
}

pub(super) fn open(wire: i64, revision: i64) -> WatchResponse {
    let header = Some(ResponseHeader { member_id: 1, revision });
    WatchResponse { header, watch_id: wire, created: true, ..WatchResponse::default() }
}

/// Creates a watch, which the server opens.
pub(super) fn created(rig: &mut ChannelRig, stream: StreamId, revision: i64) -> i64 {
    let wire = creation(rig, stream);
    rig.receive_watch(stream, open(wire, revision));
    match rig.channel.poll_output() {
        Some(ChannelOutput::Watching { revision: reported, .. }) => assert_eq!(reported, revision),
        other => panic!("not watching: {other:?}"),
    }
    wire
}

/// etcd denies with the id -1.
pub(super) fn deny(rig: &mut ChannelRig, stream: StreamId, words: &str) {
    let denied = WatchResponse {
        header: HEADER,
        watch_id: -1,
        created: true,
        canceled: true,
        cancel_reason: words.into(),
        ..WatchResponse::default()
    };
    rig.receive_watch(stream, denied);
}

fn event(kind: i32, key: &'static str, revision: i64) -> WatchEvent {
    let kv = KeyValue { key: key.into(), mod_revision: revision, ..KeyValue::default() };
    WatchEvent { kind, kv: Some(kv), prev_kv: None }
}

fn events(wire: i64, events: Vec<WatchEvent>) -> WatchResponse {
    WatchResponse { header: HEADER, watch_id: wire, events, ..WatchResponse::default() }
}

fn changed(n: u64, deleted: bool, key: &'static str, revision: i64) -> ChannelOutput {
    let kv = KeyValue { key: key.into(), mod_revision: revision, ..KeyValue::default() };
    ChannelOutput::Changed { watch: w(n), revision, deleted, kv }
}

#[test]
fn one_stream_carries_all_watches_from_current_revision() {
    // E5
    let mut rig = ChannelRig::new(1);
    rig.watch(1);
    rig.watch(2);
    rig.connected();
    let stream = rig.stream(StreamKind::Watch);
    let (a, b) = (creation(&mut rig, stream), creation(&mut rig, stream));
    assert!(a != b && rig.all().is_empty());
    rig.receive_watch(stream, open(b, 7));
    rig.receive_watch(stream, open(a, 6));
    let watching = |n, revision| ChannelOutput::Watching { watch: w(n), revision };
    assert_eq!(rig.all(), [watching(2, 7), watching(1, 6)]);
    let mut part = events(a, alloc::vec![event(0, "x", 8), event(DELETED, "y", 8)]);
    part.fragment = true;
    rig.receive_watch(stream, part);
    rig.receive_watch(stream, events(a, alloc::vec![event(DELETED, "z", 8)]));
    rig.receive_watch(stream, events(b, alloc::vec![event(0, "x", 9)]));
    assert_eq!(
        rig.all(),
        [changed(1, false, "x", 8), changed(1, true, "y", 8), changed(1, true, "z", 8), changed(2, false, "x", 9)]
    );
}

/// `etcd grpc-proxy` counts them by itself, whatever numbers it is asked for.
#[test]
fn watches_of_each_stream_are_numbered_from_zero() {
    // E5
    let mut rig = ChannelRig::new(1);
    rig.watch(1);
    rig.watch(2);
    rig.connected();
    for _ in 0..2 {
        let stream = rig.stream(StreamKind::Watch);
        assert_eq!([0, 1].map(|_| created(&mut rig, stream, 5)), [0, 1]);
        rig.end(stream, Code::Unknown, "gone");
        rig.notifications();
        rig.until_due();
    }
}

/// The proxy counts no refused creation, so the next number is that of another watch.
#[test]
fn stream_whose_numbers_have_shifted_is_reopened() {
    // E5
    let mut rig = ChannelRig::new(1);
    (1..=3).for_each(|n| rig.watch(n));
    rig.connected();
    let stream = rig.stream(StreamKind::Watch);
    assert_eq!([0; 3].map(|_| creation(&mut rig, stream)), [0, 1, 2]);
    rig.receive_watch(stream, open(0, 5));
    deny(&mut rig, stream, "etcdserver: permission denied");
    rig.notifications();
    rig.receive_watch(stream, open(1, 5));
    let close = ChannelOutput::Do(Output::Close { stream });
    assert_eq!(rig.notifications(), [close, ChannelOutput::Unsubscribed { watch: w(1) }]);
    rig.until_due();
    let stream = rig.stream(StreamKind::Watch);
    assert_eq!([0; 2].map(|_| created(&mut rig, stream, 6)), [0, 1]);
}

#[test]
fn watch_creations_in_flight_are_limited() {
    // E9
    let (mut rig, _) = ChannelRig::up(1);
    (0..200).for_each(|n| rig.watch(n));
    let stream = rig.stream(StreamKind::Watch);
    let wires: Vec<i64> = (0..calls::MAX_IN_FLIGHT).map(|_| creation(&mut rig, stream)).collect();
    assert_eq!(rig.all(), []);
    assert!(rig.channel.next_deadline().unwrap() > rig.now, "nothing more to be polled for now");
    for wire in &wires {
        rig.receive_watch(stream, open(*wire, 6));
    }
    assert_eq!(rig.notifications().len(), wires.len());
    assert_eq!(rig.requests().len(), 200 - wires.len());
}

#[test]
fn unwatched_watch_is_cancelled_and_its_events_are_dropped() {
    let (mut rig, _, stream, wire) = ChannelRig::watching(1);
    rig.watch(2);
    rig.watch(3);
    let second = creation(&mut rig, stream);
    rig.channel.unwatch(rig.now, w(1));
    rig.channel.unwatch(rig.now, w(2));
    rig.channel.unwatch(rig.now, w(3));
    rig.channel.unwatch(rig.now, w(4));
    assert_eq!((cancelled(&mut rig, stream), cancelled(&mut rig, stream)), (wire, second));
    rig.receive_watch(stream, events(wire, alloc::vec![event(0, "x", 8)]));
    rig.receive_watch(stream, open(second, 8));
    rig.receive_watch(stream, WatchResponse { watch_id: wire, canceled: true, ..WatchResponse::default() });
    assert_eq!((rig.all(), rig.channel.next_deadline()), (Vec::new(), None));
    // Ids are not reused.
    rig.watch(5);
    assert!(created(&mut rig, stream, 9) > second);
}

#[test]
fn cancelled_watch_is_reopened() {
    // M2
    let (mut rig, _, stream, wire) = ChannelRig::watching(1);
    let compacted = WatchResponse {
        header: HEADER,
        watch_id: wire,
        canceled: true,
        compact_revision: 4,
        cancel_reason: "mvcc: required revision has been compacted".into(),
        ..WatchResponse::default()
    };
    rig.receive_watch(stream, compacted);
    assert_eq!(rig.all(), [ChannelOutput::Unsubscribed { watch: w(1) }]);
    rig.receive_watch(stream, events(wire, alloc::vec![event(0, "x", 8)]));
    assert_eq!(rig.all(), []);
    rig.until_due();
    let next = created(&mut rig, stream, 9);
    assert!(next != wire);
    // A watch that waits for its recreation can be removed too.
    rig.receive_watch(stream, WatchResponse { watch_id: next, canceled: true, ..WatchResponse::default() });
    rig.notifications();
    rig.channel.unwatch(rig.now, w(1));
    assert_eq!((rig.all(), rig.channel.next_deadline()), (Vec::new(), None));
}

#[test]
fn denied_watch_is_refused() {
    let (mut rig, _, stream, wire) = ChannelRig::watching(1);
    rig.watch(2);
    rig.watch(3);
    creation(&mut rig, stream);
    creation(&mut rig, stream);
    // The id -1 stands for the oldest unanswered creation, even of a removed watch.
    rig.channel.unwatch(rig.now, w(2));
    cancelled(&mut rig, stream);
    deny(&mut rig, stream, "etcdserver: permission denied");
    assert_eq!(rig.all(), []);
    deny(&mut rig, stream, "etcdserver: permission denied");
    let outputs = rig.all();
    assert!(matches!(&outputs[..], [ChannelOutput::WatchRefused { watch, error }]
        if *watch == w(3) && error.class == ErrorClass::Refused));
    rig.receive_watch(stream, events(wire, alloc::vec![event(0, "x", 8)]));
    assert_eq!(rig.all(), [changed(1, false, "x", 8)]);
    // An unsolicited denial.
    deny(&mut rig, stream, "etcdserver: permission denied");
    assert_eq!(rig.all(), []);
}

#[test]
fn ended_stream_or_connection_unsubscribes_and_reopens_watch() {
    let (mut rig, conn, stream, _) = ChannelRig::watching(1);
    rig.end(stream, Code::Cancelled, "etcdserver: watch canceled");
    assert_eq!(rig.all(), [ChannelOutput::Unsubscribed { watch: w(1) }]);
    rig.until_due();
    let stream = rig.stream(StreamKind::Watch);
    created(&mut rig, stream, 6);
    rig.channel.handle_disconnected(rig.now, conn, Fault::Reset);
    assert_eq!(rig.all(), [ChannelOutput::Unsubscribed { watch: w(1) }]);
    rig.until_due();
    rig.connected();
    let stream = rig.stream(StreamKind::Watch);
    created(&mut rig, stream, 7);
    // Without a leader, try another member at once.
    // E9
    rig.end(stream, Code::Unavailable, "etcdserver: no leader");
    let outputs = rig.all();
    assert!(matches!(outputs[..], [ChannelOutput::Do(Output::Disconnect { .. }), ChannelOutput::Unsubscribed { .. }]));
}

#[test]
fn refused_stream_refuses_its_watches() {
    let (mut rig, _, stream, _) = ChannelRig::watching(1);
    rig.end(stream, Code::Unimplemented, "unknown service etcdserverpb.Watch");
    let outputs = rig.all();
    assert!(matches!(&outputs[..], [ChannelOutput::WatchRefused { watch, .. }] if *watch == w(1)));
    rig.pass(3600 * SECOND);
    assert_eq!((rig.all(), rig.channel.next_deadline()), (Vec::new(), None));
}

#[test]
fn malformed_watch_response_reopens_stream() {
    let no_kv = WatchEvent { kind: DELETED, kv: None, prev_kv: None };
    for broken in [
        |wire| events(wire, alloc::vec![event(0, "x", 0)]),
        |wire| events(wire, alloc::vec![event(2, "x", 8)]),
        |wire| events(wire + 1, alloc::vec![event(0, "x", 8)]),
        |wire| open(wire + 1, 0),
        |wire| open(wire + 1, -3),
        |wire| WatchResponse { header: None, ..open(wire + 1, 7) },
    ]
    .map(|make: fn(i64) -> WatchResponse| make)
    .into_iter()
    .map(Some)
    .chain([None])
    {
        let (mut rig, conn, stream, wire) = ChannelRig::watching(1);
        rig.watch(2);
        assert_eq!(creation(&mut rig, stream), wire + 1);
        rig.receive_watch(stream, broken.map_or_else(|| events(wire, alloc::vec![no_kv.clone()]), |make| make(wire)));
        let close = ChannelOutput::Do(Output::Close { stream });
        assert_eq!(rig.all(), [close, ChannelOutput::Unsubscribed { watch: w(1) }]);
        rig.until_due();
        let next = rig.stream(StreamKind::Watch);
        assert!(next != stream && next.conn() == conn);
        created(&mut rig, next, 9);
        created(&mut rig, next, 9);
    }
}

#[test]
fn silent_watch_stream_is_probed_and_then_disconnected() {
    // E9
    let (mut rig, conn, stream, wire) = ChannelRig::watching(2);
    for _ in 0..3 {
        rig.pass(10 * SECOND - MS);
        assert_eq!(rig.all(), []);
        rig.until_due();
        // A watch that is created and cancelled: the server answers that in any state.
        let probe = creation(&mut rig, stream);
        assert_eq!(cancelled(&mut rig, stream), probe);
        rig.pass(100 * MS);
        rig.receive_watch(stream, open(probe, 5));
        rig.receive_watch(stream, WatchResponse { watch_id: probe, canceled: true, ..WatchResponse::default() });
        assert_eq!(rig.all(), []);
    }
    // Any message postpones the probe.
    rig.pass(6 * SECOND);
    rig.receive_watch(stream, events(wire, alloc::vec![event(0, "x", 8)]));
    rig.notifications();
    rig.pass(6 * SECOND);
    assert_eq!(rig.all(), []);
    rig.pass(4 * SECOND);
    creation(&mut rig, stream);
    cancelled(&mut rig, stream);
    rig.pass(SECOND);
    assert_eq!(rig.all()[..2], [disconnect_for(conn, Fault::TimedOut), ChannelOutput::Unsubscribed { watch: w(1) }]);
    assert!(rig.channel.current().unwrap().node() != conn.node());
}

#[test]
fn watch_not_opened_in_time_closes_connection() {
    // E9
    let (mut rig, conn) = ChannelRig::up(2);
    rig.watch(1);
    let stream = rig.stream(StreamKind::Watch);
    creation(&mut rig, stream);
    rig.pass(SECOND);
    assert_eq!(rig.all()[0], disconnect_for(conn, Fault::TimedOut));
}

#[test]
fn stream_without_watches_stays_open_and_is_reused() {
    let (mut rig, _, stream, wire) = ChannelRig::watching(1);
    rig.channel.unwatch(rig.now, w(1));
    assert_eq!(cancelled(&mut rig, stream), wire);
    rig.pass(3600 * SECOND);
    assert_eq!((rig.all(), rig.channel.next_deadline()), (Vec::new(), None));
    rig.watch(2);
    created(&mut rig, stream, 9);
    assert_eq!(rig.all(), []);
}

/// A watch that lasted restarts its backoff, also if the stream ended and not the watch.
#[test]
fn long_lived_watch_resets_backoff() {
    // E5
    let mut rig = ChannelRig::new(1);
    rig.watch(1);
    rig.connected();
    let mut stream = rig.stream(StreamKind::Watch);
    let pause = |rig: &mut ChannelRig, stream| {
        let wire = created(rig, stream, 5);
        rig.receive_watch(stream, WatchResponse { watch_id: wire, canceled: true, ..WatchResponse::default() });
        assert_eq!(rig.notifications(), [ChannelOutput::Unsubscribed { watch: w(1) }]);
        rig.channel.next_deadline().unwrap().since(rig.now)
    };
    for _ in 0..4 {
        pause(&mut rig, stream);
        rig.until_due();
    }
    created(&mut rig, stream, 5);
    rig.pass(2 * SECOND);
    rig.end(stream, Code::Internal, "RST_STREAM");
    rig.notifications();
    rig.until_due();
    stream = rig.stream(StreamKind::Watch);
    let pause = pause(&mut rig, stream);
    assert!(pause <= 10 * MS, "{pause:?}");
}

#[test]
fn creation_with_unknown_id_opens_no_watch_and_reopens_stream() {
    // E5
    for id in [7, -1] {
        let mut rig = ChannelRig::new(1);
        rig.watch(1);
        rig.connected();
        let stream = rig.stream(StreamKind::Watch);
        creation(&mut rig, stream);
        rig.receive_watch(stream, open(id, 5));
        assert_eq!(rig.all(), [ChannelOutput::Do(Output::Close { stream })], "{id}");
    }
}

/// The id -1 means the oldest creation only with both `created` and `canceled`.
#[test]
fn response_with_unknown_id_opens_no_watch() {
    // E5
    let mut rig = ChannelRig::new(1);
    rig.watch(1);
    rig.connected();
    let stream = rig.stream(StreamKind::Watch);
    let wire = creation(&mut rig, stream);
    rig.receive_watch(
        stream,
        WatchResponse { header: HEADER, watch_id: -1, canceled: true, ..WatchResponse::default() },
    );
    assert_eq!(rig.all(), []);
    rig.receive_watch(stream, open(wire, 6));
    assert_eq!(rig.all(), [ChannelOutput::Watching { watch: w(1), revision: 6 }]);
}
