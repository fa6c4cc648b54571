//! Clients that a world of a store with compare-and-set can run.

use core::fmt::Debug;
use core::time::Duration;

use lock_proto::CallId;
use lock_proto::Instant;
use lock_proto::Machine;
use lock_proto::register::{Client, Output, Reply};

/// A client of a store with compare-and-set, as typed requests and replies. See
/// [`Builder::machine`](super::Builder::machine) and
/// [`Plan::run_register`](crate::Plan::run_register).
pub trait RegisterClient: Machine + Clone + Debug {
    /// See [`Client::set_time_of_day`].
    fn set_time_of_day(&mut self, now: Instant, since_epoch: Duration);
    /// See [`Client::handle_reply`].
    fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply);
    /// See [`Client::handle_changed`].
    fn handle_changed(&mut self, now: Instant, key: &[u8]);
    /// See [`Client::poll_output`].
    fn poll_output(&mut self, now: Instant) -> Option<Output>;
    /// Returns true if no lock is held or waited for, and nothing is left to clean up.
    fn is_idle(&self) -> bool;
}

impl RegisterClient for Client {
    fn set_time_of_day(&mut self, now: Instant, since_epoch: Duration) {
        Self::set_time_of_day(self, now, since_epoch);
    }

    fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        Self::handle_reply(self, now, call, reply);
    }

    fn handle_changed(&mut self, now: Instant, key: &[u8]) {
        Self::handle_changed(self, now, key);
    }

    fn poll_output(&mut self, _: Instant) -> Option<Output> {
        Self::poll_output(self)
    }

    fn is_idle(&self) -> bool {
        Self::is_idle(self)
    }
}
