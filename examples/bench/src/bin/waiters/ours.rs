//! This library, with one client per contender.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_testkit::Etcd;
use lock_tokio::Client;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::results::{NAME, Outcome, Setup, Snapshot, entered};

#[derive(Debug, Default)]
struct Contender {
    waits_since: Option<Instant>,
    grants: u64,
    held: Duration,
    longest: Duration,
}

#[derive(Debug)]
struct Contest {
    hold: Duration,
    /// When the measurement started.
    started: watch::Sender<Option<Instant>>,
    inside: AtomicBool,
    errors: AtomicU64,
}

impl Contest {
    fn error(&self, text: &dyn std::fmt::Display) {
        if self.errors.fetch_add(1, Ordering::SeqCst) == 0 {
            eprintln!("the first error: {text}");
        }
    }

    async fn run(&self, client: Client, own: &Mutex<Contender>) {
        let lock = client.lock(NAME);
        let mut started = self.started.subscribe();
        loop {
            own.lock().expect("no panic").waits_since = Some(Instant::now());
            let guard = match lock.acquire().await {
                Ok(guard) => guard,
                Err(error) => {
                    self.error(&error);
                    continue;
                }
            };
            let granted = Instant::now();
            if self.inside.swap(true, Ordering::SeqCst) {
                self.error(&"two holders");
            }
            let counted = started.borrow().is_some();
            let first = *started.wait_for(Option::is_some).await.expect("it is kept");
            let since = Instant::now();
            {
                let mut own = own.lock().expect("no panic");
                if counted {
                    own.record_wait(first, granted);
                    own.grants += 1;
                }
                own.waits_since = None;
            }
            if !self.hold.is_zero() {
                pause(self.hold).await;
            }
            if counted {
                own.lock().expect("no panic").held += since.elapsed();
            }
            self.inside.store(false, Ordering::SeqCst);
            if guard.is_held() {
                let _ = guard.release().await;
            } else {
                self.error(&"lost");
            }
        }
    }
}

/// Sleeps with the precision of Go's timers. The runtime's timer takes about 2 ms to sleep 1 ms.
pub async fn pause(span: Duration) {
    let span = Timespec { tv_sec: span.as_secs() as i64, tv_nsec: i64::from(span.subsec_nanos()) };
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC);
    #[expect(deprecated, reason = "the timer is owned, which its successor takes an unsafe block to promise")]
    let timer = AsyncFd::new(timer.expect("a timer")).expect("a runtime with I/O");
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: span };
    timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &once).expect("a time that is not negative");
    timer.readable().await.expect("a timer that is open").clear_ready();
}

impl Contender {
    /// Records a wait, from the start of the measurement on.
    fn record_wait(&mut self, started: Option<Instant>, until: Instant) {
        if let (Some(started), Some(since)) = (started, self.waits_since) {
            self.longest = self.longest.max(until.saturating_duration_since(since.max(started)));
        }
    }
}

pub fn measure(setup: Setup) -> Outcome {
    let etcd = Etcd::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let outcome = runtime.block_on(contend(&etcd, setup));
    // Does not wait for the waiters.
    runtime.shutdown_background();
    outcome
}

async fn contend(etcd: &Etcd, Setup { clients, hold, span }: Setup) -> Outcome {
    let started = watch::Sender::new(None);
    let contest = Arc::new(Contest { hold, started, inside: AtomicBool::new(false), errors: AtomicU64::new(0) });
    let all: Vec<Arc<Mutex<Contender>>> = (0..clients).map(|_| Arc::default()).collect();
    let start = Instant::now();
    let tasks: Vec<_> = all
        .iter()
        .map(|own| {
            let client = lock_bench::connect(&etcd.url()).expect("a URL of the testkit");
            let (contest, own) = (Arc::clone(&contest), Arc::clone(own));
            tokio::spawn(async move { contest.run(client, &own).await })
        })
        .collect();
    let enter = entered(etcd, clients, start).await;
    let before = Snapshot::now(etcd, "self");
    let first = Instant::now();
    contest.started.send_replace(Some(first));
    tokio::time::sleep(span).await;
    let end = Instant::now();
    let mut outcome = Outcome { enter, span: end - first, ..Outcome::default() };
    for own in &all {
        let mut own = own.lock().expect("no panic");
        own.record_wait(Some(first), end);
        outcome.grants += own.grants;
        outcome.held += own.held;
        outcome.starved += u64::from(own.grants == 0);
        outcome.longest = outcome.longest.max(own.longest);
    }
    outcome.errors = contest.errors.load(Ordering::SeqCst);
    outcome.usage = Snapshot::now(etcd, "self").since(before);
    tasks.into_iter().for_each(|task| task.abort());
    outcome
}
