//! Draws the runs of a scenario on Redis.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::{CONNECT_TIME, RedisAction, RedisStore};
use crate::chance::Chance;
use crate::check::Rule;
use crate::scenario::faults::drawing::{Drawing, Habits, drift, ms, service, weigh};
use crate::scenario::faults::{FaultEntry, redis::ABANDON, redis::REQUEST};
use crate::scenario::often::Often;
use crate::scenario::{Action, Pace, PlanDraft, Setup, Step, StoreSetup, credentials, tls};
use lock_proto::Backoff;
use lock_proto::redis::{MAX_FENCE_BLOCK, Protocol, Wake};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Weight of new requests, relative to those of the faults.
const REQUEST_WEIGHT: u64 = 10;

/// What a scenario on Redis draws.
#[derive(Debug)]
pub(crate) struct RedisRecipe {
    /// Faults with their greatest weights.
    pub(in crate::scenario) faults: &'static [(FaultEntry, u64)],
    /// Faults of half of the runs instead, if there are any.
    pub(in crate::scenario) other_faults: &'static [(FaultEntry, u64)],
    /// Numbers of nodes to choose from.
    pub(in crate::scenario) nodes: &'static [usize],
    pub(super) clients: Range<u64>,
    /// Numbers of locks to choose from.
    pub(super) names: &'static [usize],
    /// Maximum time in ms that hosts gather writes; 0 if they write at once.
    pub(super) gather: u64,
    /// Maximum clock drift in either direction, in µs per second.
    pub(super) drift: u64,
    /// Grants carry fencing tokens wherever possible.
    pub(super) fenced: bool,
    pub(in crate::scenario) login: bool,
    /// Every client connects to every node before the first fault.
    pub(super) preconnect: bool,
    /// Clients still get data from ended connections.
    pub(in crate::scenario) stale: bool,
    /// Minimum latency.
    pub(super) least_latency: Duration,
    /// Maximum service time of nodes in µs, used in some runs.
    pub(super) service: u64,
    pub(in crate::scenario) tls: Often,
    /// Clients obtain credentials.
    pub(in crate::scenario) credentials: bool,
    /// Waiters always use wake-ups.
    pub(super) notify: bool,
}

pub(in crate::scenario) fn draw(chance: &mut Chance, recipe: &RedisRecipe) -> PlanDraft {
    let others = !recipe.other_faults.is_empty() && chance.one_in(2);
    let faults = if others { recipe.other_faults } else { recipe.faults };
    let nodes = chance.pick(recipe.nodes);
    let clients = recipe.clients.start + chance.below(recipe.clients.end - recipe.clients.start);
    let ttl = ms(300 + chance.below(2_700));
    let slow = chance.pick(&[2, 5, 20]);
    let mut latency = ms(chance.below(slow))..ms(slow + chance.below(slow));
    let gather = if recipe.gather > 0 { chance.millis(recipe.gather) } else { Duration::ZERO };
    // A round needs two round trips within a quarter of the shortest TTL; a request must be
    // answered within a fifth.
    latency.end = latency.end.min(((ttl / 8).saturating_sub(ms(5)) / 4).saturating_sub(gather));
    latency.start = latency.start.min(latency.end);
    let mut store = RedisStore {
        ttl,
        round: (latency.end + gather) * 4 + ms(5),
        poll: Backoff::exponential(ms(10 + chance.below(50)), ms(100 + chance.below(200))),
        wake: if !recipe.notify && chance.one_in(4) { Wake::Poll } else { Wake::Notify },
        turn: (chance.pick(&[ms(100), ms(0), ms(20), ms(1_000)]), ms(1 + chance.below(10))),
        fencing: recipe.fenced || !chance.one_in(4),
        fence_block: chance.pick(&[MAX_FENCE_BLOCK, 1, 2, 5]),
        gather,
        login: recipe.login,
        preconnect: recipe.preconnect,
        login_limit: None,
        protocol: Protocol::Resp2,
    };
    let mut excused = Vec::new();
    if !store.fencing || nodes > 1 {
        excused.push(Rule::StaleWrite);
    }
    let names = chance.pick(recipe.names);
    let gap = chance.pick(&[120, 30, 400, 1_000]);
    let count = 20 + chance.below(100);
    let mut weights = weigh(chance, faults);
    let drops = weights.iter().find(|(fault, _)| fault.name == ABANDON.name).map_or(0, |(_, weight)| *weight);
    weights.insert(0, (REQUEST, REQUEST_WEIGHT));
    let pace = |chance: &mut Chance, offset| {
        let drift_ppm = drift(chance, recipe.drift);
        Pace { offset: chance.millis(offset), drift_ppm }
    };
    let seed = chance.next();
    let tls = (recipe.tls == Often::Always).then(|| 1 + u8::from(chance.one_in(2)));
    let clients = (0..clients).map(|_| pace(chance, 100_000)).collect();
    let nodes = (0..nodes).map(|_| pace(chance, 1)).collect();
    let credentials = recipe.credentials.then(|| credentials::provider(chance, ttl / 16));
    store.login_limit = credentials.as_ref().and_then(|provider| credentials::login_limit(chance, provider));
    let (service_time, stale, store) = (Duration::ZERO, recipe.stale, StoreSetup::Redis(store));
    let setup = Setup { seed, latency, service: service_time, stale, tls, credentials, clients, nodes, store };
    let longest = u64::try_from(ttl.as_millis()).unwrap_or(1_000);
    let spans = [longest / 4, longest, longest * 3];
    let habits = Habits { names: &NAMES[..names], spans, stall: (600, 600), drops, ..Habits::default() };
    let mut run = Drawing::new(chance, setup, habits);
    if recipe.preconnect {
        run.at = CONNECT_TIME;
    }
    run.draw(count, gap, &weights);
    // Drawn last, so that the rest of the run does not depend on it.
    run.setup.service = service(run.chance, recipe.service);
    tls::sometimes(run.chance, recipe.tls, &mut run.setup, &mut run.steps);
    let either = (recipe.tls != Often::Never && recipe.tls != Often::Always) || recipe.credentials;
    let resp3 = either && run.chance.one_in(8);
    if let StoreSetup::Redis(store) = &mut run.setup.store {
        if resp3 {
            store.protocol = Protocol::Resp3;
        }
        // A busy node's reply must be in time for the round.
        if !run.setup.service.is_zero() {
            store.round = (store.round + run.setup.service * 2).min(ttl / 8);
        }
    }
    if run.steps.iter().any(|step| loses_track(step, ttl)) {
        excused.push(Rule::Ghost);
    }
    let latency = &mut run.setup.latency;
    *latency = latency.start.max(recipe.least_latency)..latency.end.max(recipe.least_latency);
    run.finish(excused)
}

/// Returns whether clients may leave a key from this step on: they do not clean up a request that
/// arrives later than a TTL after it was given up. Nor do they reach data on a server their address
/// no longer leads to, or on a promoted replica. `ttl` is the longest TTL.
pub(in crate::scenario) fn loses_track(step: &Step, ttl: Duration) -> bool {
    use RedisAction::{FailOver, Promote, Redirect};
    let moved = matches!(step.action, Action::Redis(Redirect { .. } | Promote(_) | FailOver(_)));
    // The shortest TTL is half of the longest.
    moved || matches!(&step.action, Action::Slow { latency, .. } if latency.end >= ttl / 2)
}
