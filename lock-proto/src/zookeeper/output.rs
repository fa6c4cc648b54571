//! Outputs of the hub.

use core::time::Duration;

use super::request::Request;
use crate::lock::{QueueOutput, SessionId};

/// Outputs of the hub. Send the requests of a session in their order.
pub type LocksOutput = QueueOutput<Request, SessionOutput>;

/// What the hub wants of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionOutput {
    /// Open a session with this timeout, and keep it alive. One that is established is continued on
    /// a new connection: the leader of the servers then hears of it. Report
    /// [`Up`](super::SessionReport::Up) in either case.
    Open {
        /// The session.
        session: SessionId,
        /// The session timeout to request.
        timeout: Duration,
    },
    /// Send only requests from the hub on this session: no pings. Do not reconnect it, so that it
    /// ends.
    Quiet {
        /// The session.
        session: SessionId,
    },
    /// End this session on the server, and report [`Ended`](super::SessionReport::Ended), or
    /// [`Expired`](super::SessionReport::Expired) if the server refuses the session.
    End {
        /// The session.
        session: SessionId,
    },
}
