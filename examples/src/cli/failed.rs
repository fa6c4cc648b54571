//! Why a tool ended without success.

use core::fmt;

use lock_driver::{AcquireError, Client, ConnectError};
use lock_proto::{Answer, Fault};

use super::exit;

/// Why a tool ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Exit code.
    pub code: u8,
    /// Message for people.
    pub why: String,
}

impl Failed {
    /// A server failed or did not reply.
    pub fn unreachable(why: impl fmt::Display) -> Self {
        Self { code: exit::UNREACHABLE, why: why.to_string() }
    }

    /// A lock was not acquired.
    #[must_use]
    pub fn acquiring(error: &AcquireError) -> Self {
        let mut why = error.to_string();
        // The error of Postgres has the statement.
        if why.contains("create the table with") {
            why.push_str("; or once by --create-table");
        }
        Self { code: exit::of_failure(error.kind()), why }
    }

    /// A server refused.
    pub fn refused(why: impl fmt::Display) -> Self {
        Self { code: exit::REFUSED, why: why.to_string() }
    }

    /// A client could not be made.
    #[must_use]
    pub fn connecting(error: &ConnectError) -> Self {
        let is_system = matches!(error, ConnectError::Thread(_) | ConnectError::Entropy(_));
        if is_system { Self::system(error) } else { Self::usage(error) }
    }

    /// The system lacks what this process needs, such as a thread or a file descriptor.
    pub fn system(why: impl fmt::Display) -> Self {
        Self { code: exit::NOT_EXECUTABLE, why: why.to_string() }
    }

    /// Usage error.
    pub fn usage(why: impl fmt::Display) -> Self {
        Self { code: exit::USAGE, why: why.to_string() }
    }
}

/// Checks that the servers answer and accept the login: without that, a program that waits for
/// locks is silent for long.
///
/// # Errors
///
/// Names the servers, and what is wrong with each.
pub async fn check_servers(client: &Client) -> Result<(), Failed> {
    let Err(error) = client.ping().await else { return Ok(()) };
    let Failed { code, mut why } = Failed::acquiring(&error);
    let unread = Answer::Unreachable(Fault::NoCredentials.into());
    let lacks_credentials = error.report().is_some_and(|report| report.nodes.contains(&unread));
    if error.is_unreachable() && !lacks_credentials {
        why.push_str("; does the server run, and is the URL of --backend right?");
    }
    Err(Failed { code, why })
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}
