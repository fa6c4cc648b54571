//! Outputs of the hub.

use core::time::Duration;

use super::request::Request;
use crate::id::{CallId, LockId};
use crate::lock::{ElectionEvent, Event, QueryId, SessionId};

/// Outputs of the hub, in one ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocksOutput {
    /// Open a session with this timeout, and keep it alive.
    Open {
        /// The session.
        session: SessionId,
        /// The session timeout to request.
        timeout: Duration,
    },
    /// Send this request on its session, behind all earlier ones, and pass the reply to
    /// `handle_reply`. Report `NotSent` only if not a byte of it has left, `Unknown` if the
    /// connection ended before the reply.
    Send {
        /// The call to pass to `handle_reply`.
        call: CallId,
        /// The request.
        request: Request,
    },
    /// Send only requests from the hub on this session: no pings. Do not reconnect it, so that it
    /// ends.
    Quiet {
        /// The session.
        session: SessionId,
    },
    /// End this session on the server, and report [`Ended`](super::SessionReport::Ended).
    End {
        /// The session.
        session: SessionId,
    },
    /// Deliver an event to an acquisition.
    Event {
        /// The acquisition.
        lock: LockId,
        /// The event.
        event: Event,
    },
    /// Deliver an event to a query or an observation.
    Election {
        /// The query or observation.
        query: QueryId,
        /// The event.
        event: ElectionEvent,
    },
    /// The shutdown is complete.
    Stopped {
        /// Nodes and sessions whose end was not confirmed in time.
        unreleased: u32,
    },
}
