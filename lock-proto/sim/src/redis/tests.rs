#![allow(clippy::unwrap_used, reason = "a test may panic")]
//! Tests of a single node. `tests/node_model.rs` compares it with a real server.

mod channels;
mod memory;
mod replication;

use super::*;
use alloc::string::ToString as _;

const START: Instant = Instant::from_millis(1_000);

fn at(ms: u64) -> Instant {
    START + Duration::from_millis(ms)
}

fn node(config: NodeConfig) -> Node {
    let mut node = Node::new(START, config);
    for conn in 1..=3 {
        node.handle_connected(START, conn);
    }
    node
}

/// Sends a line and returns the output of the same connection.
fn request(node: &mut Node, ms: u64, conn: u64, line: &str) -> String {
    node.handle_received(at(ms), conn, format!("{line}\r\n").as_bytes());
    output(node, conn)
}

fn output(node: &mut Node, conn: u64) -> String {
    let text = String::from_utf8_lossy(node.outgoing(conn)).into_owned();
    node.consume(conn, text.len());
    text
}

#[test]
fn key_lives_through_millisecond_of_expiry() {
    let mut node = node(NodeConfig::new(1));
    assert_eq!(request(&mut node, 0, 1, "SET k v PX 100"), "+OK\r\n");
    assert_eq!(request(&mut node, 100, 1, "PTTL k"), ":0\r\n");
    assert_eq!(request(&mut node, 101, 1, "GET k"), "$-1\r\n");
}

#[test]
fn expiry_follows_wall_clock() {
    let mut node = node(NodeConfig::new(1).drift_ppm(500_000));
    request(&mut node, 0, 1, "SET k v PX 150");
    assert!(node.exists(at(100), "k"));
    assert!(!node.exists(at(101), "k"), "the clock runs half as fast again");
    request(&mut node, 200, 1, "SET k v PX 10000");
    node.jump_forward(at(200), Duration::from_secs(11));
    assert!(!node.exists(at(200), "k"));
    assert_eq!(node.get(at(200), "k"), None);
}

#[test]
fn blocked_clients_are_served_in_order_and_removed_on_disconnect() {
    let mut node = node(NodeConfig::new(1));
    node.handle_connected(START, 4);
    for conn in 1..=3 {
        assert_eq!(request(&mut node, conn, conn, "BLPOP a b 0"), "");
    }
    assert_eq!(node.blocked_count(), 3);
    node.handle_disconnected(at(5), 1);
    assert_eq!(request(&mut node, 6, 4, "RPUSH b x y z"), ":3\r\n");
    assert_eq!(output(&mut node, 2), "*2\r\n$1\r\nb\r\n$1\r\nx\r\n");
    assert_eq!(output(&mut node, 3), "*2\r\n$1\r\nb\r\n$1\r\ny\r\n");
    assert_eq!(request(&mut node, 7, 4, "LLEN b"), ":1\r\n", "the element of the disconnected client remains");
}

#[test]
fn blocking_wait_times_out_and_next_command_runs() {
    let mut node = node(NodeConfig::new(1));
    node.handle_received(at(0), 1, b"BLPOP a 0.25\r\nPING\r\n");
    assert_eq!(output(&mut node, 1), "");
    let deadline = node.next_deadline().unwrap();
    assert_eq!(deadline, at(300), "the next tick after the timeout");
    node.handle_timeout(at(250));
    assert_eq!(output(&mut node, 1), "");
    node.handle_timeout(deadline);
    assert_eq!(output(&mut node, 1), "*-1\r\n+PONG\r\n");
    assert_eq!(node.next_deadline(), None);
}

/// An idle server looks every 100 ms.
#[test]
fn request_of_another_client_ends_wait_that_is_over() {
    let mut node = node(NodeConfig::new(1));
    node.handle_received(at(0), 1, b"BLPOP a 0.25\r\n");
    for (now, answer) in [(250, ""), (251, "*-1\r\n")] {
        request(&mut node, now, 2, "PING");
        assert_eq!(output(&mut node, 1), answer);
    }
}

#[test]
fn client_is_unblocked_by_another_client() {
    let mut node = node(NodeConfig::new(1));
    request(&mut node, 0, 1, "HELLO 3");
    assert_eq!(request(&mut node, 0, 1, "BLPOP a 0"), "");
    assert_eq!(request(&mut node, 1, 2, "CLIENT UNBLOCK 1"), ":1\r\n");
    assert_eq!(output(&mut node, 1), "_\r\n");
    assert_eq!(request(&mut node, 2, 1, "BLPOP a 0"), "");
    assert_eq!(request(&mut node, 3, 2, "CLIENT UNBLOCK 1 ERROR"), ":1\r\n");
    assert_eq!(output(&mut node, 1), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(request(&mut node, 4, 2, "CLIENT UNBLOCK 1"), ":0\r\n");
}

#[test]
fn restart_resets_process_state_and_optionally_data() {
    for keep in [true, false] {
        let mut node = node(NodeConfig::new(1).uptime(Duration::from_secs(3600)));
        let before = node.run_id().to_string();
        assert!(request(&mut node, 2_000, 1, "INFO server").contains("uptime_in_seconds:3602\r\n"));
        request(&mut node, 2_000, 1, "SET k v");
        node.restart(at(3_000), keep);
        let closed: Vec<u64> = core::iter::from_fn(|| node.poll_closed()).collect();
        assert_eq!(closed, [1, 2, 3]);
        assert_eq!(request(&mut node, 3_000, 1, "PING"), "", "a closed connection is not read");
        node.handle_connected(at(3_001), 9);
        assert_eq!(node.exists(at(3_001), "k"), keep);
        let info = request(&mut node, 5_500, 9, "INFO server");
        assert!(info.contains("uptime_in_seconds:2\r\n"), "{info}");
        assert_ne!(node.run_id(), before);
    }
}

#[test]
fn password_and_acl_rules_are_enforced() {
    let user = User::new("app").password("pw").except(["pexpire"]).keys(["lock:*"]);
    let mut node = node(NodeConfig::new(1).password("secret").user(user));
    assert_eq!(request(&mut node, 0, 1, "PING"), "-NOAUTH Authentication required.\r\n");
    assert!(request(&mut node, 0, 1, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(request(&mut node, 0, 1, "AUTH wrong").starts_with("-WRONGPASS"));
    assert_eq!(request(&mut node, 0, 1, "AUTH secret"), "+OK\r\n");
    assert_eq!(request(&mut node, 0, 1, "SET x 1"), "+OK\r\n");
    assert_eq!(request(&mut node, 0, 2, "AUTH app pw"), "+OK\r\n");
    assert!(
        request(&mut node, 0, 2, "GET x").starts_with("-NOPERM this user has no permissions to access one of the keys")
    );
    assert!(
        request(&mut node, 0, 2, "PEXPIRE lock:a 1")
            .starts_with("-NOPERM this user has no permissions to run the 'pexpire'")
    );
    assert_eq!(request(&mut node, 0, 2, "SET lock:a 1"), "+OK\r\n");
    assert!(!format!("{node:?}").contains("secret"), "no password in Debug");
}

#[test]
fn passwords_change_for_later_logins_only_and_old_logins_are_closed() {
    // S11
    let limit = Duration::from_secs(1);
    let mut node = node(NodeConfig::new(1).password("one").login_limit(Some(limit)));
    for conn in [1, 2] {
        assert_eq!(request(&mut node, 0, conn, "AUTH one"), "+OK\r\n");
    }
    node.set_password(at(0), "default", "two", true);
    assert_eq!(request(&mut node, 500, 2, "AUTH two"), "+OK\r\n");
    node.set_password(at(500), "default", "one", false);
    assert_eq!(request(&mut node, 501, 1, "PING"), "+PONG\r\n");
    assert!(request(&mut node, 501, 3, "AUTH one").starts_with("-WRONGPASS"));
    // One second after its last login a connection is closed.
    for (conn, ms) in [(1, 1_000), (2, 1_500)] {
        let due = node.next_deadline().unwrap();
        assert_eq!(due.since(START).as_millis(), ms);
        node.handle_timeout(due);
        assert_eq!((node.poll_closed(), node.poll_closed()), (Some(conn), None));
        node.handle_disconnected(due, conn);
    }
    assert_eq!(node.next_deadline(), None);
}

#[test]
fn conditions_refuse_commands_as_redis_does() {
    let mut node = node(NodeConfig::new(1));
    request(&mut node, 0, 1, "SET k v");
    for (condition, refused, allowed) in [
        (Condition::OutOfMemory, ("SET k w", "-OOM "), ("DEL none", ":0\r\n")),
        (Condition::ReadOnly, ("DEL k", "-READONLY "), ("GET k", "$1\r\nv\r\n")),
        (Condition::DiskError, ("PING", "-MISCONF "), ("GET k", "$1\r\nv\r\n")),
        (Condition::Loading, ("PING", "-LOADING "), ("ECHO x", "$1\r\nx\r\n")),
    ] {
        node.set(at(1), condition, true);
        assert!(request(&mut node, 1, 1, refused.0).starts_with(refused.1), "{condition:?}");
        assert_eq!(request(&mut node, 1, 1, allowed.0), allowed.1, "{condition:?}");
        node.set(at(1), condition, false);
    }
    assert_eq!(request(&mut node, 2, 1, "SET k w"), "+OK\r\n");
}

#[test]
fn demotion_unblocks_and_closes_blocked_clients() {
    let mut node = node(NodeConfig::new(1));
    request(&mut node, 0, 1, "BLPOP a 0");
    node.set(at(1), Condition::ReadOnly, true);
    assert!(output(&mut node, 1).starts_with("-UNBLOCKED force unblock"));
    assert_eq!(node.poll_closed(), Some(1));
}

#[test]
fn hostile_input_closes_only_its_connection() {
    let mut node = node(NodeConfig::new(1).limits(1_000, 10_000, 10_000));
    node.handle_received(at(0), 1, &b"*1\r\n".repeat(10_000));
    assert_eq!(node.poll_closed(), Some(1), "more than the input limit");
    node.handle_received(at(0), 2, b"*1\r\n*1\r\n");
    assert!(output(&mut node, 2).starts_with("-ERR Protocol error: expected '$'"));
    assert_eq!(node.poll_closed(), Some(2));
    let echo = format!("ECHO {}\r\n", "x".repeat(90));
    for _ in 0..100 {
        node.handle_received(at(0), 3, echo.as_bytes());
    }
    assert_eq!(node.poll_closed(), None, "9 700 unread bytes are within the limit");
    for _ in 0..10 {
        node.handle_received(at(0), 3, echo.as_bytes());
    }
    assert_eq!(node.poll_closed(), Some(3), "a client that does not read is disconnected");
    assert!(node.outgoing(3).is_empty());
}

#[test]
fn request_may_arrive_byte_by_byte() {
    let mut node = node(NodeConfig::new(1));
    for byte in b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" {
        node.handle_received(at(0), 1, &[*byte]);
    }
    assert_eq!(output(&mut node, 1), "+OK\r\n$1\r\nv\r\n");
    assert_eq!(node.calls().get("set"), Some(&1));
}

#[test]
fn direct_command_gets_reply_and_leaves_no_client() {
    let mut node = node(NodeConfig::new(1));
    assert_eq!(node.command(at(0), &[b"RPUSH", b"k", b"v"]), b":1\r\n");
    assert_eq!(node.command(at(0), &[b"TYPE", b"k"]), b"+list\r\n");
    node.set(at(0), Condition::ReadOnly, true);
    assert!(node.command(at(0), &[b"DEL", b"k"]).starts_with(b"-READONLY"));
    assert_eq!(node.poll_closed(), None);
}

#[test]
fn client_kill_closes_clients_and_spares_caller_by_default() {
    let mut node = node(NodeConfig::new(1));
    request(&mut node, 0, 1, "BLPOP a 0");
    assert_eq!(request(&mut node, 1, 3, "CLIENT KILL TYPE normal"), ":2\r\n");
    assert_eq!([node.poll_closed(), node.poll_closed(), node.poll_closed()], [Some(1), Some(2), None]);
    assert_eq!(node.blocked_count(), 0);
    assert_eq!(request(&mut node, 2, 3, "CLIENT KILL ID 3 SKIPME no"), ":1\r\n");
    assert_eq!(node.poll_closed(), Some(3));
}
