//! Exit codes: those of `sysexits.h` where one fits, and those of a shell for the command.

use lock_driver::AcquireErrorKind;
use lock_proto::Loss;

/// Success.
pub const SUCCESS: u8 = 0;
/// Usage error: an invalid value, an even number of backends, mixed schemes.
pub const USAGE: u8 = 64;
/// The name cannot be used: its key holds a value that is not a lock, or the numbers of its queue
/// are used up.
pub const KEY_IN_USE: u8 = 65;
/// The wait timed out because too few servers replied.
pub const UNREACHABLE: u8 = 69;
/// A file or stdout could not be written, or nobody reads stdout.
pub const NOT_WRITTEN: u8 = 74;
/// The wait timed out while another client held the lock.
pub const BUSY: u8 = 75;
/// The lock was lost before the command ended, or the command was terminated because the lock was
/// about to expire.
pub const LOST: u8 = 76;
/// A server refused: the login, a permission, the database, or the TTL.
pub const REFUSED: u8 = 77;
/// The command could not be executed, or the system lacks what this process needs: a thread, a file
/// descriptor.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// Returns the exit code of a process that was ended by signal `number`.
#[must_use]
pub fn by_signal(number: i32) -> u8 {
    128_u8.saturating_add(u8::try_from(number).unwrap_or(127))
}

/// Returns the exit code for a lock that was not acquired.
#[must_use]
pub fn of_failure(kind: &AcquireErrorKind) -> u8 {
    match kind {
        AcquireErrorKind::Busy(report) | AcquireErrorKind::TimedOut(report) if report.is_busy() => BUSY,
        AcquireErrorKind::KeyInUse(_) | AcquireErrorKind::SequenceExhausted(_) => KEY_IN_USE,
        AcquireErrorKind::Refused(_) => REFUSED,
        AcquireErrorKind::EqualNodes(..) | AcquireErrorKind::Misuse(_) | AcquireErrorKind::NoElections => USAGE,
        AcquireErrorKind::Busy(_)
        | AcquireErrorKind::Unreachable(_)
        | AcquireErrorKind::TimedOut(_)
        | AcquireErrorKind::Withdrawn
        | AcquireErrorKind::ShutDown
        | AcquireErrorKind::Forked
        | _ => UNREACHABLE,
    }
}

/// The cause of a loss in one word, for a line on stdout.
#[must_use]
pub const fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::Taken => "taken",
        Loss::MaxHold => "max-hold",
        Loss::ShutDown => "shut-down",
        Loss::EqualNodes => "equal-nodes",
        _ => "unknown",
    }
}
