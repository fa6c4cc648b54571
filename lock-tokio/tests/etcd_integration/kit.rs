//! Clients, timeouts and server queries for the tests.

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Instant;

use lock_testkit::{Etcd, EtcdCluster, TIMEOUT};
use lock_tokio::etcd::Config;
use lock_tokio::redis::{Blocked, Release, Report};
use lock_tokio::{AcquireError, Acquiring, Client, Guard};
use tokio::time::{sleep, timeout};

/// A session TTL that does not expire within [`TIMEOUT`].
pub(crate) const LONG_TTL: Duration = Duration::from_secs(60);

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

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

pub(crate) async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub(crate) async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(ms(5)).await;
    }
}

pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(pin!(&mut *future).poll(cx))).await
}

/// Polls an acquisition until it is blocked for this reason.
pub(crate) async fn wait_until_blocked(waiting: &mut Acquiring, why: Blocked) {
    let end = Instant::now() + TIMEOUT;
    while waiting.blocked() != Some(why) {
        if let Ok(ended) = timeout(ms(3), &mut *waiting).await {
            panic!("it waits no longer: {ended:?}");
        }
        assert!(Instant::now() < end, "not in time: {why}, but {:?}", waiting.blocked());
    }
}

/// Acquires a lock that is free or will be soon.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    in_time("acquire", client.lock(name).acquire()).await.unwrap()
}

pub(crate) async fn release(guard: Guard) {
    assert_eq!(in_time("release", guard.release()).await, Release::Released);
}

/// Shuts down a client and checks that nothing is left of it.
pub(crate) async fn shut_down(client: Client) {
    assert_eq!(in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
}

#[track_caller]
pub(crate) fn failure(result: Result<Guard, AcquireError>) -> AcquireError {
    result.map(|guard| panic!("{guard:?}")).unwrap_err()
}

#[track_caller]
pub(crate) fn timed_out(result: Result<Guard, AcquireError>) -> Report {
    let error = failure(result);
    assert!(error.is_timeout(), "{error}");
    error.report().unwrap().clone()
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
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
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
