//! The small programs do what they show.

use std::process::{Command, Output};

use lock_testkit::Redis;

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("a program of this package")
}

#[test]
fn oversell_ends_well_and_shows_the_three_locks() {
    let output = run(env!("CARGO_BIN_EXE_oversell"), &["3"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for line in ["SET NX, and DEL", "this library ", "this library + fencing"] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(run(env!("CARGO_BIN_EXE_oversell"), &["three"]).status.code(), Some(64));
}

#[test]
fn blocking_counts_without_losing_any() {
    let redis = Redis::start();
    let output = run(env!("CARGO_BIN_EXE_blocking"), &[&redis.url()]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("counted to 100 of 100"), "{output:?}");
    assert_eq!(redis.cli(&["EXISTS", "blocking-example"]), "0");
    assert!(!run(env!("CARGO_BIN_EXE_blocking"), &["no url"]).status.success());
}
