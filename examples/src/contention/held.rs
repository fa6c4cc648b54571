//! Workload `held`: many locks are held and renewed. Measures the cost of each.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use lock_driver::{AcquireError, Client, Guard};
use smol::channel::{Sender, unbounded};

use super::job::Job;
use super::measure::lock_names;
use super::outcome::{aligned, line};
use super::{Failed, ours, process};

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Result of the workload.
#[derive(Clone, Debug)]
pub(super) struct Held {
    clients: usize,
    span: Duration,
    locks: usize,
    acquire: Duration,
    /// Processor time of this process while the locks were held.
    cpu: Duration,
    /// Bytes of resident memory for each lock, including its guard.
    resident: Option<u64>,
    lost: usize,
}

impl Held {
    pub(super) fn json(&self) -> String {
        line(&[
            ("workload", "\"held\"".to_owned()),
            ("clients", self.clients.to_string()),
            ("seconds", self.span.as_secs_f64().to_string()),
            ("locks", self.locks.to_string()),
            ("acquire_s", format!("{:.4}", self.acquire.as_secs_f64())),
            ("hold_cpu_s", format!("{:.4}", self.cpu.as_secs_f64())),
            ("rss_per_lock", self.resident.map_or_else(|| "null".to_owned(), |bytes| bytes.to_string())),
            ("lost", self.lost.to_string()),
        ])
    }

    pub(super) fn table(&self) -> String {
        let part = 100.0 * self.cpu.as_secs_f64() / self.span.as_secs_f64();
        aligned(&[
            ("workload", format!("held, {} tasks", self.clients)),
            ("locks", self.locks.to_string()),
            ("taken in", format!("{:.2} s", self.acquire.as_secs_f64())),
            ("processor", format!("{part:.1} % of a core while they were held for {:.1} s", self.span.as_secs_f64())),
            (
                "memory",
                self.resident.map_or_else(|| "not known".to_owned(), |bytes| format!("{bytes} bytes for each lock")),
            ),
            ("lost", self.lost.to_string()),
        ])
    }
}

pub(super) async fn run(job: &Job) -> Result<Held, Failed> {
    let (clients, ttl) = ours::clients(job).await?;
    let held = hold(job, &clients, ttl).await;
    // Also after a failure: other locks may be held.
    ours::shut_down(&clients, SHUTDOWN_TIMEOUT).await;
    held
}

async fn hold(job: &Job, clients: &[Client], ttl: Duration) -> Result<Held, Failed> {
    let run: Arc<str> = lock_names(job).remove(0).into();
    for (n, client) in clients.iter().enumerate() {
        ours::warm_up(&client.lock(format!("{run}:first:{n}")).ttl(ttl).wait(job.ready_within())).await?;
    }
    let before = process::resident();
    let (start, tasks, locks) = (Instant::now(), job.clients.get(), job.locks.get());
    let (sender, guards) = unbounded();
    for task in 0..tasks {
        let Some(client) = clients.get(job.connection_of(task)).cloned() else { continue };
        let (sender, run) = (sender.clone(), Arc::clone(&run));
        let numbers = (task..locks).step_by(tasks);
        job.runtime.spawn(async move { take(&client, &run, numbers, ttl, &sender).await });
    }
    drop(sender);
    let mut held: Vec<Guard> = Vec::with_capacity(locks);
    while let Ok(guard) = guards.recv().await {
        held.push(guard.map_err(|error| Failed::acquiring(&error))?);
    }
    drop(guards);
    let acquire = start.elapsed();
    let cpu = process::cpu();
    job.runtime.sleep(job.span).await;
    let cpu = process::cpu().saturating_sub(cpu);
    let resident = before.zip(process::resident()).map(|(before, now)| now.saturating_sub(before) / locks as u64);
    let lost = held.iter().filter(|guard| !guard.is_held()).count();
    Ok(Held { clients: tasks, span: job.span, locks, acquire, cpu, resident, lost })
}

async fn take(
    client: &Client,
    run: &str,
    numbers: impl Iterator<Item = usize>,
    ttl: Duration,
    into: &Sender<Result<Guard, AcquireError>>,
) {
    for number in numbers {
        let answer = client.lock(format!("{run}:{number}")).ttl(ttl).acquire().await;
        let failed = answer.is_err();
        if into.send(answer).await.is_err() || failed {
            return;
        }
    }
}
