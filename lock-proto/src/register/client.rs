//! The hub of a client, and the client of a host.

use core::time::Duration;

use super::config::Config;
use super::lock::{Cas, RegisterShared};
use super::output::Output;
use super::request::Reply;
use crate::error::ConfigError;
use crate::fault::Fault;
use crate::id::{CallId, CallOwner, ClientId, ConnId};
use crate::lock::{self, Answer, Context, Credentials, ErrorClass, Transport};
use crate::time::Instant;

/// All locks of one client, as typed requests and replies.
pub type Locks = lock::Locks<Cas>;

/// All locks of one client. It has no connections: the host carries out its requests.
///
/// Its methods are those of [`Machine`](crate::Machine) and [`LockClient`](crate::LockClient). The
/// host carries out the outputs of [`poll_output`](Self::poll_output), and reports the results.
pub type Client = lock::Client<Cas>;

impl Locks {
    /// Creates a hub. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::with(Context::with(now, config, seed, RegisterShared::new(client))))
    }

    /// The host's time of day, as the duration since 1970. It makes fencing tokens grow even if a
    /// record is deleted. Report it after the creation, and from time to time.
    // RG5
    pub fn set_time_of_day(&mut self, now: Instant, since_epoch: Duration) {
        self.handle_timeout(now);
        let now = self.ctx.env.now;
        self.ctx.env.shared.set_time_of_day(now, since_epoch);
    }

    /// Handles the result of a request. Replies to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.handle_timeout(now);
        match call.owner {
            CallOwner::Lock(slot) => {
                self.step(slot, |lock, ctx| lock.reply(ctx, call.serial, reply));
            }
            CallOwner::Operation(_) => {
                self.ctx.env.operation_answered(call, Some(answer_to_read(reply)), Some(reply));
            }
            CallOwner::Session(_) | CallOwner::Nobody => {}
        }
        self.settle();
    }

    /// The key may have another revision than the one of its [`Output::Watch`].
    pub fn handle_changed(&mut self, now: Instant, key: &[u8]) {
        self.handle_timeout(now);
        self.ctx.env.query_changed(key);
        if let Some(slot) = self.locks.slot_of_key(&key.to_vec().into()) {
            self.step(slot, |lock, ctx| lock.changed(ctx));
        }
        self.settle();
    }
}

impl lock::Lock<Cas> {
    /// Handles the reply to the call with this serial.
    pub fn reply(&mut self, ctx: &mut Context<Cas>, serial: u64, reply: &Reply) {
        self.step(ctx, |lock, ctx| lock.store.reply(&mut ctx.env, serial, reply));
    }

    /// The key may have changed.
    pub fn changed(&mut self, ctx: &mut Context<Cas>) {
        self.step(ctx, |lock, ctx| lock.store.changed(&mut ctx.env));
    }
}

impl Transport for Cas {
    type Links = ();
    type HostOutput = Output;

    fn connected(_: &mut (), _: Instant, _: ConnId) {}

    fn disconnected(_: &mut (), _: Instant, _: ConnId, _: Fault) {}

    fn credentials(_: &mut (), _: Instant, _: ConnId, _: Option<Credentials>) {}

    fn links_timeout(_: &mut (), _: Instant) {}

    fn links_deadline(_: &()) -> Option<(Instant, &'static str)> {
        None
    }

    fn route(client: &mut Client) {
        while let Some(output) = client.locks.poll_output() {
            client.out.push_back(output);
        }
    }
}

impl Client {
    /// Creates a client. It makes its first request when the first lock is requested.
    ///
    /// `id` must be globally unique; `seed` is 64 bits of entropy. Take both from the OS.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range, with the allowed range.
    pub fn new(now: Instant, config: Config, id: ClientId, seed: u64) -> Result<Self, ConfigError> {
        Ok(Self::with(Locks::new(now, config, id, seed)?, ()))
    }

    /// The host's time of day: see [`Locks::set_time_of_day`].
    pub fn set_time_of_day(&mut self, now: Instant, since_epoch: Duration) {
        self.verb(now, |locks, now| locks.set_time_of_day(now, since_epoch));
    }

    /// Handles the result of a request. A late reply is harmless.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.verb(now, |locks, now| locks.handle_reply(now, call, reply));
        let now = self.now();
        self.answered(now, answer_to_read(reply));
    }

    /// The key may have another revision than the one of its [`Output::Watch`].
    pub fn handle_changed(&mut self, now: Instant, key: &[u8]) {
        self.verb(now, |locks, now| locks.handle_changed(now, key));
    }

    /// Returns the next output. Outputs must be carried out in this order.
    #[must_use = "an output that is not carried out stalls the client"]
    pub fn poll_output(&mut self) -> Option<Output> {
        crate::collections::burst::pop(&mut self.out)
    }
}

/// Returns what a reply says of the store: whether it works.
fn answer_to_read(reply: &Reply) -> Answer {
    match reply {
        // Whatever it holds, it can be read.
        Reply::Rejected(error) if error.class == ErrorClass::KeyInUse => Answer::Granted,
        Reply::Record(_) | Reply::Absent | Reply::Written(_) | Reply::Conflict => Answer::Granted,
        Reply::Rejected(error) => Answer::Rejected(error.clone()),
        Reply::NotSent(cause) => Answer::Unreachable(cause.clone()),
        Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
    }
}
