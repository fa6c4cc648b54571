//! The same contract on etcd, in one queue with `etcdctl lock`.

mod ends;
mod queue;
mod refused;

use lock_testkit::Etcd;

use crate::harness::{RUNTIMES, runtime};
use crate::kit::{Ended, Tool};

fn on(etcd: &Etcd, args: &[&str]) -> Tool {
    let url = etcd.url();
    Tool::start(&[&["--backend", &url], args].concat())
}

#[track_caller]
fn run(etcd: &Etcd, args: &[&str]) -> Ended {
    on(etcd, args).end()
}

/// Starts a long-running `etcdctl`.
fn etcdctl(etcd: &Etcd, args: &[&str]) -> Tool {
    Tool::spawn(etcd.etcdctl_command(args))
}

// E1
#[track_caller]
fn assert_clean(etcd: &Etcd) {
    assert_eq!((etcd.keys(), etcd.leases()), (vec![], vec![]));
}
