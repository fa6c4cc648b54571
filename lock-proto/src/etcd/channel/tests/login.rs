//! Login and tokens.

use super::*;

fn rig(endpoints: u16) -> ChannelRig {
    ChannelRig::with(ChannelConfig { login: Login::new("app", "pw"), ..config(endpoints) })
}

fn token(text: &str) -> Result<RpcReply, Status> {
    Ok(RpcReply::Authenticate(AuthenticateResponse { header: None, token: text.into() }))
}

fn login(rig: &mut ChannelRig) -> RpcId {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Call { rpc, request: Rpc::Authenticate(who), token: None })) => {
            assert_eq!((&*who.name, &*who.password), ("app", "pw"));
            rpc
        }
        other => panic!("no login: {other:?}"),
    }
}

/// With an open watch and the token `t1`.
fn watching() -> (ChannelRig, StreamId) {
    let mut rig = rig(1);
    rig.channel.watch(rig.now, WatchId::new(1), "a".into(), Bytes::new(), false);
    rig.connected();
    let rpc = login(&mut rig);
    rig.answer(rpc, token("t1"));
    let stream = rig.stream(StreamKind::Watch);
    watch::created(&mut rig, stream, 5);
    (rig, stream)
}

fn call_with(rig: &mut ChannelRig, token: Option<&str>) -> RpcId {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Call { rpc, token: given, .. })) => {
            assert_eq!(given.as_ref().map(|given| given.expose()), token);
            rpc
        }
        other => panic!("no call: {other:?}"),
    }
}

#[test]
fn calls_wait_for_login_on_each_connection() {
    let mut rig = rig(2);
    rig.send(grant(1));
    let conn = rig.connected();
    let rpc = login(&mut rig);
    assert_eq!(rig.all(), []);
    rig.answer(rpc, token("t1"));
    call_with(&mut rig, Some("t1"));
    rig.channel.handle_disconnected(rig.now, conn, Fault::Closed);
    rig.notifications();
    rig.send(grant(2));
    rig.connected();
    let rpc = login(&mut rig);
    rig.answer(rpc, token("t2"));
    call_with(&mut rig, Some("t2"));
}

#[test]
fn cluster_without_users_needs_no_token() {
    let mut rig = rig(1);
    rig.send(grant(1));
    rig.connected();
    let rpc = login(&mut rig);
    rig.fail(rpc, Code::FailedPrecondition, "etcdserver: authentication is not enabled");
    call_with(&mut rig, None);
}

#[test]
fn expired_token_causes_one_login_and_requests_are_resent() {
    // E9
    for (code, words) in [
        (Code::Unauthenticated, "etcdserver: invalid auth token"),
        (Code::InvalidArgument, "etcdserver: user name is empty"),
        (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
    ] {
        let mut rig = rig(1);
        let (first, second) = (rig.send(grant(1)), rig.send(grant(2)));
        rig.connected();
        let rpc = login(&mut rig);
        rig.answer(rpc, token("old"));
        let (a, b) = (call_with(&mut rig, Some("old")), call_with(&mut rig, Some("old")));
        let third = rig.send(grant(3));
        rig.fail(b, code, words);
        rig.fail(a, code, words);
        // One login serves both calls, and the queued request waits for it too.
        let rpc = login(&mut rig);
        assert!(rpc != a && rpc != b, "no number is used twice");
        assert_eq!(rig.all(), []);
        rig.answer(rpc, token("new"));
        // In the original order.
        let again: Vec<RpcId> = (0..3).map(|_| call_with(&mut rig, Some("new"))).collect();
        for (n, rpc) in again.iter().enumerate() {
            rig.answer(*rpc, granted(n as u64 + 1));
        }
        assert_eq!(rig.all(), [first, second, third].map(|call| ChannelOutput::Reply { call, reply: LEASE }));
    }
}

/// An operator changes several users or roles, and each change makes the tokens from before
/// invalid.
#[test]
fn second_change_of_users_is_no_refusal() {
    // E9
    for (code, words) in [
        (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
        (Code::Unknown, "auth: revision in header is old"),
    ] {
        let mut rig = rig(1);
        let call = rig.send(grant(1));
        rig.connected();
        for n in 0..2 {
            let rpc = login(&mut rig);
            rig.answer(rpc, token("t"));
            let rpc = call_with(&mut rig, Some("t"));
            rig.fail(rpc, code, words);
            assert!(n == 1 || !rig.channel.is_up());
        }
        let outputs = rig.all();
        let [ChannelOutput::Reply { call: of, reply: reply @ Reply::Refused(_) }] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        assert!(*of == call && !reply.is_refusal(), "it may succeed later: {reply:?}");
    }
}

/// Regression: the keep-alive stream had been opened with an earlier token, and its end caused
/// another login.
#[test]
fn late_end_of_keep_alive_stream_causes_no_second_login() {
    // E9
    let mut rig = rig(1);
    rig.send(Request::KeepAlive { lease: lease(1), ttl: 10 * SECOND });
    rig.send(grant(1));
    rig.connected();
    let rpc = login(&mut rig);
    rig.answer(rpc, token("old"));
    let stream = rig.stream(StreamKind::KeepAlive);
    assert!(matches!(rig.channel.poll_output(), Some(ChannelOutput::Do(Output::Send { .. }))));
    let rpc = call_with(&mut rig, Some("old"));
    rig.fail(rpc, Code::Unauthenticated, "etcdserver: invalid auth token");
    let rpc = login(&mut rig);
    rig.answer(rpc, token("new"));
    call_with(&mut rig, Some("new"));
    rig.end(stream, Code::Unauthenticated, "etcdserver: invalid auth token");
    assert!(rig.channel.is_up());
}

#[test]
fn request_fails_after_token_is_rejected_twice() {
    let mut rig = rig(1);
    let call = rig.send(grant(1));
    rig.connected();
    for _ in 0..2 {
        let rpc = login(&mut rig);
        rig.answer(rpc, token("t"));
        let rpc = call_with(&mut rig, Some("t"));
        rig.fail(rpc, Code::Unauthenticated, "etcdserver: invalid auth token");
    }
    let outputs = rig.all();
    assert!(
        matches!(&outputs[..], [ChannelOutput::Reply { call: c, reply: Reply::Refused(Refusal::Error(error)) }]
            if *c == call && error.class == ErrorClass::Refused),
        "{outputs:?}"
    );
}

/// On a slow server or machine, the next token may expire as well before the request is executed.
#[test]
fn token_that_expires_twice_is_no_refusal() {
    // E9
    for (later, refused) in [(SECOND, false), (SECOND - Duration::from_millis(1), true)] {
        let config = ChannelConfig { login: Login::new("app", "pw"), request_timeout: 3 * SECOND, ..config(1) };
        let mut rig = ChannelRig::with(config);
        rig.send_for(grant(1), 3 * SECOND);
        rig.connected();
        for _ in 0..2 {
            let rpc = login(&mut rig);
            rig.answer(rpc, token("t"));
            let rpc = call_with(&mut rig, Some("t"));
            rig.pass(later);
            rig.fail(rpc, Code::Unauthenticated, "etcdserver: invalid auth token");
        }
        let outputs = rig.all();
        let [ChannelOutput::Reply { reply: reply @ Reply::Refused(_), .. }] = &outputs[..] else {
            panic!("{outputs:?}")
        };
        assert_eq!(reply.is_refusal(), refused, "{later:?}");
    }
}

#[test]
fn missing_token_error_is_refusal_without_configured_user() {
    // E9
    let (mut rig, _) = ChannelRig::up(1);
    rig.pass(10 * SECOND);
    rig.send(grant(2));
    let rpc = rig.call();
    rig.fail(rpc, Code::InvalidArgument, "etcdserver: user name is empty");
    let outputs = rig.all();
    assert!(matches!(&outputs[..], [ChannelOutput::Reply { reply: Reply::Refused(Refusal::Error(error)), .. }]
        if error.class == ErrorClass::Refused && &*error.text == "etcdserver: user name is empty (the cluster requires a login)"));
}

#[test]
fn wrong_password_fails_all_pending_and_next_request_retries() {
    let mut rig = rig(3);
    rig.send(grant(1));
    rig.send(Request::KeepAlive { lease: lease(1), ttl: 10 * SECOND });
    rig.channel.watch(rig.now, WatchId::new(7), "k".into(), Bytes::new(), false);
    let conn = rig.connected();
    let rpc = login(&mut rig);
    rig.fail(rpc, Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
    let outputs = rig.all();
    let refused = |reply: &Reply| matches!(reply, Reply::Refused(Refusal::Error(e)) if e.class == ErrorClass::Refused);
    assert!(
        matches!(&outputs[..], [
            ChannelOutput::Reply { reply: a, .. },
            ChannelOutput::Reply { reply: b, .. },
            ChannelOutput::WatchRefused { error, .. },
            last,
        ] if refused(a) && refused(b) && error.class == ErrorClass::Refused && is_failure(last, conn)),
        "{outputs:?}"
    );
    // Backs off, so that repeated requests cannot flood the cluster with logins.
    rig.send(grant(2));
    assert_eq!(rig.all(), []);
    rig.until_due();
    rig.connected();
    let rpc = login(&mut rig);
    rig.answer(rpc, token("t"));
    call_with(&mut rig, Some("t"));
}

#[test]
fn hung_or_failed_login_switches_endpoint() {
    let mut rig = rig(2);
    rig.send_for(grant(1), 60 * SECOND);
    let first = rig.connected();
    login(&mut rig);
    rig.pass(2 * SECOND);
    assert_eq!(rig.channel.poll_output(), Some(disconnect_for(first, Fault::TimedOut)));
    let second = rig.connected();
    let rpc = login(&mut rig);
    rig.fail(rpc, Code::Unavailable, "etcdserver: no leader");
    assert!(is_failure(&rig.channel.poll_output().unwrap(), second));
    rig.until_due();
    let third = rig.connected();
    assert_eq!(third.node(), first.node());
    let rpc = login(&mut rig);
    rig.answer(rpc, granted(1));
    assert!(is_failure(&rig.channel.poll_output().unwrap(), third), "nonsense");
    rig.until_due();
    let fourth = rig.connected();
    let rpc = login(&mut rig);
    rig.answer(rpc, token(""));
    assert!(is_failure(&rig.channel.poll_output().unwrap(), fourth), "no token");
    rig.until_due();
    let fifth = rig.connected();
    let rpc = login(&mut rig);
    rig.fail(rpc, Code::ResourceExhausted, "etcdserver: too many requests");
    assert!(matches!(&rig.all()[..], [last] if is_failure(last, fifth)), "busy: what waits goes on waiting");
}

/// Regression: a login that takes as long as other writes of a slow cluster never ended.
#[test]
fn slow_login_gets_more_time_on_next_connection() {
    // E13
    let mut rig = rig(1);
    rig.send_for(grant(1), 60 * SECOND);
    for takes in [2 * SECOND, 2 * SECOND] {
        let conn = rig.connected();
        login(&mut rig);
        rig.pass(takes);
        assert_eq!(rig.channel.poll_output(), Some(disconnect_for(conn, Fault::TimedOut)));
        rig.until_due();
    }
    rig.connected();
    let rpc = login(&mut rig);
    rig.pass(3 * SECOND);
    rig.answer(rpc, token("t"));
    call_with(&mut rig, Some("t"));
}

#[test]
fn denied_watch_is_retried_once_after_new_login() {
    // E9
    let (mut rig, stream) = watching();
    // The token expires, and the server denies a new watch in the words of early releases.
    rig.pass(9 * SECOND);
    rig.channel.watch(rig.now, WatchId::new(2), "b".into(), Bytes::new(), false);
    assert_eq!(watch::creation(&mut rig, stream), 1);
    watch::deny(&mut rig, stream, "etcdserver: permission denied");
    let close = ChannelOutput::Do(Output::Close { stream });
    assert_eq!(rig.notifications()[..2], [close, ChannelOutput::Unsubscribed { watch: WatchId::new(1) }]);
    let Phase::Handshake { handshake: FirstCall::LogIn { rpc, .. }, .. } = rig.channel.phase else {
        panic!("{:?}", rig.channel.phase)
    };
    rig.answer(rpc, token("t2"));
    rig.until_due();
    let stream = rig.stream(StreamKind::Watch);
    watch::created(&mut rig, stream, 6);
    // The denial after a new login is final, and leaves the other watch alone.
    watch::creation(&mut rig, stream);
    watch::deny(&mut rig, stream, "rpc error: code = PermissionDenied desc = etcdserver: permission denied");
    let outputs = rig.all();
    assert!(
        matches!(&outputs[..], [ChannelOutput::WatchRefused { watch, error }]
            if *watch == WatchId::new(2) && &*error.text == "etcdserver: permission denied"),
        "{outputs:?}"
    );
}

#[test]
fn late_rejection_of_old_token_causes_no_second_login() {
    // E9
    let mut rig = rig(1);
    let (first, second) = (rig.send(grant(1)), rig.send(grant(2)));
    rig.connected();
    let rpc = login(&mut rig);
    rig.answer(rpc, token("old"));
    let (a, b) = (call_with(&mut rig, Some("old")), call_with(&mut rig, Some("old")));
    rig.fail(a, Code::Unauthenticated, "etcdserver: invalid auth token");
    let rpc = login(&mut rig);
    rig.answer(rpc, token("new"));
    rig.fail(b, Code::Unauthenticated, "etcdserver: invalid auth token");
    let (a, b) = (call_with(&mut rig, Some("new")), call_with(&mut rig, Some("new")));
    rig.answer(a, granted(1));
    rig.answer(b, granted(2));
    assert_eq!(rig.all(), [first, second].map(|call| ChannelOutput::Reply { call, reply: LEASE }));
}

#[test]
fn expired_token_denial_of_reopened_watch_triggers_login() {
    // E9
    let (mut rig, stream) = watching();
    rig.end(stream, Code::Cancelled, "etcdserver: watch canceled");
    rig.notifications();
    rig.until_due();
    let stream = rig.stream(StreamKind::Watch);
    watch::creation(&mut rig, stream);
    watch::deny(&mut rig, stream, "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token");
    assert_eq!(rig.channel.poll_output(), Some(ChannelOutput::Do(Output::Close { stream })));
    let rpc = login(&mut rig);
    rig.answer(rpc, token("t2"));
    rig.until_due();
    let stream = rig.stream(StreamKind::Watch);
    watch::created(&mut rig, stream, 6);
}

/// As above, but the server ends the stream.
#[test]
fn stream_ended_for_expired_token_is_reopened_after_login() {
    // E9
    let (mut rig, stream) = watching();
    rig.end(stream, Code::Unauthenticated, "etcdserver: invalid auth token");
    assert_eq!(rig.channel.poll_output(), Some(ChannelOutput::Unsubscribed { watch: WatchId::new(1) }));
    let rpc = login(&mut rig);
    rig.answer(rpc, token("t2"));
    rig.until_due();
    let stream = rig.stream(StreamKind::Watch);
    watch::created(&mut rig, stream, 6);
}
