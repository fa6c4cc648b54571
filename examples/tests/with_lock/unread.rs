//! `with-lock` when stdout or stderr is a full pipe that nobody reads.

use std::process::Stdio;
use std::time::Instant;

use lock_testkit::{Redis, Stopwatch, wait_until};
use rustix::process::Signal;

use crate::harness::{LONG, RUNTIMES, Scratch, Tool, assert_clean, is_alive, ms, runtime};
use crate::kit::full_pipe;
use crate::loss::ignores_sigterm;

/// A message about the loss blocked the thread that ends the command: two clients held the lock.
#[test]
fn lost_lock_ends_command() {
    let redis = Redis::start();
    let url = redis.url();
    let holders: Vec<_> = RUNTIMES
        .iter()
        .flat_map(|runtime| [(runtime, "off"), (runtime, "warn")])
        .map(|(runtime, log)| {
            let (scratch, name) = (Scratch::new(), format!("{runtime}-{log}"));
            let script = ignores_sigterm(&scratch);
            let line = ["--backend", &url, "--runtime", runtime, "--ttl", "3s", "--grace", "400ms", &name];
            let line = [&line[..], &["--", "sh", "-c", &script]].concat();
            let (unread, errors) = full_pipe();
            let tool = Tool::spawn_to_both(Tool::command(&line, &[("LOCK_LOG", log)]), Stdio::null(), errors);
            let pid = scratch.line("pid");
            (name, scratch, pid, tool, unread)
        })
        .collect();
    for (name, ..) in &holders {
        redis.cli(&["DEL", name]);
    }
    let deleted = Stopwatch::start();
    for (name, scratch, pid, ..) in &holders {
        scratch.line("asked");
        assert!(wait_until(LONG, || !is_alive(pid)), "{name}: the command runs on");
        deleted.assert_within(ms(3_000), name);
    }
    for (name, _, _, tool, _unread) in holders {
        assert_eq!(tool.end().code, 76, "{name}");
    }
}

/// A warning blocked the thread that renews.
#[test]
fn lock_is_kept_while_server_restarts() {
    let mut redis = Redis::builder().append_only().start();
    let url = redis.url();
    let (unread, errors) = full_pipe();
    let line = ["--backend", &url, "--runtime", runtime(), "--ttl", "4s", "job"];
    let tool = Tool::spawn_to_both(Tool::command(&line, &[("LOCK_LOG", "trace")]), Stdio::piped(), errors);
    tool.wait_for_out("held job");
    redis.restart();
    // Compare the time of expiry, which only a renewal changes.
    let start = Instant::now();
    let end = || redis.cli(&["PTTL", "job"]).parse::<u128>().unwrap() + start.elapsed().as_millis();
    let before = end();
    assert!(wait_until(LONG, || end() > before + 500), "not renewed after the restart");
    assert!(wait_until(LONG, || unread.text().contains("with-lock: DEBUG: ")), "what waited is not written");
    assert_eq!(tool.terminate().code, 0);
    assert_clean(&redis);
}

/// It held the lock for ever, whatever the signal.
#[test]
fn signal_ends_hold_and_wait() {
    let redis = Redis::start();
    let url = redis.url();
    let start = || {
        let (unread, output) = full_pipe();
        (Tool::spawn_to(Tool::command(&["--backend", &url, "--runtime", runtime(), "job"], &[]), output), unread)
    };
    let (holder, _unread) = start();
    assert!(wait_until(LONG, || redis.cli(&["EXISTS", "job"]) == "1"), "{}", holder.err());
    let (waiter, _unread) = start();
    waiter.wait_for_err("waiting");
    let ended = waiter.terminate();
    assert_eq!(ended.code, 128 + 15, "{ended:?}");
    holder.signal(Signal::TERM);
    assert!(wait_until(LONG, || redis.cli(&["EXISTS", "job"]) == "0"), "{}", holder.err());
    let ended = holder.end();
    assert!(ended.code == 74 && ended.err.contains("its last lines are lost"), "{ended:?}");
    assert_clean(&redis);
}

#[test]
fn loss_without_command_ends_hold() {
    let redis = Redis::start();
    let (_unread, output) = full_pipe();
    let (_unread, errors) = full_pipe();
    let command = Tool::command(&["--backend", &redis.url(), "--runtime", runtime(), "--ttl", "900ms", "job"], &[]);
    let tool = Tool::spawn_to_both(command, output, errors);
    assert!(wait_until(LONG, || redis.cli(&["DEL", "job"]) == "1"));
    assert_eq!(tool.end().code, 76);
}
