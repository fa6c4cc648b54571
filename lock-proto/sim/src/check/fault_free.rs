//! Guarantees that hold only while nothing goes wrong: prompt hand-over, and no duplicate work.
// S8, S9

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Checker, Rule, Stage};
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::Loss;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultFree {
    prompt: Option<Prompt>,
    once: bool,
    kept: bool,
    pending: Vec<PendingRequest>,
}

/// How long a lock may be free while a client waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prompt {
    within: Duration,
    /// More for each other lock that the client gets meanwhile.
    each: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingRequest {
    client: usize,
    /// The connection, and the request's number on it.
    id: (u64, u64),
    kind: &'static str,
    what: Vec<u8>,
}

/// When and how a lock became free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    since: Instant,
    /// The hold was lost, so no release notifies the waiters.
    lost: bool,
    /// The client that held it last.
    by: Option<usize>,
}

impl Checker {
    /// Requires that no client waits longer than `within` for a free lock, plus `each` for each
    /// other lock that it gets meanwhile, until [`waive_prompt`](Self::waive_prompt) is called.
    pub const fn expect_prompt(&mut self, within: Duration, each: Duration) {
        self.fault_free.prompt = Some(Prompt { within, each });
    }

    /// Waives promptness: something was lost, stopped, cut, refused or shut down.
    pub const fn waive_prompt(&mut self) {
        self.fault_free.prompt = None;
    }

    /// Returns true if prompt hand-over is required.
    #[must_use]
    pub const fn is_prompt(&self) -> bool {
        self.fault_free.prompt.is_some()
    }

    /// Returns true if a grant of this acquisition now would be a hand-over: another client
    /// released the lock, without losing it, while this one waited.
    #[must_use]
    pub fn is_hand_over(&self, client: usize, lock: LockId) -> bool {
        let Some(acquisition) = self.clients.get(client).and_then(|state| state.live.get(&lock)) else { return false };
        let Some(state) = self.locks.get(&acquisition.key) else { return false };
        let another = state.free.by.is_some_and(|by| by != client);
        acquisition.stage == Stage::Waiting
            && another
            && acquisition.requested_at < state.free.since
            && state.holders.is_empty()
            && !state.free.lost
    }

    /// Marks the lock as free if the acquisition held it or was offered it.
    pub(super) fn mark_free(&mut self, client: usize, lock: LockId) {
        let Some(acquisition) = self.clients.get(client).and_then(|state| state.live.get(&lock)) else { return };
        let key = acquisition.key.clone();
        match acquisition.stage {
            Stage::Waiting | Stage::Releasing | Stage::Over => return,
            Stage::Offered | Stage::Held | Stage::Lost => {}
        }
        let now = self.now;
        let state = self.lock(&key);
        (state.free.since, state.free.by) = (now, Some(client));
    }

    pub(super) fn mark_lost(&mut self, client: usize, lock: LockId) {
        let Some(acquisition) = self.clients.get(client).and_then(|state| state.live.get(&lock)) else { return };
        let key = acquisition.key.clone();
        self.lock(&key).free.lost = true;
    }

    /// Checks promptness when a wait ends, by a grant or by a timeout.
    pub(super) fn check_prompt(&mut self, now: Instant, client: usize, lock: LockId, granted: bool) {
        let Some(acquisition) = self.clients.get(client).and_then(|state| state.live.get(&lock)) else { return };
        let (key, own) = (acquisition.key.clone(), acquisition.requested_at);
        let others = self.clients.iter().flat_map(|state| state.live.values());
        let waiting = others
            .filter(|acquisition| acquisition.stage == Stage::Waiting && acquisition.key == key)
            .map(|acquisition| acquisition.requested_at);
        // A grant means that no other waiter got the lock in the meantime; judge by the earliest.
        let since = if granted { waiting.fold(own, Instant::min) } else { own };
        let prompt = self.fault_free.prompt;
        let freed = self.lock(&key).free.since;
        let others = self.clients[client].taken.iter().filter(|at| **at > freed).count() as u32;
        let state = self.lock(&key);
        let late = now.since(freed.max(since));
        let judged = state.holders.is_empty() && !state.free.lost;
        if granted {
            state.free.lost = false;
        }
        let within = prompt.map(|prompt| prompt.within + prompt.each * others);
        if let Some(within) = within.filter(|within| judged && late > *within) {
            let text = format!(
                "{} was free for {late:?} while client {client} {lock} or another waited; {within:?} are enough",
                key.escape_ascii()
            );
            self.report(now, Rule::Prompt, text);
        }
    }
}

impl Checker {
    /// Requires from now on that no hold that its client renews is lost.
    pub const fn expect_kept(&mut self) {
        self.fault_free.kept = true;
    }

    /// Waives the rule: something failed.
    pub const fn waive_kept(&mut self) {
        self.fault_free.kept = false;
    }

    /// A hold was lost although the client renews it.
    pub fn lost(&mut self, now: Instant, client: usize, lock: LockId, why: Loss) {
        if self.fault_free.kept {
            self.report(now, Rule::Kept, format!("client {client} {lock} is lost, and nothing has failed: {why:?}"));
        }
    }
}

/// The kind of a request that takes a lock for a waiter. Its subject is the lock's key.
pub(crate) const TAKE: &str = "take";

impl Checker {
    /// Requires from now on that no client repeats a pending request, and that none abandons a
    /// request that the server is processing.
    pub const fn expect_once(&mut self) {
        self.fault_free.once = true;
    }

    /// Waives the rule: work was lost with its connection or server, so repeating it is correct.
    pub fn waive_once(&mut self) {
        self.fault_free.once = false;
        self.fault_free.pending.clear();
    }

    /// Returns true if requests are checked. Otherwise [`request_sent`](Self::request_sent) and
    /// [`reply_received`](Self::reply_received) do nothing.
    #[must_use]
    pub const fn checks_requests(&self) -> bool {
        self.fault_free.once
    }

    /// A client sends a request on a connection. Numbers are unique, except within a request that
    /// has several parts. Two requests with the same `kind` and `what` are the same work.
    pub fn request_sent(
        &mut self,
        now: Instant,
        client: usize,
        link: u64,
        number: u64,
        kind: &'static str,
        what: Vec<u8>,
    ) {
        if !self.fault_free.once {
            return;
        }
        let same = |work: &PendingRequest| work.id.0 == link && work.kind == kind && work.what == what;
        if self.fault_free.pending.iter().any(same) {
            let text = format!("client {client} sends {kind} {} again before it is answered", what.escape_ascii());
            self.report(now, Rule::Twice, text);
        }
        self.fault_free.pending.push(PendingRequest { client, id: (link, number), kind, what });
    }

    /// A client repeats a request although it has received the reply.
    pub fn repeated_after_reply(&mut self, now: Instant, client: usize, kind: &'static str, what: &[u8]) {
        if self.fault_free.once {
            let text = format!("client {client} sends {kind} {} again after the answer", what.escape_ascii());
            self.report(now, Rule::Twice, text);
        }
    }

    /// The reply has reached the client.
    pub fn reply_received(&mut self, link: u64, number: u64) {
        self.fault_free.pending.retain(|work| work.id != (link, number));
    }

    /// A client closes a connection or one of its streams. `numbers` lists the requests that end
    /// with it, or `None` for all. `alive` is true if data arrived recently.
    pub fn closed(&mut self, now: Instant, link: u64, numbers: Option<&[u64]>, alive: bool) {
        let ends =
            |work: &mut PendingRequest| work.id.0 == link && numbers.is_none_or(|numbers| numbers.contains(&work.id.1));
        let gone: Vec<PendingRequest> = self.fault_free.pending.extract_if(.., ends).collect();
        let Some(first) = gone.first().filter(|_| alive) else { return };
        let text = format!(
            "client {} gives up {} requests that are being answered, the first {} {}",
            first.client,
            gone.len(),
            first.kind,
            first.what.escape_ascii()
        );
        self.report(now, Rule::Twice, text);
    }
}
