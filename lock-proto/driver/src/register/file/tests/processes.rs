//! Processes that are killed or stopped in the middle of a write.

use core::time::Duration;
use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use lock_testkit::{in_memory, spawn};

use super::super::algorithm::Folder;
use super::record;
use crate::register::store::RegisterError;

const KEY: &[u8] = b"job";
const CHILD: u128 = 5;
/// More than a write has, without those that remove old records.
const STEPS: usize = 6;

/// Not a test: the child of the others. Takes some steps of a write, says so and waits. Told to, it
/// takes the others.
#[test]
fn child() {
    let (Some(root), Ok(steps)) = (env::var_os("LOCK_TEST_ROOT"), env::var("LOCK_TEST_STEPS")) else { return };
    let mut folder = Folder::open(root.into()).unwrap();
    let seen = folder.read(KEY).unwrap();
    let mut writing = folder.begin(KEY, record(CHILD, seen.as_ref()), seen);
    let mut done = None;
    for _ in 0..steps.parse::<usize>().unwrap() {
        done = done.or_else(|| writing.step(&mut folder));
    }
    println!("waits");
    let mut line = [0];
    std::io::stdin().read_exact(&mut line).unwrap();
    let done = done.unwrap_or_else(|| {
        loop {
            if let Some(done) = writing.step(&mut folder) {
                return done;
            }
        }
    });
    println!("ended {done:?}");
    let _ = std::io::stdin().read_exact(&mut line);
}

struct FolderUser {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl FolderUser {
    fn start(root: &Path, steps: usize) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "register::file::tests::processes::child"]);
        command.env("LOCK_TEST_ROOT", root).env("LOCK_TEST_STEPS", format!("{steps}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, lines };
        process.line("waits");
        process
    }

    /// Returns the rest of the line that begins with this word.
    fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no {word}");
            // The test harness writes, too, also before it on the same line.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = format!("{}", self.child.id());
        assert!(Command::new("kill").args([name, &*pid]).status().unwrap().success());
    }

    fn go_on(&mut self) {
        use std::io::Write as _;
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for FolderUser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn killed_in_mid_write_blocks_nobody_and_is_known_to_be_dead() {
    // RF1, RF3
    for exists in [false, true] {
        for steps in 0..=STEPS {
            let root = in_memory();
            let mut own = Folder::open(root.path().to_owned()).unwrap();
            if exists {
                own.write(KEY, record(1, None), None).unwrap();
            }
            let mut process = FolderUser::start(root.path(), steps);
            process.child.kill().unwrap();
            process.child.wait().unwrap();
            let seen = own.read(KEY).unwrap();
            let of_child = seen.as_ref().is_some_and(|entry| entry.record.writer.client.bits() == CHILD);
            if of_child {
                assert_eq!(seen.as_ref().unwrap().age, Some(Duration::MAX), "{steps}");
            }
            assert_eq!(of_child, steps >= 3, "after {steps} steps");
            own.write(KEY, record(1, seen.as_ref()), seen).unwrap();
        }
    }
}

#[test]
fn stopped_in_mid_write_blocks_nobody_and_learns_that_it_was_late() {
    // RF1, RF3
    for exists in [false, true] {
        for steps in 0..=STEPS {
            let root = in_memory();
            let mut own = Folder::open(root.path().to_owned()).unwrap();
            if exists {
                own.write(KEY, record(1, None), None).unwrap();
            }
            let mut process = FolderUser::start(root.path(), steps);
            process.signal("-STOP");
            let seen = own.read(KEY).unwrap();
            let of_child = seen.as_ref().is_some_and(|entry| entry.record.writer.client.bits() == CHILD);
            if of_child {
                assert!(seen.as_ref().unwrap().age < Some(lock_testkit::TIMEOUT), "it lives");
            }
            own.write(KEY, record(1, seen.as_ref()), seen).unwrap();
            // Its own record, and those that it must not see as its success.
            let seen = own.read(KEY).unwrap();
            let next = record(1, seen.as_ref());
            own.write(KEY, next.clone(), seen).unwrap();
            process.signal("-CONT");
            process.go_on();
            let ended = process.line("ended");
            assert!(!ended.contains("Ok") || of_child, "{steps}: {ended}");
            assert_eq!(own.read(KEY).unwrap().unwrap().record, next, "{steps}");
        }
    }
}

#[test]
fn client_that_is_alive_in_this_process_is_not_dead() {
    // RF3
    let root = in_memory();
    let mut own = Folder::open(root.path().to_owned()).unwrap();
    let mut other = Folder::open(root.path().to_owned()).unwrap();
    own.write(KEY, record(1, None), None).unwrap();
    let seen = other.read(KEY).unwrap().unwrap();
    assert!(seen.age < Some(lock_testkit::TIMEOUT), "{seen:?}");
    // The same identity cannot be used twice.
    let twice = other.write(KEY, record(1, Some(&seen)), Some(seen));
    assert!(matches!(twice, Err(RegisterError::NotSent(_))), "{twice:?}");
    drop(own);
    let seen = other.read(KEY).unwrap().unwrap();
    assert!(seen.age < Some(lock_testkit::TIMEOUT), "a client that ended in order may still work: {seen:?}");
}

#[test]
fn drafts_of_long_dead_clients_are_removed() {
    // RF4
    let root = in_memory();
    let process = FolderUser::start(root.path(), 2);
    let folder = root.path().join("clients").join(format!("{CHILD:032x}"));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "its lock and a draft");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    let file = std::fs::File::options().write(true).open(folder.join("lock")).unwrap();
    file.set_modified(long_ago).unwrap();
    let own = Folder::open(root.path().to_owned()).unwrap();
    own.remove_dead();
    assert!(folder.exists(), "it lives");
    drop(process);
    own.remove_dead();
    assert!(!folder.exists());
}
