//! The client that runs own locks.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::connections::{Connections, Received};
use super::context::{Context, FOREVER, Info, Progress, Stage, Timer};
use super::lock::{Call, Lost, OwnLock};
use super::transport::{Transport, Verbs, verbs};
use crate::check::Rule;
use crate::rng::Rng;
use crate::world::redis::RedisClient;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::Misuse;
use lock_proto::lock::Output;
use lock_proto::redis::Config;
use lock_proto::{
    Acquire, ByteClient, DEFAULT_TTL, Drift, Event, Failure, LockClient, Loss, Machine, Release, Report, Token, Wait,
};
use lock_proto::{ClientId, ClientInfo, ConnId, LockId};

/// Rules that a lock may break and still lock, and those that need its keys to be known.
pub(super) const EXCUSED: [Rule; 9] = [
    Rule::Fifo,
    Rule::OneWoken,
    Rule::Ghost,
    Rule::ShortenedKey,
    Rule::Prompt,
    Rule::Twice,
    Rule::Kept,
    Rule::FenceMinted,
    Rule::Validity,
];
/// How long a release may take before its outcome is unknown.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// A client whose acquisitions are [`OwnLock`]s: a machine that speaks RESP.
///
/// [`Builder::own_lock`](crate::Builder::own_lock) creates it. It connects to a node when the
/// first command is sent, logs in with the password of the settings, and connects again with the
/// next command after a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnClient<L, T = Connections> {
    id: ClientId,
    lock: L,
    rng: Rng,
    last: u32,
    /// Of requests without one.
    ttl: Duration,
    acquisitions: BTreeMap<LockId, Acquisition<L>>,
    pub(super) transport: T,
    /// Set by a shutdown: when it must have ended.
    stop_by: Option<Instant>,
    stopped: bool,
    /// Violations of its locks that the world cannot see.
    found: Vec<(Rule, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Acquisition<L> {
    info: Arc<Info>,
    lock: L,
    progress: Progress,
}

impl<L: OwnLock> OwnClient<L> {
    /// Creates a client with the nodes of the settings.
    #[must_use]
    pub fn new(config: &Config, id: ClientId, seed: u64, lock: L) -> Self {
        let connections = Connections::new(config.nodes().to_vec(), config.connect_timeout);
        Self::with(connections, DEFAULT_TTL, id, seed, lock)
    }
}

impl<L: Verbs<T>, T: Transport> OwnClient<L, T> {
    pub(super) const fn with(transport: T, ttl: Duration, id: ClientId, seed: u64, lock: L) -> Self {
        Self {
            id,
            lock,
            rng: Rng::new(seed),
            last: 0,
            ttl,
            acquisitions: BTreeMap::new(),
            transport,
            stop_by: None,
            stopped: false,
            found: Vec::new(),
        }
    }

    /// Returns the state of an acquisition, until nothing of it is left.
    #[must_use]
    pub fn lock(&self, lock: LockId) -> Option<&L> {
        self.acquisitions.get(&lock).map(|acquisition| &acquisition.lock)
    }

    /// Calls a lock, and then releases what was granted to nobody.
    fn call(&mut self, now: Instant, id: LockId, call: impl FnOnce(&mut L, &mut Context<'_, T>)) {
        let Some(Acquisition { info, lock, progress }) = self.acquisitions.get_mut(&id) else { return };
        let (transport, rng) = (&mut self.transport, &mut self.rng);
        let mut cx = Context { info, now, progress, transport, rng };
        call(lock, &mut cx);
        if core::mem::take(&mut cx.progress.unwanted) {
            lock.release(&mut cx);
        }
        if progress.is_finished() {
            self.acquisitions.remove(&id);
            self.transport.close(id);
        }
        self.stop();
    }

    /// Stops after a shutdown, once all releases have ended.
    fn stop(&mut self) {
        let over = |acquisition: &Acquisition<L>| acquisition.progress.stage == Stage::Over;
        if self.stop_by.is_some() && !self.stopped && self.acquisitions.values().all(over) {
            self.stopped = true;
            let unreleased = self.acquisitions.values().filter(|acquisition| acquisition.progress.granted).count();
            self.acquisitions.clear();
            self.transport.stop(u32::try_from(unreleased).unwrap_or(u32::MAX));
        }
    }

    /// Ends what is over at `now`: a wait, a validity, the time for a release.
    fn expire(&mut self, now: Instant, id: LockId) {
        let Some(Acquisition { info, progress, .. }) = self.acquisitions.get_mut(&id) else { return };
        match progress.stage {
            Stage::Waiting(Some(ends)) if ends <= now => {
                let report = Report::new(now.since(info.since), []);
                progress.timers.remove(&Timer::Retry);
                progress.emit(&mut self.transport, id, Event::Failed(Failure::TimedOut(report)));
                self.call(now, id, L::abandon);
            }
            Stage::Granted(until, _) if until <= now => {
                progress.stage = Stage::Lost;
                progress.emit(&mut self.transport, id, Event::Lost(Loss::Expired));
            }
            Stage::Granted(..) if progress.extends.front().is_some_and(|by| *by <= now) => {
                progress.extends.pop_front();
                if progress.awaits_reply() {
                    progress.extends.push_front(now + (info.ttl / 8).max(Duration::from_millis(1)));
                } else {
                    let text =
                        format!("{id} has ended no extension: neither `extended` nor `extend_failed` was called");
                    self.found.push((Rule::Notified, text));
                }
            }
            Stage::Releasing(by) if by <= now => {
                // Otherwise the outcome may well be unknown.
                if !progress.awaits_reply() && progress.timers.is_empty() {
                    let text = format!("{id} never called `released`, and waits for no reply");
                    self.found.push((Rule::Notified, text));
                }
                progress.emit(&mut self.transport, id, Event::Released(Release::Unknown));
                self.call(now, id, |_, _| {});
            }
            Stage::Waiting(_) | Stage::Granted(..) | Stage::Releasing(_) | Stage::Lost | Stage::Over => {}
        }
    }

    /// Returns the next violation of a lock that the world cannot see.
    pub(super) fn next_violation(&mut self) -> Option<(Rule, String)> {
        if self.found.is_empty() { None } else { Some(self.found.remove(0)) }
    }

    fn run_timers(&mut self, now: Instant, id: LockId) {
        let Some(acquisition) = self.acquisitions.get_mut(&id) else { return };
        let timers = &mut acquisition.progress.timers;
        let due: Vec<Timer> = timers.iter().filter(|(_, at)| **at <= now).map(|(timer, _)| *timer).collect();
        timers.retain(|timer, _| !due.contains(timer));
        for timer in due {
            self.call(now, id, |lock, cx| match timer {
                Timer::Retry => lock.acquire(cx),
                Timer::Own(timer) => lock.handle_timeout(cx, timer),
            });
        }
    }

    /// Something arrived for an acquisition.
    pub(super) fn arrived(&mut self, now: Instant, id: LockId, call: impl FnOnce(&mut L, &mut Context<'_, T>)) {
        self.expire(now, id);
        self.call(now, id, call);
    }

    fn progress(&mut self, lock: LockId) -> Result<&mut Progress, Misuse> {
        let found = self.acquisitions.get_mut(&lock).map(|acquisition| &mut acquisition.progress);
        found.filter(|progress| progress.stage != Stage::Over).ok_or(Misuse::Stale(lock))
    }
}

impl<L: Verbs<T>, T: Transport> LockClient for OwnClient<L, T> {
    fn acquire(&mut self, now: Instant, request: &Acquire) -> Result<LockId, Misuse> {
        if self.stop_by.is_some() {
            return Err(Misuse::ShuttingDown);
        }
        self.last += 1;
        let id = LockId::new(self.last, 0);
        let token = Token { client: self.id, number: u64::from(self.last) };
        let info = Info {
            id,
            name: String::from_utf8_lossy(&request.name).into_owned(),
            token,
            token_text: token.to_string(),
            ttl: request.ttl.unwrap_or(self.ttl),
            since: now,
            request: request.clone(),
        };
        let wait_ends = match request.wait.or_try() {
            Wait::For(time) => Some(now + time),
            Wait::Try | Wait::Forever => None,
        };
        let info = Arc::new(Info { request: Acquire { wait: request.wait.or_try(), ..request.clone() }, ..info });
        let acquisition = Acquisition { info, lock: self.lock.clone(), progress: Progress::new(wait_ends) };
        self.acquisitions.insert(id, acquisition);
        self.call(now, id, L::acquire);
        Ok(id)
    }

    fn claim(&mut self, _: Instant, lock: LockId) -> Result<(), Misuse> {
        match &mut self.progress(lock)?.stage {
            Stage::Granted(_, claimed @ false) => *claimed = true,
            Stage::Granted(_, true) | Stage::Waiting(_) | Stage::Lost | Stage::Releasing(_) | Stage::Over => {
                return Err(Misuse::NotOffered(lock));
            }
        }
        Ok(())
    }

    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        let Some(Acquisition { info, progress, .. }) = self.acquisitions.get_mut(&lock) else {
            return Err(Misuse::Stale(lock));
        };
        if !matches!(progress.stage, Stage::Granted(..)) {
            return Err(Misuse::NotHeld(lock));
        }
        progress.extends.push_back(now + info.ttl);
        self.call(now, lock, L::extend);
        Ok(())
    }

    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.expire(now, lock);
        let progress = self.progress(lock)?;
        if !matches!(progress.stage, Stage::Granted(..) | Stage::Lost) {
            return Err(Misuse::NotHeld(lock));
        }
        progress.stage = Stage::Releasing(now + RELEASE_WITHIN);
        self.call(now, lock, L::release);
        Ok(())
    }

    fn abandon(&mut self, now: Instant, lock: LockId) {
        if let Ok(progress) = self.progress(lock) {
            progress.stage = Stage::Over;
            progress.timers.remove(&Timer::Retry);
            self.call(now, lock, L::abandon);
        }
    }

    fn shutdown(&mut self, now: Instant, within: Duration) {
        let by = now + within;
        self.stop_by = Some(self.stop_by.map_or(by, |earlier| earlier.min(by)));
        for id in self.acquisitions.keys().copied().collect::<Vec<_>>() {
            self.expire(now, id);
            let Some(Acquisition { progress, .. }) = self.acquisitions.get_mut(&id) else { continue };
            match &mut progress.stage {
                Stage::Waiting(_) | Stage::Granted(_, false) => {
                    progress.timers.remove(&Timer::Retry);
                    progress.emit(&mut self.transport, id, Event::Failed(Failure::ShuttingDown));
                    self.call(now, id, L::abandon);
                }
                Stage::Granted(_, true) | Stage::Lost => {
                    progress.stage = Stage::Releasing(by);
                    self.call(now, id, L::release);
                }
                Stage::Releasing(at) => *at = by.min(*at),
                Stage::Over => {}
            }
        }
        self.stop();
    }

    fn valid_until(&self, lock: LockId) -> Option<Instant> {
        match self.acquisitions.get(&lock)?.progress.stage {
            Stage::Granted(until, _) => Some(until),
            Stage::Waiting(_) | Stage::Lost | Stage::Releasing(_) | Stage::Over => None,
        }
    }

    /// A lock may take off a tenth of the TTL for drift, more than that of the guide does.
    fn info(&self) -> ClientInfo<'_> {
        let mut info = ClientInfo::new(RELEASE_WITHIN);
        info.drift = Drift { divisor: 10, ..Drift::default() };
        info
    }
}

impl<L: Verbs<T>, T: Transport> Machine for OwnClient<L, T> {
    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.transport.handle_connected(now, conn);
    }

    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, _: Fault) {
        for (id, gone) in self.transport.handle_disconnected(conn) {
            self.arrived(now, id, |lock, cx| lock.handle_gone(cx, conn, gone));
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some(conn) = self.transport.give_up(now) {
            self.handle_disconnected(now, conn, Fault::TimedOut);
        }
        for id in self.acquisitions.keys().copied().collect::<Vec<_>>() {
            self.expire(now, id);
            self.run_timers(now, id);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let locks = self.acquisitions.values().filter_map(|each| each.progress.next_deadline()).min();
        locks.into_iter().chain(self.transport.next_deadline()).min().filter(|at| *at < FOREVER)
    }

    fn holds_any(&self) -> bool {
        self.acquisitions.values().any(|each| matches!(each.progress.stage, Stage::Granted(..)))
    }

    fn in_flight(&self) -> usize {
        self.acquisitions.values().map(|each| each.progress.pending).sum()
    }
}

impl<L: OwnLock> Verbs<Connections> for L {
    verbs!(OwnLock, Connections);

    fn handle_gone(&mut self, cx: &mut Context<'_>, conn: ConnId, call: Call) {
        cx.answered(conn);
        self.handle_reply(cx, call, Err(Lost));
    }
}

impl<L: OwnLock> ByteClient for OwnClient<L> {
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        for received in self.transport.handle_received(conn, bytes) {
            match received {
                Received::Reply(id, call, reply) => self.arrived(now, id, |lock, cx| {
                    cx.answered(conn);
                    lock.handle_reply(cx, call, Ok(reply));
                }),
                Received::Message(id, node, message) => {
                    self.arrived(now, id, |lock, cx| lock.handle_message(cx, node, message));
                }
            }
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.transport.poll_output()
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        self.transport.outgoing(conn)
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        !self.transport.outgoing(conn).is_empty()
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.transport.consume(conn, n);
    }
}

impl<L: OwnLock> RedisClient for OwnClient<L> {
    const ONE_TOKEN: bool = true;
    const EXCUSED: &'static [Rule] = &EXCUSED;

    fn key(&self, name: &[u8]) -> Vec<u8> {
        self.lock.key(&String::from_utf8_lossy(name)).into_bytes()
    }

    fn poll_violation(&mut self) -> Option<(Rule, String)> {
        self.next_violation()
    }

    fn may_leave(&self, key: &[u8], expires: bool) -> bool {
        expires || self.lock.keeps(key)
    }
}
