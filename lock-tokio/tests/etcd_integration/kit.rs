//! Clients, patience, and questions to a server.

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

/// A session that does not end by itself within [`TIMEOUT`].
pub(crate) const LONG_TTL: Duration = Duration::from_secs(60);

/// Milliseconds.
pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The default settings for one server.
pub(crate) fn config(etcd: &Etcd) -> Config {
    Config::parse(&etcd.url()).unwrap()
}

pub(crate) fn with(config: Config) -> Client {
    lock_tokio::connect_with(config).unwrap()
}

pub(crate) fn client(etcd: &Etcd) -> Client {
    with(config(etcd))
}

/// A client of all members, with a session that a change of leader does not outlive even on a busy machine.
pub(crate) fn cluster_config(cluster: &EtcdCluster) -> Config {
    Config::parse(&cluster.url()).unwrap().session_ttl(ms(6000)).release_within(TIMEOUT)
}

/// Runs a future that must end soon.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Waits for a condition that others bring about.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(ms(5)).await;
    }
}

/// Polls it once, and no more.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(pin!(&mut *future).poll(cx))).await
}

/// Polls an acquisition until it says why it waits.
pub(crate) async fn blocked(waiting: &mut Acquiring, why: Blocked) {
    let end = Instant::now() + TIMEOUT;
    while waiting.blocked() != Some(why) {
        if let Ok(ended) = timeout(ms(3), &mut *waiting).await {
            panic!("it waits no longer: {ended:?}");
        }
        assert!(Instant::now() < end, "not in time: {why}, but {:?}", waiting.blocked());
    }
}

/// Takes a lock that nobody else has for long.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    soon("acquire", client.lock(name).acquire()).await.unwrap()
}

/// Gives a lock back that is held.
pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(soon("release", guard.release()).await, Release::Released);
}

/// Ends a client, of which nothing may be left then.
pub(crate) async fn shut_down(client: Client) {
    assert_eq!(soon("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
}

/// Why an acquisition failed.
#[track_caller]
pub(crate) fn failure(result: Result<Guard, AcquireError>) -> AcquireError {
    result.map(|guard| panic!("{guard:?}")).unwrap_err()
}

/// The report of an acquisition that failed because its wait ran out.
#[track_caller]
pub(crate) fn timed_out(result: Result<Guard, AcquireError>) -> Report {
    let error = failure(result);
    assert!(error.is_timeout(), "{error}");
    error.report().unwrap().clone()
}

/// Nothing is left in the store: no key, and once the clients are gone no lease.
pub(crate) async fn clean(etcd: &Etcd) {
    until("all keys and leases are gone", || etcd.keys().is_empty() && etcd.leases().is_empty()).await;
}

/// How many calls of this method the server has got so far, or how many streams were opened. All methods, if none is named.
pub(crate) fn calls(etcd: &Etcd, method: &str) -> u64 {
    let label = if method.is_empty() { String::new() } else { format!("grpc_method=\"{method}\"") };
    etcd.metric("grpc_server_started_total", &label)
}

/// How many watches are open.
pub(crate) fn watches(etcd: &Etcd) -> u64 {
    etcd.metric("etcd_debugging_mvcc_watcher_total", "")
}

/// `etcdctl` that goes on until it is told to end, and is killed when dropped.
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

    /// The next line that it prints.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("etcdctl prints nothing more")
    }

    pub(crate) fn has_said_nothing(&self) -> bool {
        self.lines.try_recv() == Err(TryRecvError::Empty)
    }

    /// As by Ctrl-C: it gives back what it holds, or leaves the queue.
    pub(crate) fn interrupt(&self) {
        let kill = format!("kill -INT {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// As by `kill -9`.
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
