//! The failure catalogue: mistakes of other lock clients, each played through in a simulated world.
//!
//! `docs/failures.md` lists the cases. Their ids (A1, C3, …) are in the names of the tests; they
//! are not requirements of `docs/spec`. Cases of the async handles are in
//! `src/driver/tests/catalogue.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod acquire;
mod cancel;
mod clock;
mod loss;
mod many_names;
mod misuse;
mod quorum;
mod release;
mod renew;
mod server;
mod wake;

use core::time::Duration;

use lock_proto::{Acquire, Blocked, Event, Failure, LockId, Loss, Release};
use lock_sim::World;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[track_caller]
fn hold(w: &mut World, client: usize, want: Acquire) -> LockId {
    let lock = w.acquire(client, want);
    w.expect(secs(1), "it is held", |w| w.is_held(client, lock));
    lock
}

/// Opens a client's connections and loads its scripts.
#[track_caller]
fn warm(w: &mut World, client: usize) {
    let lock = hold(w, client, Acquire::new("warm-up"));
    let _ = release_and_wait(w, client, lock);
    w.run_for(ms(5));
}

#[track_caller]
fn release_and_wait(w: &mut World, client: usize, lock: LockId) -> Release {
    w.release(client, lock);
    w.expect(secs(3), "the release is answered", |w| w.is_over(client, lock));
    released(w, client, lock).unwrap()
}

fn lost(w: &World, client: usize, lock: LockId) -> Option<Loss> {
    w.events(client, lock).iter().find_map(|event| if let Event::Lost(loss) = event { Some(*loss) } else { None })
}

fn released(w: &World, client: usize, lock: LockId) -> Option<Release> {
    w.events(client, lock).iter().find_map(|event| if let Event::Released(how) = event { Some(*how) } else { None })
}

fn failure(w: &World, client: usize, lock: LockId) -> Option<&Failure> {
    w.events(client, lock).iter().find_map(|event| if let Event::Failed(why) = event { Some(why) } else { None })
}

fn was_blocked(w: &World, client: usize, lock: LockId, by: Blocked) -> bool {
    w.events(client, lock).contains(&Event::Blocked(by))
}

fn was_renewed(w: &World, client: usize, lock: LockId) -> bool {
    w.events(client, lock).iter().any(|event| matches!(event, Event::Renewed { .. }))
}

fn token(w: &World, client: usize, lock: LockId) -> Vec<u8> {
    w.grant(client, lock).unwrap().token.to_string().into_bytes()
}

/// Returns how many of a client's requests of this kind (`take`, `extend`, `release`) for lock
/// `name` reached a server, including rejected ones.
fn requests(w: &World, client: usize, kind: &str, name: &str) -> usize {
    w.log().lines().filter(|line| is_request(line, client, kind, name)).count()
}

/// Returns whether a log line shows such a request. A take may be a plain `SET`.
fn is_request(line: &str, client: usize, kind: &str, name: &str) -> bool {
    // A batch of requests is a different script.
    let (script, others) = (format!("<{kind}>"), format!("<{kind}-"));
    let mut words = line.split(' ').skip_while(|word| *word != script && !word.starts_with(&others));
    let keys = words.nth(1).and_then(|keys| keys.parse().ok()).unwrap_or(0);
    let plain = kind == "take" && line.contains(&format!(": SET {name} ")) && line.contains(" NX ");
    line.contains(&format!(" from c{client}/")) && (plain || words.take(keys).any(|key| key == name))
}

fn command(w: &mut World, node: usize, args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    for arg in args {
        bytes.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    w.on_node(node, "another program", |node, now| {
        let conn = u64::MAX;
        node.handle_connected(now, conn);
        node.handle_received(now, conn, bytes.as_bytes());
        let answer = node.outgoing(conn).to_vec();
        node.handle_disconnected(now, conn);
        answer
    })
}

/// Checks that no lock is left and that only the fence counter has no TTL.
#[track_caller]
fn assert_clean(w: &World) {
    let log = w.log();
    for node in 0.. {
        if !log.contains(&format!(" n{node} from ")) {
            break;
        }
        for key in w.keys(node) {
            assert!(key.contains("lock-proto:"), "the lock {key} stays on node {node}\n{log}");
            let expires = w.node(node).pttl(w.now(), &key).is_some();
            assert!(expires || key == "lock-proto:fence", "{key} stays on node {node} for ever\n{log}");
        }
    }
}

/// Checks that the key `a` does not appear on any of these nodes during this time.
#[track_caller]
fn assert_never_back(w: &mut World, nodes: usize, time: Duration) {
    let back = w.run_until(time, |w| (0..nodes).any(|node| w.get(node, "a").is_some()));
    assert!(!back, "the key came back\n{}", w.log());
}
