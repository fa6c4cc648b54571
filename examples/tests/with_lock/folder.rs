//! Locks in a folder, without a server.

use std::fs;

use lock_testkit::wait_until;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::exclusion::assert_no_overlap;
use crate::harness::{LONG, Scratch, Tool, WITH_SIGNALS};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(lock_testkit::in_memory())
    }

    fn url(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    fn start(&self, args: &[&str]) -> Tool {
        Tool::start(&[&["--backend", &self.url()], args].concat())
    }

    /// Nothing is left of the processes that ended in order.
    #[track_caller]
    fn assert_clean(&self) {
        let clients = fs::read_dir(self.0.path().join("clients")).unwrap();
        assert_eq!(clients.count(), 0);
    }
}

#[test]
fn processes_never_overlap_on_any_runtime() {
    let folder = Folder::new();
    assert_no_overlap(&folder.url());
    folder.assert_clean();
}

/// What a job of cron does: one attempt, then it ends.
#[test]
fn lock_of_killed_process_is_free_at_once() {
    // RF3
    let folder = Folder::new();
    let holder = folder.start(&["--ttl", "1h", "job"]);
    holder.wait_for_out("held");
    let attempt = || folder.start(&["--ttl", "1h", "--wait", "0", "job", "--", "true"]).end();
    let ended = attempt();
    assert_eq!(ended.code, 75, "{ended:?}");
    holder.signal(Signal::KILL);
    assert!(wait_until(LONG, || attempt().code == 0), "long before its TTL");
}

#[test]
fn lock_of_stopped_process_ends_with_its_ttl_and_the_process_learns_of_it() {
    // RF3
    let folder = Folder::new();
    let holder = folder.start(&["--ttl", "2s", "job"]);
    holder.wait_for_out("held");
    holder.signal(Signal::STOP);
    let ended = folder.start(&["--ttl", "2s", "job", "--", "true"]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    holder.signal(Signal::CONT);
    let ended = holder.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.out.contains("lost job"), "{ended:?}");
}

#[test]
fn fences_grow_from_process_to_process() {
    let folder = Folder::new();
    let scratch = Scratch::new();
    let script = format!("echo $LOCK_FENCE >> {}", scratch.path("fences"));
    for _ in 0..3 {
        let ended = folder.start(&["job", "--", "sh", "-c", &script]).end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let fences: Vec<u64> = scratch.read("fences").lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.len() == 3 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    folder.assert_clean();
}

#[test]
fn without_backend_the_locks_are_in_a_folder_of_the_user() {
    let home = Folder::new();
    let path = home.0.path().to_str().unwrap();
    let start = |args: &[&str]| {
        let mut command = Tool::command_by(WITH_SIGNALS, args, &[("HOME", path)]);
        command.env_remove("XDG_STATE_HOME");
        Tool::spawn(command)
    };
    let holder = start(&["job"]);
    holder.wait_for_out("held");
    let ended = start(&["--wait", "0", "job", "--", "true"]).end();
    assert_eq!(ended.code, 75, "{ended:?}");
    let folder = format!("{path}/.local/state/lock-proto");
    assert!(ended.err.contains("no --backend") && ended.err.contains(&folder), "{ended:?}");
    assert_eq!(holder.terminate().code, 0);
    let nowhere = Tool::command_by(WITH_SIGNALS, &["job", "--", "true"], &[("HOME", ""), ("XDG_STATE_HOME", "")]);
    let ended = Tool::spawn(nowhere).end();
    assert!(ended.code == 64 && ended.err.contains("HOME"), "{ended:?}");
}

#[test]
fn folder_that_cannot_be_used_is_an_error_with_its_reason() {
    // RF5
    for (url, word) in [("file:///proc/locks", "/proc/locks"), ("file://relative", "absolute path")] {
        let ended = Tool::start(&["--backend", url, "job", "--", "true"]).end();
        assert!(ended.code == 64 && ended.err.contains(word), "{ended:?}");
    }
}
