//! What `with-lock` and `leader` do on every store of a crate of its own.

use core::time::Duration;
use std::time::Instant;

use lock_testkit::wait_until;
use rustix::process::Signal;

use super::{Ended, LONG, Tool};

/// The shortest that all of them have.
const TTL: Duration = Duration::from_secs(3);
/// What a takeover may take beside the TTL: an observation of the record, and the start on a busy
/// machine.
const SLACK: Duration = Duration::from_secs(6);

#[track_caller]
pub(crate) fn assert_usage(ended: &Ended, word: &str) {
    assert!(ended.code == 64 && ended.err.contains(word), "{ended:?}");
}

/// What follows this name in a line, up to a space.
pub(crate) fn word(line: &str, name: &str) -> String {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap().to_owned()
}

/// One holder at a time; the next one after a release, and after a kill when the TTL has passed.
///
/// `start` starts `with-lock` on the store.
#[track_caller]
pub(crate) fn check_locks(start: impl Fn(&[&str]) -> Tool) {
    let lock = |args: &[&str]| start(&[&["--ttl", "3s"], args].concat());
    let holder = lock(&["job"]);
    holder.wait_for_out("held job fence=");
    let attempt = || lock(&["--wait", "0", "job", "--", "true"]).end();
    let ended = attempt();
    assert_eq!(ended.code, 75, "{ended:?}");
    let next = lock(&["job"]);
    next.wait_for_err("waiting: held by another client");
    assert_eq!(holder.terminate().code, 0);
    next.wait_for_out("held job fence=");
    next.signal(Signal::KILL);
    let ended = attempt();
    assert_eq!(ended.code, 75, "before the TTL: {ended:?}");
    let ended = lock(&["job", "--", "true"]).end();
    assert!(ended.code == 0 && ended.took < TTL + SLACK, "{ended:?}");
}

/// One leader at a time; the next one after a kill when the TTL has passed; observers see them. The
/// demonstration goes as promised.
///
/// `start` starts `leader` on the store.
#[track_caller]
pub(crate) fn check_elections(start: impl Fn(&[&str]) -> Tool) {
    let took = check_succession(&start, "3s");
    assert!((TTL / 2..TTL + SLACK).contains(&took), "{took:?}");

    let ended = start(&["--ttl", "3s"]).end_within(3 * LONG);
    assert!(ended.code == 0 && ended.out.contains("everything as promised"), "{ended:?}");
}

/// Kills a leader, whose successor resigns. Observers see both. Returns how long the succession
/// took.
#[track_caller]
pub(crate) fn check_succession(start: impl Fn(&[&str]) -> Tool, ttl: &str) -> Duration {
    let of_board = |args: &[&str]| start(&[&["--name", "board"], args].concat());
    let candidate = |value| of_board(&["--ttl", ttl, "--candidate", value]);
    let observer = of_board(&["--observe"]);
    observer.wait_for_out("nobody board\n");
    let first = candidate("the first");
    first.wait_for_out("elected board key=board rev=");
    observer.wait_for_out(" value=the first\n");
    let second = candidate("the second");
    second.wait_for_err("waiting: held by another client");
    first.signal(Signal::KILL);
    let killed = Instant::now();
    second.wait_for_out("elected board key=board rev=");
    let took = killed.elapsed();
    observer.wait_for_out(" value=the second\n");
    let rev = word(&second.out(), "rev=");
    assert!(observer.out().contains(&format!("key=board rev={rev} value=the second\n")), "{}", observer.out());
    let ended = second.terminate();
    assert!(ended.code == 0 && ended.out.ends_with("resigned board\n"), "{ended:?}");
    assert!(wait_until(LONG, || observer.out().ends_with("nobody board\n")), "{}", observer.out());
    assert_eq!((observer.terminate().code, first.end().code), (0, -1));
    took
}
