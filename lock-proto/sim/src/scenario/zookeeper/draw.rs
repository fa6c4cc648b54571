//! Draws the runs of a scenario on ZooKeeper. They are those of etcd, with other servers.

use alloc::vec::Vec;
use core::time::Duration;

use super::ZookeeperStore;
use super::stops::{self, Between};
use crate::chance::Chance;
use crate::scenario::faults::FaultEntry;
use crate::scenario::faults::drawing::ms;
use crate::scenario::often::Often;
use crate::scenario::queue::draw::{QueueRecipe, draw as draw_queue};
use crate::scenario::{PlanDraft, StoreSetup};
use crate::zookeeper::ServerRelease;

/// What a scenario draws for an ensemble.
#[derive(Debug)]
pub(crate) struct EnsembleRecipe {
    /// Faults that begin at any time, with their greatest numbers.
    pub(in crate::scenario) faults: &'static [(FaultEntry, u64)],
    /// Numbers of members to choose from.
    pub(in crate::scenario) members: &'static [usize],
    pub(in crate::scenario) login: Often,
    /// After how many ticks a follower gives up its leader, to choose from. Few are less than a
    /// session timeout.
    pub(super) sync_limits: &'static [u32],
    /// Instead of all this, members are stopped for longer than sessions live.
    pub(super) stops: Option<Between>,
}

pub(super) const SERVERS: EnsembleRecipe =
    EnsembleRecipe { faults: &[], members: &[3, 1], login: Often::Never, sync_limits: &[5, 10, 20], stops: None };

/// Short, so that sessions end and are opened again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

pub(in crate::scenario) fn draw(chance: &mut Chance, recipe: &QueueRecipe, servers: &EnsembleRecipe) -> PlanDraft {
    let (late, login) = (recipe.late.draw(chance), servers.login.draw(chance));
    let mut run = draw_queue(chance, recipe, false, late);
    let StoreSetup::Etcd(drawn) = &run.setup.store else { return run.finish(Vec::new()) };
    let tick = ms(run.chance.pick(&[200, 100]));
    run.setup.store = StoreSetup::Zookeeper(ZookeeperStore {
        tick,
        sync_limit: run.chance.pick(servers.sync_limits),
        session_ttl: drawn.session_ttl.min(tick * 20),
        idle_timeout: IDLE_TIMEOUT,
        revalidate: false,
        turn: drawn.turn,
        request_timeout: drawn.request_timeout,
        watch_own_after: drawn.watch_own_after,
        recheck: drawn.recheck,
        container_interval: ms(run.chance.pick(&[60_000, 1_000, 100])),
        release: if run.chance.one_in(3) { ServerRelease::V3_9 } else { ServerRelease::V3_8 },
        login,
    });
    // Drawn after the steps, whose members are those of a cluster of etcd: recorded seeds keep their
    // meaning.
    let members = run.chance.pick(servers.members);
    run.setup.nodes.resize(members, run.setup.nodes[0]);
    for step in &mut run.steps {
        if let Some(node) = step.action.node_mut() {
            *node %= members;
        }
    }
    let end = run.steps.iter().map(|step| step.at).max().unwrap_or_default();
    run.habits.spans = [1_000, 4_000, 10_000];
    for (fault, most) in servers.faults {
        for _ in 0..run.chance.below(most + 1) {
            run.at = run.chance.duration(&(Duration::ZERO..end));
            (fault.apply)(&mut run);
        }
    }
    let draft = run.finish(Vec::new());
    match servers.stops {
        Some(between) => stops::draft(chance, draft, between),
        None => draft,
    }
}
