//! Temporary folders. A server that syncs each write has its folder in memory, where that costs
//! nothing.

use std::path::Path;
use std::{fs, process};

use tempfile::{Builder, TempDir};

const PREFIX: &str = "lock-testkit-";

/// Creates a temporary folder.
///
/// # Panics
///
/// If the system has no place for it.
pub fn temporary() -> TempDir {
    Builder::new().prefix(PREFIX).tempdir().expect("a temporary directory")
}

/// Creates a folder, in memory if the system has a file system there. Deletes those of processes
/// that were killed: otherwise they would occupy memory until the next boot.
///
/// # Panics
///
/// If the system has no place for it.
pub fn in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let folder = pid_namespace().filter(|_| memory.is_dir()).and_then(|namespace| {
        delete_abandoned(memory, &namespace);
        Builder::new().prefix(&format!("{PREFIX}{namespace}-{}-", process::id())).tempdir_in(memory).ok()
    });
    folder.unwrap_or_else(temporary)
}

/// Returns the number of the namespace in which the numbers of processes are unique. Containers
/// may share the memory and not the processes.
fn pid_namespace() -> Option<String> {
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let number: String = link.to_str()?.chars().filter(char::is_ascii_digit).collect();
    (!number.is_empty()).then_some(number)
}

fn delete_abandoned(memory: &Path, namespace: &str) {
    let own = format!("{PREFIX}{namespace}-");
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(&own)?.split_once('-')?.0.parse::<u32>().ok());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // Fails if it is another user's, or another process was faster.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn folders_of_killed_processes_are_deleted() {
        let memory = tempfile::tempdir().expect("a temporary directory");
        // The greatest number of a process is 2^22.
        let names = [format!("{PREFIX}7-{}-a", process::id()), format!("{PREFIX}7-4194305-b")];
        let others = [format!("{PREFIX}8-4194305-c"), format!("{PREFIX}d")];
        let folders: Vec<_> = names.iter().chain(&others).map(|name| memory.path().join(name)).collect();
        for folder in &folders {
            fs::create_dir_all(folder.join("member")).expect("it is writable");
        }
        delete_abandoned(memory.path(), "7");
        assert_eq!(folders.iter().map(|folder| folder.exists()).collect::<Vec<_>>(), [true, false, true, true]);
        assert!(pid_namespace().is_some());
    }
}
