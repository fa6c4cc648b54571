//! What scenarios on etcd and on ZooKeeper draw alike.

use super::draw::{PLAIN, QueueRecipe};
use crate::scenario::faults::queue::{
    BURST, CAMPAIGN, CAMPAIGN_NESTED, CANCEL, CHANGE_LEADER, CRAWL, CUT, CUT_ALL, DELETE_KEY, END_SESSION, ISOLATE,
    KILL_MEMBER, LOSE_QUORUM, OBSERVE, SHUTDOWN, SLOW,
};
use crate::scenario::faults::{HANDSHAKE, KILL_CLIENT, PAUSE_CLIENT, PAUSE_NODE, REPLACE, RESET, SUSPEND_CLIENT};
use crate::scenario::often::Often;

pub(in crate::scenario) const PAUSES: QueueRecipe =
    QueueRecipe { faults: &[(PAUSE_CLIENT, 10), (PAUSE_NODE, 4)], ..PLAIN };

pub(in crate::scenario) const DRIFT: QueueRecipe =
    QueueRecipe { faults: &[(PAUSE_CLIENT, 4), (KILL_CLIENT, 2), (CUT_ALL, 5)], drift: 9_800, ..PLAIN };

pub(in crate::scenario) const DRIFT_BEYOND: QueueRecipe =
    QueueRecipe { faults: &[(PAUSE_CLIENT, 4), (KILL_CLIENT, 2), (CUT_ALL, 8)], drift: 500_000, ..PLAIN };

pub(in crate::scenario) const SUSPENDED: QueueRecipe =
    QueueRecipe { faults: &[(SUSPEND_CLIENT, 10), (RESET, 2)], ..PLAIN };

pub(in crate::scenario) const PARTITIONS: QueueRecipe =
    QueueRecipe { faults: &[(CUT, 10), (CUT_ALL, 5), (RESET, 5), (SLOW, 5), (ISOLATE, 5)], ..PLAIN };

pub(in crate::scenario) const LATE: QueueRecipe =
    QueueRecipe { faults: &[(BURST, 20), (SLOW, 5), (CUT, 3), (RESET, 3)], late: Often::Always, ..PLAIN };

pub(in crate::scenario) const LEADERS: QueueRecipe =
    QueueRecipe { faults: &[(CHANGE_LEADER, 5), (LOSE_QUORUM, 5), (ISOLATE, 5), (KILL_MEMBER, 5)], ..PLAIN };

pub(in crate::scenario) const EXPIRY: QueueRecipe =
    QueueRecipe { faults: &[(CUT_ALL, 10), (PAUSE_CLIENT, 6), (CANCEL, 6)], ..PLAIN };

pub(in crate::scenario) const BY_HAND: QueueRecipe =
    QueueRecipe { faults: &[(DELETE_KEY, 10), (END_SESSION, 10), (RESET, 3), (PAUSE_CLIENT, 2)], ..PLAIN };

pub(in crate::scenario) const CANCELS: QueueRecipe =
    QueueRecipe { faults: &[(CANCEL, 40), (RESET, 4), (CUT, 3), (KILL_MEMBER, 2)], ..PLAIN };

pub(in crate::scenario) const TURNS: QueueRecipe =
    QueueRecipe { faults: &[(BURST, 20), (RESET, 4), (CUT_ALL, 3), (PAUSE_CLIENT, 3), (KILL_CLIENT, 2)], ..PLAIN };

pub(in crate::scenario) const SHUTDOWNS: QueueRecipe = QueueRecipe {
    faults: &[(SHUTDOWN, 6), (BURST, 5), (RESET, 4), (CUT_ALL, 3), (PAUSE_CLIENT, 3), (KILL_MEMBER, 3)],
    ..PLAIN
};

pub(in crate::scenario) const ELECTIONS: QueueRecipe = QueueRecipe {
    faults: &[
        (CAMPAIGN, 20),
        (OBSERVE, 10),
        (RESET, 4),
        (CUT_ALL, 3),
        (PAUSE_CLIENT, 3),
        (KILL_CLIENT, 2),
        (KILL_MEMBER, 2),
        (CHANGE_LEADER, 2),
    ],
    elections_only: true,
    ..PLAIN
};

pub(in crate::scenario) const NESTED: QueueRecipe = QueueRecipe {
    faults: &[
        (CAMPAIGN_NESTED, 10),
        (CAMPAIGN, 10),
        (OBSERVE, 10),
        (CANCEL, 3),
        (RESET, 3),
        (PAUSE_CLIENT, 2),
        (KILL_CLIENT, 2),
    ],
    elections_only: true,
    ..PLAIN
};

pub(in crate::scenario) const CALM: QueueRecipe =
    QueueRecipe { faults: &[(CANCEL, 6), (BURST, 6), (CAMPAIGN, 6)], service: 2_000, fast: true, ..PLAIN };

pub(in crate::scenario) const CRAWLING: QueueRecipe =
    QueueRecipe { faults: &[(CRAWL, 10), (SLOW, 4), (BURST, 5), (CANCEL, 5)], ..PLAIN };

pub(in crate::scenario) const STALE: QueueRecipe = QueueRecipe {
    faults: &[(REPLACE, 20), (BURST, 5), (CAMPAIGN, 4), (CANCEL, 5)],
    stale: true,
    late: Often::Always,
    ..PLAIN
};

pub(in crate::scenario) const TLS: QueueRecipe = QueueRecipe {
    faults: &[(HANDSHAKE, 12), (RESET, 4), (BURST, 4), (KILL_MEMBER, 2), (PAUSE_NODE, 2), (CAMPAIGN, 3), (OBSERVE, 2)],
    tls: Often::Always,
    ..PLAIN
};
