//! Draws applications that claim late.

use core::time::Duration;

use super::queue::QueueAction;
use super::{Action, Step};
use crate::chance::Chance;

/// In one run of four, half of the applications claim late: up to a third of the TTL after the
/// offer, which is then withdrawn. `ttl` is that of requests without one.
// H5
pub(super) fn sometimes_late(chance: &mut Chance, steps: &mut [Step], ttl: Duration) {
    if !chance.one_in(4) {
        return;
    }
    for step in steps {
        let (Action::Acquire { claim: Some(after), ttl: own, .. }
        | Action::Queue(QueueAction::Campaign { claim: Some(after), ttl: own, .. })) = &mut step.action
        else {
            continue;
        };
        if chance.one_in(2) {
            *after = chance.duration(&(Duration::ZERO..own.unwrap_or(ttl) / 3));
        }
    }
}

#[cfg(test)]
impl super::Plan {
    /// The plan as it was drawn before some applications claimed late, for seeds found until then.
    pub(super) fn claiming_at_once(mut self) -> Self {
        for step in &mut self.steps {
            if let Action::Acquire { claim: Some(after), .. }
            | Action::Queue(QueueAction::Campaign { claim: Some(after), .. }) = &mut step.action
            {
                *after = Duration::ZERO;
            }
        }
        self
    }
}
