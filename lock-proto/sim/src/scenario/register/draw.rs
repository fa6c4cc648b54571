//! Draws the runs of a scenario on a store with compare-and-set. They are those of etcd, with
//! another store.

use alloc::vec::Vec;
use core::time::Duration;

use super::RegisterStore;
use crate::chance::Chance;
use crate::register::{RegisterConfig, Revisions};
use crate::scenario::faults::drawing::ms;
use crate::scenario::queue::draw::{QueueRecipe, draw as draw_queue};
use crate::scenario::{PlanDraft, StoreSetup};
use lock_proto::Backoff;

pub(in crate::scenario) fn draw(chance: &mut Chance, recipe: &QueueRecipe) -> PlanDraft {
    let late = recipe.late.draw(chance);
    let mut run = draw_queue(chance, recipe, false, late);
    let StoreSetup::Etcd(drawn) = &run.setup.store else { return run.finish(Vec::new()) };
    let all = [Revisions::Counted, Revisions::Content, Revisions::VersionAndWriter];
    let revisions = run.chance.pick(&all);
    let store = RegisterConfig {
        revisions,
        tells_age: run.chance.one_in(2),
        watches: !run.chance.one_in(4),
        ..RegisterConfig::default()
    };
    let every = ms(200) + run.chance.millis(800);
    let poll = if run.chance.one_in(2) { Backoff::fixed(every) } else { Backoff::exponential(every, every * 4) };
    run.setup.store = StoreSetup::Register(RegisterStore {
        ttl: drawn.session_ttl,
        turn: drawn.turn,
        request_timeout: drawn.request_timeout,
        poll,
        store_clock: !run.chance.one_in(3),
        late: drawn.late.max(Duration::from_millis(2)),
        store,
    });
    run.finish(Vec::new())
}
