//! The watch stream: one stream carries all watches (requirement E5).
//!
//! What is relied on, tried on etcd 3.4.23 and read in `server/etcdserver/api/v3rpc/watch.go` of its public source: a client may
//! choose the number of a watch; requests are worked off in order, so creations are answered in order; one that is not allowed is answered
//! `created` and `canceled` with the number -1; what was cancelled is answered `canceled`; the header of a `created` tells the revision
//! after which everything is told.
//!
//! The sign of life on a silent stream is a watch that is created and cancelled at once, not a progress request: from 3.4.25 and 3.5.8 on
//! etcd leaves that unanswered while nothing has been written since the youngest watch was opened (etcd issue 17507), which is what
//! silence means.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::streams::Step;
use super::{ChannelConfig, ChannelOutput};
use crate::etcd::message::{
    DELETED, KeyValue, NO_PUT, WatchAsk, WatchCancelRequest, WatchCreateRequest, WatchEvent, WatchRequest,
    WatchResponse,
};
use crate::etcd::rpc::StreamId;
use crate::etcd::seam::WatchId;
use crate::etcd::status::denial;
use crate::lock::{Failures, ServerError};
use crate::time::Instant;

/// How many creations may be unanswered at once: see [`MOST_IN_FLIGHT`](super::calls::MOST_IN_FLIGHT).
const MOST_UNANSWERED: usize = super::calls::MOST_IN_FLIGHT;

/// What is to be watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub(super) key: Bytes,
    pub(super) end: Bytes,
    /// Only deletions are told.
    pub(super) deletions: bool,
}

/// One watch that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watch {
    wanted: Wanted,
    state: State,
    backoff: Failures,
    /// The login that was current when it was first asked for, or with which it last worked. A later login that it is denied with
    /// settles the matter.
    proven: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Among those that are to be created.
    New,
    /// The server was asked to create it.
    Asked { wire: i64 },
    /// It tells every change.
    Open { wire: i64, since: Instant },
    /// The server cancelled it; to be created anew after a pause.
    Pausing { until: Instant },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Ask {
    Cancel(i64),
    /// A sign of life: a watch of this range, created and cancelled.
    Probe(Wanted),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Open {
    id: StreamId,
    /// The login that it was opened with.
    login: u64,
    since: Instant,
    heard: Instant,
    /// When the oldest creation that is not answered was sent.
    asked: Instant,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Watches {
    seed: u64,
    wanted: BTreeMap<WatchId, Watch>,
    /// Those of `wanted` that are new.
    fresh: BTreeSet<WatchId>,
    /// Those of `wanted` that pause.
    pausing: BTreeSet<(Instant, WatchId)>,
    stream: Option<Open>,
    /// The numbers of watches on this stream. What comes for any other is dropped.
    wires: BTreeMap<i64, WatchId>,
    /// Creations that are not answered, oldest first. Also of watches that nobody wants any more.
    unanswered: BTreeSet<i64>,
    asks: VecDeque<Ask>,
    /// The last number given to a watch. None is used twice.
    wire: i64,
    /// The stream is not to be opened before that.
    pause: Option<Instant>,
    backoff: Failures,
}

/// What a message means for the stream as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    Fine,
    /// It cannot be understood. What it was about may have been a change: open the stream anew.
    Broken,
    /// A watch was denied: log in anew, if that has not happened since this login, and open the stream anew.
    LogIn(u64),
}

impl Watches {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    // Verbs.

    pub(super) fn want(&mut self, watch: WatchId, wanted: Wanted, login: u64) {
        let new = Watch { wanted, state: State::New, backoff: Failures::default(), proven: login };
        if let Some(old) = self.wanted.insert(watch, new) {
            self.forget(watch, old.state);
        }
        self.fresh.insert(watch);
    }

    pub(super) fn unwant(&mut self, watch: WatchId) {
        if let Some(old) = self.wanted.remove(&watch) {
            self.forget(watch, old.state);
        }
    }

    fn forget(&mut self, watch: WatchId, state: State) {
        match state {
            State::New => {
                self.fresh.remove(&watch);
            }
            State::Asked { wire } | State::Open { wire, .. } => {
                self.wires.remove(&wire);
                self.asks.push_back(Ask::Cancel(wire));
            }
            State::Pausing { until } => {
                self.pausing.remove(&(until, watch));
            }
        }
    }

    /// Ends them all, and tells that it is for good.
    pub(super) fn refuse_all(&mut self, error: &ServerError, out: &mut VecDeque<ChannelOutput>) {
        self.refuse(error, out, |_| true);
    }

    fn refuse(&mut self, error: &ServerError, out: &mut VecDeque<ChannelOutput>, which: impl Fn(&Watch) -> bool) {
        let refused: Vec<WatchId> = self.wanted.iter().filter(|(_, watch)| which(watch)).map(|(id, _)| *id).collect();
        for watch in refused {
            self.unwant(watch);
            out.push_back(ChannelOutput::WatchRefused { watch, error: error.clone() });
        }
    }

    // Facts.

    pub(super) fn opened(&mut self, now: Instant, id: StreamId, login: u64) {
        self.stream = Some(Open { id, login, since: now, heard: now, asked: now });
    }

    pub(super) fn heard(
        &mut self,
        now: Instant,
        message: WatchResponse,
        config: &ChannelConfig,
        out: &mut VecDeque<ChannelOutput>,
    ) -> Verdict {
        let Some(stream) = &mut self.stream else { return Verdict::Fine };
        stream.heard = now;
        let login = stream.login;
        let mut wire = message.watch_id;
        if (message.created || message.canceled) && !self.unanswered.remove(&wire) {
            // One that could not be created has no number: it is the oldest that was asked for.
            if message.created && message.canceled && wire <= 0 {
                let Some(oldest) = self.unanswered.pop_first() else { return Verdict::Fine };
                wire = oldest;
            }
        }
        let Some(id) = self.wires.get(&wire).copied() else { return Verdict::Fine };
        let Some(watch) = self.wanted.get_mut(&id) else { return Verdict::Fine };
        if !message.events.is_empty() && !tell(id, watch.state, message.events, out) {
            return Verdict::Broken;
        }
        if message.canceled {
            let lasted = match watch.state {
                State::Open { since, .. } => {
                    out.push_back(ChannelOutput::Unsubscribed { watch: id });
                    now.since(since)
                }
                State::New | State::Asked { .. } | State::Pausing { .. } => Duration::ZERO,
            };
            self.wires.remove(&wire);
            if let Some(error) = denial(&message.cancel_reason) {
                watch.state = State::New;
                self.fresh.insert(id);
                if config.user.is_some() && login <= watch.proven {
                    return Verdict::LogIn(login);
                }
                self.unwant(id);
                out.push_back(ChannelOutput::WatchRefused { watch: id, error });
                return Verdict::Fine;
            }
            watch.backoff.failed(lasted, config.reconnect);
            let until = now + watch.backoff.pause(0, config.reconnect, self.seed, wire as u64);
            watch.state = State::Pausing { until };
            self.pausing.insert((until, id));
        } else if message.created
            && let State::Asked { wire } = watch.state
        {
            let Some(revision) = message.header.map(|header| header.revision).filter(|revision| *revision > 0) else {
                return Verdict::Broken;
            };
            watch.state = State::Open { wire, since: now };
            watch.proven = login;
            out.push_back(ChannelOutput::Watching { watch: id, revision });
        }
        Verdict::Fine
    }

    /// The stream is no more. It is opened anew after a pause.
    pub(super) fn lost(&mut self, now: Instant, config: &ChannelConfig, out: &mut VecDeque<ChannelOutput>) {
        let Some(stream) = self.stream.take() else { return };
        for (id, watch) in &mut self.wanted {
            match watch.state {
                State::Open { since, .. } => {
                    if now.since(since) >= config.reconnect.max {
                        watch.backoff = Failures::default();
                    }
                    out.push_back(ChannelOutput::Unsubscribed { watch: *id });
                }
                State::New | State::Asked { .. } | State::Pausing { .. } => {}
            }
            watch.state = State::New;
            self.fresh.insert(*id);
        }
        self.pausing.clear();
        self.wires.clear();
        self.unanswered.clear();
        self.asks.clear();
        self.backoff.failed(now.since(stream.since), config.reconnect);
        self.pause = Some(now + self.backoff.pause(0, config.reconnect, self.seed, self.wire as u64));
    }

    /// The connection is no more, and has its own pause.
    pub(super) fn disconnected(&mut self, now: Instant, config: &ChannelConfig, out: &mut VecDeque<ChannelOutput>) {
        self.lost(now, config, out);
        self.pause = None;
        self.backoff = Failures::default();
    }

    /// The stream was ended for lack of a valid token. Those that a later login did not help either are refused.
    pub(super) fn denied(
        &mut self,
        error: &ServerError,
        has_user: bool,
        out: &mut VecDeque<ChannelOutput>,
    ) -> Option<u64> {
        let login = self.stream.map(|stream| stream.login)?;
        self.refuse(error, out, |watch| !has_user || login > watch.proven);
        Some(login)
    }

    /// Does what is due. Returns true if the stream is given up: something is unanswered, and nothing has come on it for so long. Other
    /// streams may be well.
    #[must_use]
    pub(super) fn timeout(&mut self, now: Instant, config: &ChannelConfig, silence: Duration) -> bool {
        if self.pause.is_some_and(|until| until <= now) {
            self.pause = None;
        }
        while let Some((_, id)) = self.pausing.first().copied().filter(|(until, _)| *until <= now) {
            self.pausing.pop_first();
            if let Some(watch) = self.wanted.get_mut(&id) {
                watch.state = State::New;
                self.fresh.insert(id);
            }
        }
        if self.quiet_until(config).is_some_and(|until| until <= now)
            && let Some(watch) = self.wires.values().next().and_then(|id| self.wanted.get(id))
        {
            // What is watched already may be watched.
            self.asks.push_back(Ask::Probe(watch.wanted.clone()));
        }
        self.silent_until(config, silence).is_some_and(|until| until <= now)
    }

    // Drains.

    /// Whether there is something to be handed out.
    pub(super) fn is_ready(&self) -> bool {
        match self.stream {
            Some(_) => !self.asks.is_empty() || (!self.fresh.is_empty() && self.unanswered.len() < MOST_UNANSWERED),
            None => self.any() && self.pause.is_none(),
        }
    }

    /// Hands out the next step.
    pub(super) fn step(&mut self, now: Instant) -> Option<Step<WatchRequest>> {
        if !self.is_ready() {
            return None;
        }
        let Some(stream) = self.stream else { return Some(Step::Open) };
        let ask = match self.asks.pop_front() {
            Some(Ask::Cancel(wire)) => WatchAsk::Cancel(WatchCancelRequest { watch_id: wire }),
            Some(Ask::Probe(wanted)) => {
                let (wire, create) = self.create(now, wanted);
                self.asks.push_front(Ask::Cancel(wire));
                create
            }
            None => {
                let id = self.fresh.pop_first()?;
                let watch = self.wanted.get_mut(&id)?;
                let wanted = watch.wanted.clone();
                watch.state = State::Asked { wire: self.wire + 1 };
                let (wire, create) = self.create(now, wanted);
                self.wires.insert(wire, id);
                create
            }
        };
        Some(Step::Send(stream.id, WatchRequest { request: Some(ask) }))
    }

    fn create(&mut self, now: Instant, wanted: Wanted) -> (i64, WatchAsk) {
        self.wire += 1;
        if let Some(stream) = self.stream.as_mut().filter(|_| self.unanswered.is_empty()) {
            stream.asked = now;
        }
        self.unanswered.insert(self.wire);
        let request = WatchCreateRequest {
            key: wanted.key,
            range_end: wanted.end,
            // From now on: never from a revision (requirement E5).
            start_revision: 0,
            progress_notify: false,
            filters: if wanted.deletions { vec![NO_PUT] } else { Vec::new() },
            watch_id: self.wire,
            fragment: true,
        };
        (self.wire, WatchAsk::Create(request))
    }

    /// The stream that is open.
    pub(super) fn stream(&self) -> Option<StreamId> {
        self.stream.map(|stream| stream.id)
    }

    pub(super) fn any(&self) -> bool {
        !self.wanted.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// How often the stream has ended in a row without having lasted.
    pub(super) const fn failures(&self) -> u32 {
        self.backoff.failures
    }

    /// When `timeout` is due.
    pub(super) fn deadline(&self, config: &ChannelConfig, silence: Duration) -> Option<Instant> {
        let pausing = self.pausing.first().map(|(until, _)| *until);
        [self.pause, pausing, self.silent_until(config, silence), self.quiet_until(config)].into_iter().flatten().min()
    }

    /// Whether an answer is expected.
    pub(super) fn any_in_flight(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// When the stream is reopened unless something arrives before, while an answer is outstanding on it. It may stay
    /// silent for at least as long as the connection, whose current limit is `silence`.
    // E13
    fn silent_until(&self, config: &ChannelConfig, silence: Duration) -> Option<Instant> {
        let stream = self.stream.filter(|_| self.any_in_flight())?;
        Some(stream.heard.max(stream.asked) + config.watch_quiet.max(silence))
    }

    /// Until when the stream may be silent, while there are watches on it and no answer is due anyway.
    fn quiet_until(&self, config: &ChannelConfig) -> Option<Instant> {
        let stream = self.stream?;
        let waiting = self.wires.is_empty() || !self.unanswered.is_empty() || !self.asks.is_empty();
        (!waiting).then(|| stream.heard + config.watch_quiet)
    }
}

/// Passes changes on, in their order. Whether they were what changes of an open watch can be.
fn tell(id: WatchId, state: State, events: Vec<WatchEvent>, out: &mut VecDeque<ChannelOutput>) -> bool {
    match state {
        State::Open { .. } => {}
        State::New | State::Asked { .. } | State::Pausing { .. } => return false,
    }
    for WatchEvent { kind, kv } in events {
        let Some(kv) = kv.filter(|kv: &KeyValue| kv.mod_revision > 0 && matches!(kind, 0 | DELETED)) else {
            return false;
        };
        out.push_back(ChannelOutput::Changed { watch: id, revision: kv.mod_revision, deleted: kind == DELETED, kv });
    }
    true
}
