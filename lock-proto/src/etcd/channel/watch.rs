//! The watch stream. A single stream carries all watches.
//!
//! The code relies on this behaviour, tried on etcd 3.4.23 and read in
//! `server/etcdserver/api/v3rpc/watch.go`: a client may choose the id of a watch. `etcd grpc-proxy`
//! ignores it, and counts the creations on a stream from 0 (etcd issue 12819). So does the client:
//! etcd takes 0 as a request for the next number, which is 0 on a new stream. Creations are
//! answered in order; a refused one with `created` and `canceled`, and the id -1. A cancellation is
//! answered with `canceled`. The header of a `created` has the revision after which every change is
//! reported.
//!
//! A silent stream is probed by creating and cancelling a watch. Progress requests do not work:
//! from 3.4.25 and 3.5.8 on, etcd does not answer them while nothing was written since the youngest
//! watch was opened (etcd issue 17507).
// E5

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::streams::StreamStep;
use super::{ChannelConfig, ChannelOutput};
use crate::etcd::locks_output::WatchId;
use crate::etcd::message::{
    DELETED, KeyValue, NO_PUT, WatchCancelRequest, WatchCreateRequest, WatchEvent, WatchRequest, WatchRequestUnion,
    WatchResponse,
};
use crate::etcd::rpc::StreamId;
use crate::etcd::status::denial;
use crate::lock::{Failures, ServerError};
use crate::time::Instant;

/// Maximal number of unanswered creations. See [`MAX_IN_FLIGHT`](super::calls::MAX_IN_FLIGHT).
const MAX_UNANSWERED: usize = super::calls::MAX_IN_FLIGHT;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchSpec {
    pub(super) key: Bytes,
    pub(super) end: Bytes,
    pub(super) deletions: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watch {
    spec: WatchSpec,
    state: WatchState,
    backoff: Failures,
    /// The login with which the watch last worked. A denial after a later login is final.
    proven: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WatchState {
    New,
    Creating {
        wire: i64,
    },
    /// Every change is reported.
    Open {
        wire: i64,
        since: Instant,
    },
    /// The server cancelled it. Recreated after a pause.
    Pausing {
        until: Instant,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WatchCommand {
    Cancel(i64),
    /// Create and cancel a watch on this range, to test a silent stream.
    Probe(WatchSpec),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Open {
    id: StreamId,
    /// The login whose token opened it.
    login: u64,
    since: Instant,
    last_message: Instant,
    /// The last serial number before the oldest unanswered creation was sent.
    sent_after: u64,
    /// When a later call was answered while creations were not, unless something has arrived on the
    /// stream since.
    overtaken: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Watches {
    seed: u64,
    watches: BTreeMap<WatchId, Watch>,
    to_create: BTreeSet<WatchId>,
    pausing: BTreeSet<(Instant, WatchId)>,
    stream: Option<Open>,
    /// Watches by their id on this stream. Messages for other ids are dropped.
    wires: BTreeMap<i64, WatchId>,
    /// Unanswered creations, oldest first, including those of removed watches.
    unanswered: BTreeSet<i64>,
    commands: VecDeque<WatchCommand>,
    /// The id of the next watch on this stream.
    next_wire: i64,
    /// The stream stays closed until then.
    pause: Option<Instant>,
    backoff: Failures,
}

/// Consequence of a message for the stream as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StreamVerdict {
    Fine,
    /// The message is malformed and may have hidden a change. Reopen the stream.
    Broken,
    /// A watch was denied. Reopen the stream, after a new login unless this one is no longer
    /// current.
    LogIn(u64),
}

impl Watches {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(super) fn insert(&mut self, watch: WatchId, spec: WatchSpec, login: u64) {
        let new = Watch { spec, state: WatchState::New, backoff: Failures::default(), proven: login };
        if let Some(old) = self.watches.insert(watch, new) {
            self.forget(watch, old.state);
        }
        self.to_create.insert(watch);
    }

    pub(super) fn remove(&mut self, watch: WatchId) {
        if let Some(old) = self.watches.remove(&watch) {
            self.forget(watch, old.state);
        }
    }

    fn forget(&mut self, watch: WatchId, state: WatchState) {
        match state {
            WatchState::New => {
                self.to_create.remove(&watch);
            }
            WatchState::Creating { wire } | WatchState::Open { wire, .. } => {
                self.wires.remove(&wire);
                self.commands.push_back(WatchCommand::Cancel(wire));
            }
            WatchState::Pausing { until } => {
                self.pausing.remove(&(until, watch));
            }
        }
    }

    /// Ends all watches with a final error.
    pub(super) fn refuse_all(&mut self, error: &ServerError, out: &mut VecDeque<ChannelOutput>) {
        self.refuse(error, out, |_| true);
    }

    fn refuse(&mut self, error: &ServerError, out: &mut VecDeque<ChannelOutput>, which: impl Fn(&Watch) -> bool) {
        let refused: Vec<WatchId> = self.watches.iter().filter(|(_, watch)| which(watch)).map(|(id, _)| *id).collect();
        for watch in refused {
            self.remove(watch);
            out.push_back(ChannelOutput::WatchRefused { watch, error: error.clone() });
        }
    }

    pub(super) fn opened(&mut self, now: Instant, id: StreamId, login: u64) {
        self.stream = Some(Open { id, login, since: now, last_message: now, sent_after: id.serial, overtaken: None });
        self.next_wire = 0;
    }

    pub(super) fn received(
        &mut self,
        now: Instant,
        message: WatchResponse,
        config: &ChannelConfig,
        out: &mut VecDeque<ChannelOutput>,
    ) -> StreamVerdict {
        let Some(stream) = &mut self.stream else { return StreamVerdict::Fine };
        (stream.last_message, stream.overtaken) = (now, None);
        let login = stream.login;
        let mut wire = message.watch_id;
        if (message.created || message.canceled) && !self.unanswered.remove(&wire) {
            // A failed creation has no id. It belongs to the oldest unanswered request.
            if message.created && message.canceled && wire < 0 {
                let Some(oldest) = self.unanswered.pop_first() else { return StreamVerdict::Fine };
                wire = oldest;
            } else if message.created {
                // The proxy counts no refused creation, so its numbers have shifted.
                return StreamVerdict::Broken;
            }
        }
        let Some(id) = self.wires.get(&wire).copied() else { return StreamVerdict::Fine };
        let Some(watch) = self.watches.get_mut(&id) else { return StreamVerdict::Fine };
        if !message.events.is_empty() && !emit_changes(id, watch.state, message.events, out) {
            return StreamVerdict::Broken;
        }
        if message.canceled {
            let lasted = match watch.state {
                WatchState::Open { since, .. } => {
                    out.push_back(ChannelOutput::Unsubscribed { watch: id });
                    now.since(since)
                }
                WatchState::New | WatchState::Creating { .. } | WatchState::Pausing { .. } => Duration::ZERO,
            };
            self.wires.remove(&wire);
            if let Some(error) = denial(&message.cancel_reason) {
                watch.state = WatchState::New;
                self.to_create.insert(id);
                if config.logs_in() && login <= watch.proven {
                    return StreamVerdict::LogIn(login);
                }
                self.remove(id);
                out.push_back(ChannelOutput::WatchRefused { watch: id, error });
                return StreamVerdict::Fine;
            }
            watch.backoff.failed(lasted, config.reconnect);
            let until = now + watch.backoff.pause(0, config.reconnect, self.seed, now.as_nanos() ^ wire as u64);
            watch.state = WatchState::Pausing { until };
            self.pausing.insert((until, id));
        } else if message.created
            && let WatchState::Creating { wire } = watch.state
        {
            let Some(revision) = message.header.map(|header| header.revision).filter(|revision| *revision > 0) else {
                return StreamVerdict::Broken;
            };
            watch.state = WatchState::Open { wire, since: now };
            watch.proven = login;
            out.push_back(ChannelOutput::Watching { watch: id, revision });
        }
        StreamVerdict::Fine
    }

    /// Cleans up after the stream has ended. It is reopened after a pause.
    pub(super) fn lost(&mut self, now: Instant, config: &ChannelConfig, out: &mut VecDeque<ChannelOutput>) {
        let Some(stream) = self.stream.take() else { return };
        for (id, watch) in &mut self.watches {
            match watch.state {
                WatchState::Open { since, .. } => {
                    if now.since(since) >= config.reconnect.max {
                        watch.backoff = Failures::default();
                    }
                    out.push_back(ChannelOutput::Unsubscribed { watch: *id });
                }
                WatchState::New | WatchState::Creating { .. } | WatchState::Pausing { .. } => {}
            }
            watch.state = WatchState::New;
            self.to_create.insert(*id);
        }
        self.pausing.clear();
        self.wires.clear();
        self.unanswered.clear();
        self.commands.clear();
        // A stream with an overdue reply has not worked since its last message.
        let end = if stream.overtaken.is_some() { stream.last_message } else { now };
        self.backoff.failed(end.since(stream.since), config.reconnect);
        self.pause = Some(now + self.backoff.pause(0, config.reconnect, self.seed, now.as_nanos()));
    }

    /// Cleans up after the connection has ended. Reconnecting has its own backoff.
    pub(super) fn disconnected(&mut self, now: Instant, config: &ChannelConfig, out: &mut VecDeque<ChannelOutput>) {
        self.lost(now, config, out);
        self.pause = None;
        self.backoff = Failures::default();
    }

    /// The stream ended for lack of a valid token. Refuses watches that a later login did not help.
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

    /// Handles expired timers. Returns true if a reply is overdue, so that the stream must be
    /// reopened.
    #[must_use]
    pub(super) fn timeout(&mut self, now: Instant, config: &ChannelConfig, silence: Duration) -> bool {
        if self.pause.is_some_and(|until| until <= now) {
            self.pause = None;
        }
        while let Some((_, id)) = self.pausing.first().copied().filter(|(until, _)| *until <= now) {
            self.pausing.pop_first();
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.state = WatchState::New;
                self.to_create.insert(id);
            }
        }
        if self.probe_at(config).is_some_and(|until| until <= now)
            && let Some(watch) = self.wires.values().next().and_then(|id| self.watches.get(id))
        {
            // Reuse a watched range, because its permission is proven.
            self.commands.push_back(WatchCommand::Probe(watch.spec.clone()));
        }
        self.overdue_at(config, silence).is_some_and(|at| at <= now)
    }

    pub(super) fn is_ready(&self) -> bool {
        match self.stream {
            Some(_) => {
                !self.commands.is_empty() || (!self.to_create.is_empty() && self.unanswered.len() < MAX_UNANSWERED)
            }
            None => self.any() && self.pause.is_none(),
        }
    }

    pub(super) fn step(&mut self, serial: u64) -> Option<StreamStep<WatchRequest>> {
        if !self.is_ready() {
            return None;
        }
        let Some(stream) = self.stream else { return Some(StreamStep::Open) };
        let request = match self.commands.pop_front() {
            Some(WatchCommand::Cancel(wire)) => WatchRequestUnion::Cancel(WatchCancelRequest { watch_id: wire }),
            Some(WatchCommand::Probe(spec)) => {
                let (wire, create) = self.create(serial, spec);
                self.commands.push_front(WatchCommand::Cancel(wire));
                create
            }
            None => {
                let id = self.to_create.pop_first()?;
                let watch = self.watches.get_mut(&id)?;
                let spec = watch.spec.clone();
                watch.state = WatchState::Creating { wire: self.next_wire };
                let (wire, create) = self.create(serial, spec);
                self.wires.insert(wire, id);
                create
            }
        };
        Some(StreamStep::Send(stream.id, WatchRequest { request: Some(request) }))
    }

    fn create(&mut self, serial: u64, spec: WatchSpec) -> (i64, WatchRequestUnion) {
        let wire = self.next_wire;
        self.next_wire += 1;
        if let Some(stream) = self.stream.as_mut().filter(|_| self.unanswered.is_empty()) {
            stream.sent_after = serial;
        }
        self.unanswered.insert(wire);
        let request = WatchCreateRequest {
            key: spec.key,
            range_end: spec.end,
            // From now on, never from a past revision.
            // E5
            start_revision: 0,
            progress_notify: false,
            filters: if spec.deletions { vec![NO_PUT] } else { Vec::new() },
            prev_kv: false,
            watch_id: wire,
            fragment: true,
        };
        (wire, WatchRequestUnion::Create(request))
    }

    pub(super) fn stream(&self) -> Option<StreamId> {
        self.stream.map(|stream| stream.id)
    }

    pub(super) fn any(&self) -> bool {
        !self.watches.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.watches.len()
    }

    /// How often in a row the stream has ended early.
    pub(super) const fn failures(&self) -> u32 {
        self.backoff.failures
    }

    pub(super) fn deadline(&self, config: &ChannelConfig, silence: Duration) -> Option<Instant> {
        let pausing = self.pausing.first().map(|(until, _)| *until);
        [self.pause, pausing, self.overdue_at(config, silence), self.probe_at(config)].into_iter().flatten().min()
    }

    pub(super) fn any_in_flight(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// The call `serial` was answered.
    pub(super) fn call_answered(&mut self, now: Instant, serial: u64) {
        if !self.unanswered.is_empty()
            && let Some(stream) = self.stream.as_mut().filter(|stream| serial > stream.sent_after)
        {
            stream.overtaken.get_or_insert(now);
        }
    }

    /// When the stream is reopened unless something arrives on it first. Not earlier than the
    /// connection, whose limit is `silence`. While nothing at all is answered, that limit decides.
    // E13
    fn overdue_at(&self, config: &ChannelConfig, silence: Duration) -> Option<Instant> {
        Some(self.stream?.overtaken? + config.watch_quiet.max(silence))
    }

    /// When to probe the stream. `None` if it has no watches, or a reply is outstanding anyway.
    fn probe_at(&self, config: &ChannelConfig) -> Option<Instant> {
        let stream = self.stream?;
        let waiting = self.wires.is_empty() || !self.unanswered.is_empty() || !self.commands.is_empty();
        (!waiting).then(|| stream.last_message + config.watch_quiet)
    }
}

/// Emits changes in order. Returns false if they cannot belong to an open watch.
fn emit_changes(id: WatchId, state: WatchState, events: Vec<WatchEvent>, out: &mut VecDeque<ChannelOutput>) -> bool {
    match state {
        WatchState::Open { .. } => {}
        WatchState::New | WatchState::Creating { .. } | WatchState::Pausing { .. } => return false,
    }
    for WatchEvent { kind, kv, .. } in events {
        let Some(kv) = kv.filter(|kv: &KeyValue| kv.mod_revision > 0 && matches!(kind, 0 | DELETED)) else {
            return false;
        };
        out.push_back(ChannelOutput::Changed { watch: id, revision: kv.mod_revision, deleted: kind == DELETED, kv });
    }
    true
}
