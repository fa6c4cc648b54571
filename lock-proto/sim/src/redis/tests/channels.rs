//! Subscribers receive messages until they unsubscribe.

use super::*;

#[test]
fn published_message_reaches_only_subscribers() {
    let mut node = node(NodeConfig::new(1));
    assert_eq!(request(&mut node, 0, 1, "SUBSCRIBE c"), "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    request(&mut node, 0, 2, "HELLO 3");
    assert_eq!(request(&mut node, 0, 2, "PSUBSCRIBE ?"), ">3\r\n$10\r\npsubscribe\r\n$1\r\n?\r\n:1\r\n");
    assert_eq!(request(&mut node, 1, 3, "PUBLISH c hi"), ":2\r\n");
    assert_eq!(output(&mut node, 1), "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n");
    assert_eq!(output(&mut node, 2), ">4\r\n$8\r\npmessage\r\n$1\r\n?\r\n$1\r\nc\r\n$2\r\nhi\r\n");
    assert!(request(&mut node, 2, 1, "GET k").starts_with("-ERR Can't execute 'get'"), "the old protocol cannot tell");
    assert_eq!(request(&mut node, 2, 2, "GET k"), "_\r\n", "the new one can");
    assert_eq!(request(&mut node, 3, 1, "UNSUBSCRIBE"), "*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n");
    assert_eq!(request(&mut node, 3, 1, "GET k"), "$-1\r\n");
    node.handle_disconnected(at(4), 2);
    assert_eq!(request(&mut node, 5, 3, "PUBLISH c hi"), ":0\r\n");
}

#[test]
fn user_without_channels_may_not_publish_or_subscribe() {
    let user = User::new("app").password("pw").channels([]);
    let mut node = node(NodeConfig::new(1).user(user));
    request(&mut node, 0, 1, "AUTH app pw");
    for line in ["SUBSCRIBE c", "PSUBSCRIBE *", "PUBLISH c hi"] {
        let refused = "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n";
        assert_eq!(request(&mut node, 0, 1, line), refused, "{line}");
    }
}
