//! What `with-lock` says on stderr when servers refuse.

use lock_testkit::Redis;
use rustix::process::Signal;

use crate::harness::{LONG, Tool};

const URL_PASSWORD: &str = "secret";

fn server() -> Redis {
    Redis::builder().password("pw").acl("app", "on >secret ~* &* +@all").start()
}

fn hold(redis: &Redis, ttl: &str) -> Tool {
    let url = redis.url_with("app", URL_PASSWORD);
    let tool = Tool::start(&["--backend", &url, "--ttl", ttl, "job"]);
    tool.wait_for_out("held job");
    tool
}

/// What an operator does to a server, and what the server then says, depending on its version.
const REFUSALS: [(&[&[&str]], &[&str]); 4] = [
    (&[&["ACL", "SETUSER", "app", "resetpass", ">other"], &["CLIENT", "KILL", "USER", "app"]], &["WRONGPASS"]),
    (&[&["ACL", "DELUSER", "app"]], &["WRONGPASS"]),
    (&[&["REPLICAOF", "127.0.0.1", "1"]], &["READONLY"]),
    (&[&["ACL", "SETUSER", "app", "-pexpire", "-del"]], &["NOPERM", "can't run this command"]),
];

fn refuse(redis: &Redis, commands: &[&[&str]]) {
    for command in commands {
        let _reply = redis.cli(command);
    }
}

/// Checks that one line is about `what`, with some of the server's words.
fn assert_says(err: &str, what: &str, words: &[&str]) {
    let says = |line: &str| line.contains(what) && words.iter().any(|words| line.contains(words));
    assert!(err.lines().any(says), "{what} {words:?}: {err}");
}

#[test]
fn servers_words_are_shown_when_renewals_fail() {
    for (commands, words) in REFUSALS {
        let redis = server();
        let tool = hold(&redis, "1s");
        refuse(&redis, commands);
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{commands:?}: {ended:?}");
        assert_says(&ended.err, "lock at risk", words);
        assert!(!ended.err.contains(URL_PASSWORD), "a password is shown: {ended:?}");
    }
}

#[test]
fn servers_words_are_shown_when_the_release_fails() {
    for (commands, words) in REFUSALS {
        let redis = server();
        let tool = hold(&redis, "30s");
        refuse(&redis, commands);
        let ended = tool.terminate();
        assert_eq!(ended.code, 0, "{commands:?}: {ended:?}");
        assert_says(&ended.err, "the release is unconfirmed", words);
    }
}

/// A `PING` succeeds meanwhile.
#[test]
fn servers_words_are_shown_while_waiting() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let tool = Tool::on(&redis, &["job", "--", "true"]);
    tool.wait_for_err("OOM");
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let ended = tool.end();
    assert!(ended.code == 0 && ended.err.contains("waiting: too few servers answer"), "{ended:?}");
}

#[test]
fn missing_password_file_is_named_while_waiting() {
    let redis = server();
    let url = format!("redis://app@{}?password_file=/nonexistent", redis.address());
    let tool = Tool::start(&["--backend", &url, "job", "--", "true"]);
    tool.wait_for_err("/nonexistent: No such file");
    tool.signal(Signal::INT);
    let ended = tool.end_within(LONG);
    assert_eq!(ended.code, 130, "{ended:?}");
}

#[test]
fn log_can_be_turned_off_and_its_variable_is_checked() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let url = redis.url();
    for (level, code, shown) in [("off", 69, false), ("warn", 69, true), ("loud", 64, false)] {
        let args = ["--backend", &url, "--wait", "300ms", "job"];
        let ended = Tool::start_with(&args, &[("LOCK_LOG", level)]).end();
        assert_eq!((ended.code, ended.err.contains("WARN")), (code, shown), "{level}: {ended:?}");
    }
}
