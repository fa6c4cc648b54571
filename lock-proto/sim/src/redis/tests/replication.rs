//! Primaries, replicas, and the data lost by a promotion.

use super::*;
use lock_proto::redis::script;

const TOKEN: &str = "0123456789abcdef0123456789abcdef:1";

fn pair(primary: NodeConfig, replica: NodeConfig) -> (Node, Node) {
    let (mut primary, mut replica) = (node(primary), node(replica));
    replica.replicate(START, &primary.snapshot(START));
    (primary, replica)
}

fn eval(script: &script::Script, rest: &str) -> String {
    format!("EVAL {:?} {rest}", script.source)
}

fn take(key: &str) -> String {
    eval(&script::TAKE, &format!("2 {key} fence {TOKEN} \"0 0 0\" 1000 64"))
}

fn words(effect: &Effect) -> Vec<String> {
    let line = |words: Vec<&[u8]>| String::from_utf8_lossy(&words.join(&b' ')).into_owned();
    effect.commands().map(line).collect()
}

#[test]
fn promoted_replica_lacks_unreplicated_writes() {
    let (mut primary, mut replica) = pair(NodeConfig::new(1), NodeConfig::new(2));
    assert!(request(&mut primary, 0, 1, &take("a")).starts_with("*4\r\n:1\r\n"));
    replica.handle_effect(at(0), &primary.poll_effect().unwrap());
    assert!(request(&mut primary, 1, 1, &take("b")).starts_with("*4\r\n:1\r\n"));
    let late = primary.poll_effect().unwrap();
    let (run_id, history) = (replica.run_id().to_string(), primary.replication_id().to_string());
    replica.promote(at(2));
    assert_eq!(
        replica.pttl(at(100), "a"),
        Some(Duration::from_millis(900)),
        "the time at which it ends was replicated"
    );
    assert!(replica.exists(at(2), "fence") && !replica.exists(at(2), "b"), "the second lock is lost");
    assert_eq!(replica.run_id(), run_id, "the process is the same");
    assert_ne!(replica.replication_id(), history);
    replica.handle_effect(at(3), &late);
    assert!(!replica.exists(at(3), "b"), "a primary takes nothing from another");
    let by_hash = format!("EVALSHA {} 1 a {TOKEN} 5000", script::EXTEND.sha1);
    request(&mut primary, 3, 1, &eval(&script::EXTEND, &format!("1 a {TOKEN} 5000")));
    assert!(request(&mut replica, 3, 1, &by_hash).starts_with("-NOSCRIPT"), "scripts are not replicated");
    assert_eq!(request(&mut replica, 4, 1, "SET b other NX"), "+OK\r\n", "two holders");
}

#[test]
fn script_is_replicated_as_atomic_effects() {
    let (mut primary, _) = pair(NodeConfig::new(1).unix_time(Duration::from_secs(1)), NodeConfig::new(2));
    request(&mut primary, 0, 1, &take("a"));
    let effect = primary.poll_effect().unwrap();
    let taken = format!("SET a {TOKEN} PXAT 2000");
    assert_eq!(words(&effect), ["MULTI", "SELECT 0", "SET fence 1000000", &taken, "EXEC"]);
    request(&mut primary, 1, 1, &eval(&script::EXTEND, &format!("1 a {TOKEN} 5000")));
    assert_eq!(words(&primary.poll_effect().unwrap()), ["PEXPIREAT a 6001"]);
    request(&mut primary, 2, 1, &eval(&script::EXTEND, &format!("1 a {TOKEN} 10")));
    assert_eq!(primary.poll_effect(), None, "it changed nothing");
    assert_eq!(format!("{effect:?}").matches('[').count(), 5);
}

#[test]
fn old_effects_are_ignored_and_gap_needs_new_copy() {
    let (mut primary, mut replica) = pair(NodeConfig::new(1), NodeConfig::new(2));
    let mut effects = Vec::new();
    for line in ["RPUSH l a", "RPUSH l b", "RPUSH l c", "RPUSH l d"] {
        request(&mut primary, 0, 1, line);
        effects.push(primary.poll_effect().unwrap());
    }
    for effect in [&effects[0], &effects[1], &effects[0], &effects[1]] {
        replica.handle_effect(at(1), effect);
    }
    assert_eq!(request(&mut replica, 1, 1, "LLEN l"), ":2\r\n");
    replica.handle_effect(at(2), &effects[3]);
    assert!(replica.needs_copy());
    assert!(request(&mut replica, 2, 1, "INFO replication").contains("master_link_status:down"));
    replica.handle_effect(at(2), &effects[2]);
    assert_eq!(request(&mut replica, 3, 1, "LLEN l"), ":2\r\n", "nothing is taken before a new copy");
    replica.replicate(at(3), &primary.snapshot(at(3)));
    assert!(!replica.needs_copy());
    assert_eq!(request(&mut replica, 3, 1, "LLEN l"), ":4\r\n");
    // An effect of another primary is a gap too.
    let (mut other, _) = pair(NodeConfig::new(3), NodeConfig::new(4));
    other.insert(at(4), "k", "v", None);
    replica.handle_effect(at(4), &other.poll_effect().unwrap());
    assert!(replica.needs_copy() && !replica.exists(at(4), "k"));
}

#[test]
fn replica_hides_expired_key_until_primary_removes_it() {
    let slow = NodeConfig::new(2).drift_ppm(-500_000);
    let (mut primary, mut replica) = pair(NodeConfig::new(1), slow);
    request(&mut primary, 0, 1, "SET k v PX 100");
    replica.handle_effect(at(0), &primary.poll_effect().unwrap());
    let deadline = primary.next_deadline().unwrap();
    assert_eq!(deadline, at(101));
    assert!(replica.exists(at(101), "k"), "its clock runs at half the pace");
    assert_eq!(replica.next_deadline(), None, "it ends nothing by itself");
    let mut early = replica.clone();
    primary.handle_timeout(deadline);
    let effect = primary.poll_effect().unwrap();
    assert_eq!(words(&effect), ["DEL k"]);
    assert_eq!(primary.next_deadline(), None);
    replica.handle_effect(at(102), &effect);
    assert!(!replica.exists(at(102), "k"));
    // Without that effect it hides the key once it has expired, and removes it after promotion.
    assert_eq!(request(&mut early, 300, 1, "GET k"), "$-1\r\n");
    assert_eq!(request(&mut early, 300, 1, "DBSIZE"), ":1\r\n");
    early.promote(at(300));
    assert_eq!(request(&mut early, 301, 1, "EXISTS k"), ":0\r\n");
    assert_eq!(request(&mut early, 301, 1, "SET k w NX"), "+OK\r\n");
}

#[test]
fn replica_chain_replicates_and_old_primary_rejoins() {
    let (mut primary, mut middle) = pair(NodeConfig::new(1), NodeConfig::new(2));
    request(&mut primary, 0, 1, "SELECT 3");
    request(&mut primary, 0, 1, "SET before x");
    middle.handle_effect(at(0), &primary.poll_effect().unwrap());
    let mut last = node(NodeConfig::new(3));
    last.replicate(at(1), &middle.snapshot(at(1)));
    request(&mut primary, 2, 1, "SET after x");
    middle.handle_effect(at(2), &primary.poll_effect().unwrap());
    last.handle_effect(at(2), &middle.poll_effect().unwrap());
    request(&mut last, 3, 1, "SELECT 3");
    assert_eq!(request(&mut last, 3, 1, "EXISTS before after"), ":2\r\n");
    request(&mut middle, 3, 1, "PUBLISH c said-to-a-replica");
    middle.insert(at(3), "written-to-a-replica", "x", None);
    assert_eq!(middle.poll_effect(), None, "it hands on what its primary sends, and nothing else");
    assert_eq!(last.replication_offset(), primary.replication_offset());
    middle.promote(at(4));
    middle.insert(at(4), "new", "x", Some(Duration::from_secs(1)));
    request(&mut primary, 5, 2, "BLPOP nothing 0");
    primary.replicate(at(5), &middle.snapshot(at(5)));
    assert!(output(&mut primary, 2).starts_with("-UNBLOCKED"));
    assert!(request(&mut primary, 6, 3, "SET k v").starts_with("-READONLY"));
    assert_eq!(request(&mut primary, 6, 3, "GET new"), "$1\r\nx\r\n");
    assert!(request(&mut primary, 6, 3, "HELLO").contains("replica"));
}

#[test]
fn restarted_replica_resumes_only_with_its_data() {
    for keep in [true, false] {
        let (mut primary, mut replica) = pair(NodeConfig::new(1), NodeConfig::new(2));
        request(&mut primary, 0, 1, "SET a x");
        replica.handle_effect(at(0), &primary.poll_effect().unwrap());
        replica.restart(at(1), keep);
        assert!(replica.is_replica());
        request(&mut primary, 2, 1, "SET b x");
        replica.handle_effect(at(2), &primary.poll_effect().unwrap());
        assert_eq!((replica.exists(at(2), "a"), replica.exists(at(2), "b")), (keep, keep));
        assert_eq!(replica.needs_copy(), !keep);
        // A restarted primary starts another history.
        primary.restart(at(3), keep);
        primary.snapshot(at(3));
        primary.insert(at(3), "c", "x", None);
        replica.handle_effect(at(3), &primary.poll_effect().unwrap());
        assert!(replica.needs_copy());
    }
}

#[test]
fn wait_is_answered_once_replicas_acknowledge() {
    let (mut primary, mut replica) = pair(NodeConfig::new(1).min_replicas(1), NodeConfig::new(2));
    assert_eq!(request(&mut primary, 0, 1, "SET k v"), "-NOREPLICAS Not enough good replicas to write.\r\n");
    primary.handle_ack(at(1), 7, replica.replication_offset());
    assert_eq!(request(&mut primary, 2, 1, "SET k v"), "+OK\r\n");
    assert_eq!(request(&mut primary, 2, 1, "WAIT 1 0"), "");
    primary.handle_ack(at(3), 7, replica.replication_offset());
    assert_eq!(output(&mut primary, 1), "", "it has not got so far");
    while let Some(effect) = primary.poll_effect() {
        replica.handle_effect(at(4), &effect);
    }
    primary.handle_ack(at(4), 7, replica.replication_offset());
    assert_eq!(output(&mut primary, 1), ":1\r\n");
    assert_eq!(request(&mut primary, 5, 1, "WAIT 2 100"), "");
    let deadline = primary.next_deadline().unwrap();
    primary.handle_timeout(deadline);
    assert_eq!(output(&mut primary, 1), ":1\r\n", "one of two in time");
    assert!(request(&mut primary, 11_000, 1, "SET k v").starts_with("-NOREPLICAS"), "it was silent for too long");
    primary.handle_replica_lost(at(11_000), 7);
    assert!(request(&mut primary, 11_000, 1, "INFO replication").contains("connected_slaves:0"));
}

#[test]
fn replica_without_link_refuses_stale_reads_if_configured() {
    let (mut primary, mut replica) = pair(NodeConfig::new(1), NodeConfig::new(2).serve_stale_data(false));
    assert_eq!(request(&mut replica, 0, 1, "GET k"), "$-1\r\n");
    replica.handle_link_lost(at(1));
    assert!(request(&mut replica, 1, 1, "GET k").starts_with("-MASTERDOWN"));
    request(&mut primary, 2, 1, "SET k v");
    replica.handle_effect(at(2), &primary.poll_effect().unwrap());
    assert_eq!(request(&mut replica, 2, 1, "GET k"), "$1\r\nv\r\n");
}
