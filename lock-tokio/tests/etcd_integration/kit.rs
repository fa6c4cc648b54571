//! Clients, timeouts and server queries for the tests.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use lock_testkit::{Etcd, EtcdCluster, TIMEOUT, spawn};
use lock_tokio::Client;
use lock_tokio::etcd::Config;

pub(crate) use crate::common::{
    LONG_TTL, failure, in_time, ms, poll_once, release, shut_down, take, timed_out, wait_for, wait_until_blocked,
};

pub(crate) fn config(etcd: &Etcd) -> Config {
    Config::parse(&etcd.url()).unwrap()
}

pub(crate) fn with(config: Config) -> Client {
    lock_tokio::connect_with(config).unwrap()
}

pub(crate) fn client(etcd: &Etcd) -> Client {
    with(config(etcd))
}

/// Settings for all members. The session survives a change of leader on a busy machine.
pub(crate) fn cluster_config(cluster: &EtcdCluster) -> Config {
    Config::parse(&cluster.url()).unwrap().session_ttl(ms(6000)).release_within(TIMEOUT)
}

pub(crate) async fn assert_clean(etcd: &Etcd) {
    wait_for("all keys and leases are gone", || etcd.keys().is_empty() && etcd.leases().is_empty()).await;
}

/// Returns the number of calls and streams of this method, or of all methods if it is empty.
pub(crate) fn calls(etcd: &Etcd, method: &str) -> u64 {
    let label = if method.is_empty() { String::new() } else { format!("grpc_method=\"{method}\"") };
    etcd.metric("grpc_server_started_total", &label)
}

pub(crate) fn watches(etcd: &Etcd) -> u64 {
    etcd.metric("etcd_debugging_mvcc_watcher_total", "")
}

/// A running `etcdctl`, which is killed on drop.
pub(crate) struct Etcdctl {
    child: Child,
    lines: Receiver<String>,
}

impl Etcdctl {
    pub(crate) fn start(etcd: &Etcd, args: &[&str]) -> Self {
        let mut command = etcd.etcdctl_command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = spawn(command).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("etcdctl prints nothing more")
    }

    pub(crate) fn has_no_output(&self) -> bool {
        self.lines.try_recv() == Err(TryRecvError::Empty)
    }

    /// Interrupts it as by Ctrl-C: it releases the lock, or leaves the queue.
    pub(crate) fn interrupt(&self) {
        let kill = format!("kill -INT {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Kills it as by `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        self.kill();
    }
}
