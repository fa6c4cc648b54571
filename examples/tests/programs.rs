//! Black-box tests of the small programs.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "kit/mod.rs"]
mod kit;

use core::iter;
use core::time::Duration;
use std::process::{Command, Output};
use std::thread;

use kit::Tool;
use lock_proto::redis::SIGNAL_SUFFIX;
use lock_testkit::{Authority, Etcd, Redis, ZooKeeper};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("a program of this package")
}

#[test]
fn oversell_succeeds_and_shows_three_locks() {
    let output = run(env!("CARGO_BIN_EXE_oversell"), &["3"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for line in ["SET NX, and DEL", "this library ", "this library + fencing"] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(run(env!("CARGO_BIN_EXE_oversell"), &["three"]).status.code(), Some(64));
}

#[test]
fn oversell_on_real_servers_is_as_promised() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).acl("app", "on >s3cret ~* &* +@all").start();
    let etcd = Etcd::builder().tls(authority.server()).start();
    let redis_url = redis.tls_url(&format!("{}&user=app", authority.query()));
    let oversell = |args: &[&str], password: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oversell"));
        command.args(args).env("LOCK_PASSWORD", password).output().expect("a program of this package")
    };
    let zookeeper = ZooKeeper::start();
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite://{}/locks.db", folder.path().display());
    thread::scope(|scope| {
        for url in [redis_url.clone(), etcd.tls_url(&authority.query()), zookeeper.lock_url(), sqlite] {
            scope.spawn(move || {
                let output = oversell(&["--backend", &url], "s3cret");
                let text = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{url}: {output:?}");
                assert!(text.contains("this library + fencing") && !text.contains("SET NX"), "{url}: {text}");
            });
        }
    });
    assert!(!redis.keys().iter().any(|key| key.starts_with("oversell:") && !key.ends_with(SIGNAL_SUFFIX)));
    assert!(etcd.keys().is_empty() && etcd.leases().is_empty());
    let nodes = zookeeper.nodes_below("/");
    assert!(!nodes.iter().any(|node| node.contains("-lock-")), "{nodes:?}");
    let refused = oversell(&["--backend", &redis_url], "wrong!");
    assert!(refused.status.code() == Some(77), "{refused:?}");
    for args in [&["--backend", "no url"][..], &["3", "--backend", &redis_url]] {
        assert_eq!(oversell(args, "s3cret").status.code(), Some(64), "{args:?}");
    }
}

#[test]
fn oversell_without_backend_sells_in_folder_of_user() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oversell"));
    let output = command.env_remove("LOCK_BACKEND").env("XDG_STATE_HOME", home.path()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("this library + fencing"), "{output:?}");
    assert!(err.lines().count() == 1 && err.contains("no --backend") && err.contains("/lock-proto"), "{err}");
}

#[test]
fn threads_count_without_loss() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    let (etcd, zookeeper) = (Etcd::start(), ZooKeeper::start());
    let (plain, tls) = (redis.url(), redis.tls_url(&authority.query()));
    let (etcd_url, zookeeper_url) = (etcd.url(), zookeeper.lock_url());
    let (blocking, std_net) = (env!("CARGO_BIN_EXE_blocking"), env!("CARGO_BIN_EXE_std-net"));
    for (program, urls) in [
        (std_net, &[plain.as_str()][..]),
        (std_net, &[&tls]),
        (blocking, &[&plain]),
        (blocking, &[&tls]),
        (blocking, &[&etcd_url]),
        (blocking, &[&zookeeper_url]),
    ] {
        let output = run(program, urls);
        assert!(output.status.success(), "{program} {urls:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("counted to 100 of 100"), "{output:?}");
    }
    assert_eq!(redis.cli(&["EXISTS", "blocking-example", "std-net-example"]), "0");
    assert!(etcd.keys().is_empty() && etcd.leases().is_empty());
    for program in [blocking, std_net] {
        assert!(!run(program, &["no url"]).status.success());
    }
}

#[test]
fn own_executor_counts_without_loss() {
    let (redis, etcd, zookeeper) = (Redis::start(), Etcd::start(), ZooKeeper::start());
    let urls = [redis.url(), etcd.url(), zookeeper.lock_url()];
    let on_servers = urls.iter().map(|url| vec!["--backend", url]);
    for args in iter::once(Vec::new()).chain(on_servers) {
        let output = run(env!("CARGO_BIN_EXE_own-executor"), &args);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("counted to 20 of 20; 0 locks"), "{output:?}");
    }
    for args in [&["--backend"][..], &["--backend", "no url"], &["--other"], &["URL"]] {
        assert!(!run(env!("CARGO_BIN_EXE_own-executor"), args).status.success());
    }
    assert_eq!(redis.cli(&["EXISTS", "own-executor-example"]), "0");
    assert!(etcd.keys().is_empty());
}

#[test]
fn own_executor_ends_when_no_lock_is_acquired() {
    let redis = Redis::builder().acl("app", "on >s3cret +@all ~elsewhere").start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_own-executor"));
    command.args(["--backend", &redis.url_with("app", "s3cret")]);
    let ended = Tool::spawn(command).end();
    assert_eq!(ended.code, 1, "{ended:?}");
    for task in 1..=4 {
        assert!(ended.err.contains(&format!("task {task}: ")), "{ended:?}");
    }
}

#[test]
fn std_net_names_server_that_cannot_be_resolved() {
    // Too long for a label of DNS: no resolver is asked.
    let host = "a".repeat(64);
    let output = run(env!("CARGO_BIN_EXE_std-net"), &[&format!("redis://app:s3cret@{host}")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&host) && text.contains("cannot be resolved") && !text.contains("s3cret"), "{output:?}");
}

/// They were silent for up to a minute, or for ever.
#[test]
fn dead_server_is_named_at_once() {
    for (program, args, code) in [
        (env!("CARGO_BIN_EXE_own-executor"), &[][..], 1),
        (env!("CARGO_BIN_EXE_oversell"), &[], 69),
        (env!("CARGO_BIN_EXE_contention"), &["--workload", "contended"], 69),
        (env!("CARGO_BIN_EXE_contention"), &["--workload", "held"], 69),
    ] {
        for scheme in ["redis", "etcd", "zk"] {
            let mut command = Command::new(program);
            command.args(args).args(["--backend", &format!("{scheme}://127.0.0.1:1")]);
            let ended = Tool::spawn(command).end();
            assert_eq!(ended.code, code, "{scheme}: {ended:?}");
            assert!(ended.took < Duration::from_secs(8), "{scheme}: {ended:?}");
            for part in ["127.0.0.1:1 is unreachable", "refused the connection", "--backend"] {
                assert!(ended.err.contains(part), "no {part:?}, {scheme}: {ended:?}");
            }
            assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        }
    }
}

#[test]
fn password_file_that_cannot_be_read_is_no_dead_server() {
    let redis = Redis::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oversell"));
    command.args(["--backend", &format!("redis://app@127.0.0.1:{}?password_file=/missing", redis.port())]);
    let ended = Tool::spawn(command).end();
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.err.contains("password file /missing: ") && !ended.err.contains("does the server run"), "{ended:?}");
}
