//! The bound: the calls that any lock needs, over the bare transport, see [`lock_bench::ring`].

use std::time::{Duration, Instant};

use lock_bench::Meter;
use lock_bench::ring::Ring;
use lock_testkit::Etcd;
use tokio::task::JoinSet;

use crate::ours::pause;
use crate::results::{Outcome, Setup, Snapshot};

pub fn measure(setup: Setup) -> Outcome {
    let etcd = Etcd::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(contend(&etcd, setup))
}

async fn contend(etcd: &Etcd, Setup { clients, hold, span }: Setup) -> Outcome {
    let start = Instant::now();
    let ring = Ring::connect(etcd, clients).await;
    let enter = start.elapsed();
    let meter = Meter::default();
    let before = Snapshot::now(etcd, "self");
    let first = Instant::now();
    let mut members = JoinSet::new();
    for (n, mut one) in ring.into_iter().enumerate() {
        let meter = meter.clone();
        members.spawn(async move {
            let (mut grants, mut held) = (0, Duration::ZERO);
            // The first member starts as the holder.
            if n > 0 {
                one.lock().await;
            }
            while meter.is_running() {
                let since = Instant::now();
                if !hold.is_zero() {
                    pause(hold).await;
                }
                held += since.elapsed();
                grants += 1;
                // The next member may not have queued again yet.
                while !one.unlock().await {}
                one.enter().await;
                one.lock().await;
            }
            // Lets the other members end in turn. The last one has no successor.
            let _ = one.unlock().await;
            (grants, held)
        });
    }
    tokio::time::sleep(span).await;
    meter.stop();
    let mut outcome = Outcome { enter, span: first.elapsed(), ..Outcome::default() };
    outcome.usage = Snapshot::now(etcd, "self").since(before);
    for (grants, held) in members.join_all().await {
        outcome.grants += grants;
        outcome.held += held;
        outcome.starved += u64::from(grants == 0);
    }
    outcome
}
