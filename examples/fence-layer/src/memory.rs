//! Tokens in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;
use lock_proto::Fence;
use lock_proto::fence::FenceCheck;

use crate::{FenceGate, Refused};

/// Remembers the tokens of a bounded number of names, as long as the process lives.
///
/// It forgets none: a name beyond the bound is refused. To forget one would let its stale holders
/// pass.
#[derive(Clone, Debug)]
pub struct MemoryGate {
    names: Arc<Mutex<HashMap<String, SeenFence>>>,
    capacity: usize,
}

#[derive(Debug)]
struct SeenFence {
    seen: Fence,
    /// The token of the requests that are being served. There is only one: a greater one waits,
    /// and a smaller one is refused.
    served: Fence,
    requests: usize,
    /// Notified when no request is being served any more.
    idle: Event,
}

impl MemoryGate {
    /// A gate for this number of names.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { names: Arc::default(), capacity }
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, SeenFence>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FenceGate for MemoryGate {
    type Pass = MemoryPass;

    async fn admit(&self, name: &str, fence: Fence) -> Result<MemoryPass, Refused> {
        loop {
            let idle = {
                let mut names = self.names();
                if !names.contains_key(name) {
                    if names.len() >= self.capacity {
                        return Err(Refused::Unavailable);
                    }
                    let new = SeenFence { seen: fence, served: fence, requests: 0, idle: Event::new() };
                    names.insert(name.to_owned(), new);
                }
                let Some(entry) = names.get_mut(name) else { return Err(Refused::Unavailable) };
                if let FenceCheck::Stale { seen } = fence.check(entry.seen) {
                    return Err(Refused::Stale { seen });
                }
                // Stored before it is its turn, so that no smaller one gets ahead.
                // F1
                entry.seen = fence;
                if entry.requests == 0 || entry.served == fence {
                    entry.served = fence;
                    entry.requests += 1;
                    return Ok(MemoryPass { gate: self.clone(), name: name.to_owned() });
                }
                // F4
                entry.idle.listen()
            };
            idle.await;
        }
    }
}

/// A request that is being served.
#[derive(Debug)]
pub struct MemoryPass {
    gate: MemoryGate,
    name: String,
}

impl Drop for MemoryPass {
    fn drop(&mut self) {
        if let Some(name) = self.gate.names().get_mut(&self.name) {
            name.requests -= 1;
            if name.requests == 0 {
                name.idle.notify(usize::MAX);
            }
        }
    }
}
