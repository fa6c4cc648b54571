//! Many tasks that compete for critical sections.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use lock_tokio::{Client, Guard};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{LONG_TTL, in_time, ms};

#[derive(Debug, Default)]
pub(crate) struct Section {
    occupied: AtomicBool,
    visits: AtomicU32,
    fence: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Occupied<'a> {
    section: &'a Section,
    visits: u32,
}

impl Section {
    #[track_caller]
    pub(crate) fn enter(&self) -> Occupied<'_> {
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "two are inside");
        Occupied { section: self, visits: self.visits.load(Ordering::SeqCst) }
    }

    /// Enters with a guard, whose fencing token must be greater than all before.
    #[track_caller]
    pub(crate) fn enter_with(&self, guard: &Guard) -> Occupied<'_> {
        let inside = self.enter();
        assert!(guard.is_held());
        if let Some(fence) = guard.fence() {
            let before = self.fence.swap(fence.get(), Ordering::SeqCst);
            assert!(before < fence.get(), "requirement A9: {fence} after {before}");
        }
        inside
    }

    /// Returns the number of visits, which is too low if two coincided.
    pub(crate) fn visits(&self) -> u32 {
        self.visits.load(Ordering::SeqCst)
    }
}

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        // Read on entry and written here: a concurrent visit would be lost.
        self.section.visits.store(self.visits + 1, Ordering::SeqCst);
        self.section.occupied.store(false, Ordering::SeqCst);
    }
}

/// Tasks that repeatedly enter critical sections until stopped.
pub(crate) struct Workers {
    tasks: JoinSet<u32>,
    sections: Arc<[Section]>,
    stop: Arc<AtomicBool>,
}

impl Workers {
    /// Starts `count` tasks, distributed over the clients and over `lock_count` names.
    pub(crate) fn spawn(clients: &[Client], count: usize, lock_count: usize) -> Self {
        let sections: Arc<[Section]> = (0..lock_count).map(|_| Section::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (n, client) in (0..count).zip(clients.iter().cycle()) {
            tasks.spawn(visit(client.clone(), n % lock_count, Arc::clone(&sections), Arc::clone(&stop)));
        }
        Self { tasks, sections, stop }
    }

    /// Calls `disturb` repeatedly for `time`. Panics if a critical section was entered twice.
    pub(crate) async fn disturb_for(&mut self, time: Duration, every: Duration, mut disturb: impl FnMut()) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            disturb();
            sleep(every).await;
            assert!(self.tasks.try_join_next().is_none(), "a task has ended");
        }
    }

    pub(crate) async fn finish(mut self) -> u32 {
        self.stop.store(true, Ordering::SeqCst);
        let mut visits = 0;
        while let Some(done) = in_time("the tasks end", self.tasks.join_next()).await {
            visits += done.unwrap();
        }
        assert_eq!(self.sections.iter().map(Section::visits).sum::<u32>(), visits, "two were inside");
        visits
    }
}

async fn visit(client: Client, index: usize, sections: Arc<[Section]>, stop: Arc<AtomicBool>) -> u32 {
    let lock = client.lock(format!("room{index}")).ttl(LONG_TTL);
    let mut visits = 0;
    while !stop.load(Ordering::SeqCst) {
        let guard = in_time("a grant", lock.acquire()).await.unwrap();
        {
            let _inside = sections[index].enter_with(&guard);
            sleep(ms(1)).await;
        }
        visits += 1;
        // Alternate between drop and an explicit release.
        if visits % 2 == 0 {
            drop(guard);
        } else {
            let _ = in_time("a release", guard.release()).await;
        }
    }
    visits
}
