//! Credentials that the host supplies.

use super::*;
use crate::lock::{Credentials, CredentialsRequest};

fn rig() -> ChannelRig {
    ChannelRig::with(ChannelConfig { login: Login::new("app", "static"), request_credentials: true, ..config(1) })
}

fn requested(rig: &mut ChannelRig, conn: ConnId) -> CredentialsRequest {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Credentials { conn: id, request })) if id == conn => *request,
        other => panic!("no request: {other:?}"),
    }
}

fn supply(rig: &mut ChannelRig, conn: ConnId, credentials: Option<Credentials>) {
    rig.channel.handle_credentials(rig.now, conn, credentials);
}

/// The login that leaves next, which must have this password.
fn login(rig: &mut ChannelRig, password: &str) -> RpcId {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Call { rpc, request: Rpc::Authenticate(who), token: None })) => {
            assert_eq!((&*who.name, &*who.password), ("app", password));
            rpc
        }
        other => panic!("no login: {other:?}"),
    }
}

fn token(text: &str) -> Result<RpcReply, Status> {
    Ok(RpcReply::Authenticate(AuthenticateResponse { header: None, token: text.into() }))
}

fn call_with(rig: &mut ChannelRig, token: &str) -> RpcId {
    match rig.channel.poll_output() {
        Some(ChannelOutput::Do(Output::Call { rpc, token: Some(given), .. })) if given.expose() == token => rpc,
        other => panic!("no call: {other:?}"),
    }
}

/// Logged in with a password that is valid for 10 s.
fn up() -> (ChannelRig, ConnId) {
    let mut rig = rig();
    rig.send(grant(1));
    let conn = rig.connected();
    requested(&mut rig, conn);
    assert_eq!(rig.all(), []);
    supply(&mut rig, conn, Some(Credentials::new("p1").valid_for(10 * SECOND)));
    let rpc = login(&mut rig, "p1");
    rig.answer(rpc, token("t1"));
    let rpc = call_with(&mut rig, "t1");
    rig.answer(rpc, granted(1));
    rig.notifications();
    (rig, conn)
}

fn pass(rig: &mut ChannelRig, time: Duration) {
    rig.now = rig.now + time;
    rig.channel.handle_timeout(rig.now);
}

#[test]
fn missing_credentials_end_attempt_with_cause_of_their_own() {
    // N19
    for answer in [None, Some(Credentials::new("old").valid_for(Duration::ZERO))] {
        let mut rig = rig();
        rig.send(grant(1));
        let conn = rig.connected();
        requested(&mut rig, conn);
        supply(&mut rig, conn, answer);
        assert!(rig.notifications().contains(&disconnect_for(conn, Fault::NoCredentials)));
        assert_eq!(rig.channel.state.last_error, Some(Fault::NoCredentials.into()));
    }
}

#[test]
fn source_without_answer_is_not_awaited_for_ever() {
    // N19
    let mut rig = rig();
    rig.send(grant(1));
    let conn = rig.connected();
    requested(&mut rig, conn);
    pass(&mut rig, 2 * SECOND);
    assert!(!rig.channel.is_up());
    assert_eq!(rig.channel.state.last_error, Some(Fault::NoCredentials.into()));
    supply(&mut rig, conn, Some(Credentials::new("late")));
    assert!(!rig.all().iter().any(|output| matches!(output, ChannelOutput::Do(Output::Call { .. }))));
}

#[test]
fn new_token_replaces_old_one_before_credentials_expire() {
    // N19
    let (mut rig, conn) = up();
    pass(&mut rig, 8 * SECOND);
    assert_eq!(requested(&mut rig, conn).rejected, None);
    rig.send(grant(2));
    let call = call_with(&mut rig, "t1");
    supply(&mut rig, conn, Some(Credentials::new("p2")));
    let rpc = login(&mut rig, "p2");
    rig.answer(call, granted(2));
    rig.answer(rpc, token("t2"));
    rig.notifications();
    rig.send(grant(3));
    call_with(&mut rig, "t2");
}

#[test]
fn rejected_renewal_leaves_old_token_in_use_and_next_request_says_so() {
    // N19
    let (mut rig, conn) = up();
    pass(&mut rig, 8 * SECOND);
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("cached")));
    let rpc = login(&mut rig, "cached");
    rig.fail(rpc, Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
    assert!(rig.channel.is_up());
    rig.send(grant(2));
    let rpc = call_with(&mut rig, "t1");
    rig.answer(rpc, granted(2));
    rig.notifications();
    pass(&mut rig, SECOND / 2);
    assert_eq!(rig.notifications(), []);
    pass(&mut rig, SECOND / 2);
    let outputs = rig.notifications();
    let rejected = |output: &ChannelOutput| matches!(output, ChannelOutput::Do(Output::Credentials { request, .. }) if request.rejected.is_some());
    assert!(outputs.iter().any(rejected), "{outputs:?}");
}

#[test]
fn expired_token_is_replaced_with_password_that_is_still_valid() {
    // N19
    for (age, asks) in [(SECOND, false), (11 * SECOND, true)] {
        let (mut rig, conn) = up();
        rig.now = rig.now + age;
        rig.send(grant(2));
        let rpc = call_with(&mut rig, "t1");
        rig.fail(rpc, Code::Unauthenticated, "etcdserver: invalid auth token");
        if asks {
            requested(&mut rig, conn);
            supply(&mut rig, conn, Some(Credentials::new("p2")));
        }
        let rpc = login(&mut rig, if asks { "p2" } else { "p1" });
        rig.answer(rpc, token("t2"));
        call_with(&mut rig, "t2");
    }
}

const WRONG: &str = "etcdserver: authentication failed, invalid user ID or password";

/// The reply to a call with a token that is no longer valid.
fn reject_token(rig: &mut ChannelRig, token: &str) {
    let rpc = call_with(rig, token);
    rig.fail(rpc, Code::Unauthenticated, "etcdserver: invalid auth token");
}

/// Regression: `etcd-credentials` seeds 14, 45, 60 and 76. A renewal was rejected, and when the
/// earlier token expired, the same password was sent again.
#[test]
fn rejected_password_is_not_sent_again_when_token_expires() {
    // N19
    let (mut rig, conn) = up();
    pass(&mut rig, 8 * SECOND);
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("cached")));
    let rpc = login(&mut rig, "cached");
    rig.fail(rpc, Code::InvalidArgument, WRONG);
    rig.send(grant(2));
    reject_token(&mut rig, "t1");
    assert!(requested(&mut rig, conn).rejected.is_some());
    supply(&mut rig, conn, Some(Credentials::new("p2")));
    let rpc = login(&mut rig, "p2");
    rig.answer(rpc, token("t2"));
    call_with(&mut rig, "t2");
}

/// The server rejects `p1`. The host is told of it, supplies `p2`, and the call is repeated.
#[track_caller]
fn replaced_password_is_requested(rig: &mut ChannelRig, conn: ConnId, call: CallId) {
    let rpc = login(rig, "p1");
    rig.fail(rpc, Code::InvalidArgument, WRONG);
    assert!(requested(rig, conn).rejected.is_some());
    supply(rig, conn, Some(Credentials::new("p2")));
    let rpc = login(rig, "p2");
    rig.answer(rpc, token("t2"));
    let rpc = call_with(rig, "t2");
    rig.answer(rpc, granted(2));
    assert_eq!(rig.notifications(), [ChannelOutput::Reply { call, reply: LEASE }]);
}

/// A change of the password makes the tokens of its user invalid on etcd.
#[test]
fn password_that_has_changed_is_requested_before_anything_is_refused() {
    // N19
    let (mut rig, conn) = up();
    let call = rig.send(grant(2));
    reject_token(&mut rig, "t1");
    replaced_password_is_requested(&mut rig, conn, call);
    // If the host does not know the new one, the refusal is final.
    let call = rig.send(grant(3));
    reject_token(&mut rig, "t2");
    let rpc = login(&mut rig, "p2");
    rig.fail(rpc, Code::InvalidArgument, WRONG);
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("p2")));
    let rpc = login(&mut rig, "p2");
    rig.fail(rpc, Code::InvalidArgument, WRONG);
    let outputs = rig.notifications();
    let refused = |output: &ChannelOutput| matches!(output, ChannelOutput::Reply { call: id, reply: Reply::Refused(_) } if *id == call);
    assert!(outputs.iter().any(refused), "{outputs:?}");
    assert!(!rig.channel.is_up());
}

/// Regression: `etcd-credentials` seed 257. A source that supplied its last password until the end
/// of its validity cost a connection each time, and with it a hold.
#[test]
fn reply_to_login_may_come_after_credentials_have_expired() {
    // N19
    let (mut rig, conn) = up();
    pass(&mut rig, 8 * SECOND);
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("p2").valid_for(Duration::from_millis(1))));
    let rpc = login(&mut rig, "p2");
    pass(&mut rig, Duration::from_millis(2));
    assert_eq!(rig.channel.current(), Some(conn));
    rig.answer(rpc, token("t2"));
    assert!(rig.channel.is_up());
}

/// The password is changed on the server, and the source returns the former one from a cache until
/// it is told of a rejection. The token fails after the end of its validity, or with its
/// connection.
#[test]
fn cached_password_is_requested_again_before_anything_is_refused() {
    // N19
    for breaks in [false, true] {
        let (mut rig, mut conn) = up();
        rig.now = rig.now + 11 * SECOND;
        let call = if breaks {
            rig.channel.handle_disconnected(rig.now, conn, Fault::Closed);
            rig.notifications();
            let call = rig.send(grant(2));
            rig.until_due();
            conn = rig.connected();
            call
        } else {
            let call = rig.send(grant(2));
            reject_token(&mut rig, "t1");
            call
        };
        assert_eq!(requested(&mut rig, conn).rejected, None);
        supply(&mut rig, conn, Some(Credentials::new("p1")));
        replaced_password_is_requested(&mut rig, conn, call);
    }
}

/// The password changes while the login with the one before is under way: neither it nor the token
/// of the open connection is valid any longer. The call, sent with that token, waits for the login
/// that follows.
#[test]
fn call_of_former_user_waits_for_login_that_works() {
    // N19
    let (mut rig, conn) = up();
    pass(&mut rig, 8 * SECOND);
    requested(&mut rig, conn);
    let call = rig.send(grant(2));
    let sent = call_with(&mut rig, "t1");
    supply(&mut rig, conn, Some(Credentials::new("p1")));
    let rpc = login(&mut rig, "p1");
    rig.fail(sent, Code::Unauthenticated, "etcdserver: invalid auth token");
    rig.fail(rpc, Code::InvalidArgument, WRONG);
    assert!(requested(&mut rig, conn).rejected.is_some());
    supply(&mut rig, conn, Some(Credentials::new("p2")));
    let rpc = login(&mut rig, "p2");
    rig.answer(rpc, token("t2"));
    let rpc = call_with(&mut rig, "t2");
    rig.answer(rpc, granted(2));
    assert_eq!(rig.notifications(), [ChannelOutput::Reply { call, reply: LEASE }]);
}
