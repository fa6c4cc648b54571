//! A minimal Redis node for one lock, and some wrong variants of the protocol.

use core::hash::{Hash, Hasher};

use lock_proto::redis::{FenceBlock, Reply, Request};
use lock_proto::{Expiry, Instant};

use crate::{EPOCH, FENCES, MS};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Variant {
    #[default]
    Ours,
    /// A client writes the same token with every attempt.
    SameToken,
    /// `DEL` without comparing the token.
    BlindRelease,
    /// `SET key token PX ttl` instead of extending the TTL if the token matches.
    BlindRenewal,
    /// Like `BlindRenewal`, by a watchdog that is not stopped at the release.
    EndlessRenewal,
}

impl Variant {
    const fn renews_blindly(self) -> bool {
        matches!(self, Self::BlindRenewal | Self::EndlessRenewal)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Value {
    pub(crate) client: usize,
    pub(crate) number: u64,
    until: u64,
}

impl Value {
    /// Returns the first instant at which it is expired.
    pub(crate) const fn expires_at(&self) -> u64 {
        (self.until + 1) * MS
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) value: Option<Value>,
    fence: u64,
}

/// Effects of a request apart from its reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    /// Owner of the token that was deleted or replaced.
    pub(crate) ended: Option<(usize, u64)>,
    /// A retired token of the same client was replaced.
    pub(crate) replaced: bool,
}

impl Node {
    pub(crate) const fn new() -> Self {
        Self { value: None, fence: FENCES.start }
    }

    pub(crate) fn expire(&mut self, now: u64) {
        self.value = self.value.filter(|value| now < value.expires_at());
    }

    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let value = self.value.map(|value| (value.client, value.number, Instant::from_nanos(value.expires_at())));
        (value, self.fence).hash(state);
    }

    pub(crate) fn describe(&self) -> String {
        let Some(value) = self.value else { return "nothing".into() };
        let name = crate::client::client_name(value.client);
        format!("{name}'s #{} until {} ms", crate::client::short_number(value.number), value.until - EPOCH / MS)
    }

    /// Mints tokens as if the server's clock always had room for them.
    fn mint(&mut self, requested: u32) -> Option<FenceBlock> {
        let first = self.fence + 1;
        self.fence += u64::from(requested);
        (requested > 0).then_some(FenceBlock { first, count: requested, ahead_ms: 0 })
    }

    pub(crate) fn execute(&mut self, now: u64, client: usize, request: &Request, variant: Variant) -> (Reply, Done) {
        self.expire(now);
        let ms = now / MS;
        let same = variant == Variant::SameToken;
        let written = |number: u64| if same { crate::NUMBERS.start } else { number };
        match request {
            Request::Take { number, retired, ttl_ms, fence_block, .. } => {
                let until = ms + ttl_ms;
                if let Some(value) = &mut self.value {
                    let own = value.client == client;
                    if own && value.number == *number {
                        value.until = value.until.max(until);
                        return (Reply::Granted { fence: self.mint(*fence_block) }, Done::default());
                    }
                    if !own || !(same || retired.contains(value.number)) {
                        let left = core::time::Duration::from_millis(value.until - ms);
                        return (Reply::Busy { expires: Expiry::In(left) }, Done::default());
                    }
                }
                let fence = self.mint(*fence_block);
                let replaced = self.value.is_some();
                // With one token for all attempts, a client cannot know what it replaces.
                let ended = self.value.filter(|_| !same).map(|value| (value.client, value.number));
                self.value = Some(Value { client, number: written(*number), until });
                (Reply::Granted { fence }, Done { ended, replaced })
            }
            Request::Extend { number, ttl_ms, fence_block, .. } => {
                let until = ms + ttl_ms;
                if variant.renews_blindly() {
                    self.value = Some(Value { client, number: *number, until });
                    return (Reply::Extended, Done::default());
                }
                let reply = match &mut self.value {
                    None => Reply::Absent,
                    Some(value) if value.client == client && value.number == written(*number) => {
                        value.until = value.until.max(until);
                        let fence = self.mint(*fence_block);
                        if fence.is_some() { Reply::Granted { fence } } else { Reply::Extended }
                    }
                    Some(_) => Reply::Taken,
                };
                (reply, Done::default())
            }
            Request::Release { number, retired, .. } => {
                let Some(value) = self.value else { return (Reply::Absent, Done::default()) };
                let own = value.client == client;
                let retired = retired.is_some_and(|retired| retired.contains(value.number));
                if variant != Variant::BlindRelease && !(own && (retired || value.number == written(*number))) {
                    return (Reply::Taken, Done::default());
                }
                self.value = None;
                let ended = (variant == Variant::Ours).then_some((value.client, value.number));
                let number = if variant == Variant::Ours { value.number } else { *number };
                (Reply::Deleted { number, awaited: false }, Done { ended, replaced: false })
            }
            Request::Announce { .. } => (Reply::Announced, Done::default()),
            _ => panic!("a request that the model does not know: {request:?}"),
        }
    }
}
