//! The hub of a ZooKeeper client: typed requests out, typed replies in.

use super::codec::WatcherEvent;
use super::config::Config;
use super::lock::ZooKeeper;
#[cfg(doc)]
use super::output::LocksOutput;
use super::path::{Queue, QueueKind};
use super::request::SessionReport;
use crate::error::ConfigError;
use crate::id::ClientId;
use crate::lock::{self, Context, QueueShared, SessionId};
use crate::time::Instant;

/// All locks and elections of one client, as typed requests and replies.
///
/// Use this with your own ZooKeeper client. Carry out each [`LocksOutput`], and report results with
/// the `handle_*` methods. After each call, drain `poll_output`. Call [`claim`](Self::claim) on
/// [`Event::Granted`](crate::Event::Granted), and [`handle_timeout`](Self::handle_timeout) at
/// [`next_deadline`](Self::next_deadline).
///
/// Send the requests of a session in the order of emission. Report replies and events in the order
/// in which the server sent them.
pub type Locks = lock::Locks<ZooKeeper>;

impl Locks {
    /// Creates a hub for the ensemble in `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::with(Context::with(now, config, seed, QueueShared::new(client))))
    }

    /// Handles a triggered watch.
    pub fn handle_event(&mut self, now: Instant, session: SessionId, event: &WatcherEvent) {
        self.handle_timeout(now);
        self.ctx.env.query_steps(|query, op, env| query.watched(op, env, &event.path, event.kind));
        let queue = event.path.rsplit_once('/').map_or("", |(queue, _)| queue);
        for kind in [QueueKind::Lock(self.ctx.env.config.store.own.dialect), QueueKind::Latch] {
            if let Some(slot) = self.locks.slot_of_key(&Queue { path: queue.into(), kind }) {
                self.input(slot, |queued, env| queued.watched(env, session, event));
            }
        }
        self.settle();
    }

    /// Handles what the connection of a session reports.
    pub fn handle_session(&mut self, now: Instant, session: SessionId, report: &SessionReport) {
        self.handle_timeout(now);
        self.ctx.env.session_step(session, |session, env| session.reported(env, report));
        self.settle();
    }
}
