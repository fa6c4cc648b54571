//! Settings that the stores of the queue family share.

use core::time::Duration;

use crate::error::ConfigError;
use crate::lock::config::{Config, DAY, Range};
use crate::lock::tuning::MAX_TTL;
use crate::url::{Login, UrlError};

/// Settings of a store of the queue family. `T` are those that only this store has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueSettings<T> {
    pub(crate) login: Login,
    /// Set by [`Config::session_ttl`].
    pub session_ttl: Duration,
    pub(crate) watch_own_after: Option<Duration>,
    /// Set by [`Config::recheck`].
    pub recheck: Duration,
    /// The settings of this store alone.
    pub own: T,
}

impl<T> QueueSettings<T> {
    pub(crate) const fn new(login: Login, session_ttl: Duration, own: T) -> Self {
        Self { login, session_ttl, watch_own_after: None, recheck: Duration::from_secs(30), own }
    }
}

impl<T> Config<QueueSettings<T>> {
    /// Sets the user that logs in. Default: no login, for servers without authentication. With a
    /// user, only that user, with that password, has access to nodes that this client creates on
    /// ZooKeeper.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.store.login = Login::new(name, password);
        self
    }

    /// Sets the password of the user in the URL if the URL has none, such as one from the
    /// environment. Does nothing without a user.
    pub fn default_password(mut self, password: &str) -> Self {
        if self.store.login.username.is_some() {
            self.store.login.default_password(password);
        }
        self
    }

    /// Sets the TTL of the shared session, counted from its last renewal. The servers may raise or
    /// limit it: etcd raises it to one and a half election timeouts, 2 s by default.
    ///
    /// On etcd this is the TTL of the lease: whole seconds, rounded up, from 1 s to 30 days,
    /// default 10 s. On ZooKeeper it is the session timeout: from 5 ticks to 30 days, default 5
    /// ticks (15 s).
    pub const fn session_ttl(mut self, ttl: Duration) -> Self {
        self.store.session_ttl = ttl;
        self
    }

    /// Sets the age at which a hold starts to watch its own node, to notice a loss that the session
    /// does not show. Default: a third of the TTL, on ZooKeeper of the validity, so that short
    /// holds cost no watch.
    pub const fn watch_own_after(mut self, held: Duration) -> Self {
        self.store.watch_own_after = Some(held);
        self
    }

    /// Sets how often a waiter rereads its queue, and an observer its election, while their watches
    /// report nothing. This bounds the delay after an event that the server did not report. Jitter
    /// shortens it by up to a quarter. From 10 ms to a day, default 30 s.
    pub const fn recheck(mut self, every: Duration) -> Self {
        self.store.recheck = every;
        self
    }

    /// Checks the common settings and the ranges of the store's own settings.
    pub(crate) fn check_queue(
        &self,
        min_ttl: Duration,
        durations: impl IntoIterator<Item = Range<Duration>>,
        servers: Range<u64>,
    ) -> Result<(), ConfigError> {
        if !self.request_credentials && self.store.login.lacks_password() {
            return Err(UrlError::NoUser.into());
        }
        let held = self.store.watch_own_after.unwrap_or_default();
        let own = [
            ("session_ttl", self.store.session_ttl, min_ttl, MAX_TTL),
            ("watch_own_after", held, Duration::ZERO, MAX_TTL),
            ("recheck", self.store.recheck, Duration::from_millis(10), DAY),
        ];
        self.check_ranges(durations.into_iter().chain(own), [servers])
    }
}
