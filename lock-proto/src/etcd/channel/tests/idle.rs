//! A connection that nothing needs.

use super::*;

fn pass(rig: &mut ChannelRig, time: Duration) {
    rig.now = rig.now + time;
    rig.channel.handle_timeout(rig.now);
}

#[test]
fn idle_connection_is_closed_and_opened_again_when_needed() {
    // P7
    let (mut rig, conn) = ChannelRig::up_with(ChannelConfig { idle_timeout: Some(300 * SECOND), ..config(1) });
    rig.notifications();
    rig.send(grant(1));
    let rpc = rig.call();
    rig.answer(rpc, granted(1));
    rig.notifications();
    pass(&mut rig, 299 * SECOND);
    assert_eq!(rig.all(), []);
    pass(&mut rig, SECOND);
    assert_eq!(rig.all(), [disconnect(conn)]);
    assert_eq!(rig.channel.next_deadline(), None);
    rig.send(grant(2));
    assert_ne!(rig.connected(), conn);
}

#[test]
fn watch_keeps_connection_open() {
    // P7
    let (mut rig, _, stream, _) = ChannelRig::watching(1);
    rig.channel.state.config.idle_timeout = Some(300 * SECOND);
    for _ in 0..60 {
        pass(&mut rig, 9 * SECOND);
        let header = Some(ResponseHeader { member_id: 1, revision: 9 });
        rig.receive_watch(stream, WatchResponse { header, watch_id: -1, ..Default::default() });
    }
    assert!(rig.channel.is_up());
}
