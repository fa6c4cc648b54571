//! The steps of docs/test-your-own-lock.md.

use std::fs;
use std::time::Duration;

use lock_proto::Acquire;
use lock_sim::own::search::SmallWorld;
use lock_sim::own::{etcd, find};
use lock_sim::picture::Picture;
use lock_sim::{Rule, World};
use own_lock::compared::Compared;
use own_lock::leased::Leased;
use own_lock::naive::Naive;
use own_lock::redlock::RedLock;

#[test]
fn repaired_lock_survives() {
    for scenario in ["redis-pauses", "redis-partitions", "redis-drift", "redis-everything"] {
        let found = find(&Compared, scenario, 0..100, Rule::MutualExclusion);
        assert!(found.is_none(), "{}", found.unwrap());
    }
}

#[test]
fn search_tries_everything() {
    let naive = SmallWorld::new(Naive).ttl(Duration::from_millis(40)).acquires(2).search(16);
    println!("{}", naive.counterexample.expect("a bug"));

    let repaired = SmallWorld::new(Compared).ttl(Duration::from_millis(40)).acquires(2).pauses(1);
    let outcome = repaired.search(14);
    println!("{outcome}");
    assert!(outcome.counterexample.is_none());
}

#[test]
fn quorum_forgets_without_quarantine() {
    let world = SmallWorld::new(RedLock::default()).nodes(3).restarts(1);
    let found = world.search(12).counterexample.expect("a bug");
    println!("{found}");

    let found = find(&RedLock::default(), "redis-data-loss", 0..100, Rule::MutualExclusion);
    assert!(found.is_some());
    for scenario in ["redis-data-loss", "redis-quorum"] {
        let found = find(&RedLock::with_quarantine(), scenario, 0..40, Rule::MutualExclusion);
        assert!(found.is_none(), "{}", found.unwrap());
    }
}

#[test]
fn lease_is_older_than_its_key() {
    let trusting = Leased { counts_from_lease: false, lease: None };
    let found = etcd::find(&trusting, "etcd-pauses", 0..100, Rule::MutualExclusion).expect("a bug");
    println!("{found}");
    fs::write("leased.html", found.picture()).expect("a picture");

    let repaired = Leased { counts_from_lease: true, lease: None };
    for scenario in ["etcd-contention", "etcd-pauses", "etcd-leaders", "etcd-expiry", "etcd-everything"] {
        let found = etcd::find(&repaired, scenario, 0..100, Rule::MutualExclusion);
        assert!(found.is_none(), "{}", found.unwrap());
    }
    let outcome = SmallWorld::on_etcd(trusting).ttl(Duration::from_secs(2)).acquires(2).search(22);
    println!("{}", outcome.counterexample.expect("a bug"));
}

#[test]
fn story_by_hand() {
    let mut w = World::redis(1).clients(2).traced(true).own_lock(Compared).build();
    let second = Duration::from_secs(1);
    let first = w.acquire(0, Acquire::new("stock").ttl(2 * second));
    w.expect(second, "the first holds", |w| w.is_held(0, first));
    w.pause_client(0);
    let next = w.acquire(1, Acquire::new("stock").ttl(2 * second));
    w.expect(3 * second, "the second holds", |w| w.is_held(1, next));
    w.resume_client(0);
    w.release(0, first);
    w.run_for(second);
    assert!(w.is_held(1, next));
    let log = w.log_tail(100);
    let page = Picture::new("A late release", &w.take_trace()).log(&log).page();
    assert!(page.contains("client 1"));
}

/// The fuzz target on stable Rust: some inputs, and no crash.
#[test]
fn fuzz_target_runs_on_stable() {
    for seed in 0..500_u32 {
        let bytes: Vec<u8> =
            (0..64_u32).map(|i| (seed.wrapping_mul(2_654_435_761).rotate_left(i) >> 8) as u8).collect();
        own_lock::fuzz(&bytes);
    }
}

/// Each piece of code in the guide is compiled here.
#[test]
fn guide_shows_this_code() {
    let root = env!("CARGO_MANIFEST_DIR");
    let read = |path: &str| fs::read_to_string(format!("{root}/{path}")).expect(path);
    let files = [
        "tests/naive.rs",
        "src/lib.rs",
        "src/naive.rs",
        "src/compared.rs",
        "src/redlock.rs",
        "src/leased.rs",
        "tests/guide.rs",
        "fuzz/fuzz_targets/own_lock.rs",
    ];
    let code: Vec<String> = files.map(read).to_vec();
    let guide = read("../../docs/test-your-own-lock.md");
    let mut shown = 0;
    for piece in guide.split("```rust\n").skip(1) {
        let piece = piece.split("```").next().unwrap_or_default();
        for part in piece.split("// …\n").map(str::trim_end) {
            assert!(code.iter().any(|file| file.contains(part)), "the guide shows other code:\n{part}");
        }
        shown += 1;
    }
    assert!(shown >= 6, "{shown} pieces");
}
