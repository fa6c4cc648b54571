//! How an end is told: exit codes, the numbers of `sysexits.h` where one fits, and a shell's for the command.

use lock_proto::driver::{AcquireError, AcquireErrorKind};
use lock_proto::redis::{Failure, Loss};

/// A value that cannot be used, two or four backends, mixed schemes.
pub const USAGE: u8 = 64;
/// The key holds something that is no lock.
pub const KEY_IN_USE: u8 = 65;
/// The wait ran out, and too few servers answered.
pub const UNREACHABLE: u8 = 69;
/// A file cannot be written.
pub const NOT_WRITTEN: u8 = 74;
/// The wait ran out, and somebody was last seen holding the lock.
pub const BUSY: u8 = 75;
/// The lock was lost before the command's end, or the command was asked to end because the lock was about to be.
pub const LOST: u8 = 76;
/// The servers refuse: password, permission.
pub const REFUSED: u8 = 77;
/// The command cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;

/// The code for an end by signal `number`.
#[must_use]
pub fn by_signal(number: i32) -> u8 {
    128_u8.saturating_add(u8::try_from(number).unwrap_or(127))
}

/// The code for a lock that was not acquired.
#[must_use]
pub fn of_failure(failure: &Failure) -> u8 {
    match failure {
        Failure::TimedOut(report) if report.is_busy() => BUSY,
        Failure::KeyInUse(_) => KEY_IN_USE,
        Failure::Refused(_) => REFUSED,
        Failure::EqualNodes(..) => USAGE,
        // What else there may be in later versions: nothing was acquired, and no server said that somebody has it.
        Failure::TimedOut(_) | Failure::ShuttingDown | _ => UNREACHABLE,
    }
}

/// The same for the error of an acquisition.
#[must_use]
pub fn of_error(error: &AcquireError) -> u8 {
    match error.kind() {
        _ if error.is_busy() => BUSY,
        AcquireErrorKind::KeyInUse(_) => KEY_IN_USE,
        AcquireErrorKind::Refused(_) => REFUSED,
        AcquireErrorKind::EqualNodes(..) | AcquireErrorKind::Misuse(_) | AcquireErrorKind::NoElections => USAGE,
        AcquireErrorKind::Busy(_)
        | AcquireErrorKind::TimedOut(_)
        | AcquireErrorKind::Withdrawn
        | AcquireErrorKind::ShutDown
        | AcquireErrorKind::Forked
        | _ => UNREACHABLE,
    }
}

/// The cause of a loss in one word, for a line on stdout.
#[must_use]
pub const fn word(loss: Loss) -> &'static str {
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
