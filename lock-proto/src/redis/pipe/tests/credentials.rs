//! Credentials that the host supplies.

use super::*;
use crate::lock::Credentials;
use crate::url::Login;

const FILE: &str = "redis://app@h?password_file=/run/secret";

/// The request that the pipe makes next.
fn requested(rig: &mut PipeRig, conn: ConnId) -> CredentialsRequest {
    match rig.pipe.poll_output() {
        Some(PipeOutput::Credentials(id, request)) if id == conn => *request,
        other => panic!("no request: {other:?}"),
    }
}

fn supply(rig: &mut PipeRig, conn: ConnId, credentials: Option<Credentials>) {
    rig.pipe.handle_credentials(rig.now, conn, credentials);
}

fn auth(rig: &mut PipeRig, conn: ConnId) -> Vec<Vec<String>> {
    commands(&rig.written(conn))
}

/// An open connection whose password is valid for 10 s.
fn up() -> (PipeRig, ConnId) {
    let mut rig = PipeRig::new(FILE);
    let conn = rig.opened();
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("t1").valid_for(Duration::from_secs(10))));
    assert_eq!(auth(&mut rig, conn), [["AUTH", "app", "t1"]]);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [PipeOutput::Up(Hello::default())]);
    (rig, conn)
}

#[test]
fn credentials_are_requested_for_each_connection_and_nothing_leaves_before() {
    // N19
    for resp3 in [false, true] {
        let url = format!("{FILE}{}", if resp3 { "&protocol=resp3" } else { "" });
        let mut rig = PipeRig::new(&url);
        let call = rig.send(take("a"));
        for round in 0..2 {
            let conn = if round == 0 { rig.opened() } else { rig.reopened() };
            rig.pipe.handle_connected(rig.now, conn);
            let request = requested(&mut rig, conn);
            assert_eq!(request.login.password_file.as_deref(), Some("/run/secret"));
            assert_eq!((format!("{}", request.target).as_str(), request.rejected), ("h:6379", None));
            assert_eq!(auth(&mut rig, conn), Vec::<Vec<String>>::new());
            supply(&mut rig, conn, Some(Credentials::new("t1").username("other")));
            let login: &[&str] = if resp3 { &["HELLO", "3", "AUTH", "other", "t1"] } else { &["AUTH", "other", "t1"] };
            assert_eq!(auth(&mut rig, conn), [login]);
            rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
            let outputs = rig.outputs();
            if round == 0 {
                let not_sent = reply(call, Reply::NotSent(Fault::Closed.into()));
                assert_eq!(outputs, [PipeOutput::Down(Fault::Closed.into()), not_sent]);
            }
        }
    }
}

#[test]
fn missing_or_expired_credentials_end_attempt_with_cause_of_their_own() {
    // N19
    let none: fn(&mut PipeRig, ConnId) = |rig, conn| supply(rig, conn, None);
    let expired: fn(&mut PipeRig, ConnId) =
        |rig, conn| supply(rig, conn, Some(Credentials::new("old").valid_for(Duration::ZERO)));
    let late: fn(&mut PipeRig, ConnId) = |rig, _| rig.pass(Duration::from_secs(2));
    for answer in [none, expired, late] {
        let mut rig = PipeRig::new(FILE);
        let conn = rig.opened();
        requested(&mut rig, conn);
        answer(&mut rig, conn);
        let why = fault(Fault::NoCredentials);
        assert_eq!(rig.outputs(), [PipeOutput::Disconnect(conn, Some(why.clone())), PipeOutput::Down(why)]);
        assert_eq!(auth(&mut rig, conn), Vec::<Vec<String>>::new());
        // An answer that comes too late is dropped.
        supply(&mut rig, conn, Some(Credentials::new("late")));
        let next = rig.reopened();
        supply(&mut rig, conn, Some(Credentials::new("late")));
        assert_eq!((rig.outputs(), auth(&mut rig, next)), (vec![], vec![]));
    }
}

#[test]
fn login_that_expires_before_server_replies_ends_attempt() {
    // N19
    let mut rig = PipeRig::new(FILE);
    let conn = rig.opened();
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("t1").valid_for(50 * MS)));
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 50 * MS));
    rig.pass(50 * MS);
    assert_eq!(
        rig.outputs(),
        [PipeOutput::Disconnect(conn, Some(Fault::TimedOut.into())), PipeOutput::Down(Fault::TimedOut.into())]
    );
}

#[test]
fn open_connection_logs_in_again_after_four_fifths_of_validity() {
    // N19
    let (mut rig, conn) = up();
    rig.pass(Duration::from_millis(7_999));
    assert_eq!(rig.outputs(), []);
    rig.pass(MS);
    assert_eq!(requested(&mut rig, conn).rejected, None);
    // The source may be slow; requests leave meanwhile.
    let call = rig.send(extend("a"));
    assert_eq!(rig.commands(conn), ["EVAL"]);
    supply(&mut rig, conn, Some(Credentials::new("t2").valid_for(Duration::from_secs(20))));
    assert_eq!(auth(&mut rig, conn), [["AUTH", "app", "t2"]]);
    rig.receive(conn, b":1\r\n+OK\r\n");
    assert_eq!(rig.outputs(), [reply(call, Reply::Extended)]);
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + Duration::from_secs(16)));
    // A source without an answer is asked again.
    rig.pass(Duration::from_secs(16));
    requested(&mut rig, conn);
    rig.pass(Duration::from_secs(2));
    requested(&mut rig, conn);
    supply(&mut rig, conn, None);
    rig.pass(Duration::from_secs(1));
    requested(&mut rig, conn);
    assert!(rig.pipe.is_up());
}

#[test]
fn rejected_renewal_leaves_connection_open_and_next_request_says_so() {
    // N19
    let (mut rig, conn) = up();
    rig.pass(Duration::from_secs(8));
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("cached").valid_for(Duration::from_secs(1))));
    rig.written(conn);
    rig.receive(conn, b"-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    assert_eq!((rig.outputs(), rig.pipe.is_up()), (vec![], true));
    rig.pass(Duration::from_secs(1));
    let rejected = requested(&mut rig, conn).rejected.unwrap();
    assert!(rejected.text.starts_with("WRONGPASS"), "{rejected:?}");
    supply(&mut rig, conn, Some(Credentials::new("t2")));
    rig.written(conn);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.pipe.next_deadline(), None);
}

#[test]
fn rejected_login_is_part_of_next_request() {
    // N19
    let mut rig = PipeRig::new(FILE);
    let conn = rig.opened();
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("cached")));
    rig.written(conn);
    rig.receive(conn, b"-WRONGPASS invalid\r\n");
    // The password may have changed: what waits is not answered.
    let call = rig.send(extend("a"));
    let [PipeOutput::Disconnect(old, Some(_)), PipeOutput::Connect(conn)] = rig.outputs()[..] else {
        panic!("not at once")
    };
    assert_ne!(old, conn);
    rig.pipe.handle_connected(rig.now, conn);
    assert!(requested(&mut rig, conn).rejected.is_some());
    supply(&mut rig, conn, Some(Credentials::new("cached")));
    rig.written(conn);
    rig.receive(conn, b"-WRONGPASS invalid\r\n");
    // The host knows no other.
    let outputs = rig.outputs();
    assert!(matches!(&outputs[1], PipeOutput::Down(cause) if cause.is_refusal()), "{outputs:?}");
    assert!(matches!(&outputs[2], PipeOutput::Reply { call: answered, .. } if *answered == call), "{outputs:?}");
    let conn = rig.reopened();
    rig.pipe.handle_connected(rig.now, conn);
    assert!(requested(&mut rig, conn).rejected.is_some());
    supply(&mut rig, conn, Some(Credentials::new("fresh")));
    rig.written(conn);
    rig.receive(conn, b"+OK\r\n");
    rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
    rig.outputs();
    let conn = rig.reopened();
    rig.pipe.handle_connected(rig.now, conn);
    assert_eq!(requested(&mut rig, conn).rejected, None);
}

#[test]
fn login_of_settings_is_not_sent_if_host_supplies_it() {
    // N19
    let mut rig = PipeRig::new("redis://app:static@h");
    rig.pipe.state.config.request_credentials = true;
    let conn = rig.opened();
    assert_eq!(requested(&mut rig, conn).login, Login::new("app", "static"));
    assert_eq!(auth(&mut rig, conn), Vec::<Vec<String>>::new());
    supply(&mut rig, conn, Some(Credentials::new("token")));
    assert_eq!(auth(&mut rig, conn), [["AUTH", "app", "token"]]);
}

/// Regression: `redis-credentials` seed 0. Each reply to a login counted as use, so a client without
/// locks never closed its connection.
#[test]
fn new_logins_do_not_keep_idle_connection_in_use() {
    // N19, P7
    let (mut rig, conn) = up();
    rig.pipe.state.config.idle_checks = Some([Duration::from_secs(20); 2]);
    for login in ["t2", "t3"] {
        rig.pass(Duration::from_secs(8));
        requested(&mut rig, conn);
        supply(&mut rig, conn, Some(Credentials::new(login).valid_for(Duration::from_secs(10))));
        rig.written(conn);
        rig.receive(conn, b"+OK\r\n");
        assert_eq!(rig.outputs(), []);
    }
    rig.pass(Duration::from_secs(4));
    assert_eq!(rig.outputs(), [PipeOutput::Idle(Duration::from_secs(20))]);
}

#[test]
fn login_that_socket_does_not_take_before_it_expires_ends_connection() {
    // N19
    let (mut rig, conn) = up();
    rig.pass(Duration::from_secs(8));
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("t2").valid_for(100 * MS)));
    assert!(rig.pipe.outgoing(conn).ends_with(b"t2\r\n"));
    // The last byte is still here.
    let len = rig.pipe.outgoing(conn).len();
    rig.pipe.consume(conn, len - 1);
    rig.pass(100 * MS);
    let outputs = rig.outputs();
    assert!(outputs.contains(&PipeOutput::Disconnect(conn, Some(fault(Fault::TimedOut)))), "{outputs:?}");
    assert_eq!(rig.pipe.outgoing(conn), b"");
    // Once it has left, the reply may come later.
    let (mut rig, conn) = up();
    rig.pass(Duration::from_secs(8));
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("t2").valid_for(100 * MS)));
    rig.written(conn);
    rig.pass(100 * MS);
    assert!(rig.pipe.is_up());
}

/// Regression: only the expiry of the last login counted, and an earlier one left after its own.
#[test]
fn earlier_login_that_socket_does_not_take_ends_connection_when_it_expires() {
    // N19
    let (mut rig, conn) = up();
    rig.pass(Duration::from_secs(8));
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("t2").valid_for(200 * MS)));
    rig.pass(160 * MS);
    requested(&mut rig, conn);
    supply(&mut rig, conn, Some(Credentials::new("t3").valid_for(Duration::from_secs(10))));
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + 40 * MS));
    rig.pass(40 * MS);
    let outputs = rig.outputs();
    assert!(outputs.contains(&PipeOutput::Disconnect(conn, Some(fault(Fault::TimedOut)))), "{outputs:?}");
    assert_eq!(rig.pipe.outgoing(conn), b"");
}

/// Regression: the question counted as a login, which the socket had to take before the earlier
/// credentials expired.
#[test]
fn server_info_is_no_login_that_expires() {
    // N19
    let (mut rig, conn) = up();
    rig.pass(Duration::from_secs(8));
    requested(&mut rig, conn);
    supply(&mut rig, conn, None);
    rig.pass(Duration::from_secs(3));
    rig.outputs();
    rig.pipe.request_server_info(rig.now);
    assert!(rig.pipe.next_deadline() > Some(rig.now));
    rig.pass(Duration::ZERO);
    assert!(rig.pipe.is_up());
}
