//! Draws the runs of a scenario on etcd.

use core::time::Duration;

use super::EtcdAction;
use crate::chance::Chance;
use crate::check::Rule;
use crate::scenario::queue::draw::{QueueRecipe, draw as draw_queue};
use crate::scenario::{Action, PlanDraft, Step, StoreSetup};

/// No lease has a longer TTL.
pub(super) const LONGEST_TTL: Duration = Duration::from_secs(8);

pub(in crate::scenario) fn draw(chance: &mut Chance, recipe: &QueueRecipe) -> PlanDraft {
    let (login, late) = (recipe.login.draw(chance), recipe.late.draw(chance));
    let mut run = draw_queue(chance, recipe, login, late);
    let (mut quiet, mut delay) = (Duration::MAX, Duration::ZERO);
    if let StoreSetup::Etcd(store) = &mut run.setup.store {
        store.per_lease = recipe.per_lease && run.chance.one_in(2);
        (quiet, delay) = (store.watch_quiet, store.late);
    }
    for (condition, n) in recipe.defects {
        if !run.steps.is_empty() && run.chance.one_in(*n) {
            let action = Action::Etcd(EtcdAction::Condition { condition: *condition, on: true });
            run.steps.push(Step { at: Duration::ZERO, action });
        }
    }
    // If only the watches are late, the client reopens the stream while other replies arrive.
    let slow = |step: &Step| matches!(&step.action, Action::Slow { latency, .. } if latency.end * 2 + delay > quiet);
    let excused = if late && run.steps.iter().any(slow) { [Rule::Twice].to_vec() } else { [].to_vec() };
    run.finish(excused)
}
