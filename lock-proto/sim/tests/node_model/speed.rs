//! The cost of the simulated node: a world runs a million steps a second.

use core::time::Duration;
use std::time::Instant as Clock;

use lock_proto::Instant;
use lock_proto::redis::script;
use lock_sim::redis::{Node, NodeConfig};

use crate::server::encode;

fn request(args: &[&str]) -> Vec<u8> {
    encode(&args.iter().map(|arg| arg.as_bytes().to_vec()).collect::<Vec<_>>())
}

/// Take, renew and release by hash, with a fence and a marker, as clients send them.
fn cycle() -> Vec<(&'static str, Vec<u8>)> {
    let token = "00000000000000000000000000000001:7";
    let take = ["EVALSHA", script::TAKE.sha1, "2", "lock:a", "fence", token, "0 0 0", "10000", "64"];
    let extend = ["EVALSHA", script::EXTEND.sha1, "1", "lock:a", token, "20000"];
    let other = "00000000000000000000000000000002:7";
    let busy = ["EVALSHA", script::TAKE.sha1, "2", "lock:a", "fence", other, "0 0 0", "10000", "64"];
    let release = ["EVALSHA", script::RELEASE.sha1, "3", "lock:a", "marker", "signal", token];
    let set = ["SET", "lock:a", token, "NX", "PX", "10000"];
    vec![
        ("take", request(&take)),
        ("extend", request(&extend)),
        ("busy", request(&busy)),
        ("release", request(&release)),
        ("set nx", request(&set)),
        ("delete", request(&release)),
    ]
}

fn round_trip(node: &mut Node, now: Instant, bytes: &[u8]) {
    node.handle_received(now, 1, bytes);
    let len = node.outgoing(1).len();
    assert!(len > 0 && node.outgoing(1)[0] != b'-', "{}", String::from_utf8_lossy(node.outgoing(1)));
    node.consume(1, len);
    core::hint::black_box(node.next_deadline());
}

fn warm() -> Node {
    let mut node = Node::new(Instant::ZERO, NodeConfig::new(1));
    for conn in 1..=20 {
        node.handle_connected(Instant::ZERO, conn);
    }
    for key in 0..100 {
        node.insert(Instant::ZERO, format!("lock:{key}"), "held", Some(Duration::from_secs(1_000)));
    }
    for script in script::ALL {
        round_trip(&mut node, Instant::ZERO, &request(&["SCRIPT", "LOAD", script.source]));
    }
    node
}

#[test]
fn request_allocations_are_bounded() {
    let mut node = warm();
    let cycle = cycle();
    let mut counts = Vec::new();
    for round in 0..3 {
        counts.clear();
        for (name, bytes) in &cycle {
            let info = allocation_counter::measure(|| round_trip(&mut node, Instant::from_millis(round), bytes));
            counts.push((*name, info.count_total));
        }
    }
    println!("allocations: {counts:?}");
    let most = [("take", 14), ("extend", 4), ("busy", 6), ("release", 4), ("set nx", 7), ("delete", 4)];
    for ((name, count), (_, most)) in counts.iter().zip(most) {
        assert!(*count <= most, "{name} allocates {count} times, more than {most}");
    }
}

#[test]
#[ignore = "measures; run it alone and in release"]
fn requests_per_second() {
    let cycle = cycle();
    for _ in 0..3 {
        let mut node = warm();
        let start = Clock::now();
        let rounds = 100_000_u64;
        for round in 0..rounds {
            for (_, bytes) in &cycle {
                round_trip(&mut node, Instant::from_nanos(round * 1000), bytes);
            }
        }
        let each = start.elapsed() / u32::try_from(rounds * cycle.len() as u64).unwrap();
        println!("{each:?} a request");
    }
}
