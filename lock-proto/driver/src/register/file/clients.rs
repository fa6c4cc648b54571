//! Who is alive: each client holds an OS lock on a file of its own.

use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::format;
use core::time::Duration;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use lock_proto::ClientId;

/// Dead clients are removed after this time: their records have expired long before, so that nobody
/// has to know any more that they are dead.
const KEEP_DEAD: Duration = Duration::from_secs(60 * 60);
/// Most clients that one look for dead ones considers.
const MOST: usize = 1_000;

/// The folder of the clients. That of a client contains its locked file, and its drafts.
#[derive(Debug)]
pub(super) struct Clients {
    folder: PathBuf,
    /// The clients of this register; usually one. Closing a file unlocks it.
    own: BTreeMap<ClientId, File>,
}

fn lock_file(client: &Path) -> PathBuf {
    client.join("lock")
}

impl Clients {
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self { folder, own: BTreeMap::new() }
    }

    pub(super) fn folder_of(&self, client: ClientId) -> PathBuf {
        self.folder.join(format!("{client}"))
    }

    /// Takes the client's OS lock before its first record. Returns the folder for its drafts.
    // RF3
    pub(super) fn enter(&mut self, client: ClientId) -> io::Result<PathBuf> {
        let folder = self.folder_of(client);
        if let Entry::Vacant(place) = self.own.entry(client) {
            fs::create_dir_all(&folder)?;
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(lock_file(&folder))?;
            file.try_lock()?;
            place.insert(file);
        }
        Ok(folder)
    }

    /// The client's folder has vanished: the next write makes it anew.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.own.remove(&client);
    }

    /// Returns true if the client's process has ended: its OS lock can be taken. If its file is not
    /// there, a cleaner may have deleted it, and only the TTL counts.
    // RF3
    pub(super) fn is_dead(&self, client: ClientId) -> bool {
        // A shared lock, so that two who ask at once do not take each other for the owner.
        let file = File::open(lock_file(&self.folder_of(client)));
        !self.own.contains_key(&client) && file.is_ok_and(|file| file.try_lock_shared().is_ok())
    }

    /// Removes clients that have been dead for long, with their drafts.
    // RF4
    pub(super) fn remove_dead(&self) {
        for client in fs::read_dir(&self.folder).into_iter().flatten().flatten().take(MOST) {
            let file = lock_file(&client.path());
            let is_old = |file: &File| file.metadata()?.modified()?.elapsed().map_err(io::Error::other);
            // Locked until it is removed. Nobody takes the lock of another client for long.
            if let Ok(file) = File::open(file)
                && is_old(&file).is_ok_and(|age| age > KEEP_DEAD)
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_dir_all(client.path());
            }
        }
    }
}

impl Drop for Clients {
    /// A client that ends in order removes its folder. If its process still works under a lock that
    /// it could not release, others wait for the TTL.
    fn drop(&mut self) {
        for client in self.own.keys() {
            let _ = fs::remove_dir_all(self.folder_of(*client));
        }
    }
}
