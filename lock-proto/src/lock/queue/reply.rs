//! The reply to a request of the queue family.

use crate::lock::answer::{Answer, Cause};

/// The result of a request: `T` if it was executed, `E` if the server refused it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply<T, E> {
    /// It was executed. A write was committed by a majority of the servers.
    Done(T),
    /// The server refused it, so it was not executed.
    Refused(E),
    /// It may have been executed, or may still be.
    // M8
    Unknown(Cause),
    /// Not a byte of it has left.
    NotSent(Cause),
}

impl<T, E> Reply<T, E>
where
    for<'a> &'a E: Into<Answer>,
{
    /// Returns true if the server refused the request, and would again.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(error) if error.into().is_refusal())
    }

    /// Returns the result for a report.
    pub(crate) fn answer(&self) -> Answer {
        match self {
            Self::Done(_) => Answer::Granted,
            Self::Refused(error) => error.into(),
            Self::Unknown(cause) => Answer::Unknown(cause.clone()),
            Self::NotSent(cause) => Answer::Unreachable(cause.clone()),
        }
    }
}
