//! What the locks of a client share.

use alloc::collections::BTreeSet;
use core::time::Duration;

use bytes::Bytes;

use super::known::Memory;
use super::query::RegisterQuery;
use super::{Cas, RegisterEnv};
use crate::id::{CallId, ClientId};
use crate::lock::{Client, Elections, Locks, SharedState};
use crate::register::config::Config;
use crate::register::output::Output;
use crate::register::request::Request;
use crate::time::Instant;

/// What the locks of a client share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegisterShared {
    pub(in crate::register) client: ClientId,
    pub(super) memory: Memory,
    /// The host's time of day, in ms, at an instant.
    time_of_day: Option<(Instant, u64)>,
    /// The keys that waiters watch.
    pub(in crate::register) watched: BTreeSet<Bytes>,
}

/// The name whose register a check reads.
const PING: &[u8] = b"lock-proto:ping";

impl RegisterShared {
    pub(crate) fn new(client: ClientId) -> Self {
        Self { client, memory: Memory::default(), time_of_day: None, watched: BTreeSet::new() }
    }

    /// Returns the key of a name.
    pub(in crate::register) fn key(config: &Config, name: &[u8]) -> Bytes {
        [&config.prefix, name].concat().into()
    }

    /// The host reports its time of day.
    pub(crate) fn set_time_of_day(&mut self, now: Instant, since_epoch: Duration) {
        let ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        self.time_of_day = Some((now, ms));
    }

    /// Returns the host's time of day in ms; 0 if it was never reported.
    // RG5
    pub(super) fn time_of_day(&self, now: Instant) -> u64 {
        let Some((at, ms)) = self.time_of_day else { return 0 };
        ms.saturating_add(u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX))
    }
}

impl SharedState<Cas> for RegisterShared {
    type Query = RegisterQuery;

    fn ping(env: &mut RegisterEnv, call: CallId) {
        let (request, timeout) = (Request::Read { key: Self::key(&env.config, PING) }, env.config.request_timeout);
        env.out.push_back(Output::Send { call, request, timeout });
    }

    fn elections(client: &mut Client<Cas>) -> Option<&mut dyn Elections> {
        Some(client)
    }

    fn stopped(_: &mut Locks<Cas>, unreleased: u32) -> Output {
        Output::Stopped { unreleased }
    }
}
