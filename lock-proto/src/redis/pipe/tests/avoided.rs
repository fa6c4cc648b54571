//! Requests at which the server, or a proxy before it, closes the connection, and why.
// P8

use super::*;

/// Connections end at this request. Returns the connection that is up without it.
fn closes_at(rig: &mut PipeRig, command: &str) -> ConnId {
    let mut conn = rig.opened();
    for _ in 0..2 {
        assert!(rig.commands(conn).contains(&command.into()), "it is asked twice");
        rig.pipe.handle_disconnected(rig.now, conn, Fault::ClosedEarly);
        rig.outputs();
        conn = rig.reopened();
        rig.pipe.handle_connected(rig.now, conn);
    }
    assert_eq!(rig.written(conn), b"", "{command} is asked again");
    conn
}

#[test]
fn name_and_client_id_are_left_out() {
    let mut rig = PipeRig::new("redis://h?client_name=app");
    closes_at(&mut rig, "CLIENT");
    assert!(rig.outputs().contains(&PipeOutput::Up(Hello::default())));
    let mut rig = PipeRig::with("redis://h", Role::Wake, false);
    closes_at(&mut rig, "CLIENT");
    assert!(rig.outputs().contains(&PipeOutput::Up(Hello::default())));
}

/// Regression: each connection ended at `INFO`, so no renewal ever arrived.
#[test]
fn server_info_is_refused_after_two_closed_connections_and_asked_later() {
    let mut rig = PipeRig::new("redis://h");
    let mut conn = rig.opened();
    for round in 0..3 {
        rig.outputs();
        rig.pipe.request_server_info(rig.now);
        if round == 2 {
            break;
        }
        assert_eq!(rig.commands(conn), ["INFO"]);
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
        rig.outputs();
        conn = rig.reopened();
        rig.pipe.handle_connected(rig.now, conn);
    }
    let [PipeOutput::Server(Err(error))] = &rig.outputs()[..] else { panic!("no refusal") };
    assert!(error.class == ErrorClass::Refused && error.text.contains("at INFO"), "{error:?}");
    assert_eq!(rig.written(conn), b"");
    rig.now = rig.now + Duration::from_secs(601);
    rig.pipe.request_server_info(rig.now);
    assert_eq!(rig.commands(conn), ["INFO"]);
}

/// A server may end at any request.
#[test]
fn request_that_was_answered_in_between_is_asked_again() {
    let mut rig = PipeRig::new("redis://h");
    let mut conn = rig.opened();
    for _ in 0..3 {
        rig.pipe.request_server_info(rig.now);
        assert_eq!(rig.commands(conn), ["INFO"]);
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
        rig.outputs();
        conn = rig.reopened();
        rig.pipe.handle_connected(rig.now, conn);
        rig.send(take("a"));
        rig.written(conn);
        rig.pipe.handle_disconnected(rig.now, conn, Fault::Reset);
        rig.outputs();
        conn = rig.reopened();
        rig.pipe.handle_connected(rig.now, conn);
    }
}

#[test]
fn what_a_connection_needs_is_always_asked() {
    // Q6
    for (mut rig, command) in [
        (PipeRig::with("redis://h", Role::Commands, true), "INFO"),
        (PipeRig::new("redis://h?protocol=resp3"), "HELLO"),
        (PipeRig::new("redis://:secret@h"), "AUTH"),
        (PipeRig::new("redis://h/3"), "SELECT"),
    ] {
        let mut conn = rig.opened();
        for _ in 0..4 {
            assert_eq!(rig.commands(conn), [command]);
            rig.pipe.handle_disconnected(rig.now, conn, Fault::Closed);
            rig.outputs();
            conn = rig.reopened();
            rig.pipe.handle_connected(rig.now, conn);
        }
    }
}

/// Regression: the connection counted as one that had worked and was lost, time after time.
#[test]
fn reply_of_server_that_is_full_is_the_cause_of_the_end() {
    let (mut rig, conn) = PipeRig::up();
    let (call, second) = (rig.send(take("a")), rig.send(take("b")));
    rig.written(conn);
    rig.receive(conn, b"-ERR max number of clients reached\r\n");
    let why = server("ERR max number of clients reached");
    let rejected = Reply::Rejected(ServerError::classify("ERR max number of clients reached"));
    let expected = [
        reply(call, rejected),
        PipeOutput::Disconnect(conn, Some(why.clone())),
        PipeOutput::Down(why.clone()),
        reply(second, Reply::Unknown(why)),
    ];
    assert_eq!(rig.outputs(), expected);
}
