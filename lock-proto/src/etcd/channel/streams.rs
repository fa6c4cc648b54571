//! The keep-alive stream, and what both streams have in common: what their ends mean, and the pause before they are opened again.

use alloc::collections::{BTreeMap, BTreeSet};

use super::watch::Verdict;
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

/// A stream that ends this often in a row, at once each time, is a reason to try another endpoint.
const STREAM_TRIES: u32 = 4;

/// A sign of life that is to be given, or was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ask {
    call: CallId,
    lease: LeaseId,
}

/// The keep-alive stream. etcd answers in order, so the n-th answer for a lease on one stream answers the n-th request for it there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KeepAlives {
    waiting: Waiting<Ask>,
    /// Those that were sent, in their order. They stay until they are answered, or the stream ends.
    flight: BTreeMap<u64, Ask>,
    /// The places in `flight`, lease by lease.
    by_lease: BTreeSet<(LeaseId, u64)>,
    /// How many were sent.
    sent: u64,
    pub(super) stream: Option<StreamId>,
    /// Not to be opened before that.
    pub(super) pause: Option<Instant>,
    pub(super) backoff: Failures,
    opened: Instant,
}

/// What is to be done on a stream.
pub(super) enum Step<M> {
    Open,
    Send(StreamId, M),
}

impl KeepAlives {
    pub(super) fn ask(&mut self, call: CallId, lease: LeaseId, deadline: Instant) {
        self.waiting.push(Ask { call, lease }, deadline);
    }

    /// Whether there is something to be handed out.
    pub(super) fn is_ready(&self) -> bool {
        self.any_waiting() && self.pause.is_none()
    }

    /// Hands out the next step.
    pub(super) fn step(&mut self) -> Option<Step<LeaseKeepAliveRequest>> {
        if !self.is_ready() {
            return None;
        }
        let Some(stream) = self.stream else { return Some(Step::Open) };
        let (ask, _) = self.waiting.pop()?;
        let lease = ask.lease;
        self.sent += 1;
        self.flight.insert(self.sent, ask);
        self.by_lease.insert((lease, self.sent));
        Some(Step::Send(stream, LeaseKeepAliveRequest { id: lease.get() }))
    }

    pub(super) fn opened(&mut self, now: Instant, stream: StreamId) {
        self.stream = Some(stream);
        self.opened = now;
    }

    /// The call that this answers; `None` if nobody asked.
    pub(super) fn answered(&mut self, response: &LeaseKeepAliveResponse) -> Option<CallId> {
        let lease = u64::try_from(response.id).ok().filter(|id| *id > 0).map(LeaseId::from_bits)?;
        let first = *self.by_lease.range((lease, 0)..=(lease, u64::MAX)).next()?;
        self.by_lease.remove(&first);
        self.backoff = Failures::default();
        self.flight.remove(&first.1).map(|ask| ask.call)
    }

    /// The stream is no more. What was sent on it is to be settled by `pop_flight`.
    pub(super) fn lost(&mut self, now: Instant, poll: Backoff) {
        if self.stream.take().is_some() {
            self.backoff.failed(now.since(self.opened), poll);
        }
    }

    /// The connection is no more, and has its own pause.
    pub(super) fn disconnected(&mut self) {
        self.stream = None;
        self.pause = None;
        self.backoff = Failures::default();
    }

    /// One that has waited too long to be sent.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<CallId> {
        self.waiting.pop_due(now).map(|ask| ask.call)
    }

    pub(super) fn pop_waiting(&mut self) -> Option<CallId> {
        self.waiting.pop().map(|(ask, _)| ask.call)
    }

    pub(super) fn pop_flight(&mut self) -> Option<CallId> {
        self.by_lease.clear();
        self.flight.pop_first().map(|(_, ask)| ask.call)
    }

    /// When the first of those that wait has waited too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.earliest()
    }

    /// Whether an answer is expected.
    pub(super) fn any_in_flight(&self) -> bool {
        !self.flight.is_empty()
    }

    pub(super) fn any_waiting(&self) -> bool {
        self.waiting.len() > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.flight.len()
    }
}

impl Channel {
    /// The stream of this kind has ended by itself, or could not be opened.
    pub(super) fn stream_ended(&mut self, kind: StreamKind, status: &Status) {
        let meaning = Meaning::of(status);
        let elsewhere = meaning.elsewhere();
        let lacks_login = matches!(meaning, Meaning::LogIn(_));
        let refused = matches!(&meaning, Meaning::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused);
        let error = meaning.error(status);
        if elsewhere {
            return self.give_up(error.into());
        }
        match kind {
            StreamKind::KeepAlive => {
                self.keep_alives.lost(self.now, self.config.reconnect);
                let pause = self.keep_alives.backoff.pause(0, self.config.reconnect, mix(self.seed, 2), self.serial);
                self.keep_alives.pause = Some(self.now + pause);
                while let Some(call) = self.keep_alives.pop_flight() {
                    self.reply(call, Reply::Unknown(Cause::from(error.clone())));
                }
                if lacks_login {
                    self.log_in_again(self.login.count);
                }
            }
            StreamKind::Watch => {
                let login = if lacks_login {
                    self.watches.denied(&error, self.config.user.is_some(), &mut self.out)
                } else {
                    if refused {
                        self.watches.refuse_all(&error, &mut self.out);
                    }
                    None
                };
                self.watches.lost(self.now, &self.config, &mut self.out);
                if let Some(login) = login {
                    self.log_in_again(login);
                }
            }
        }
        let failures = self.watches.failures().max(self.keep_alives.backoff.failures);
        if failures >= STREAM_TRIES && self.config.endpoints > 1 {
            self.give_up(Fault::Closed.into());
        }
    }

    /// An answer came on the keep-alive stream.
    pub(super) fn kept_alive(&mut self, response: &LeaseKeepAliveResponse) {
        if let Some(call) = self.keep_alives.answered(response) {
            self.reply(call, Reply::Done(Found::Lease { ttl: response.ttl }));
        }
    }

    /// A message came on the watch stream.
    pub(super) fn watched(&mut self, response: WatchResponse) {
        let verdict = self.watches.heard(self.now, response, &self.config, &mut self.out);
        let login = match verdict {
            Verdict::Fine => return,
            Verdict::Broken => None,
            Verdict::LogIn(login) => Some(login),
        };
        self.close_watch_stream();
        if let Some(login) = login {
            self.log_in_again(login);
        }
    }

    /// Ends the watch stream. It is opened anew after a pause.
    pub(super) fn close_watch_stream(&mut self) {
        if let Some(stream) = self.watches.stream() {
            self.out.push_back(ChannelOutput::Do(Output::Close { stream }));
        }
        self.watches.lost(self.now, &self.config, &mut self.out);
        self.expects();
    }
}
