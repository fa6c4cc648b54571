//! Many contenders for one name. Each hold ends at once, so this measures the hand-over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_bench::{Meter, WARM_UP, measure};
use lock_proto::etcd::message::{PutRequest, PutResponse};
use lock_testkit::Etcd;
use lock_tokio::Client;

use crate::go_mutex::GoMutex;
use lock_bench::cost::{Sample, sample};
use lock_bench::raw_etcd::{PUT, RawEtcd};
use lock_bench::ring::Ring;

pub struct Outcome {
    pub sample: Sample,
    /// Times from the call that releases to the next grant, sorted.
    hand_overs: Vec<Duration>,
}

impl Outcome {
    pub fn print(&self, title: &str) {
        let Sample { rate, calls, watch, cpu } = self.sample;
        println!(
            "{title:<38} {rate:>8.0} {:>10.2?} {:>10.2?} {calls:>6.1} {:>6.1} {:>6.1} {:>6.0} {:>6.0}",
            self.quantile(0.5),
            self.quantile(0.99),
            watch.0,
            watch.1,
            cpu.0,
            cpu.1,
        );
    }

    pub fn print_head() {
        println!(
            "{:<38} {:>8} {:>10} {:>10} {:>6} {:>6} {:>6} {:>6} {:>6}",
            "one name", "grants/s", "hand-over", "P99", "calls", "recv", "sent", "µs", "server"
        );
    }

    fn quantile(&self, part: f64) -> Duration {
        let index = ((self.hand_overs.len() as f64 * part) as usize).min(self.hand_overs.len().saturating_sub(1));
        self.hand_overs.get(index).copied().unwrap_or_default()
    }
}

/// Checks that there is one holder, and times the hand-overs.
#[derive(Debug)]
struct HandOverTimer {
    start: Instant,
    is_held: AtomicBool,
    released: Mutex<Option<Instant>>,
    times: Mutex<Vec<Duration>>,
}

impl HandOverTimer {
    fn new() -> Arc<Self> {
        let times = Mutex::default();
        Arc::new(Self { start: Instant::now(), is_held: AtomicBool::new(false), released: Mutex::default(), times })
    }

    fn granted(&self) {
        let now = Instant::now();
        assert!(!self.is_held.swap(true, Ordering::SeqCst), "two holders");
        let released = self.released.lock().expect("no panic").take();
        if let Some(released) = released.filter(|_| self.start.elapsed() > WARM_UP) {
            self.times.lock().expect("no panic").push(now - released);
        }
    }

    fn releasing(&self) {
        *self.released.lock().expect("no panic") = Some(Instant::now());
        self.is_held.store(false, Ordering::SeqCst);
    }
}

/// Measures `tasks` contenders created by `task`. Their calls of Put are not counted, because only
/// a writer beside them makes such calls.
async fn contest<F>(
    etcd: &Etcd,
    tasks: usize,
    span: Duration,
    mut task: impl FnMut(usize, Meter, Arc<HandOverTimer>) -> F,
) -> Outcome
where
    F: Future<Output = ()> + Send + 'static,
{
    let timer = HandOverTimer::new();
    let measured = measure(tasks, span, |n, meter| task(n, meter, Arc::clone(&timer)));
    let sample = sample(etcd, Some("Put"), measured).await;
    let mut hand_overs = std::mem::take(&mut *timer.times.lock().expect("no panic"));
    hand_overs.sort_unstable();
    Outcome { sample, hand_overs }
}

async fn run_cycles(client: &Client, name: &str, meter: &Meter, timer: &HandOverTimer) {
    let lock = client.lock(name);
    while meter.is_running() {
        let guard = lock.acquire().await.expect("granted");
        timer.granted();
        timer.releasing();
        let _ = guard.release().await;
        meter.count();
    }
}

pub async fn clients(etcd: &Etcd, clients: usize, span: Duration) -> Outcome {
    let url = etcd.url();
    contest(etcd, clients, span, |_, meter, timer| {
        let client = lock_bench::connect(&url).expect("a URL of the testkit");
        async move {
            run_cycles(&client, "clients", &meter, &timer).await;
            client.shutdown(Duration::from_secs(5)).await;
        }
    })
    .await
}

pub async fn tasks(etcd: &Etcd, tasks: usize, span: Duration) -> Outcome {
    let client = lock_bench::connect(&etcd.url()).expect("a URL of the testkit");
    let outcome = contest(etcd, tasks, span, |_, meter, timer| {
        let client = client.clone();
        async move { run_cycles(&client, "tasks", &meter, &timer).await }
    })
    .await;
    client.shutdown(Duration::from_secs(5)).await;
    outcome
}

/// The algorithm of the Go package, with one session each.
pub async fn go_mutex(etcd: &Etcd, sessions: usize, span: Duration) -> Outcome {
    let mut locks = Vec::new();
    for _ in 0..sessions {
        locks.push(GoMutex::connect(etcd, "go mutex").await);
    }
    contest(etcd, sessions, span, |_, meter, timer| {
        let mut lock = locks.pop().expect("one for each");
        async move {
            while meter.is_running() {
                lock.lock().await;
                timer.granted();
                timer.releasing();
                lock.unlock().await;
                meter.count();
            }
        }
    })
    .await
}

/// The lower bound for a hand-over.
pub async fn ring(etcd: &Etcd, size: usize, span: Duration) -> Outcome {
    let mut ring = Ring::connect(etcd, size).await.into_iter();
    contest(etcd, size, span, |n, meter, timer| {
        let mut one = ring.next().expect("one for each");
        async move {
            // The first member starts as the holder.
            if n > 0 {
                one.lock().await;
            }
            while meter.is_running() {
                timer.granted();
                timer.releasing();
                // The next member may not have queued again yet.
                while !one.unlock().await {}
                one.enter().await;
                meter.count();
                one.lock().await;
            }
            // Lets the other members end in turn. The last one has no successor.
            let _ = one.unlock().await;
        }
    })
    .await
}

/// Writes other keys sequentially while `contest` runs.
pub async fn while_writing(etcd: &Etcd, contest: impl Future<Output = Outcome>) -> (Outcome, f64) {
    let peer = RawEtcd::connect(etcd).await;
    let meter = Meter::default();
    let writer = tokio::spawn({
        let meter = meter.clone();
        async move {
            while meter.is_running() {
                let key = format!("unrelated {}", meter.done() % 1_000);
                let _: PutResponse = peer.call(PUT, PutRequest { key: key.into(), ..PutRequest::default() }).await;
                meter.count();
            }
        }
    });
    let start = Instant::now();
    let outcome = contest.await;
    let rate = meter.done() as f64 / start.elapsed().as_secs_f64();
    meter.stop();
    writer.await.expect("no panic");
    (outcome, rate)
}
