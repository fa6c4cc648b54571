//! The credentials that a host supplies for each connection.

use alloc::boxed::Box;
use core::time::Duration;

use super::answer::{ErrorClass, ServerError};
use super::backoff::Backoff;
use crate::time::Instant;
use crate::url::{Login, Secret, Target};

/// What a host supplies for one connection: a password or a token, and for how long it is valid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    username: Option<Box<str>>,
    password: Secret,
    valid_for: Option<Duration>,
}

impl Credentials {
    /// A password or token that does not expire, for the user in the settings.
    #[must_use]
    pub fn new(password: &str) -> Self {
        Self { username: None, password: Secret::new(password), valid_for: None }
    }

    /// The user, in place of the one in the settings.
    #[must_use]
    pub fn username(mut self, name: &str) -> Self {
        self.username = Some(name.into());
        self
    }

    /// How long they are valid, counted from when the source returns them. A source that caches
    /// them gives the time that is left. After four fifths of it the client requests new ones and
    /// logs in with them on the open connection.
    #[must_use]
    pub const fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }
}

/// A request for credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CredentialsRequest {
    /// The server that they are for.
    pub target: Target,
    /// The login in the settings.
    pub login: Login,
    /// Why the server rejected the last ones, if it did. Credentials from a cache may then be out
    /// of date.
    pub rejected: Option<ServerError>,
}

/// The credentials of one connection, and when to request new ones.
// N19
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Renewal {
    /// The login of this connection, and when it expires.
    login: Login,
    valid_until: Option<Instant>,
    /// When to request credentials again on an open connection. Never for a login that was not
    /// requested.
    due: Option<Instant>,
    /// The host was asked for the login.
    requested: bool,
    rejected: Option<ServerError>,
}

impl Renewal {
    /// A login that does not expire.
    pub(crate) fn new(login: Login) -> Self {
        Self { login, ..Self::default() }
    }

    pub(crate) const fn login(&self) -> &Login {
        &self.login
    }

    /// Returns the request to pass to the host. It is repeated unless there is an answer within
    /// `timeout`.
    pub(crate) fn request(
        &mut self,
        now: Instant,
        timeout: Duration,
        target: &Target,
        login: &Login,
    ) -> Box<CredentialsRequest> {
        (self.due, self.requested) = (Some(now + timeout), true);
        let (target, login, rejected) = (target.clone(), login.clone(), self.rejected.clone());
        Box::new(CredentialsRequest { target, login, rejected })
    }

    /// Takes the host's answer, for the user of `login` unless it names another. Returns false if
    /// there are no valid credentials. They are requested again after a pause.
    pub(crate) fn accept(&mut self, now: Instant, answer: Option<Credentials>, login: &Login, pause: Backoff) -> bool {
        match answer {
            Some(Credentials { username, password, valid_for }) if valid_for.is_none_or(|time| !time.is_zero()) => {
                let username = username.or_else(|| login.username.clone());
                self.login = Login { username, password: Some(password), password_file: None };
                self.valid_until = valid_for.map(|time| now + time);
                self.due = valid_for.map(|time| now + time / 5 * 4);
                true
            }
            Some(_) | None => {
                self.due = Some(now + pause.max);
                false
            }
        }
    }

    /// The login failed. If the server rejected it, the reason is part of the next request, on an
    /// open connection after a pause. Returns true if that request comes before anything is
    /// refused: the password may have changed.
    pub(crate) fn reject(&mut self, now: Instant, error: &ServerError, pause: Backoff) -> bool {
        self.due = self.requested.then_some(now + pause.max);
        if error.class != ErrorClass::Refused {
            return false;
        }
        let first = self.rejected.replace(error.clone()).is_none();
        first && self.requested
    }

    /// The server accepted the login.
    pub(crate) fn confirm(&mut self) {
        self.rejected = None;
    }

    /// Returns true if the login may be sent again.
    pub(crate) fn is_valid(&self, now: Instant) -> bool {
        self.rejected.is_none() && self.login.password.is_some() && self.valid_until.is_none_or(|until| now < until)
    }

    pub(crate) const fn valid_until(&self) -> Option<Instant> {
        self.valid_until
    }

    /// Returns when to request credentials again while the connection is open.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }
}
