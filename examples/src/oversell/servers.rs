//! The sale on real servers. Each buyer is a thread with its own client and its own runtime, so
//! that a buyer who blocks the thread stops like a process: nothing renews its lock.

use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::thread;

use lock_tokio::Client;
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::{BUYERS, Locking, Outcome, READING, STOCK, Stall, Table, WORKING, stalls};
use crate::cli::backend::Backend;
use crate::cli::failed::Failed;

/// TTL of the locks, unless the store only has longer ones. The shortest that an etcd server with
/// default settings grants.
const LEAST_TTL: Duration = Duration::from_secs(2);
/// How much longer than the TTL a stall takes.
const BEYOND_TTL: Duration = Duration::from_millis(700);
/// Longer than all stalls and expiries before a buyer's turn, in TTLs.
const WAIT_TTLS: u32 = 30;

/// Runs one sale on these servers, under the lock `name`. A quorum has no fencing tokens, so its
/// table cannot reject writes. The naive lock runs in the simulation only; here
/// [`Naive`](Locking::Naive) is the lock of this library.
///
/// # Errors
///
/// The settings are invalid, or a buyer did not get the lock: the servers are unreachable or refuse
/// the client.
pub fn run_sale_on(backend: &Backend, name: &str, locking: Locking, stall: Stall) -> Result<Outcome, Failed> {
    let (backend, ttl, _) = backend.clone().with_ttl(None, LEAST_TTL).map_err(Failed::usage)?;
    let shop = Shop {
        name,
        ttl,
        locking,
        stall,
        state: Mutex::new(State {
            table: Table { stock: STOCK, greatest_fence: 0 },
            reads: 0,
            outcome: Outcome::default(),
        }),
    };
    let results: Vec<_> = thread::scope(|scope| {
        let buyers: Vec<_> = (0..BUYERS).map(|_| scope.spawn(|| shop.serve(&backend))).collect();
        let ended = |buyer: thread::ScopedJoinHandle<'_, _>| {
            buyer.join().unwrap_or_else(|_| Err(Failed::unreachable("a buyer's thread panicked")))
        };
        buyers.into_iter().map(ended).collect()
    });
    results.into_iter().collect::<Result<(), Failed>>()?;
    let state = shop.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(state.outcome)
}

struct State {
    table: Table,
    reads: u32,
    outcome: Outcome,
}

struct Shop<'a> {
    name: &'a str,
    ttl: Duration,
    locking: Locking,
    stall: Stall,
    state: Mutex<State>,
}

impl Shop<'_> {
    fn with<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves one buyer, with a client of its own.
    fn serve(&self, backend: &Backend) -> Result<(), Failed> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failed::unreachable)?;
        runtime.block_on(async {
            // A buyer that is stopped stops its driver too.
            let client = backend.connect()?;
            let result = self.sell(&client).await;
            client.shutdown(self.ttl).await;
            result
        })
    }

    async fn sell(&self, client: &Client) -> Result<(), Failed> {
        let lock = client.lock(self.name).ttl(self.ttl).wait(self.ttl * WAIT_TTLS);
        let guard = lock.acquire().await.map_err(|error| Failed::acquiring(&error))?;
        sleep(READING).await;
        let (seen, stalls) = self.with(|state| {
            state.reads += 1;
            (state.table.stock, stalls(state.reads))
        });
        if seen > 0 {
            let pause = self.ttl + BEYOND_TTL;
            let mut checked = false;
            match self.stall {
                _ if !stalls => sleep(WORKING).await,
                Stall::SlowService => sleep(pause).await,
                Stall::Stopped => thread::sleep(pause),
                Stall::StoppedBeforeWrite => {
                    checked = guard.is_held();
                    thread::sleep(pause);
                }
            }
            let fence = match self.locking {
                Locking::Naive | Locking::Ours => None,
                Locking::Fenced => guard.fence().map(|fence| fence.get()),
            };
            let is_held = checked || guard.is_held();
            self.with(|state| {
                if !is_held {
                    state.outcome.abandoned += 1;
                } else if state.table.write(seen - 1, fence) {
                    state.outcome.orders += 1;
                } else {
                    state.outcome.rejected += 1;
                }
            });
        }
        // Also if it was lost: the outcome says so.
        let _ = guard.release().await;
        Ok(())
    }
}
