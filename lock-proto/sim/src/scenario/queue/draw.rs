//! Draws the runs of a scenario on a queue store: etcd's, and what ZooKeeper has in common with it.

use core::time::Duration;

use crate::chance::Chance;
use crate::etcd::Condition;
use crate::scenario::faults::drawing::{Drawing, Habits, drift, ms, service, weigh};
use crate::scenario::faults::{FaultEntry, queue::LOCKS, queue::REQUEST};
use crate::scenario::often::Often;
use crate::scenario::{EtcdStore, Pace, Setup, StoreSetup, credentials, tls};

/// What a scenario on a queue store draws.
#[derive(Debug)]
pub(crate) struct QueueRecipe {
    /// Faults with their greatest weights.
    pub(in crate::scenario) faults: &'static [(FaultEntry, u64)],
    /// Faults of half of the runs instead, if there are any.
    pub(in crate::scenario) other_faults: &'static [(FaultEntry, u64)],
    /// Maximum drift of a client's clock in either direction, in µs per second.
    pub(in crate::scenario) drift: u64,
    /// Numbers of members to choose from.
    pub(in crate::scenario) members: &'static [usize],
    pub(in crate::scenario) login: Often,
    pub(in crate::scenario) elections_only: bool,
    /// Calls may be executed after the client has given them up.
    pub(in crate::scenario) late: Often,
    /// Watched keys are also read without an event. Otherwise a watch that misses one is wrong, not
    /// slow.
    pub(in crate::scenario) recheck: bool,
    /// Clients still get data from ended connections.
    pub(in crate::scenario) stale: bool,
    /// Maximum service time in µs, used in some runs.
    pub(in crate::scenario) service: u64,
    pub(in crate::scenario) fast: bool,
    pub(in crate::scenario) tls: Often,
    /// Clients obtain credentials.
    pub(in crate::scenario) credentials: bool,
    /// Clients know one member, and ask the cluster for the others.
    pub(in crate::scenario) sync: bool,
    /// Most locks have a TTL, and so a lease, of their own.
    pub(in crate::scenario) own_ttls: bool,
    /// Keep-alives are answered per lease in some runs.
    pub(in crate::scenario) per_lease: bool,
    /// Defects that the cluster has in one run of so many.
    pub(in crate::scenario) defects: &'static [(Condition, u64)],
}

/// Longer than any run: a client that misses a change never learns of it by a later read.
// S8
const NO_RECHECK: Duration = Duration::from_secs(20_000);

pub(in crate::scenario) const PLAIN: QueueRecipe = QueueRecipe {
    faults: &[],
    other_faults: &[],
    drift: 8_000,
    members: &[1, 3],
    login: Often::Never,
    elections_only: false,
    late: Often::Never,
    recheck: false,
    stale: false,
    service: 0,
    fast: false,
    tls: Often::Never,
    credentials: false,
    sync: false,
    own_ttls: false,
    per_lease: false,
    defects: &[],
};

/// Draws what does not depend on the kind of queue store. The settings are those of etcd.
pub(in crate::scenario) fn draw<'a>(
    chance: &'a mut Chance,
    recipe: &QueueRecipe,
    login: bool,
    late: bool,
) -> Drawing<'a> {
    let others = !recipe.other_faults.is_empty() && chance.one_in(2);
    let faults = if others { recipe.other_faults } else { recipe.faults };
    let seed = chance.next();
    let clients = 2 + chance.index(3);
    let members = chance.pick(recipe.members);
    let least = chance.millis(3);
    // Most networks are fast.
    let spread = if recipe.fast { 5 } else { chance.pick(&[5, 5, 5, 100]) };
    let latency = least..least + ms(1) + chance.millis(spread);
    let store = EtcdStore {
        session_ttl: Duration::from_secs(2 + chance.below(7)),
        turn: chance.pick(&[ms(100), Duration::ZERO, Duration::from_secs(1)]),
        // Shorter than the delay of a late call.
        request_timeout: if late { ms(150) + chance.millis(150) } else { Duration::from_secs(1) - chance.millis(800) },
        watch_own_after: chance.pick(&[None, Some(Duration::ZERO), Some(ms(500))]),
        watch_quiet: Duration::from_secs(10) - chance.millis(9_000),
        late: if late { ms(1_000) - chance.millis(400) } else { ms(2) },
        known: recipe.sync.then_some(1),
        token_ttl: login.then(|| Duration::from_secs(60) - chance.millis(58_000)),
        recheck: if recipe.recheck { Duration::from_secs(chance.pick(&[30, 3])) } else { NO_RECHECK },
        per_lease: false,
    };
    let pace = |chance: &mut Chance| Pace { offset: chance.millis(100_000), drift_ppm: drift(chance, recipe.drift) };
    let setup = Setup {
        seed,
        latency,
        service: Duration::ZERO,
        stale: recipe.stale,
        credentials: recipe.credentials.then(|| credentials::provider(chance, ms(100))),
        tls: (recipe.tls == Often::Always).then(|| 1 + u8::from(chance.one_in(2))),
        clients: (0..clients).map(|_| pace(chance)).collect(),
        // The members' clocks keep true time.
        nodes: (0..members).map(|_| Pace::default()).collect(),
        store: StoreSetup::Etcd(store),
    };
    let mut weights = weigh(chance, faults);
    // As likely as all faults together; otherwise few locks would be held when a fault strikes.
    let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.push((REQUEST, total + 5));
    // Some runs are crowded; others have long quiet stretches.
    let gap = chance.pick(&[200, 50, 1_000]);
    let count = 10 + chance.below(70);
    let (spans, stall) = ([1_000, 4_000, 20_000], (1_100, 1_000));
    let (elections_only, own_ttls) = (recipe.elections_only, recipe.own_ttls);
    let habits = Habits { names: &LOCKS, spans, stall, drops: 0, elections_only, late, own_ttls };
    let mut run = Drawing::new(chance, setup, habits);
    run.draw(count, gap, &weights);
    // Drawn last, so that the rest of the run does not depend on it.
    run.setup.service = service(run.chance, recipe.service);
    tls::sometimes(run.chance, recipe.tls, &mut run.setup, &mut run.steps);
    run
}
