//! What is promised only while nothing goes wrong: promptness (requirement S8), and that no work is
//! done twice (requirement S9).

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Checker, Rule, Stage};
use crate::id::LockId;
use crate::time::Instant;

/// What is promised while nothing goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Calm {
    /// How long a lock may be free while somebody waits for it.
    prompt: Option<Duration>,
    /// Whether work is done once.
    once: bool,
    /// Requests without an answer.
    unanswered: Vec<Work>,
}

/// A request that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Work {
    client: usize,
    /// Its connection, and its number there.
    place: (u64, u64),
    kind: &'static str,
    what: Vec<u8>,
}

/// When a lock came free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    since: Instant,
    /// A hold was lost: no release tells of its end.
    lost: bool,
    /// Who had it last.
    by: Option<usize>,
}

/// Promptness: a lock that comes free reaches whoever waits for it.
impl Checker {
    /// Until something goes wrong ([`troubled`](Self::troubled)), nobody waits longer than this for
    /// a lock that is free.
    pub const fn expect_prompt(&mut self, within: Duration) {
        self.calm.prompt = Some(within);
    }

    /// Something is lost, stopped, cut, refused or shut down: promptness is promised no more.
    pub const fn troubled(&mut self) {
        self.calm.prompt = None;
    }

    /// Whether locks are still promised to be handed on promptly.
    #[must_use]
    pub const fn is_prompt(&self) -> bool {
        self.calm.prompt.is_some()
    }

    /// Whether a grant of this acquisition now is a lock that another client gave back, not lost,
    /// while this one waited.
    #[must_use]
    pub fn comes_from_another(&self, client: usize, lock: LockId) -> bool {
        let Some(life) = self.clients.get(client).and_then(|known| known.live.get(&lock)) else { return false };
        let Some(known) = self.locks.get(&life.key) else { return false };
        let another = known.free.by.is_some_and(|by| by != client);
        life.stage == Stage::Waiting
            && another
            && life.asked < known.free.since
            && known.holders.is_empty()
            && !known.free.lost
    }

    /// Somebody who held it, or was offered it, does no more.
    pub(super) fn comes_free(&mut self, client: usize, lock: LockId) {
        let Some(life) = self.clients.get(client).and_then(|known| known.live.get(&lock)) else { return };
        let key = life.key.clone();
        match life.stage {
            Stage::Waiting | Stage::Releasing | Stage::Over => return,
            Stage::Offered | Stage::Held | Stage::Lost => {}
        }
        let now = self.now;
        let known = self.lock(&key);
        (known.free.since, known.free.by) = (now, Some(client));
    }

    /// A hold was lost.
    pub(super) fn is_lost(&mut self, client: usize, lock: LockId) {
        let Some(life) = self.clients.get(client).and_then(|known| known.live.get(&lock)) else { return };
        let key = life.key.clone();
        self.lock(&key).free.lost = true;
    }

    /// A wait has ended, by a grant or because its time was over.
    pub(super) fn waited(&mut self, now: Instant, client: usize, lock: LockId, granted: bool) {
        let Some(life) = self.clients.get(client).and_then(|known| known.live.get(&lock)) else { return };
        let (key, own) = (life.key.clone(), life.asked);
        let others = self.clients.iter().flat_map(|known| known.live.values());
        let waiting = others.filter(|life| life.stage == Stage::Waiting && life.key == key).map(|life| life.asked);
        // Nobody else was granted it meanwhile.
        let asked = if granted { waiting.fold(own, Instant::min) } else { own };
        let prompt = self.calm.prompt;
        let known = self.lock(&key);
        let late = now.since(known.free.since.max(asked));
        let judged = known.holders.is_empty() && !known.free.lost;
        if granted {
            known.free.lost = false;
        }
        if let Some(within) = prompt.filter(|within| judged && late > *within) {
            let text = format!(
                "{} was free for {late:?} while client {client} {lock} or another waited; {within:?} are enough",
                key.escape_ascii()
            );
            self.report(now, Rule::Prompt, text);
        }
    }
}

/// The kind of a request that takes a lock for somebody who waits. What it is about is the lock's
/// key.
pub(in crate::sim) const TAKE: &str = "take";

/// Work that is done twice.
impl Checker {
    /// From now on no client sends a request again while the first one is unanswered, and none
    /// gives one up that is being answered.
    pub const fn expect_once(&mut self) {
        self.calm.once = true;
    }

    /// Work is lost with its connection, or its server: what is done again is right.
    pub fn repeats(&mut self) {
        self.calm.once = false;
        self.calm.unanswered.clear();
    }

    /// Whether requests are watched: [`sends`](Self::sends) and [`answered`](Self::answered) do
    /// nothing otherwise.
    #[must_use]
    pub const fn watches_requests(&self) -> bool {
        self.calm.once
    }

    /// A client sends a request over a connection. No number is used twice, but for a request that
    /// does several things; two with the same `kind` and the same `what` are the same work.
    pub fn sends(&mut self, now: Instant, client: usize, link: u64, number: u64, kind: &'static str, what: Vec<u8>) {
        if !self.calm.once {
            return;
        }
        let same = |work: &Work| work.place.0 == link && work.kind == kind && work.what == what;
        if self.calm.unanswered.iter().any(same) {
            let text = format!("client {client} sends {kind} {} again before it is answered", what.escape_ascii());
            self.report(now, Rule::Twice, text);
        }
        self.calm.unanswered.push(Work { client, place: (link, number), kind, what });
    }

    /// A client sends a request although the answer to the same one has reached it.
    pub fn repeats_answered(&mut self, now: Instant, client: usize, kind: &'static str, what: &[u8]) {
        if self.calm.once {
            let text = format!("client {client} sends {kind} {} again after the answer", what.escape_ascii());
            self.report(now, Rule::Twice, text);
        }
    }

    /// The answer has reached the client.
    pub fn answered(&mut self, link: u64, number: u64) {
        self.calm.unanswered.retain(|work| work.place != (link, number));
    }

    /// A client closes a connection, or a stream of it, by itself. `numbers`: of the requests that
    /// end with it; `None`: all. With `alive` something has come lately.
    pub fn gives_up(&mut self, now: Instant, link: u64, numbers: Option<&[u64]>, alive: bool) {
        let ends =
            |work: &mut Work| work.place.0 == link && numbers.is_none_or(|numbers| numbers.contains(&work.place.1));
        let gone: Vec<Work> = self.calm.unanswered.extract_if(.., ends).collect();
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
