//! What etcd and ZooKeeper have in common: queues, and sessions that end.

use core::time::Duration;

use lock_testkit::{Server, Stopwatch, wait_until};
use rustix::process::Signal;

use crate::exclusion::assert_no_overlap;
use crate::harness::{RUNTIMES, runtime};
use crate::kit::{Ended, LONG, Scratch, Tool, is_alive, ms};
use crate::loss::{assert_outage_ends_command, ignores_sigterm};

/// Shorter than the session needs to notice a loss.
const SOON: Duration = ms(1000);

/// Defines a test of each scenario, for a server of its own if it kills it.
macro_rules! on {
    ($server:ident: $($name:ident)+; killing: $($killing:ident)+) => {
        mod $server {
            use lock_testkit::Server;

            $(#[test]
            fn $name() {
                super::$name(&Server::$server());
            })+

            $(#[test]
            fn $killing() {
                super::$killing(Server::$server().for_killing());
            })+
        }
    };
}

macro_rules! on_both {
    ($($scenarios:tt)+) => {
        on! { etcd: $($scenarios)+ }
        on! { zookeeper: $($scenarios)+ }
    };
}

on_both! {
    processes_never_overlap_on_any_runtime sigkill_kills_command_and_lock_ends_with_session
    terminated_waiter_leaves_nothing_behind pause_past_ttl_kills_command_on_resume
    ended_session_kills_command_after_grace deleted_own_key_is_reported_as_loss
    loss_found_only_at_release_is_reported;
    killing: holder_and_waiter_survive_server_restart server_outage_terminates_at_grace_and_kills_at_expiry
    busy_and_unreachable_have_distinct_exit_codes unlimited_wait_continues_until_server_starts
    unconfirmed_end_of_wait_is_reported hung_server_is_logged_with_its_fault
}

fn on(server: &Server, args: &[&str]) -> Tool {
    Tool::start(&[&["--backend", &server.url()], args].concat())
}

fn run(server: &Server, args: &[&str]) -> Ended {
    on(server, args).end()
}

// E1
#[track_caller]
fn assert_clean(server: &Server) {
    assert!(server.is_clean(), "{} keys are left", server.held());
}

/// The holder has the only key, and on etcd the only lease.
#[track_caller]
fn assert_only_holder(server: &Server) {
    assert_eq!(server.held(), 1);
    if let Server::Etcd(etcd) = server {
        assert_eq!(etcd.leases().len(), 1);
    }
}

/// A client of etcd watches its own key once it has held the lock for a third of the TTL.
// E9
#[track_caller]
fn wait_for_watch(server: &Server) {
    if let Server::Etcd(etcd) = server {
        let is_watched = || etcd.metric("etcd_debugging_mvcc_watcher_total", "") == 1;
        assert!(wait_until(LONG, is_watched), "the key is not watched");
    }
}

fn processes_never_overlap_on_any_runtime(server: &Server) {
    assert_no_overlap(&server.url());
    assert_clean(server);
}

fn sigkill_kills_command_and_lock_ends_with_session(server: &Server) {
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; exec sleep 100", scratch.path("pid"));
    let tool = on(server, &["--ttl", "2s", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    let next = on(server, &["job", "--", "true"]);
    next.wait_for_err("held by another client");
    tool.signal(Signal::KILL);
    assert!(wait_until(LONG, || !is_alive(&pid)), "the command outlives with-lock");
    let ended = next.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_clean(server);
}

/// Regression: only the risk was logged, without a reason.
fn hung_server_is_logged_with_its_fault(server: Server) {
    let tools = ["at risk", "released"].map(|name| {
        let tool = on(&server, &["--ttl", "6s", name]);
        tool.wait_for_out("held");
        tool
    });
    server.pause();
    let [at_risk, released] = tools;
    let ended = released.terminate();
    assert!(ended.err.contains("WARN: the release is unconfirmed"), "{ended:?}");
    at_risk.wait_for_err("lock at risk");
    let ended = at_risk.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    let line = |words: &[&str]| ended.err.lines().any(|line| words.iter().all(|words| line.contains(words)));
    assert!(line(&["WARN: connection lost", "did not answer in time"]), "{ended:?}");
    assert!(line(&["WARN: lock at risk", "failures=", "did not answer in time"]), "{ended:?}");
    server.resume();
}

fn terminated_waiter_leaves_nothing_behind(server: &Server) {
    let holder = on(server, &["job"]);
    holder.wait_for_out("held job");
    let waiter = on(server, &["job", "--", "true"]);
    waiter.wait_for_err("held by another client");
    assert_eq!(waiter.terminate().code, 128 + 15);
    assert_only_holder(server);
    assert_eq!(holder.terminate().code, 0);
    assert_clean(server);
}

fn unconfirmed_end_of_wait_is_reported(mut server: Server) {
    let holder = on(&server, &["--ttl", "60s", "job"]);
    holder.wait_for_out("held job");
    let waiters = RUNTIMES.map(|runtime| {
        let waiter = on(&server, &["--ttl", "60s", "--runtime", runtime, "job"]);
        waiter.wait_for_err("held by another client");
        (runtime, waiter)
    });
    server.kill();
    for (runtime, waiter) in waiters {
        let ended = waiter.terminate();
        assert_eq!(ended.code, 128 + 15, "{runtime}: {ended:?}");
        let line = "with-lock: job: the end of the wait is unconfirmed; what it left on the server ends with its TTL\n";
        assert!(ended.err.ends_with(line), "{runtime}: {ended:?}");
    }
}

fn holder_and_waiter_survive_server_restart(mut server: Server) {
    let mut holder = on(&server, &["--ttl", "20s", "job"]);
    holder.wait_for_out("held job");
    let waiters = RUNTIMES.map(|runtime| {
        let waiter = on(&server, &["--runtime", runtime, "job", "--", "true"]);
        waiter.wait_for_err("held by another client");
        waiter
    });
    server.restart();
    assert!(!holder.has_ended(), "{}", holder.err());
    assert_eq!(holder.terminate().code, 0);
    for waiter in waiters {
        let ended = waiter.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_clean(&server);
}

fn pause_past_ttl_kills_command_on_resume(server: &Server) {
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let tool = on(server, &["--ttl", "1200ms", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    tool.signal(Signal::STOP);
    let other = on(server, &["job"]);
    other.wait_for_out("held job");
    tool.signal(Signal::CONT);
    let resumed = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "the command runs on");
    resumed.assert_within(ms(500), runtime());
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_eq!(server.keys_of("job").len(), 1, "the other's lock stays");
    assert_eq!(other.out().lines().count(), 1, "{}", other.out());
    assert_eq!(other.terminate().code, 0);
    assert_clean(server);
}

fn server_outage_terminates_at_grace_and_kills_at_expiry(mut server: Server) {
    // ZooKeeper's client leaves out two ticks.
    let ticks = if let Server::ZooKeeper(_) = server { ms(400) } else { Duration::ZERO };
    let url = server.url();
    assert_outage_ends_command(&url, || server.kill(), ticks);
    server.restart();
    assert!(wait_until(LONG, || server.is_clean()), "{} keys are left", server.held());
}

fn ended_session_kills_command_after_grace(server: &Server) {
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let tool = on(server, &["--ttl", "6s", "--grace", "400ms", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    wait_for_watch(server);
    server.end_session();
    let ended_at = Stopwatch::start();
    scratch.line("asked");
    ended_at.assert_within(SOON, "noticed");
    let sigterm_at = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "the command runs on");
    sigterm_at.assert_in(sigterm_at.elapsed(), ms(300)..=ms(900), "the grace");
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.err.contains("gone"), "{ended:?}");
    assert_clean(server);
}

fn deleted_own_key_is_reported_as_loss(server: &Server) {
    let tool = on(server, &["--ttl", "3s", "job"]);
    tool.wait_for_out("held job");
    wait_for_watch(server);
    let deleted = Stopwatch::start();
    server.delete_key("job");
    tool.wait_for_out("lost job gone\n");
    // ZooKeeper's client compares its node with each renewal.
    let limit = if let Server::ZooKeeper(_) = server { ms(2000) } else { SOON };
    deleted.assert_within(limit, runtime());
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_clean(server);
}

fn loss_found_only_at_release_is_reported(server: &Server) {
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    // The watch would open after 20 s.
    let tool = on(server, &["--ttl", "60s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    server.delete_key("job");
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_clean(server);
}

fn busy_and_unreachable_have_distinct_exit_codes(mut server: Server) {
    let holder = on(&server, &["job"]);
    holder.wait_for_out("held job");
    for wait in ["0", "300ms"] {
        let ended = run(&server, &["--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 75, "{wait}: {ended:?}");
        assert_only_holder(&server);
    }
    assert_eq!(holder.terminate().code, 0);
    assert_clean(&server);
    if let Server::ZooKeeper(chroot) = &server {
        assert_eq!(chroot.server().sessions(), Vec::<i64>::new(), "every session was closed");
    }
    server.kill();
    for wait in ["0", "300ms"] {
        let ended = run(&server, &["--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 69, "{wait}: {ended:?}");
        assert!(ended.took < Duration::from_secs(8), "{wait}: {ended:?}");
    }
}

fn unlimited_wait_continues_until_server_starts(mut server: Server) {
    server.kill();
    let tools = RUNTIMES.map(|runtime| {
        let tool = on(&server, &["--runtime", runtime, "job", "--", "true"]);
        tool.wait_for_err("too few servers answer");
        tool.wait_for_err("refused the connection");
        tool
    });
    server.restart();
    for tool in tools {
        assert_eq!(tool.end().code, 0);
    }
    assert_clean(&server);
}
