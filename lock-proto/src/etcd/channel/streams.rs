//! The keep-alive stream, and the backoff that both streams share.

use alloc::collections::BTreeSet;
use core::time::Duration;

use super::watch::StreamVerdict;
use super::{Channel, ChannelOutput};
use crate::collections::Waiting;
use crate::etcd::message::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, WatchResponse};
use crate::etcd::output::Output;
use crate::etcd::request::{Found, LeaseId, Refusal, Reply};
use crate::etcd::rpc::{Status, StreamId, StreamKind};
use crate::etcd::status::Meaning;
use crate::fault::Fault;
use crate::id::CallId;
use crate::jitter::mix;
use crate::lock::{Backoff, Cause, ErrorClass, Failures};
use crate::time::Instant;

/// After this many early ends in a row, the channel tries another endpoint.
const STREAM_TRIES: u32 = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingKeepAlive {
    call: CallId,
    lease: LeaseId,
    ttl: Duration,
    /// The last serial number before it was sent.
    sent_after: u64,
}

/// The keep-alive stream. etcd's n-th reply for a lease answers the n-th request for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KeepAlives {
    waiting: Waiting<PendingKeepAlive>,
    /// Requests in flight, in order, until the reply or the end of the stream. Their deadline is
    /// half of the TTL.
    in_flight: Waiting<PendingKeepAlive>,
    /// The numbers in `in_flight`, by lease.
    by_lease: BTreeSet<(LeaseId, u64)>,
    sent: u64,
    pub(super) stream: Option<StreamId>,
    /// The login whose token opened it.
    login: u64,
    /// The stream stays closed until then.
    pub(super) pause: Option<Instant>,
    pub(super) backoff: Failures,
    opened: Instant,
}

/// Next step on a stream.
pub(super) enum StreamStep<M> {
    Open,
    Send(StreamId, M),
}

impl KeepAlives {
    pub(super) fn push(&mut self, call: CallId, lease: LeaseId, ttl: Duration, deadline: Instant) {
        self.waiting.push(PendingKeepAlive { call, lease, ttl, sent_after: 0 }, deadline);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.any_waiting() && self.pause.is_none()
    }

    pub(super) fn step(&mut self, now: Instant, serial: u64) -> Option<StreamStep<LeaseKeepAliveRequest>> {
        if !self.is_ready() {
            return None;
        }
        let Some(stream) = self.stream else { return Some(StreamStep::Open) };
        let (request, _) = self.waiting.pop()?;
        let lease = request.lease;
        self.sent += 1;
        self.in_flight.put(self.sent, PendingKeepAlive { sent_after: serial, ..request }, now + request.ttl / 2);
        self.by_lease.insert((lease, self.sent));
        Some(StreamStep::Send(stream, LeaseKeepAliveRequest { id: lease.get() }))
    }

    pub(super) fn opened(&mut self, now: Instant, stream: StreamId, login: u64) {
        self.stream = Some(stream);
        (self.opened, self.login) = (now, login);
    }

    /// Removes the call that this reply answers, and returns it with the last serial number before
    /// it was sent. `None` if nothing was requested.
    pub(super) fn answered(&mut self, response: &LeaseKeepAliveResponse) -> Option<(CallId, u64)> {
        let lease = u64::try_from(response.id).ok().filter(|id| *id > 0).map(LeaseId::from_bits)?;
        let first = *self.by_lease.range((lease, 0)..=(lease, u64::MAX)).next()?;
        self.by_lease.remove(&first);
        self.backoff = Failures::default();
        self.in_flight.take(first.1).map(|(request, _)| (request.call, request.sent_after))
    }

    /// Records the end of the stream. The caller answers its requests by `pop_in_flight`.
    pub(super) fn lost(&mut self, now: Instant, poll: Backoff) {
        if self.stream.take().is_some() {
            self.backoff.failed(now.since(self.opened), poll);
        }
    }

    /// Cleans up after the connection has ended. Reconnecting has its own backoff.
    pub(super) fn disconnected(&mut self) {
        self.stream = None;
        self.pause = None;
        self.backoff = Failures::default();
    }

    /// Removes a call that was queued for too long.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<CallId> {
        self.waiting.pop_due(now).map(|request| request.call)
    }

    pub(super) fn pop_waiting(&mut self) -> Option<CallId> {
        self.waiting.pop().map(|(request, _)| request.call)
    }

    pub(super) fn pop_in_flight(&mut self) -> Option<CallId> {
        self.by_lease.clear();
        self.in_flight.pop().map(|(request, _)| request.call)
    }

    /// When the first queued call times out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.earliest()
    }

    /// Returns true if the server answered the call `serial`, but not a keep-alive that was sent
    /// before it and half of a TTL ago. Some are late: etcd's gRPC proxy replies when it renews the
    /// lease itself, up to a third of the TTL later.
    // E13
    pub(super) fn is_stuck(&self, now: Instant, serial: u64) -> bool {
        self.in_flight.due(now).any(|request| request.sent_after < serial)
    }

    pub(super) fn any_in_flight(&self) -> bool {
        self.in_flight.len() > 0
    }

    pub(super) fn any_waiting(&self) -> bool {
        self.waiting.len() > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }
}

impl Channel {
    /// Handles the end of a stream that this side did not close.
    pub(super) fn stream_ended(&mut self, kind: StreamKind, status: &Status) {
        let meaning = Meaning::of(status);
        let elsewhere = meaning.elsewhere();
        let needs_login = matches!(meaning, Meaning::LogIn(_));
        let refused = matches!(&meaning, Meaning::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused);
        let error = meaning.error(status);
        if elsewhere {
            return self.fail(error.into(), true);
        }
        match kind {
            StreamKind::KeepAlive => {
                self.keep_alives_lost(&error.into());
                if needs_login {
                    self.log_in_again(self.state.keep_alives.login);
                }
            }
            StreamKind::Watch => {
                let login = if needs_login {
                    self.state.watches.denied(&error, self.state.config.logs_in(), &mut self.outputs)
                } else {
                    if refused {
                        self.state.watches.refuse_all(&error, &mut self.outputs);
                    }
                    None
                };
                self.state.watches.lost(self.now, &self.state.config, &mut self.outputs);
                if let Some(login) = login {
                    self.log_in_again(login);
                }
            }
        }
        self.leave_if_streams_fail(Fault::Closed);
    }

    // E9
    pub(super) fn leave_if_streams_fail(&mut self, fault: Fault) {
        let failures = self.state.watches.failures().max(self.state.keep_alives.backoff.failures);
        if failures >= STREAM_TRIES && self.state.members.count() > 1 {
            self.fail(fault.into(), true);
        }
    }

    /// Handles the end of the keep-alive stream. It is reopened after a pause.
    fn keep_alives_lost(&mut self, cause: &Cause) {
        self.state.keep_alives.lost(self.now, self.state.config.reconnect);
        let pause =
            self.state.keep_alives.backoff.pause(0, self.state.config.reconnect, mix(self.seed, 2), self.state.serial);
        self.state.keep_alives.pause = Some(self.now + pause);
        while let Some(call) = self.state.keep_alives.pop_in_flight() {
            self.reply(call, Reply::Unknown(cause.clone()));
        }
    }

    /// Leaves a member that does not answer keep-alives, since another may renew in time. The only
    /// one gets another stream.
    #[cold]
    pub(super) fn keep_alives_stuck(&mut self) {
        if self.state.members.count() > 1 {
            return self.fail(Fault::TimedOut.into(), true);
        }
        if let Some(stream) = self.state.keep_alives.stream {
            self.outputs.push_back(ChannelOutput::Do(Output::Close { stream }));
        }
        self.keep_alives_lost(&Fault::TimedOut.into());
        self.update_silence();
    }

    pub(super) fn handle_keep_alive(&mut self, response: &LeaseKeepAliveResponse) {
        if let Some((call, sent_after)) = self.state.keep_alives.answered(response) {
            self.reply(call, Reply::Done(Found::Lease { ttl: response.ttl }));
            self.state.watches.call_answered(self.now, sent_after + 1);
        }
    }

    pub(super) fn handle_watch(&mut self, response: WatchResponse) {
        let verdict = self.state.watches.received(self.now, response, &self.state.config, &mut self.outputs);
        let login = match verdict {
            StreamVerdict::Fine => return,
            StreamVerdict::Broken => None,
            StreamVerdict::LogIn(login) => Some(login),
        };
        self.close_watch_stream();
        if let Some(login) = login {
            self.log_in_again(login);
        }
    }

    /// Closes the watch stream. It is reopened after a pause.
    pub(super) fn close_watch_stream(&mut self) {
        if let Some(stream) = self.state.watches.stream() {
            self.outputs.push_back(ChannelOutput::Do(Output::Close { stream }));
        }
        self.state.watches.lost(self.now, &self.state.config, &mut self.outputs);
        self.update_silence();
    }
}
