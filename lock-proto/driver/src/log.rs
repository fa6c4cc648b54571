//! Log lines about locks.

use alloc::string::String;
use core::time::Duration;

use tracing::Level;
use tracing::field::display;
use tracing::level_filters::LevelFilter;

use super::acquire_error::{Servers, describe_failures};
use super::name::Name;
use lock_proto::{Blocked, Instant, LockId, Loss, Note};

/// A line about one acquisition.
pub(super) enum LogLine {
    Waiting { reason: Blocked, failures: Option<String> },
    OwnWait,
    AtRisk { remaining: Duration, failures: Option<String> },
    NotReleased { failures: Option<String> },
    Lost(Loss),
    FenceAhead { ms: u32 },
}

impl LogLine {
    /// Returns the line of a note, if its level is on.
    pub(super) fn of(now: Instant, note: Note, servers: &Servers) -> Option<(LockId, Self)> {
        match note {
            Note::Waiting { why, .. } if blocked_level(why) > LevelFilter::current() => None,
            Note::Waiting { lock, why: reason, answers } => {
                Some((lock, Self::Waiting { reason, failures: describe_failures(servers, &answers) }))
            }
            Note::AtRisk { lock, valid_until, answers } => {
                // Whole milliseconds are easier to read.
                let remaining = Duration::from_millis(valid_until.since(now).as_millis() as u64);
                Some((lock, Self::AtRisk { remaining, failures: describe_failures(servers, &answers) }))
            }
            Note::NotReleased { lock, answers } => {
                Some((lock, Self::NotReleased { failures: describe_failures(servers, &answers) }))
            }
            _ => None,
        }
    }

    pub(super) fn write(&self, lock: &Name<'_>) {
        match self {
            Self::Waiting { reason, .. } if blocked_level(*reason) == Level::DEBUG => {
                tracing::debug!(%lock, %reason, "waiting")
            }
            Self::Waiting { reason, failures } => {
                tracing::warn!(%lock, %reason, failures = failures.as_ref().map(display), "waiting");
            }
            Self::OwnWait => tracing::warn!(
                %lock,
                "waiting for this client itself, which holds the lock; locks are not reentrant: a task that acquires a lock twice waits for itself"
            ),
            Self::AtRisk { remaining, failures } => {
                let failures = failures.as_ref().map(display);
                tracing::warn!(%lock, ?remaining, failures, "lock at risk: its validity ends soon");
            }
            Self::NotReleased { failures } => {
                tracing::warn!(%lock, failures = failures.as_ref().map(display), "the release is unconfirmed");
            }
            Self::Lost(loss) => tracing::warn!(%lock, cause = %loss, "lock lost"),
            Self::FenceAhead { ms } => {
                tracing::warn!(
                    %lock,
                    ahead_ms = ms,
                    "the fence counter is ahead of the server's clock, which was set back"
                );
            }
        }
    }
}

/// The level at which a reason for waiting is logged. A held lock is an everyday reason.
const fn blocked_level(why: Blocked) -> Level {
    match why {
        Blocked::Local | Blocked::Held => Level::DEBUG,
        Blocked::HeldWithoutExpiry | Blocked::Unreachable | Blocked::RecentlyRestarted | Blocked::UnstableIdentity => {
            Level::WARN
        }
        _ => Level::WARN,
    }
}
