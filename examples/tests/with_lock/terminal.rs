//! A terminal, for signals that only a terminal sends.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use lock_testkit::wait_until;
use rustix::io::ioctl_fionbio;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::harness::{LONG, Tool};

pub(crate) struct Terminal(File);

impl Terminal {
    pub(crate) fn open() -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        ioctl_fionbio(&terminal, true).unwrap();
        Self(File::from(terminal))
    }

    /// Starts `with-lock` in the foreground of this terminal.
    pub(crate) fn start(&self, args: &[&str]) -> Tool {
        let line = Tool::command(args, &[]);
        // The only program of the system that opens a session on a terminal.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(line.get_program()).args(line.get_args()).env_remove("LOCK_BACKEND");
        let device = ioctl_tiocgptpeer(&self.0, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        Tool::spawn_with(command, Stdio::from(device))
    }

    /// Sends SIGINT to the foreground.
    #[track_caller]
    pub(crate) fn press_ctrl_c(&mut self) {
        self.0.write_all(b"\x03").unwrap();
        let mut echoed = Vec::new();
        let mut is_echoed = || {
            // An error means that nothing more is there yet.
            let _ = self.0.read_to_end(&mut echoed);
            echoed.windows(2).any(|part| part == b"^C")
        };
        // The terminal echoes the key after it has sent the signal.
        assert!(wait_until(LONG, &mut is_echoed), "the terminal did not take Ctrl-C");
    }
}
