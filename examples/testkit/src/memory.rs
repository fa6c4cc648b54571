//! Folders of servers in memory, where syncing each write costs nothing.

use std::path::Path;
use std::{fs, process};

use tempfile::{Builder, TempDir};

/// What the names begin with, followed by the process that made the folder.
const PREFIX: &str = "lock-testkit-";

/// Creates a folder, in memory if the system has a file system there. Deletes those of processes
/// that were killed: otherwise their memory would be occupied until the next boot.
pub(crate) fn folder() -> TempDir {
    let mut dir = Builder::new();
    let prefix = format!("{PREFIX}{}-", process::id());
    dir.prefix(&prefix);
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() {
        delete_abandoned(memory);
        dir.tempdir_in(memory).or_else(|_| dir.tempdir())
    } else {
        dir.tempdir()
    };
    dir.expect("a temporary directory")
}

fn delete_abandoned(memory: &Path) {
    let runs = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
    if !runs(process::id()) {
        return;
    }
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        if pid.is_some_and(|pid| !runs(pid)) {
            // Fails if it is another user's, or another process was faster.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_processes_are_deleted() {
        let memory = tempfile::tempdir().expect("a temporary directory");
        // The greatest number of a process is 2^22.
        let names = [format!("{PREFIX}{}-a", process::id()), format!("{PREFIX}4194305-b"), format!("{PREFIX}x")];
        for name in &names {
            fs::create_dir_all(memory.path().join(name).join("member")).expect("it is writable");
        }
        delete_abandoned(memory.path());
        let left = names.map(|name| memory.path().join(name).exists());
        assert_eq!(left, [true, !Path::new("/proc/self").exists(), true]);
    }
}
