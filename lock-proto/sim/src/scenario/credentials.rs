//! Draws sources of credentials, and passwords that change.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Action, Step};
use crate::chance::Chance;
use crate::world::{Provider, Source};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Draws a source that answers within `most`.
pub(super) fn provider(chance: &mut Chance, most: Duration) -> Provider {
    let least = chance.duration(&(Duration::ZERO..most / 2));
    let valid_for = match chance.below(5) {
        0 => None,
        1 => Some(ms(100) + chance.millis(900)),
        2 | 3 => Some(ms(500) + chance.millis(3_000)),
        _ => Some(ms(2_000) + chance.millis(20_000)),
    };
    Provider { delay: least..least + most / 2, valid_for, caches: chance.one_in(3) }
}

/// Draws how long after its last login a server closes a connection: often before the credentials
/// are renewed.
pub(super) fn login_limit(chance: &mut Chance, provider: &Provider) -> Option<Duration> {
    let valid_for = provider.valid_for.unwrap_or(ms(4_000));
    let limit = chance.pick(&[None, Some(valid_for), Some(valid_for / 2), Some(valid_for * 2)]);
    limit.map(|limit| limit.max(ms(1_000)))
}

/// Draws a source that does not work for a while.
pub(super) fn add_failure(chance: &mut Chance, steps: &mut Vec<Step>, (at, span): (Duration, Duration)) {
    let slow = Source::Slow(chance.millis(4_000));
    let source = chance.pick(&[slow, Source::Fails, Source::Silent]);
    steps.push(Step { at, action: Action::Source(source) });
    steps.push(Step { at: at + span, action: Action::Source(Source::Works) });
}

/// Draws a change of passwords.
pub(super) fn change(chance: &mut Chance) -> Action {
    let keep = chance.pick(&[Duration::ZERO, ms(50), ms(1_000)]);
    Action::ChangePasswords(keep)
}
