//! Draws applications that claim late.

use alloc::vec::Vec;
use core::time::Duration;

use super::queue::QueueAction;
use super::{Action, Step};
use crate::chance::Chance;

/// In one run of four, half of the applications claim late: up to a third of the TTL after the
/// offer, which is then withdrawn. `ttl` is that of requests without one. If the run has pauses,
/// half of these clients are paused around the offer until it is over: they claim before their
/// timers have run.
// H5
pub(super) fn sometimes_late(chance: &mut Chance, steps: &mut Vec<Step>, ttl: Duration) {
    if !chance.one_in(4) {
        return;
    }
    let mut late = Vec::new();
    for step in &mut *steps {
        let (Action::Acquire { client, claim: Some(after), ttl: own, .. }
        | Action::Queue(QueueAction::Campaign { client, claim: Some(after), ttl: own, .. })) = &mut step.action
        else {
            continue;
        };
        let ttl = own.unwrap_or(ttl);
        if chance.one_in(2) {
            *after = chance.duration(&(Duration::ZERO..ttl / 3));
            late.push((*client, step.at, *after, ttl));
        }
    }
    // Drawn last, so that the rest of the run does not depend on it.
    if !steps.iter().any(|step| matches!(step.action, Action::PauseClient(_))) {
        return;
    }
    for (client, at, after, ttl) in late {
        if chance.one_in(2) {
            let paused = at + chance.duration(&(Duration::ZERO..after));
            let resumed = paused + ttl + chance.duration(&(Duration::ZERO..ttl / 2));
            steps.push(Step { at: paused, action: Action::PauseClient(client) });
            steps.push(Step { at: resumed, action: Action::ResumeClient(client) });
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
