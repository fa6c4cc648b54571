//! Rewrites requests and replies between a client and its host, as a host or a store with a flaw
//! would.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::register::RegisterClient;
use crate::scenario::faults::register::MARGIN_MS;
use crate::scenario::flawed::Flawed;
use lock_proto::register::{Client, Config, Output, Reply, Request};
use lock_proto::{CallId, ClientId, ConfigError, Instant};

/// A flaw that can be planted in the hosts of clients of a store with compare-and-set, or in the
/// store, see [`Plan::flaw`](crate::Plan::flaw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RegisterHostFlaw {
    /// No flaw: everything passes unchanged.
    None,
    /// The store ignores what a write expects.
    IgnoresExpected,
    /// A write with an unknown outcome is reported as not sent.
    UnknownIsNo,
    /// A record is reported as seen since its request left.
    SinceDeparture,
    /// The age of a record is that by a clock that is ahead of the one of its write.
    OtherClock,
    /// A report that a key has changed is forgotten.
    ForgetsHints,
    /// The time of day is never reported, so fences count from the record alone.
    FenceFromRecord,
    /// A record is written as held when it is to be freed.
    NeverFrees,
    /// A lock is held for less time than its holder believes.
    ShortensTtl,
}

impl RegisterHostFlaw {
    /// Every flaw.
    pub const ALL: [Self; 8] = [
        Self::IgnoresExpected,
        Self::UnknownIsNo,
        Self::SinceDeparture,
        Self::OtherClock,
        Self::ForgetsHints,
        Self::FenceFromRecord,
        Self::NeverFrees,
        Self::ShortensTtl,
    ];
}

/// How far the other clock is ahead.
const AHEAD: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub(super) struct RegisterRewriter {
    flaw: RegisterHostFlaw,
    now: Instant,
    /// When the requests left that are not answered.
    sent: BTreeMap<CallId, Instant>,
}

pub(super) fn clients(
    flaw: RegisterHostFlaw,
) -> impl Fn(Instant, Config, ClientId, u64) -> Result<Flawed<Client, RegisterRewriter>, ConfigError> {
    move |now, config, id, seed| {
        let rewriter = RegisterRewriter { flaw, now, sent: BTreeMap::new() };
        Ok(Flawed::new(Client::new(now, config, id, seed)?, rewriter))
    }
}

impl RegisterRewriter {
    fn reply(&mut self, now: Instant, call: CallId, reply: &mut Reply) {
        let departed = self.sent.remove(&call).unwrap_or(now);
        match (self.flaw, reply) {
            (RegisterHostFlaw::UnknownIsNo, reply) => {
                if let Reply::Unknown(cause) = reply {
                    *reply = Reply::NotSent(cause.clone());
                }
            }
            (RegisterHostFlaw::SinceDeparture, Reply::Record(entry)) => {
                entry.age = Some(Duration::from_millis(MARGIN_MS) + now.since(departed));
            }
            (RegisterHostFlaw::OtherClock, Reply::Record(entry)) => entry.age = entry.age.map(|age| age + AHEAD),
            _ => {}
        }
    }

    fn request(&mut self, call: CallId, request: &mut Request) {
        self.sent.insert(call, self.now);
        match (self.flaw, request) {
            (RegisterHostFlaw::NeverFrees, Request::Write { record, .. }) => record.held = true,
            (RegisterHostFlaw::ShortensTtl, Request::Write { record, .. }) => record.ttl /= 2,
            _ => {}
        }
    }
}

impl RegisterClient for Flawed<Client, RegisterRewriter> {
    fn set_time_of_day(&mut self, now: Instant, since_epoch: Duration) {
        if self.flaw.flaw != RegisterHostFlaw::FenceFromRecord {
            self.client.set_time_of_day(now, since_epoch);
        }
    }

    fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        let mut reply = reply.clone();
        self.flaw.reply(now, call, &mut reply);
        self.client.handle_reply(now, call, &reply);
    }

    fn handle_changed(&mut self, now: Instant, key: &[u8]) {
        if self.flaw.flaw != RegisterHostFlaw::ForgetsHints {
            self.client.handle_changed(now, key);
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<Output> {
        self.flaw.now = now;
        let mut output = self.client.poll_output()?;
        if let Output::Send { call, request, .. } = &mut output {
            self.flaw.request(*call, request);
        }
        Some(output)
    }

    fn is_idle(&self) -> bool {
        self.client.is_idle()
    }
}
