//! Silent connections.

use super::*;

const CHECK: Duration = Duration::from_secs(60);

fn up() -> (PipeRig, ConnId) {
    let (mut rig, conn) = PipeRig::up();
    rig.pipe.state.config.idle_checks = Some([CHECK; 2]);
    (rig, conn)
}

#[test]
fn silence_is_reported_repeatedly_while_nothing_is_outstanding() {
    // P7
    let (mut rig, conn) = up();
    for round in 1..=3 {
        rig.pass(CHECK - MS);
        assert_eq!(rig.outputs(), []);
        rig.pass(MS);
        assert_eq!(rig.outputs(), [PipeOutput::Idle(round * CHECK)]);
    }
    let call = rig.send(extend("a"));
    rig.written(conn);
    rig.receive(conn, b":1\r\n");
    assert_eq!(rig.outputs(), [reply(call, Reply::Extended)]);
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + CHECK));
}

#[test]
fn ping_finds_dead_connection_and_any_reply_is_life() {
    // P7
    for answer in ["+PONG\r\n", "-NOPERM this user has no permissions to run the 'ping' command\r\n"] {
        let (mut rig, conn) = up();
        rig.pipe.ping(rig.now);
        assert_eq!(commands(&rig.written(conn)), [["PING"]]);
        rig.receive(conn, answer.as_bytes());
        assert_eq!((rig.outputs(), rig.pipe.is_up()), (vec![], true), "{answer}");
        assert_eq!(rig.pipe.next_deadline(), Some(rig.now + CHECK));
    }
    let (mut rig, conn) = up();
    rig.pipe.ping(rig.now);
    rig.written(conn);
    rig.pass(TIMEOUT);
    assert_eq!(
        rig.outputs(),
        [PipeOutput::Disconnect(conn, Some(Fault::TimedOut.into())), PipeOutput::Down(Fault::TimedOut.into())]
    );
    // Not while it is being opened again.
    rig.pipe.ping(rig.now);
    assert_eq!(rig.outputs(), []);
}

#[test]
fn failed_connection_that_nothing_needs_is_not_reopened() {
    // P7
    let (mut rig, conn) = up();
    rig.pipe.handle_disconnected(rig.now, conn, Fault::Reset);
    rig.outputs();
    rig.pipe.rest();
    rig.pass(CHECK);
    assert_eq!((rig.outputs(), rig.pipe.is_closed(), rig.pipe.next_deadline()), (vec![], true, None));
    rig.send(extend("a"));
    assert!(matches!(rig.outputs()[..], [PipeOutput::Connect(_)]));
    // Needed again during the pause.
    let (mut rig, conn) = up();
    rig.pipe.handle_disconnected(rig.now, conn, Fault::Reset);
    rig.pipe.rest();
    rig.send(extend("a"));
    rig.outputs();
    rig.pass(CHECK);
    assert!(matches!(rig.outputs()[..], [PipeOutput::Connect(_), ..]));
}
