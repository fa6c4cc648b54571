//! All interleavings of the steps of writers, and a crash after each step.

use alloc::collections::BTreeMap;
use std::path::Path;

use lock_proto::ClientId;
use lock_proto::register::Entry;

use super::super::algorithm::{Folder, Writing};
use super::record;
use crate::register::store::RegisterError;

const KEY: &[u8] = b"job";

/// A process that writes a number of records, each after a read.
struct Actor {
    folder: Folder,
    client: u128,
    left: usize,
    /// It ends after this many turns, in the middle of a write or not.
    crashes_after: usize,
    writing: Option<(u64, Writing)>,
}

impl Actor {
    fn new(root: &Path, client: u128, left: usize) -> Self {
        let folder = Folder::open(root.to_owned()).unwrap();
        Self { folder, client, left, crashes_after: usize::MAX, writing: None }
    }

    fn has_turn(&self) -> bool {
        self.crashes_after > 0 && (self.writing.is_some() || self.left > 0)
    }

    /// Takes the next step that others can see, and those that they cannot.
    fn turn(&mut self, history: &mut WriteHistory) {
        self.crashes_after -= 1;
        match &mut self.writing {
            None => {
                let seen = self.folder.read(KEY).unwrap();
                history.saw(seen.as_ref());
                self.left -= 1;
                self.begin(seen);
            }
            Some((version, writing)) => loop {
                let version = *version;
                let before = alloc::format!("{writing:?}");
                if let Some(done) = writing.step(&mut self.folder) {
                    history.ended(self.client, version, done.map(drop));
                    self.writing = None;
                    return;
                }
                // Its drafts are its own: others see neither that one is made nor that it goes.
                if !before.contains("step: Check") && !before.contains("step: Verify") {
                    return;
                }
            },
        }
    }

    fn run(&mut self, history: &mut WriteHistory) {
        while self.has_turn() {
            self.turn(history);
        }
    }

    fn stop_before_link(&mut self, history: &mut WriteHistory) {
        // The read; then the check and the draft.
        self.turn(history);
        self.turn(history);
    }

    fn begin(&mut self, expected: Option<Entry>) {
        let record = record(self.client, expected.as_ref());
        self.writing = Some((record.version, self.folder.begin(KEY, record, expected)));
    }
}

/// What the writers were told.
#[derive(Default)]
struct WriteHistory {
    written: BTreeMap<u64, u128>,
    refused: Vec<(u64, u128)>,
    unknown: Vec<(u64, u128)>,
    crashed: Vec<u128>,
}

impl WriteHistory {
    fn ended(&mut self, client: u128, version: u64, result: Result<(), RegisterError>) {
        match result {
            Ok(()) => {
                let other = self.written.insert(version, client);
                assert_eq!(other, None, "version {version} was written twice, at last by {client}");
            }
            Err(RegisterError::Conflict) => self.refused.push((version, client)),
            Err(RegisterError::Unknown(_)) => self.unknown.push((version, client)),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Reads may be stale, but here nothing delays them.
    fn saw(&self, entry: Option<&Entry>) {
        let Some((last, client)) = self.written.last_key_value() else { return };
        let record = &entry.expect("a record was written").record;
        assert!(record.version >= *last, "{record:?} after {last}");
        if record.version == *last {
            assert_eq!(record.writer.client, ClientId::from_bits(*client));
        }
        let was_refused = |(version, client): &(u64, u128)| {
            record.version == *version && record.writer.client == ClientId::from_bits(*client)
        };
        assert!(!self.refused.iter().any(was_refused), "{record:?} was refused");
    }
}

/// Runs all schedules of the actors that `start` makes.
fn all_schedules(mut start: impl FnMut(&Path) -> (Vec<Actor>, WriteHistory)) -> (usize, usize) {
    let (mut runs, mut unknown) = (0, 0);
    // For each turn, which of the actors that had one took it, and how many had one.
    let mut schedule: Vec<(usize, usize)> = Vec::new();
    loop {
        let root = lock_testkit::in_memory();
        let (mut actors, mut history) = start(root.path());
        let mut turn = 0;
        loop {
            let ready: Vec<_> =
                actors.iter().enumerate().filter(|(_, actor)| actor.has_turn()).map(|(i, _)| i).collect();
            if ready.is_empty() {
                break;
            }
            if turn == schedule.len() {
                schedule.push((0, ready.len()));
            }
            actors[ready[schedule[turn].0]].turn(&mut history);
            turn += 1;
        }
        history.crashed.extend(actors.iter().filter(|actor| actor.writing.is_some()).map(|actor| actor.client));
        afterwards(root.path(), &mut history);
        runs += 1;
        unknown += history.unknown.len();
        while schedule.last().is_some_and(|(taken, ready)| taken + 1 == *ready) {
            schedule.pop();
        }
        match schedule.last_mut() {
            Some((taken, _)) => *taken += 1,
            None => return (runs, unknown),
        }
    }
}

/// Another process sees the last record, and can replace it.
fn afterwards(root: &Path, history: &mut WriteHistory) {
    let mut last = Actor::new(root, 99, 1);
    last.run(history);
    assert!(history.written.values().any(|client| *client == 99), "a write with nobody else succeeds");
    let seen = last.folder.read(KEY).unwrap();
    history.saw(seen.as_ref());
    let files = std::fs::read_dir(root.join("locks/job")).unwrap().count();
    // What came too late and was not removed goes with the next record.
    assert_eq!(files, 1);
}

fn with_record(root: &Path) {
    let mut folder = Folder::open(root.to_owned()).unwrap();
    folder.write(KEY, record(1, None), None).unwrap();
}

#[test]
fn two_writers_in_all_orders_write_each_version_once() {
    // RF1
    for exists in [false, true] {
        let (runs, _) = all_schedules(|root| {
            if exists {
                with_record(root);
            }
            let mut history = WriteHistory::default();
            let mut first = Actor::new(root, 2, 1);
            first.turn(&mut history);
            (vec![first, Actor::new(root, 3, 2)], history)
        });
        assert!(runs > 200, "{runs}");
    }
}

#[test]
fn crash_after_any_step_blocks_nobody() {
    // RF1
    for exists in [false, true] {
        for crashes_after in 0..7 {
            let (runs, _) = all_schedules(|root| {
                if exists {
                    with_record(root);
                }
                let crashing = Actor { crashes_after, ..Actor::new(root, 2, 1) };
                (vec![crashing, Actor::new(root, 3, 1)], WriteHistory::default())
            });
            assert!(runs > 0);
        }
    }
}

/// Two writers stop before their links, each for the version that was the next one then. A third goes
/// on. Their links may succeed, since the files of that name have gone.
#[test]
fn writers_that_come_late_are_told_so() {
    // RF1
    for two in [false, true] {
        let (runs, unknown) = all_schedules(|root| {
            with_record(root);
            let mut history = WriteHistory::default();
            let [mut first, mut second, mut third] = [2, 3, 4].map(|client| Actor::new(root, client, 1));
            first.stop_before_link(&mut history);
            third.run(&mut history);
            third.left = 1;
            if !two {
                return (vec![first, third], history);
            }
            second.stop_before_link(&mut history);
            third.run(&mut history);
            third.left = 1;
            (vec![first, second, third], history)
        });
        assert!(runs > 20, "{runs}");
        assert!(unknown > 0, "{unknown} links succeeded too late");
    }
}
