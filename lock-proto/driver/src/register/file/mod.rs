//! Locks in a folder of one machine.

mod algorithm;
mod clients;
mod error;
mod names;
mod system;
#[cfg(test)]
mod tests;
mod worker;

use std::fs;
use std::io;
use std::path::Path;

use lock_proto::register::{Entry, Record, Revision};

use super::store::{Register, RegisterError};
use algorithm::Folder;
use error::named;
use worker::Worker;

/// Locks in a folder, for the processes of one machine.
///
/// The folder is on a local file system. It is created if it does not exist, with access for its
/// owner only. Processes of several users may share one that exists and that they all may write to:
/// with the set-group-ID bit and the umask 002, for example.
///
/// No process waits for another one: there is no lock that a stopped process could keep. A record is
/// written to a file of its own, synced, and linked to a name that contains its version; the link
/// fails if that version exists. If the holder's process has ended, others take the lock at once.
/// If it is stopped, they take it after its TTL.
///
/// A client holds an OS lock on a file for life. A process forked from it, that does not execute another
/// program, shares that lock: if its parent dies, the locks end by their TTL.
///
/// Tested on Linux. There the file system must be one of those known to be local; on other systems
/// that is not checked. A network file system and a folder that virtual machines share keep no
/// promise: two processes may hold one lock.
///
/// A live record must not be deleted, by a cleaner of temporary files for example.
// RF1
#[derive(Debug)]
pub struct FileRegister {
    worker: Worker<Folder>,
}

impl FileRegister {
    /// Opens a folder. Its calls run on a thread of their own, which ends when the register is
    /// dropped.
    ///
    /// # Errors
    ///
    /// The folder is not there and cannot be created, or cannot be written to; it is writable by
    /// everybody, so that anybody could forge a record; or its file system may not be local. The
    /// system has no thread.
    pub fn open(folder: impl AsRef<Path>) -> io::Result<Self> {
        let folder = folder.as_ref();
        create(folder).map_err(|error| named("cannot create the folder", folder, &error))?;
        // Absolute, so that it stays the same when the process changes its folder.
        let folder = fs::canonicalize(folder).map_err(|error| named("cannot find the folder", folder, &error))?;
        system::check(&folder)?;
        let folder = Folder::open(folder)?;
        let worker = Worker::spawn(folder)?;
        worker.send(|folder| folder.remove_dead());
        Ok(Self { worker })
    }
}

#[cfg(unix)]
fn create(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn create(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

impl Register for FileRegister {
    fn read(&self, key: &[u8]) -> impl Future<Output = Result<Option<Entry>, RegisterError>> {
        let key = key.to_vec();
        self.worker.call(move |folder| folder.read(&key))
    }

    fn write(
        &self,
        key: &[u8],
        record: &Record,
        expected: Option<&Entry>,
    ) -> impl Future<Output = Result<Revision, RegisterError>> {
        let (key, record, expected) = (key.to_vec(), record.clone(), expected.cloned());
        self.worker.call(move |folder| folder.write(&key, record, expected))
    }
}
