//! Black-box tests of `leader`: real processes, a real etcd or ZooKeeper, and `etcdctl elect` or
//! Curator's `LeaderLatch` beside it.
// E10
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "kit/mod.rs"]
mod kit;

use core::time::Duration;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

#[cfg(feature = "sqlite")]
use kit::Scratch;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use kit::stores::{assert_usage, check_elections, check_succession, word};
use kit::{LONG, Tool, WITH_SIGNALS, full, full_pipe, ms, started_by, unread};
use lock_testkit::{Authority, Chroot, Etcd, Server, Stopwatch, ZooKeeperPeer, wait_until};
use rustix::process::Signal;
#[cfg(feature = "postgres")]
use store_testkit::Postgres;

fn leader(url: &str, args: &[&str]) -> Tool {
    Tool::spawn(leader_command(url, args))
}

fn leader_command(url: &str, args: &[&str]) -> Command {
    let mut command = started_by(WITH_SIGNALS, env!("CARGO_BIN_EXE_leader"));
    command.args(["--backend", url]).args(args).env_remove("LOCK_BACKEND");
    command
}

fn candidate(etcd: &Etcd, value: &str) -> Tool {
    leader(&etcd.url(), &["--name", "board", "--ttl", "2s", "--candidate", value])
}

fn observer(etcd: &Etcd) -> Tool {
    leader(&etcd.url(), &["--name", "board", "--observe"])
}

fn etcdctl(etcd: &Etcd, args: &[&str]) -> Tool {
    Tool::spawn(etcd.etcdctl_command(args))
}

#[track_caller]
fn wait_for_queue(etcd: &Etcd, length: usize) {
    assert!(wait_until(LONG, || etcd.keys_of("board/").len() == length), "{:?}", etcd.keys());
}

#[track_caller]
fn assert_clean(etcd: &Etcd) {
    assert_eq!((etcd.keys(), etcd.leases()), (vec![], vec![]));
}

#[test]
fn demonstration_succeeds_and_leaves_nothing() {
    let etcd = Etcd::start();
    let ended = leader(&etcd.url(), &[]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    for part in
        ["is elected", "proclaims", "the observer sees", "asked to resign", "is killed", "everything as promised"]
    {
        assert!(ended.out.contains(part), "no {part:?}: {}", ended.out);
    }
    assert!(!ended.out.contains("!!"), "{}", ended.out);
    assert_eq!(ended.out.matches("is elected").count(), 3, "{}", ended.out);
    assert_clean(&etcd);
}

/// Without a backend nothing is needed but a folder.
#[test]
fn elections_are_held_in_folder_of_user() {
    let home = tempfile::tempdir().unwrap();
    let leader = |args: &[&str]| {
        let mut command = started_by(WITH_SIGNALS, env!("CARGO_BIN_EXE_leader"));
        command.args(args).env("HOME", home.path()).env_remove("XDG_STATE_HOME").env_remove("LOCK_BACKEND");
        Tool::spawn(command)
    };
    let notice = format!("the elections are in {}/.local/state/lock-proto", home.path().display());
    let ended = leader(&[]).end();
    assert!(ended.code == 0 && ended.out.contains("everything as promised"), "{ended:?}");
    assert_eq!(ended.err.matches(&notice).count(), 1, "{ended:?}");

    // At once: a dead process has no lock on its file.
    check_succession(leader, "10s");
}

#[test]
fn unreachable_server_error_explains_how_to_start_one() {
    let mut etcd = Etcd::start();
    etcd.kill();
    let ended = leader(&etcd.url(), &[]).end();
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.err.contains("etcd --data-dir") && ended.err.contains("--backend"), "{ended:?}");
}

#[test]
fn etcdctl_elect_queues_between_candidates() {
    let etcd = Etcd::start();
    let (ours, theirs) = (observer(&etcd), etcdctl(&etcd, &["elect", "-l", "board"]));
    ours.wait_for_out("nobody board\n");

    let first = candidate(&etcd, "the first");
    first.wait_for_out("elected board key=board/");
    ours.wait_for_out("value=the first\n");
    theirs.wait_for_out("the first\n");

    let second = etcdctl(&etcd, &["elect", "board", "the second"]);
    wait_for_queue(&etcd, 2);
    let third = candidate(&etcd, "the third");
    third.wait_for_err("waiting: held by another client");
    assert_eq!((second.out(), third.out()), (String::new(), String::new()), "two are elected");
    let ended = first.terminate();
    assert!(ended.code == 0 && ended.out.ends_with("resigned board\n"), "{ended:?}");

    second.wait_for_out("the second\n");
    ours.wait_for_out("value=the second\n");
    assert_eq!(third.out(), "", "two are elected");
    second.signal(Signal::INT);

    third.wait_for_out("elected board key=board/");
    ours.wait_for_out("value=the third\n");
    theirs.wait_for_out("the third\n");
    assert_eq!(third.terminate().code, 0);
    assert!(wait_until(LONG, || ours.out().ends_with("nobody board\n")), "{}", ours.out());
    assert_eq!(ours.terminate().code, 0);
    second.end();
    drop(theirs);
    // When interrupted, etcdctl does not revoke its leases.
    assert!(etcd.keys().is_empty() && etcd.leases().len() <= 2, "{:?} {:?}", etcd.keys(), etcd.leases());
}

/// The end of a session, such as the last one of a terminal.
#[test]
fn candidate_resigns_on_hangup() {
    let etcd = Etcd::start();
    let candidate = candidate(&etcd, "me");
    candidate.wait_for_out("elected");
    candidate.signal(Signal::HUP);
    let ended = candidate.end();
    assert!(ended.code == 0 && ended.out.ends_with("resigned board\n"), "{ended:?}");
    assert_clean(&etcd);
}

#[test]
fn fence_and_revision_grow_across_leaders() {
    let etcd = Etcd::start();
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let mut now = candidate(&etcd, "0");
    for next in ["1", "2"] {
        now.wait_for_out("fence=");
        seen.push((field(&now.out(), "rev="), field(&now.out(), "fence=")));
        let waiting = candidate(&etcd, next);
        wait_for_queue(&etcd, 2);
        assert_eq!(now.terminate().code, 0);
        now = waiting;
    }
    now.wait_for_out("fence=");
    seen.push((field(&now.out(), "rev="), field(&now.out(), "fence=")));
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{seen:?}");
    assert_eq!(now.terminate().code, 0);
    assert_clean(&etcd);
}

/// The observer printed another revision than the leader, so the lines could not be matched.
#[test]
fn observer_prints_revision_of_leader() {
    let (etcd, chroot) = (Etcd::start(), Chroot::new());
    for url in [etcd.url(), chroot.url()] {
        let tool = |args: &[&str]| leader(&url, &[&["--name", "board"], args].concat());
        let watching = tool(&["--observe"]);
        watching.wait_for_out("nobody board\n");
        let first = tool(&["--candidate", "the first"]);
        first.wait_for_out("elected board");
        // Its key is created long before it is elected.
        let second = tool(&["--candidate", "the second"]);
        second.wait_for_err("waiting");
        assert_eq!(first.terminate().code, 0);
        second.wait_for_out("fence=");
        watching.wait_for_out("value=the second\n");
        let seen = watching.out();
        let seen = seen.lines().find(|line| line.contains("the second")).unwrap();
        for name in ["key=", "rev="] {
            assert_eq!(word(seen, name), word(&second.out(), name), "{name} {url}");
        }
        assert_eq!(second.terminate().code, 0);
        assert_eq!(watching.terminate().code, 0);
    }
    assert_clean(&etcd);
}

fn field(line: &str, name: &str) -> u64 {
    word(line, name).parse().unwrap()
}

#[test]
fn candidate_reports_loss_and_campaigns_again() {
    let etcd = Etcd::start();
    let tool = candidate(&etcd, "me");
    tool.wait_for_out("elected board");
    etcd.revoke(&etcd.leases()[0]);
    tool.wait_for_out("lost board gone\n");
    assert!(wait_until(LONG, || tool.out().matches("elected board").count() == 2), "{}", tool.out());
    let ended = tool.terminate();
    assert_eq!(ended.code, 0, "{ended:?}");
    let words: Vec<&str> = ended.out.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(words, ["elected", "lost", "elected", "resigned"], "each election has one end");
    assert_clean(&etcd);
}

/// It was reported after the wait for a reply to the resignation, up to two seconds late.
#[test]
fn candidate_reports_loss_at_the_end_of_its_validity() {
    let mut etcd = Etcd::start();
    let tool = candidate(&etcd, "me");
    tool.wait_for_out("elected board");
    etcd.kill();
    let killed = Stopwatch::start();
    tool.wait_for_out("lost board expired\n");
    killed.assert_within(ms(2_600), "no server answers");
}

/// It exited without a word, two seconds later.
#[test]
fn unconfirmed_end_of_campaign_is_reported() {
    for server in [Server::etcd(), Server::zookeeper()].map(Server::for_killing) {
        let ttl = format!("{}ms", server.ttl().as_millis());
        let start = |ttl| leader(&server.url(), &["--name", "board", "--candidate", "me", "--ttl", ttl]);
        let leading = start("20s");
        leading.wait_for_out("elected board");
        let waiting = start(&ttl);
        waiting.wait_for_err("waiting: held by another client");
        server.pause();
        let ended = waiting.terminate();
        assert_eq!(ended.code, 0, "{ended:?}");
        let line = "board: the end of the campaign is unconfirmed; what it left on the server ends with its TTL\n";
        assert!(ended.err.ends_with(line), "{ended:?}");
        let ended = leading.terminate();
        assert!(ended.err.contains("the server did not confirm the resignation"), "{ended:?}");
        assert!(ended.code == 0 && !ended.err.contains("campaign"), "one message: {ended:?}");
    }
}

#[test]
fn killed_leader_is_succeeded_by_waiting_candidate() {
    let etcd = Etcd::start();
    let watching = observer(&etcd);
    let first = candidate(&etcd, "first");
    first.wait_for_out("elected board");
    let second = candidate(&etcd, "second");
    second.wait_for_err("waiting");
    first.signal(Signal::KILL);
    second.wait_for_out("elected board");
    watching.wait_for_out("value=second\n");
    assert_eq!(second.terminate().code, 0);
    assert_eq!(watching.terminate().code, 0);
    assert_clean(&etcd);
}

#[test]
fn observer_reports_disconnect_and_recovers() {
    let mut etcd = Etcd::start();
    let tool = leader(&etcd.url(), &["--name", "board", "--candidate", "me", "--ttl", "20s"]);
    tool.wait_for_out("elected board");
    let watching = observer(&etcd);
    watching.wait_for_out("value=me\n");
    etcd.kill();
    watching.wait_for_out("disconnected board\n");
    etcd.restart();
    assert!(wait_until(LONG, || watching.out().matches("value=me\n").count() == 2), "{}", watching.out());
    assert_eq!(watching.terminate().code, 0);
    assert_eq!(tool.terminate().code, 0);
    assert_clean(&etcd);
}

/// Over TLS, with a password that is on no command line.
#[test]
fn password_of_environment_is_used_over_tls() {
    let authority = Authority::new();
    let etcd = Etcd::builder().tls(authority.server()).user("worker", "s3cret", Some("board/")).start();
    let of_root = etcd.tls_url(&format!("{}&user=worker", authority.query()));
    let (_, address) = of_root.split_once('@').expect("the login of root");
    let start = |password: &str| {
        let mut command = started_by(WITH_SIGNALS, env!("CARGO_BIN_EXE_leader"));
        command.args(["--backend", &format!("etcds://{address}"), "--name", "board", "--candidate", "me"]);
        command.env_remove("LOCK_BACKEND").env("LOCK_PASSWORD", password);
        Tool::spawn(command)
    };
    let tool = start("s3cret");
    tool.wait_for_out("elected board");
    assert_eq!(tool.terminate().code, 0);
    let ended = start("wrong!").end();
    assert!(ended.code == 77 && !ended.err.contains("wrong!"), "{ended:?}");
    assert_clean(&etcd);
}

#[test]
fn errors_map_to_exit_codes() {
    let etcd = Etcd::builder().user("worker", "secret", Some("board/")).start();
    for part in [&["--candidate", "me"][..], &["--observe"]] {
        for (url, name) in [
            (etcd.url_with("worker", "wrong"), "board"),
            (format!("etcd://{}", etcd.address()), "board"),
            (etcd.url_with("worker", "secret"), "elsewhere"),
        ] {
            let ended = leader(&url, &[&["--name", name], part].concat()).end();
            assert_eq!(ended.code, 77, "{url} {name} {part:?}: {ended:?}");
            let names = format!("election \"{name}\": etcd://{} ", etcd.address());
            assert!(ended.err.contains(&names), "{ended:?}");
            assert!(!ended.err.contains("secret") && !ended.err.contains("wrong@"), "a password is shown: {ended:?}");
        }
    }
    assert_clean(&etcd);
    etcd.put("board/readme", "x");
    let ended = leader(&etcd.url(), &["--name", "board", "--candidate", "me"]).end();
    assert!(ended.code == 65 && ended.err.contains("board/readme"), "{ended:?}");
    let ended = leader("redis://127.0.0.1:1", &["--name", "board", "--observe"]).end();
    assert!(ended.code == 64 && ended.err.contains("etcd://"), "{ended:?}");
    let ended = leader(&etcd.url(), &["--name", "", "--observe"]).end();
    assert!(ended.code == 64 && ended.err.contains("1 to 512"), "{ended:?}");
    assert_eq!((etcd.keys(), etcd.leases()), (vec!["board/readme".to_owned()], vec![]));
}

#[test]
fn demonstration_succeeds_on_zookeeper_and_leaves_nothing() {
    let chroot = Chroot::new();
    let ended = leader(&chroot.url(), &[]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("everything as promised") && !ended.out.contains("!!"), "{}", ended.out);
    assert_eq!(ended.out.matches("is elected").count(), 3, "{}", ended.out);
    assert_eq!(chroot.ephemerals(), Vec::<String>::new());
}

// ZK7
#[test]
fn leader_latch_of_curator_queues_between_candidates() {
    let chroot = Chroot::new();
    let tool = |args: &[&str]| leader(&chroot.url(), &[&["--name", "board"], args].concat());
    let queue_is = |length| assert!(wait_until(LONG, || chroot.nodes_of("board").len() == length));
    let watching = tool(&["--observe"]);
    watching.wait_for_out("nobody board\n");
    let first = tool(&["--ttl", "2s", "--candidate", "the first"]);
    first.wait_for_out(&format!("elected board key={}/board/_c_", chroot.path()));
    watching.wait_for_out("value=the first\n");
    let mut second = ZooKeeperPeer::curator(&chroot.hosts(), Duration::from_secs(2));
    assert_eq!(second.ask("latch /board second"), "latched");
    queue_is(2);
    let third = tool(&["--ttl", "2s", "--candidate", "the third"]);
    third.wait_for_err("waiting: held by another client");
    queue_is(3);
    assert!(second.is_silent() && third.out().is_empty(), "two are elected");
    let ended = first.terminate();
    assert!(ended.code == 0 && ended.out.ends_with("resigned board\n"), "{ended:?}");
    assert_eq!(second.line(), "elected second");
    watching.wait_for_out("value=second\n");
    assert_eq!(third.out(), "", "two are elected");
    second.kill();
    let killed = Stopwatch::start();
    third.wait_for_out("elected board key=");
    killed.assert_within(Duration::from_secs(5), "the session of the killed one ends");
    watching.wait_for_out("value=the third\n");
    // The operator deletes its node: it is lost, and campaigns again.
    assert!(chroot.delete("board", &chroot.nodes_of("board")[0]));
    third.wait_for_out("lost board gone\n");
    assert!(wait_until(LONG, || third.out().matches("elected board").count() == 2), "{}", third.out());
    let out = third.out();
    let fences: Vec<u64> =
        out.lines().filter(|line| line.contains("fence=")).map(|line| field(line, "fence=")).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{out}");
    assert_eq!(third.terminate().code, 0);
    assert_eq!(watching.terminate().code, 0);
    assert_eq!(chroot.ephemerals(), Vec::<String>::new());
}

/// A candidate whose lines nobody can read must not lead.
#[cfg(target_os = "linux")]
#[test]
fn candidate_resigns_and_observer_ends_if_stdout_fails() {
    let etcd = Etcd::start();
    for role in [&["--candidate", "me"][..], &["--observe"]] {
        for stdout in [full, unread] {
            let command = leader_command(&etcd.url(), &[&["--name", "board"], role].concat());
            let ended = Tool::spawn_to(command, stdout()).end();
            assert!(ended.code == 74 && ended.err.contains("stdout"), "{role:?}: {ended:?}");
            assert_clean(&etcd);
        }
    }
    let ended = Tool::spawn_to(leader_command(&etcd.url(), &["--help"]), full()).end();
    assert!(ended.code == 74 && ended.err.contains("stdout cannot be written"), "{ended:?}");
}

#[test]
fn candidate_resigns_once_nobody_reads_stdout() {
    let etcd = Etcd::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let tool = Tool::spawn_to(leader_command(&etcd.url(), &["--name", "board", "--candidate", "me"]), writer);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.starts_with("elected board"), "{line}");
    let ended = tool.end();
    assert_eq!((ended.code, &*ended.err), (74, "leader: nobody reads stdout any more\n"), "one message");
    assert_clean(&etcd);
}

/// It did not react to signals, and led for ever.
#[test]
fn signal_ends_candidate_and_observer_while_stdout_is_full() {
    let etcd = Etcd::start();
    for (role, seen) in [(&["--candidate", "me"][..], "value=me\n"), (&["--observe"], "nobody board\n")] {
        let (_unread, output) = full_pipe();
        let mut command = leader_command(&etcd.url(), &[&["--name", "board"], role].concat());
        command.env("LOCK_LOG", "trace");
        let tool = Tool::spawn_to(command, output);
        // It handles signals before it connects.
        tool.wait_for_err("leader: ");
        let watching = observer(&etcd);
        watching.wait_for_out(seen);
        let ended = tool.terminate();
        // Without a line, if the signal comes before the news.
        let missing = ended.err.contains("its last lines are lost");
        assert_eq!(ended.code, if missing { 74 } else { 0 }, "{role:?}: {ended:?}");
        assert_eq!(watching.terminate().code, 0);
        assert_clean(&etcd);
    }
}

#[test]
fn candidate_reports_loss_while_stderr_is_full() {
    let etcd = Etcd::start();
    let (_unread, errors) = full_pipe();
    let mut command = leader_command(&etcd.url(), &["--name", "board", "--ttl", "2s", "--candidate", "me"]);
    command.env("LOCK_LOG", "trace");
    let tool = Tool::spawn_to_both(command, Stdio::piped(), errors);
    tool.wait_for_out("elected board");
    etcd.revoke(&etcd.leases()[0]);
    tool.wait_for_out("lost board gone\n");
    assert!(wait_until(LONG, || tool.out().matches("elected board").count() == 2), "{}", tool.out());
    assert_eq!(tool.terminate().code, 0);
    assert_clean(&etcd);
}

#[test]
fn observer_ends_if_too_many_lines_wait_for_stdout() {
    let etcd = Etcd::start();
    let candidate = etcdctl(&etcd, &["elect", "board", "x"]);
    wait_for_queue(&etcd, 1);
    let key = etcd.keys_of("board/").remove(0);
    let (_unread, output) = full_pipe();
    let mut tool = Tool::spawn_to(leader_command(&etcd.url(), &["--name", "board", "--observe"]), output);
    // Each takes five bytes in the line.
    let value = "\x01".repeat(100_000);
    let is_full = || {
        etcd.put(&key, &value);
        tool.has_ended()
    };
    assert!(wait_until(LONG, is_full), "{}", tool.err());
    let ended = tool.end();
    assert_eq!((ended.code, &*ended.err), (74, "leader: nobody reads stdout: too many lines wait for it\n"));
    drop(candidate);
}

#[test]
fn reason_is_shown_while_no_server_answers() {
    let mut etcd = Etcd::builder().user("worker", "s3cret", Some("board/")).start();
    let wait_for = |url: &str, role: &[&str], reason: &str| {
        let tool = leader(url, &[&["--name", "board"], role].concat());
        tool.wait_for_err(reason);
        assert_eq!(tool.terminate().code, 0);
    };
    let unread_file = format!("etcd://worker@{}?password_file=/nonexistent", etcd.address());
    let roles = [&["--candidate", "me"][..], &["--observe"]];
    for role in roles {
        wait_for(&unread_file, role, "/nonexistent: No such file");
    }
    etcd.kill();
    for role in roles {
        wait_for(&etcd.url(), role, "Connection refused");
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn elections_are_held_in_file_of_sqlite() {
    let scratch = Scratch::new();
    let url = format!("sqlite://{}", scratch.path("locks.db"));
    check_elections(|args| leader(&url, args));
    assert_usage(&leader("sqlite://", &[]).end(), "sqlite:///path");
    assert_usage(&leader(&url, &["--create-table"]).end(), "postgres://");
    assert_usage(&leader("kube://a", &[]).end(), "lock-tokio/stores/tools");
}

#[cfg(feature = "postgres")]
#[test]
fn elections_are_held_in_table_of_postgres_that_is_created_on_request_alone() {
    let server = Postgres::builder().access("host all app 127.0.0.1/32 scram-sha-256").start();
    server.sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'se/cret'");
    let start = |password: &str, args: &[&str]| {
        let mut command = leader_command(&server.url_as("app"), args);
        command.env("LOCK_PASSWORD", password);
        Tool::spawn(command)
    };
    for role in [&[][..], &["--name", "board", "--observe"], &["--name", "board", "--candidate", "me"]] {
        let ended = start("se/cret", role).end();
        assert!(ended.code == 77 && ended.err.contains("--create-table"), "{role:?}: {ended:?}");
        assert_eq!(server.sql("SELECT to_regclass('lock_register') IS NULL"), "t");
        let ended = start("wr/ong", &[role, &["--create-table"]].concat()).end();
        assert!(ended.code == 77 && ended.err.contains("28P01") && !ended.err.contains("ong"), "{role:?}: {ended:?}");
    }
    check_elections(|args| start("se/cret", &[args, &["--create-table"]].concat()));
    let ended = leader("postgres://app:se/cret@127.0.0.1/db", &[]).end();
    assert_usage(&ended, "Postgres");
    assert!(!ended.err.contains("cret"), "{ended:?}");
}
