//! Locks in a file of SQLite and in a table of Postgres.

use lock_testkit::wait_until;
use rustix::process::Signal;
use store_testkit::Postgres;

use crate::harness::{Ended, LONG, Scratch, Tool, ms};

/// These stores need tokio.
fn start_with(url: &str, args: &[&str], env: &[(&str, &str)]) -> Tool {
    Tool::start_with(&[&["--runtime", "tokio", "--backend", url], args].concat(), env)
}

fn start(url: &str, args: &[&str]) -> Tool {
    start_with(url, args, &[])
}

#[track_caller]
fn assert_usage(ended: &Ended, word: &str) {
    assert!(ended.code == 64 && ended.err.contains(word), "{ended:?}");
}

/// One holder at a time; the next one after a release, and after a kill when the TTL has passed.
fn check_locks(url: &str) {
    let holder = start(url, &["--ttl", "2s", "job"]);
    holder.wait_for_out("held");
    let attempt = || start(url, &["--ttl", "2s", "--wait", "0", "job", "--", "true"]).end();
    let ended = attempt();
    assert_eq!(ended.code, 75, "{ended:?}");
    let next = start(url, &["--ttl", "2s", "job"]);
    assert_eq!(holder.terminate().code, 0);
    next.wait_for_out("held");
    next.signal(Signal::KILL);
    let ended = attempt();
    assert_eq!(ended.code, 75, "before the TTL: {ended:?}");
    let ended = start(url, &["--ttl", "2s", "job", "--", "true"]).end();
    // The TTL, a second, and the start on a busy machine.
    assert!(ended.code == 0 && ended.took < ms(8_000), "{ended:?}");
}

#[test]
fn file_of_sqlite_locks_between_processes() {
    let scratch = Scratch::new();
    check_locks(&format!("sqlite://{}", scratch.path("locks.db")));
}

#[test]
fn table_of_postgres_locks_between_processes_and_is_created_on_request_alone() {
    let server = Postgres::start();
    let ended = start(&server.url(), &["job", "--", "true"]).end();
    assert!(ended.code == 77 && ended.err.contains("--create-table"), "{ended:?}");
    assert_eq!(server.sql("SELECT to_regclass('lock_register') IS NULL"), "t");
    for _ in 0..2 {
        let ended = start(&server.url(), &["--create-table", "job", "--", "true"]).end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    check_locks(&server.url().replace("postgres://", "postgresql://"));
}

#[test]
fn password_of_postgres_is_that_of_the_environment_and_not_shown() {
    let server = Postgres::builder().access("host all app 127.0.0.1/32 scram-sha-256").start();
    server.sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'se%c&re/t'");
    let url = server.url_as("app");
    let run = |password: &str| {
        let tool = start_with(&url, &["--create-table", "job", "--", "true"], &[("LOCK_PASSWORD", password)]);
        tool.end()
    };
    let ended = run("se%c&re/t");
    assert_eq!(ended.code, 0, "{ended:?}");
    let ended = run("wr0ng");
    assert!(ended.code == 77 && ended.err.contains("28P01") && !ended.err.contains("wr0ng"), "{ended:?}");
}

#[test]
fn invalid_urls_and_options_are_usage_errors() {
    let run = |url: &str, args: &[&str]| start(url, &[args, &["job", "--", "true"]].concat()).end();
    assert_usage(&run("sqlite://", &[]), "sqlite:///path");
    assert_usage(&run("sqlite:///a", &["--backend", "sqlite:///b"]), "once");
    assert_usage(&run("sqlite:///a", &["--create-table"]), "postgres://");
    assert_usage(&run("file:///a", &["--create-table"]), "postgres://");
    assert_usage(&run("sqlite:///a", &["--poll", "0"]), "--poll");
    for runtime in ["smol", "async-std", "blocking"] {
        assert_usage(&run("sqlite:///a", &["--runtime", runtime]), "need tokio");
    }
    let ended = run("postgres://app:secret@127.0.0.1:port/db", &[]);
    assert_usage(&ended, "Postgres");
    assert!(!ended.err.contains("secret"), "{ended:?}");
}

#[test]
fn variable_names_the_store() {
    let scratch = Scratch::new();
    let url = format!("sqlite://{}", scratch.path("locks.db"));
    let run = || Tool::start_with(&["--runtime", "tokio", "job"], &[("LOCK_BACKEND", &url)]);
    let holder = run();
    holder.wait_for_out("held");
    assert!(wait_until(LONG, || start(&url, &["--wait", "0", "job", "--", "true"]).end().code == 75));
    assert_eq!(holder.terminate().code, 0);
}
