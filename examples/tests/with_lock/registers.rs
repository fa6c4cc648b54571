//! Locks in a file of SQLite and in a table of Postgres.

use lock_testkit::wait_until;
use store_testkit::Postgres;

use crate::harness::{LONG, Scratch, Tool};
use crate::kit::stores::{assert_usage, check_locks};

/// These stores need tokio.
fn start_with(url: &str, args: &[&str], env: &[(&str, &str)]) -> Tool {
    Tool::start_with(&[&["--runtime", "tokio", "--backend", url], args].concat(), env)
}

fn start(url: &str, args: &[&str]) -> Tool {
    start_with(url, args, &[])
}

#[test]
fn file_of_sqlite_locks_between_processes() {
    let scratch = Scratch::new();
    let url = format!("sqlite://{}", scratch.path("locks.db"));
    check_locks(|args| start(&url, args));
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
    let url = server.url().replace("postgres://", "postgresql://");
    check_locks(|args| start(&url, args));
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
    // RF8
    let run = |url: &str, args: &[&str]| start(url, &[args, &["job", "--", "true"]].concat()).end();
    assert_usage(&run("sqlite://", &[]), "sqlite:///path");
    assert_usage(&run("sqlite:///a", &["--backend", "sqlite:///b"]), "once");
    assert_usage(&run("sqlite:///a", &["--create-table"]), "postgres://");
    assert_usage(&run("file:///a", &["--create-table"]), "postgres://");
    assert_usage(&run("sqlite:///a", &["--poll", "0"]), "--poll");
    for runtime in ["smol", "async-std", "blocking"] {
        assert_usage(&run("sqlite:///a", &["--runtime", runtime]), "needs tokio");
    }
    for (url, feature) in [("s3://a/b", "object-store"), ("kube://a", "kubernetes"), ("nats://a/b", "nats")] {
        let ended = run(url, &[]);
        assert_usage(&ended, "lock-tokio/stores/tools");
        assert!(ended.err.contains(feature), "{ended:?}");
    }
    for url in ["postgres://app:secret@127.0.0.1:port/db", "postgres://app:se/cret@127.0.0.1/db"] {
        let ended = run(url, &[]);
        assert_usage(&ended, "Postgres");
        assert!(!ended.err.contains("secret") && !ended.err.contains(":se"), "{ended:?}");
    }
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
