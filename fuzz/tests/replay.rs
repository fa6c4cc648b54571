//! Replays the committed corpora on stable Rust, without libFuzzer.
// S7

use std::path::Path;

/// Replays each file, and the file truncated at each of its first `cuts` bytes.
fn replay(target: &str, run: fn(&[u8]), at_least: usize, cuts: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("the corpus is there").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    assert!(files.len() >= at_least, "only {} seeds in {}", files.len(), folder.display());
    for file in files {
        // If a test fails, the harness shows the last line.
        println!("{}", file.display());
        let data = std::fs::read(&file).expect("readable");
        run(&data);
        for end in 0..data.len().min(cuts) {
            run(&data[..end]);
        }
    }
}

#[test]
fn pipe() {
    replay("pipe", lock_fuzz::pipe, 15, 200);
}

#[test]
fn url() {
    replay("url", lock_fuzz::url, 15, 200);
}

#[test]
fn tls() {
    replay("tls", lock_fuzz::tls, 15, 0);
}

#[test]
fn redis_ops() {
    replay("redis_ops", lock_fuzz::redis_ops, 300, 0);
}

#[test]
fn quorum_ops() {
    replay("quorum_ops", lock_fuzz::quorum_ops, 300, 0);
}

#[test]
fn etcd_ops() {
    replay("etcd_ops", lock_fuzz::etcd_ops, 200, 0);
}

#[test]
fn election_ops() {
    replay("election_ops", lock_fuzz::election_ops, 150, 0);
}

#[test]
fn zk_pipe() {
    replay("zk_pipe", lock_fuzz::zk_pipe, 100, 200);
}

#[test]
fn zk_ops() {
    replay("zk_ops", lock_fuzz::zk_ops, 100, 0);
}
