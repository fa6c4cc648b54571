//! A connection without input while replies are outstanding.

use core::time::Duration;

use bytes::Bytes;

use super::{Channel, Grpc};
use crate::etcd::message::RangeRequest;
use crate::etcd::rpc::Rpc;
use crate::lock::Patience;
use crate::time::Instant;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Silence {
    /// Since when nothing has arrived. `None` unless a reply is outstanding.
    since: Option<Instant>,
    /// Only keep-alives are outstanding.
    only_keep_alives: bool,
    /// A probe was answered before an earlier keep-alive: their replies are late although the server
    /// is fast.
    late_keep_alives: bool,
    patience: Patience,
}

/// A read of a single key. Any reply shows that the connection works, even a refusal.
pub(super) fn probe() -> Rpc {
    Rpc::Range(RangeRequest { key: Bytes::from_static(b"\0"), count_only: true, ..RangeRequest::default() })
}

impl Silence {
    pub(super) fn probe_answered(&mut self, keep_alives: bool) {
        self.late_keep_alives |= keep_alives;
    }

    /// Since when nothing has arrived although replies are outstanding, or `now`.
    pub(super) fn began(&self, now: Instant) -> Instant {
        self.since.unwrap_or(now)
    }

    pub(super) const fn connection_was_silent(&mut self) {
        self.patience.connection_was_silent();
    }

    pub(super) const fn stopped(&mut self) {
        self.since = None;
        self.late_keep_alives = false;
    }
}

impl Channel {
    // E13
    pub(super) fn note_arrival(&mut self) {
        let Some(since) = self.state.silence.since else { return };
        if !(self.state.silence.only_keep_alives && self.state.silence.late_keep_alives) {
            self.state.silence.patience.arrived(self.now.since(since), self.state.config.request_timeout);
        }
        let age = self.now.since(self.opened);
        self.state.silence.patience.lasts(age, self.state.config.request_timeout, self.state.members.count());
        self.state.silence.since = Some(self.now);
    }

    /// Starts or stops the timers of a silent and of an idle connection.
    pub(super) fn update_silence(&mut self) {
        self.state.update_silence(self.now);
    }

    /// When to send a probe, because only keep-alives are outstanding and none was answered.
    // E13
    pub(super) fn probe_at(&self) -> Option<Instant> {
        let since = self.state.silence.since.filter(|_| self.is_up() && self.state.silence.only_keep_alives)?;
        Some(since + self.state.longest_silence() / 2)
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_up() && self.state.is_silent(self.now)
    }

    pub(super) fn probe_due(&self) -> bool {
        self.probe_at().is_some_and(|at| at <= self.now)
    }
}

impl Grpc {
    pub(super) fn update_silence(&mut self, now: Instant) {
        let calls = self.calls.any_in_flight() || self.watches.any_in_flight() || self.own.is_some();
        let outstanding = calls || self.keep_alives.any_in_flight();
        // The limit counts from the first call, or probe, on.
        let since = self.silence.since.filter(|_| !(calls && self.silence.only_keep_alives));
        self.silence.since = if outstanding { since.or(Some(now)) } else { None };
        self.silence.only_keep_alives = outstanding && !calls;
        let idle = !outstanding && !self.watches.any();
        self.idle_since = if idle { self.idle_since.or(Some(now)) } else { None };
    }

    /// How long the connection may stay silent while a reply is outstanding.
    // E13
    pub(super) fn longest_silence(&self) -> Duration {
        self.silence.patience.longest_silence(self.config.request_timeout, self.members.count())
    }

    /// When to drop the connection unless something arrives first.
    // E13
    pub(super) fn silence_ends(&self) -> Option<Instant> {
        Some(self.silence.since.filter(|_| !self.silence.only_keep_alives)? + self.longest_silence())
    }

    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.silence_ends().is_some_and(|at| at <= now)
    }
}
