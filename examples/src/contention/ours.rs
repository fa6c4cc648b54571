//! This library as a contender.

use core::time::Duration;

use futures_util::future::join_all;
use lock_driver::{Client, Guard, Lock};
use lock_proto::Release;

use super::Failed;
use super::contender::Contender;
use super::job::Job;
use super::measure::{lock_names, measure};
use super::outcome::Outcome;
use crate::cli::SHUTDOWN_TIMEOUT;
use crate::cli::failed::check_servers;

struct Task {
    lock: Lock,
    /// A lock for this task only, which is granted once the client is connected.
    first: Lock,
}

impl Contender for Task {
    type Held = Guard;

    async fn ready(&mut self) -> Result<(), Failed> {
        warm_up(&self.first).await
    }

    async fn acquire(&mut self) -> Result<Guard, String> {
        self.lock.acquire().await.map_err(|error| error.to_string())
    }

    async fn release(&mut self, held: Guard) -> Result<(), String> {
        let release = held.release().await;
        if release == Release::Released { Ok(()) } else { Err(format!("released: {release:?}")) }
    }
}

pub(super) async fn warm_up(lock: &Lock) -> Result<(), Failed> {
    match lock.acquire().await {
        Ok(guard) => {
            let _ = guard.release().await;
            Ok(())
        }
        Err(error) => Err(Failed::acquiring(&error)),
    }
}

/// Creates the clients of a run, and returns the TTL of their locks. Call it on the runtime of the
/// run. Fails at once if no server answers.
pub(super) async fn clients(job: &Job) -> Result<(Vec<Client>, Duration), Failed> {
    let (settings, ttl) = job.settings()?;
    let client = |_| job.runtime.client(settings.clone().into()).map_err(Failed::usage);
    let clients = (0..job.connections()).map(client).collect::<Result<Vec<_>, Failed>>()?;
    if let Some(first) = clients.first() {
        check_servers(first).await?;
    }
    Ok((clients, ttl))
}

/// Shuts the clients down. Returns when the servers are clean, or at the timeout.
pub(super) async fn shut_down(clients: &[Client], within: Duration) {
    join_all(clients.iter().map(|client| client.shutdown(within))).await;
}

pub(super) fn run(job: &Job) -> Result<Outcome, Failed> {
    job.runtime.block_on(async {
        let (clients, ttl) = clients(job).await?;
        let names = lock_names(job);
        let contenders = names.iter().enumerate().filter_map(|(n, name)| {
            let client = clients.get(job.connection_of(n))?;
            let first = client.lock(format!("{name}:first:{n}")).ttl(ttl).wait(job.ready_within());
            Some(Task { lock: client.lock(name).ttl(ttl), first })
        });
        let outcome = measure(job, contenders.collect()).await;
        shut_down(&clients, SHUTDOWN_TIMEOUT).await;
        outcome
    })?
}
