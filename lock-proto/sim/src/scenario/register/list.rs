//! The scenarios on a store with compare-and-set.

use crate::check::Rule;
use crate::scenario::faults::queue::{
    BURST, CAMPAIGN, CANCEL, CUT, CUT_ALL, DELETE_KEY, KILL_MEMBER, OBSERVE, SHUTDOWN, SLOW,
};
use crate::scenario::faults::register::{FAIL, LOSE_HINTS, RESTORE, SET_CLOCK, STALE_READS, STEP_CLOCK, SWEEP};
use crate::scenario::faults::{KILL_CLIENT, PAUSE_CLIENT, PAUSE_NODE, RESET, SUSPEND_CLIENT};
use crate::scenario::often::Often;
use crate::scenario::queue::draw::{PLAIN as QUEUE, QueueRecipe};
use crate::scenario::queue::recipes;
use crate::scenario::{Draws, Scenario};

const fn on_register(name: &'static str, about: &'static str, recipe: &'static QueueRecipe) -> Scenario {
    Scenario::new(name, about, Draws::Register(recipe))
}

const PLAIN: QueueRecipe = QueueRecipe { members: &[1], ..QUEUE };

/// Records come back that nobody holds any more.
const RESTORED: &[Rule] =
    &[Rule::MutualExclusion, Rule::Validity, Rule::ShortenedKey, Rule::TrueLoss, Rule::Ghost, Rule::Leftover];

/// A record is replaced before its time is over, or its client forgets it too early.
const REPLACED: &[Rule] = &[Rule::MutualExclusion, Rule::Validity, Rule::ShortenedKey, Rule::Ghost];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    on_register(
        "register-calm",
        "no faults at all",
        &QueueRecipe { faults: &[(CANCEL, 6), (BURST, 6), (CAMPAIGN, 6)], service: 2_000, fast: true, ..PLAIN },
    ),
    on_register(
        "register-locks",
        "clients contend, are paused and die; requests and replies are lost",
        &QueueRecipe {
            faults: &[
                (CANCEL, 8),
                (BURST, 6),
                (PAUSE_CLIENT, 6),
                (KILL_CLIENT, 2),
                (RESET, 8),
                (CUT_ALL, 4),
                (FAIL, 3),
                (SHUTDOWN, 1),
            ],
            own_ttls: true,
            ..PLAIN
        },
    ),
    on_register(
        "register-late",
        "requests are executed late, after their clients have given them up",
        &QueueRecipe {
            faults: &[
                (BURST, 10),
                (CANCEL, 10),
                (SLOW, 4),
                (RESET, 3),
                (STALE_READS, 3),
                (PAUSE_CLIENT, 4),
                (KILL_CLIENT, 2),
            ],
            late: Often::Always,
            own_ttls: true,
            ..PLAIN
        },
    ),
    on_register(
        "register-drift",
        "clocks drift as far as allowed, while clients are lost and the store's clock steps",
        &QueueRecipe {
            faults: &[(PAUSE_CLIENT, 4), (KILL_CLIENT, 2), (CUT_ALL, 5), (STEP_CLOCK, 6)],
            drift: 9_800,
            own_ttls: true,
            ..PLAIN
        },
    ),
    on_register(
        "register-elections",
        "candidates, leaders and observers",
        &QueueRecipe {
            faults: &[
                (CAMPAIGN, 20),
                (OBSERVE, 10),
                (RESET, 4),
                (CUT_ALL, 3),
                (PAUSE_CLIENT, 3),
                (KILL_CLIENT, 2),
                (KILL_MEMBER, 2),
                (STALE_READS, 2),
                (LOSE_HINTS, 2),
            ],
            elections_only: true,
            ..PLAIN
        },
    ),
    on_register(
        "register-everything",
        "all faults within the bounds",
        &QueueRecipe {
            faults: &[
                (CANCEL, 8),
                (BURST, 5),
                (CAMPAIGN, 5),
                (OBSERVE, 3),
                (SHUTDOWN, 1),
                (PAUSE_CLIENT, 4),
                (KILL_CLIENT, 1),
                (PAUSE_NODE, 2),
                (KILL_MEMBER, 3),
                (CUT, 3),
                (CUT_ALL, 2),
                (RESET, 4),
                (SLOW, 3),
                (STALE_READS, 4),
                (FAIL, 3),
                (LOSE_HINTS, 2),
                (STEP_CLOCK, 4),
                (SWEEP, 3),
            ],
            late: Often::OneIn(4),
            service: 5_000,
            ..PLAIN
        },
    ),
    on_register(
        "register-drift-beyond",
        "clocks drift further than allowed",
        &QueueRecipe { members: &[1], ..recipes::DRIFT_BEYOND },
    )
    .beyond("clocks drift by up to a half", REPLACED),
    on_register(
        "register-suspended",
        "the machines of clients are suspended, and their clocks with them",
        &QueueRecipe { faults: &[(SUSPEND_CLIENT, 10), (RESET, 2)], ..PLAIN },
    )
    .beyond("clocks stop while a machine is suspended", REPLACED),
    on_register(
        "register-by-hand",
        "live records are deleted, the store is restored, and its clock is set",
        &QueueRecipe {
            faults: &[(DELETE_KEY, 10), (RESTORE, 4), (SET_CLOCK, 4), (RESET, 3), (PAUSE_CLIENT, 2), (KILL_CLIENT, 1)],
            ..PLAIN
        },
    )
    .beyond("records of holders are deleted and restored", RESTORED),
];
