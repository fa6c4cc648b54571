//! What an error of Postgres says about a request.

use std::io;

use lock_driver::register::RegisterError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::CREATE_TABLE;

/// Whether another connection may do better: this one leads to a server that takes no writes.
pub(crate) fn is_read_only(error: &Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Whether another transaction has kept the row for too long.
pub(crate) fn is_locked(error: &Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Whether the statement was undone because of another transaction: it may be run again.
pub(crate) fn is_undone(error: &Error) -> bool {
    error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

/// Whether another transaction has created the same table meanwhile: `IF NOT EXISTS` does not see
/// it before it is committed.
pub(crate) fn is_created(error: &Error) -> bool {
    let states = [SqlState::DUPLICATE_OBJECT, SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION];
    error.code().is_some_and(|code| states.contains(code))
}

/// Whether a connection was refused for something that lasts until somebody mends it: a login, or a
/// certificate.
pub(crate) fn is_refusal(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    let tls = source.and_then(io::Error::get_ref).and_then(|source| source.downcast_ref::<rustls::Error>());
    matches!(tls, Some(rustls::Error::InvalidCertificate(_))) || matches!(classify(error), RegisterError::Refused(_))
}

/// Only states that prove it mean that nothing was written. Others may come from a proxy, or, as
/// 40003 of distributed databases, mean just this: that the outcome is unknown.
// RG4
pub(crate) fn classify(error: &Error) -> RegisterError {
    let text = text(error);
    let Some(code) = error.code() else { return RegisterError::unknown(text) };
    match *code {
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN => {
            RegisterError::refused(format!("{text}; create the table with:\n{CREATE_TABLE}"))
        }
        SqlState::INSUFFICIENT_PRIVILEGE => RegisterError::refused(format!(
            "{text}; allow it with: GRANT SELECT, INSERT, UPDATE ON lock_register TO the user"
        )),
        SqlState::INVALID_PASSWORD
        | SqlState::INVALID_AUTHORIZATION_SPECIFICATION
        | SqlState::INVALID_CATALOG_NAME
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::SYNTAX_ERROR => RegisterError::refused(text),
        SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::LOCK_NOT_AVAILABLE
        | SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::TOO_MANY_CONNECTIONS
        | SqlState::DISK_FULL
        | SqlState::OUT_OF_MEMORY => RegisterError::not_sent(text),
        _ => RegisterError::unknown(text),
    }
}

/// The text of the server, or of what kept it from answering: the client's own hides its cause.
pub(crate) fn text(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} ({})", error.message(), error.code().code());
    }
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
