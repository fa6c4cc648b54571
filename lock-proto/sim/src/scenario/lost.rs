//! Draws applications that still have the guard of a lost hold when their client is shut down.

use alloc::vec::Vec;
use core::time::Duration;

use super::queue::QueueAction;
use super::{Action, Step};
use crate::chance::Chance;
use lock_proto::{Renew, Wait};

/// In one run of four, clients lose a hold by its maximal time shortly before they are shut down.
/// The guard is returned much later, and the key is there until `ttl` has passed.
// H6
pub(super) fn sometimes_before_shutdown(chance: &mut Chance, steps: &mut Vec<Step>, ttl: Duration) {
    let (mut shutdowns, mut names, mut last) = (Vec::new(), Vec::new(), 0);
    for step in &*steps {
        if let Action::Shutdown { client, .. } = step.action {
            shutdowns.push((step.at, client));
        }
        if let Action::Acquire { name, .. } = step.action {
            names.push(name);
        }
        if let Action::Acquire { tag, .. } | Action::Queue(QueueAction::Campaign { tag, .. }) = step.action {
            last = tag.max(last);
        }
    }
    if shutdowns.is_empty() || names.is_empty() || !chance.one_in(4) {
        return;
    }
    for (at, client) in shutdowns {
        last += 1;
        let name = chance.pick(&names);
        let most = chance.duration(&(Duration::from_millis(1)..ttl / 4));
        let lost = at.saturating_sub(chance.duration(&(Duration::ZERO..ttl / 4)));
        let action = Action::Acquire {
            client,
            tag: last,
            name,
            ttl: None,
            wait: Wait::Forever,
            renew: Renew::AtMost(most),
            claim: Some(Duration::ZERO),
            hold: Some(ttl * 3),
            write_every: None,
        };
        steps.push(Step { at: lost.saturating_sub(most), action });
    }
}
