//! The user that a server runs as.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// An unprivileged user in place of root: database servers refuse to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// Returns the first of these users that exists, if this process is root's. Other users keep
    /// their own account.
    ///
    /// # Panics
    ///
    /// If this process is root's and none of them exists.
    pub(crate) fn in_place_of_root(names: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let users = fs::read_to_string("/etc/passwd").expect("a list of users");
        let account = names.iter().find_map(|name| Self::find(&users, name));
        Some(account.unwrap_or_else(|| panic!("root cannot run this server, and there is none of the users {names:?}")))
    }

    fn find(users: &str, name: &str) -> Option<Self> {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        Some(Self { uid: numbers.next()?.ok()?, gid: numbers.next()?.ok()? })
    }

    /// Runs the command as this user.
    pub(crate) fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    /// Gives it the file or folder.
    pub(crate) fn own(self, path: &Path) {
        chown(path, Some(self.uid), Some(self.gid)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}
