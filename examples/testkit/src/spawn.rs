//! Spawns processes that cannot outlive the test.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Spawns `command`. On Linux the child is killed when this process ends, however it ends.
/// Elsewhere, and while this process lives, its owner must kill it.
///
/// # Errors
///
/// Those of [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    die_with_parent(&mut command);
    let (answer, child) = channel();
    // The death signal is sent when the *thread* that forked ends, and a test's thread may end
    // before its server should. So one thread that lives as long as the process spawns all
    // children.
    let job: Job = Box::new(move || {
        let _ = answer.send(command.spawn());
    });
    launcher().send(job).map_err(|_| io::Error::other("the launching thread is gone"))?;
    child.recv().map_err(|_| io::Error::other("the launching thread is gone"))?
}

fn launcher() -> Sender<Job> {
    static LAUNCHER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let launcher = LAUNCHER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Mutex::new(sender)
    });
    launcher.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std offers no other way to run code between fork and exec")]
fn die_with_parent(command: &mut Command) {
    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
    use std::os::unix::process::CommandExt as _;

    let parent = getpid();
    // SAFETY: the closure runs in the forked child and makes two system calls, which are
    // async-signal-safe; it does not allocate and touches no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the signal was set.
            if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}
