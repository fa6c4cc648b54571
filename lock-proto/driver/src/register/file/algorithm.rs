//! Compare-and-set without a lock: a record is a file whose name is its version.
//!
//! The record of a key is the file with the greatest version in the key's folder. Its successor is
//! written elsewhere, synced, and linked to the next version, which fails if that exists. Then the
//! older files are removed, the oldest first.
//!
//! A writer may stop before its link for so long that the version it wants was written by another
//! one and removed again. Its link then succeeds, below the record of today. So it looks whether the
//! file that it replaces is still there: that was removed before its successor was, and never comes
//! back, as no two records are alike.
//!
//! The first record appears by the rename of a whole folder, which fails if the key's folder has a
//! record. From then on it always has one.
// RF1

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lock_proto::register::{Entry, Record, Revision};

use super::clients::Clients;
use super::error::{named, not_applied, of_publication};
use super::names::path_of;
use crate::register::store::RegisterError;

/// Attempts of a read, while records come and go.
const READS: usize = 100;
/// The longest file that is read, in bytes: more than the longest record.
const LONGEST: u64 = 4 << 20;

/// A folder with locks.
#[derive(Debug)]
pub(super) struct Folder {
    locks: PathBuf,
    clients: Clients,
    drafts: u64,
}

impl Folder {
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        let (locks, clients) = (folder.join("locks"), folder.join("clients"));
        for folder in [&locks, &clients] {
            fs::create_dir_all(folder).map_err(|error| named("cannot create the folder", folder, &error))?;
        }
        // Whether it may write is shown now, not by the first lock.
        let probe = folder.join(format!("probe-{}-{:?}", std::process::id(), std::thread::current().id()));
        let written = File::create(&probe);
        let _ = fs::remove_file(&probe);
        written.map_err(|error| named("cannot write to the folder", &folder, &error))?;
        Ok(Self { locks, clients: Clients::new(clients), drafts: 0 })
    }

    pub(super) fn remove_dead(&self) {
        self.clients.remove_dead();
    }

    /// Reads the record of a key.
    pub(super) fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let folder = self.locks.join(path_of(key));
        for _ in 0..READS {
            let versions = versions(&folder).map_err(|error| not_applied("cannot read", &folder, &error))?;
            let Some(version) = versions.last() else { return Ok(None) };
            let file = folder.join(format!("{version}"));
            if let Some((record, age)) = read_record(&file)? {
                let dead = record.held && self.clients.is_dead(record.writer.client);
                let entry = Entry::new(record.clone(), revision(&record));
                let age = if dead { Some(Duration::MAX) } else { age };
                return Ok(Some(match age {
                    Some(age) => entry.age(age),
                    None => entry,
                }));
            }
            // It was replaced meanwhile.
        }
        Err(RegisterError::not_sent(format!("{}: changes too fast to be read", folder.display())))
    }

    pub(super) fn write(
        &mut self,
        key: &[u8],
        record: Record,
        expected: Option<Entry>,
    ) -> Result<Revision, RegisterError> {
        let mut writing = self.begin(key, record, expected);
        loop {
            if let Some(done) = writing.step(self) {
                return done;
            }
        }
    }

    /// Returns the steps of a write.
    pub(super) fn begin(&mut self, key: &[u8], record: Record, expected: Option<Entry>) -> Writing {
        self.drafts += 1;
        Writing {
            folder: self.locks.join(path_of(key)),
            draft: self.clients.folder_of(record.writer.client).join(format!("{}", self.drafts)),
            record,
            expected: expected.map(|expected| expected.record),
            step: WriteStep::Check,
        }
    }
}

/// A write, step by step: others may do anything between two steps, and the process may end.
#[derive(Debug)]
pub(super) struct Writing {
    /// The folder of the key.
    folder: PathBuf,
    /// A file that nobody else has.
    draft: PathBuf,
    record: Record,
    expected: Option<Record>,
    step: WriteStep,
}

#[derive(Debug)]
enum WriteStep {
    Check,
    Draft,
    Publish,
    Verify,
    RemoveDraft(Result<Revision, RegisterError>),
    RemoveOld(Revision, Vec<u64>),
}

impl Writing {
    /// Takes a step. Returns the result after the last one.
    pub(super) fn step(&mut self, folder: &mut Folder) -> Option<Result<Revision, RegisterError>> {
        let next = match core::mem::replace(&mut self.step, WriteStep::Check) {
            WriteStep::Check => self.check().map(|()| WriteStep::Draft),
            WriteStep::Draft => match self.draft(folder) {
                Ok(()) => Ok(WriteStep::Publish),
                Err(error) => Ok(WriteStep::RemoveDraft(Err(error))),
            },
            WriteStep::Publish => Ok(match self.publish() {
                Ok(()) if self.expected.is_some() => WriteStep::Verify,
                done => WriteStep::RemoveDraft(done.map(|()| revision(&self.record))),
            }),
            WriteStep::Verify => Ok(WriteStep::RemoveDraft(self.verify().map(|()| revision(&self.record)))),
            WriteStep::RemoveDraft(done) => {
                self.remove_draft();
                match done {
                    Ok(revision) => {
                        let mut old = versions(&self.folder).unwrap_or_default().into_iter().collect::<Vec<_>>();
                        old.retain(|version| *version < self.record.version);
                        old.reverse();
                        Ok(WriteStep::RemoveOld(revision, old))
                    }
                    Err(error) => Err(error),
                }
            }
            WriteStep::RemoveOld(revision, mut old) => match old.pop() {
                Some(oldest) if self.remove(oldest) => Ok(WriteStep::RemoveOld(revision, old)),
                _ => return Some(Ok(revision)),
            },
        };
        match next {
            Ok(step) => {
                self.step = step;
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// The record must be the expected one, and the new one its successor.
    fn check(&self) -> Result<(), RegisterError> {
        let versions = versions(&self.folder).map_err(|error| not_applied("cannot read", &self.folder, &error))?;
        match (&self.expected, versions.last()) {
            (None, None) => return Ok(()),
            (Some(expected), Some(version)) if expected.version == *version => {}
            (None | Some(_), _) => return Err(RegisterError::Conflict),
        }
        if !self.finds_expected()? {
            return Err(RegisterError::Conflict);
        }
        if self.expected.as_ref().and_then(|expected| expected.version.checked_add(1)) != Some(self.record.version) {
            let text = "the version of a record must be that of the record that it replaces, plus one";
            return Err(RegisterError::refused(text));
        }
        Ok(())
    }

    /// Writes and syncs the record: after a loss of power there must be no half of it.
    fn draft(&self, folder: &mut Folder) -> Result<(), RegisterError> {
        let client = self.record.writer.client;
        let written = folder.clients.enter(client).and_then(|_| {
            if self.expected.is_none() {
                fs::create_dir(&self.draft)?;
            }
            let mut file = File::create_new(self.draft_file())?;
            file.write_all(&self.record.encode())?;
            file.sync_all()
        });
        written.map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                folder.clients.forget(client);
            }
            not_applied("cannot write", &self.draft, &error)
        })
    }

    /// The first record is drafted with its folder.
    fn draft_file(&self) -> PathBuf {
        match self.expected {
            Some(_) => self.draft.clone(),
            None => self.draft.join(format!("{}", self.record.version)),
        }
    }

    fn publish(&self) -> Result<(), RegisterError> {
        let published = match self.expected {
            Some(_) => fs::hard_link(&self.draft, self.folder.join(format!("{}", self.record.version))),
            None => self
                .folder
                .parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| fs::rename(&self.draft, &self.folder)),
        };
        published.map_err(|error| {
            let is_taken = matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty);
            if is_taken { RegisterError::Conflict } else { of_publication(&self.folder, &error) }
        })
    }

    /// If the record that it replaces is still there, this one is its first successor. Otherwise it
    /// has come too late, or was itself replaced already: a read shows which.
    fn verify(&self) -> Result<(), RegisterError> {
        match self.finds_expected() {
            Ok(true) => Ok(()),
            Ok(false) => Err(RegisterError::unknown("the record was replaced meanwhile")),
            Err(error) => Err(RegisterError::unknown(error)),
        }
    }

    /// Returns whether the file that it replaces is there. Another one with the same name may be.
    fn finds_expected(&self) -> Result<bool, RegisterError> {
        let Some(expected) = &self.expected else { return Ok(true) };
        let found = read_record(&self.folder.join(format!("{}", expected.version)))?;
        Ok(found.is_some_and(|(record, _)| record.writer == expected.writer))
    }

    fn remove_draft(&self) {
        // After a rename it has gone.
        let _ = if self.expected.is_some() { fs::remove_file(&self.draft) } else { fs::remove_dir_all(&self.draft) };
    }

    /// Returns whether the next one may be removed: a record goes only after those before it.
    fn remove(&self, version: u64) -> bool {
        let removed = fs::remove_file(self.folder.join(format!("{version}")));
        removed.map_or_else(|error| error.kind() == ErrorKind::NotFound, |()| true)
    }
}

/// The version and the writer: a key that was deleted and made again may reach the same version.
fn revision(record: &Record) -> Revision {
    Revision::new(format!("{} {}", record.version, record.writer))
}

/// Returns the versions in the folder of a key.
fn versions(folder: &Path) -> io::Result<BTreeSet<u64>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut versions = BTreeSet::new();
    for entry in entries {
        // Other files are nobody's record.
        versions.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(versions)
}

/// Reads a record, and how long ago its file was written. That was begun after the request for it
/// was sent, from which the validity of its lock counts. `None` if the file is not there.
fn read_record(path: &Path) -> Result<Option<(Record, Option<Duration>)>, RegisterError> {
    let read = || -> io::Result<_> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes)?;
        Ok((bytes, metadata.modified().ok()))
    };
    match read() {
        Ok((bytes, modified)) => {
            let record = Record::decode(&bytes)
                .map_err(|error| RegisterError::refused(format!("{}: {error}", path.display())))?;
            let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
            Ok(Some((record, age)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(not_applied("cannot read", path, &error)),
    }
}
