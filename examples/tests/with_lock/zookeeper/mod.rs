//! The same contract on ZooKeeper, in one queue with Curator.

mod queue;
mod refused;

use lock_testkit::Chroot;

use crate::harness::{RUNTIMES, runtime};
use crate::kit::{Ended, Tool};

fn on(chroot: &Chroot, args: &[&str]) -> Tool {
    Tool::start(&[&["--backend", &chroot.url()], args].concat())
}

#[track_caller]
fn run(chroot: &Chroot, args: &[&str]) -> Ended {
    on(chroot, args).end()
}

/// Only empty containers are left, which the server deletes.
#[track_caller]
fn assert_clean(chroot: &Chroot) {
    assert_eq!(chroot.ephemerals(), Vec::<String>::new());
}
