//! The measurement: tasks take and release locks, and record the latencies.
//!
//! All tasks get ready, then run for a short warm-up, then the window opens. An acquisition counts
//! if it finished within the window. Tasks that wait at its end are counted and may continue for a
//! short time; then all waits are cancelled.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::future::{AbortHandle, abortable};
use hdrhistogram::Histogram;
use smol::channel::{Receiver, Sender, bounded, unbounded};
use smol::future::or;

use super::contender::Contender;
use super::counters::{Servers, Sets};
use super::job::{Job, Workload};
use super::outcome::{Outcome, jain};
use super::{Failed, process};
use crate::cli::run_number;
use crate::cli::runtime::Runtime;

/// Warm-up; at most a quarter of the span.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long waiters may continue after the window.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const ERROR_PAUSE: Duration = Duration::from_millis(10);
const DIGITS: u8 = 3;
/// The largest recorded latency: one hour.
const MAX_LATENCY: u64 = 3_600_000_000_000;
/// Number of histograms, so that concurrent recordings rarely collide.
const SHARDS: usize = 8;

const RUNNING: u8 = 1;
const WINDOW: u8 = 2;
const OVER: u8 = 3;

/// Returns a new lock name for each task.
#[must_use]
pub fn lock_names(job: &Job) -> Vec<String> {
    let run = run_number();
    let name = |task: usize| match job.workload {
        Workload::Contended => format!("contention:{run:016x}"),
        Workload::Uncontended | Workload::Quorum | Workload::Held => format!("contention:{run:016x}:{task}"),
    };
    (0..job.clients.get()).map(name).collect()
}

struct Shared {
    start: Instant,
    phase: AtomicU8,
    slots: Box<[Slot]>,
    /// Whether a task is in the critical section, for each lock.
    busy: Box<[AtomicBool]>,
    latencies: [Mutex<Histogram<u64>>; SHARDS],
    first_error: Mutex<Option<String>>,
    hold: Duration,
    runtime: Runtime,
}

/// Counters of one task, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    /// Start of the current wait in nanoseconds since the start, plus one; 0 while the task does
    /// not wait.
    waiting_since: AtomicU64,
    /// Acquisitions inside the window.
    ops: AtomicU64,
    /// Acquisitions of the whole run.
    total: AtomicU64,
    /// Nanoseconds of all holds.
    held: AtomicU64,
    errors: AtomicU64,
    violations: AtomicU64,
}

/// Only the slot's own task writes to it.
fn add(to: &AtomicU64, number: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
}

impl Shared {
    fn new(job: &Job) -> Result<Self, Failed> {
        let empty = || Histogram::new_with_bounds(1, MAX_LATENCY, DIGITS).map(Mutex::new);
        let mut latencies = Vec::new();
        for _ in 0..SHARDS {
            latencies.push(empty().map_err(Failed::unreachable)?);
        }
        let latencies = latencies.try_into().map_err(|_| Failed::unreachable("no room for figures"))?;
        let tasks = job.clients.get();
        let locks = if job.workload == Workload::Contended { 1 } else { tasks };
        Ok(Self {
            start: Instant::now(),
            phase: AtomicU8::new(RUNNING),
            slots: (0..tasks).map(|_| Slot::default()).collect(),
            busy: (0..locks).map(|_| AtomicBool::new(false)).collect(),
            latencies,
            first_error: Mutex::new(None),
            hold: job.hold,
            runtime: job.runtime,
        })
    }

    fn since_start(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_over(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == OVER
    }

    fn error(&self, slot: &Slot, error: String) {
        add(&slot.errors, 1);
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    async fn contend<C: Contender>(&self, task: usize, contender: &mut C) {
        let (Some(slot), Some(busy)) = (self.slots.get(task), self.busy.get(task % self.busy.len())) else { return };
        while !self.is_over() {
            let requested = Instant::now();
            slot.waiting_since.store(self.since_start(requested) + 1, Ordering::Relaxed);
            let answer = contender.acquire().await;
            let acquired = Instant::now();
            slot.waiting_since.store(0, Ordering::Relaxed);
            let held = match answer {
                Ok(held) => held,
                Err(error) => {
                    self.error(slot, error);
                    self.runtime.sleep(ERROR_PAUSE).await;
                    continue;
                }
            };
            let phase = self.phase.load(Ordering::Relaxed);
            // Left before `held` drops, if this task is aborted.
            let section = Section::enter(busy);
            if section.overlaps {
                add(&slot.violations, 1);
            }
            if !self.hold.is_zero() && phase != OVER {
                self.runtime.sleep(self.hold).await;
            }
            let released = Instant::now();
            drop(section);
            if let Err(error) = contender.release(held).await {
                self.error(slot, error);
            }
            // Recorded after the release, when no task waits for it.
            add(&slot.total, 1);
            if phase == WINDOW {
                add(&slot.ops, 1);
                add(&slot.held, nanos(released - acquired));
                if let Some(shard) = self.latencies.get(task % SHARDS) {
                    shard.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos(acquired - requested));
                }
            }
        }
    }

    fn sum(&self, of: impl Fn(&Slot) -> &AtomicU64) -> u64 {
        self.slots.iter().map(|slot| of(slot).load(Ordering::Relaxed)).sum()
    }
}

/// The critical section of a lock. Left when dropped.
struct Section<'a> {
    busy: &'a AtomicBool,
    /// Another task was in it.
    overlaps: bool,
}

impl<'a> Section<'a> {
    fn enter(busy: &'a AtomicBool) -> Self {
        Self { busy, overlaps: busy.swap(true, Ordering::AcqRel) }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Release);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures these contenders, one for each task, in the order of the [`lock_names`].
///
/// # Errors
///
/// Fails if a contender did not get ready.
pub async fn measure<C: Contender>(job: &Job, contenders: Vec<C>) -> Result<Outcome, Failed> {
    let servers = Servers::of(&job.backends);
    let shared = Arc::new(Shared::new(job)?);
    let tasks = contenders.len();
    let (ready, ready_results) = unbounded();
    let (start_signal, started) = bounded::<()>(1);
    let (done, all_done) = bounded::<()>(1);
    let mut handles: Vec<AbortHandle> = Vec::with_capacity(tasks);
    for (task, mut contender) in contenders.into_iter().enumerate() {
        let (shared, ready, started, done) = (Arc::clone(&shared), ready.clone(), started.clone(), done.clone());
        let (task_future, handle) = abortable(async move {
            let answer = contender.ready().await;
            let is_ready = answer.is_ok();
            let _ = ready.send(answer).await;
            drop(ready);
            if is_ready {
                closed(&started).await;
                shared.contend(task, &mut contender).await;
            }
        });
        handles.push(handle);
        job.runtime.spawn(async move {
            let _ = task_future.await;
            drop::<Sender<()>>(done);
        });
    }
    drop((ready, started, done));
    let abort_all = || handles.iter().for_each(AbortHandle::abort);
    if let Err(failed) = or(all_ready(&ready_results, tasks), ready_timeout(job, tasks)).await {
        abort_all();
        return Err(failed);
    }
    let before = servers.sample();
    drop(start_signal);
    job.runtime.sleep(WARM_UP.min(job.span / 4)).await;

    let (cpu, opened) = (process::cpu(), Instant::now());
    shared.phase.store(WINDOW, Ordering::Relaxed);
    job.runtime.sleep(job.span).await;
    shared.phase.store(OVER, Ordering::Relaxed);
    let (cpu, window, end) = (process::cpu().saturating_sub(cpu), opened.elapsed(), shared.since_start(Instant::now()));
    let waits = shared.slots.iter().map(|slot| slot.waiting_since.load(Ordering::Relaxed));
    let waits: Vec<u64> = waits.filter(|since| *since > 0).map(|since| end.saturating_sub(since - 1)).collect();

    or(closed(&all_done), job.runtime.sleep(DRAIN_TIME)).await;
    abort_all();
    closed(&all_done).await;
    let after = servers.sample();

    let mut latencies = Histogram::new_with_bounds(1, MAX_LATENCY, DIGITS).map_err(Failed::unreachable)?;
    for shard in &shared.latencies {
        latencies.add(&*shard.lock().unwrap_or_else(PoisonError::into_inner)).map_err(Failed::unreachable)?;
    }
    let shares: Vec<u64> = shared.slots.iter().map(|slot| slot.ops.load(Ordering::Relaxed)).collect();
    let ops = shared.sum(|slot| &slot.ops);
    let first_error = shared.first_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Outcome {
        workload: job.workload,
        clients: tasks,
        span: job.span,
        hold: job.hold,
        window,
        ops,
        total: shared.sum(|slot| &slot.total),
        latencies,
        cpu,
        jain: jain(&shares),
        errors: shared.sum(|slot| &slot.errors),
        first_error,
        violations: shared.sum(|slot| &slot.violations),
        pending: waits.len(),
        longest_pending: Duration::from_nanos(waits.iter().copied().max().unwrap_or(0)),
        starved: shares.iter().filter(|ops| **ops == 0).count(),
        hold_mean: Duration::from_nanos(shared.sum(|slot| &slot.held).checked_div(ops).unwrap_or(0)),
        servers: before.zip(after).map(|(before, after)| after - before),
        sets: match (&job.peer, &servers) {
            (Some(_), _) | (None, Servers::Etcd(_) | Servers::ZooKeeper(_)) => Sets::Sent,
            (None, Servers::Redis(nodes)) if job.fence && nodes.len() == 1 => Sets::InScripts,
            (None, Servers::Redis(_)) => Sets::Both,
        },
    })
}

/// Waits until all senders are gone.
async fn closed(channel: &Receiver<()>) {
    while channel.recv().await.is_ok() {}
}

async fn all_ready(answers: &Receiver<Result<(), Failed>>, tasks: usize) -> Result<(), Failed> {
    for _ in 0..tasks {
        answers.recv().await.unwrap_or_else(|_| Err(Failed::unreachable("a task ended before it began")))?;
    }
    Ok(())
}

async fn ready_timeout(job: &Job, tasks: usize) -> Result<(), Failed> {
    let limit = job.ready_within() + Duration::from_secs(10);
    job.runtime.sleep(limit).await;
    Err(Failed::unreachable(format_args!("not all of {tasks} clients are connected after {limit:?}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use core::pin::pin;
    use core::task::{Context, Waker};

    use super::*;

    /// Takes a lock that is always free.
    struct Free;

    impl Contender for Free {
        type Held = ();

        async fn ready(&mut self) -> Result<(), Failed> {
            Ok(())
        }

        async fn acquire(&mut self) -> Result<(), String> {
            Ok(())
        }

        async fn release(&mut self, (): ()) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn successor_of_aborted_holder_is_no_violation() {
        let mut job = Job::new(Workload::Contended, Vec::new());
        (job.hold, job.runtime) = (Duration::from_secs(60), Runtime::Smol);
        let shared = Shared::new(&job).unwrap();
        let violations = || shared.sum(|slot| &slot.violations);
        let cx = &mut Context::from_waker(Waker::noop());
        for task in 0..2 {
            assert!(pin!(shared.contend(task, &mut Free)).poll(cx).is_pending(), "it holds the lock");
        }
        assert_eq!(violations(), 0);
        let (mut first, mut second) = (Free, Free);
        let (first, second) = (pin!(shared.contend(0, &mut first)), pin!(shared.contend(1, &mut second)));
        assert!(first.poll(cx).is_pending() && second.poll(cx).is_pending());
        assert_eq!(violations(), 1, "two are in the section");
    }
}
