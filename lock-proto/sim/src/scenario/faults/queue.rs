//! Faults that etcd and ZooKeeper have in common, and what their applications do.

use core::time::Duration;

use super::drawing::{Drawing, ms};
use super::{FaultEntry, FaultNeed, fault};
use crate::direction::Direction;
use crate::scenario::{Action, QueueAction};
use lock_proto::{Renew, Wait};

pub(in crate::scenario) const LOCKS: [&str; 2] = ["a", "b"];
pub(super) const ELECTION: &str = "e";
/// A name whose keys lie in the key range of another lock, which must ignore them.
const NESTED: &str = "e/x";

const QUEUE: &[FaultNeed] = &[FaultNeed::Queue];

/// One lock is requested, or a candidate joins an election.
pub(in crate::scenario) const REQUEST: FaultEntry =
    fault("request", QUEUE, |run| if run.habits.elections_only { campaign(run, ELECTION) } else { acquire(run) });

pub(in crate::scenario) const CAMPAIGN: FaultEntry = fault("campaign", QUEUE, |run| campaign(run, ELECTION));

pub(in crate::scenario) const CAMPAIGN_NESTED: FaultEntry =
    fault("campaign-nested", QUEUE, |run| campaign(run, NESTED));

/// An acquisition is dropped within a few round trips, in whatever state it is in.
pub(in crate::scenario) const CANCEL: FaultEntry = fault("cancel", QUEUE, |run| {
    acquire(run);
    let after = Duration::from_micros(run.chance.below(20_000));
    run.push(after, Action::Abandon(run.tag));
});

/// One lock is requested several times in one client.
pub(in crate::scenario) const BURST: FaultEntry = fault("burst", QUEUE, |run| {
    let (client, name) = (run.client(), if run.habits.late { LOCKS[0] } else { run.name() });
    for _ in 0..2 + run.chance.below(5) {
        acquire_by(run, client, name);
    }
});

/// A client queries the leader, or observes it for a while.
pub(in crate::scenario) const OBSERVE: FaultEntry = fault("observe", QUEUE, |run| {
    let (client, tag, always) = (run.client(), run.next_tag(), !run.chance.one_in(3));
    run.for_a_while(
        Action::Queue(QueueAction::Observe { client, tag, name: ELECTION, always }),
        Action::Queue(QueueAction::Close(tag)),
    );
});

pub(in crate::scenario) const SHUTDOWN: FaultEntry = fault("shutdown", QUEUE, |run| {
    let (client, within) = (run.client(), run.chance.pick(&[5_000, 300, 1]));
    run.now(Action::Shutdown { client, within: ms(within) });
});

/// A member dies, and comes back with its data.
pub(in crate::scenario) const KILL_MEMBER: FaultEntry = fault("kill-member", QUEUE, |run| {
    let node = run.node();
    run.for_a_while(Action::KillNode(node), Action::RestartNode { node, keep_data: true });
});

/// A member is cut off from the others for a while.
pub(in crate::scenario) const ISOLATE: FaultEntry = fault("isolate", QUEUE, |run| {
    let member = run.node();
    run.for_a_while(Action::Queue(QueueAction::Isolate(member)), Action::Queue(QueueAction::Rejoin(member)));
});

/// All members are cut off from each other for a while.
pub(in crate::scenario) const LOSE_QUORUM: FaultEntry = fault("lose-quorum", QUEUE, |run| {
    run.for_a_while(Action::Queue(QueueAction::LoseQuorum), Action::Queue(QueueAction::RestoreQuorum));
});

pub(in crate::scenario) const CHANGE_LEADER: FaultEntry =
    fault("change-leader", QUEUE, |run| run.queue(Duration::ZERO, QueueAction::ChangeLeader));

/// The network between a client and a member is cut, in one direction or both.
pub(in crate::scenario) const CUT: FaultEntry = fault("cut", QUEUE, |run| {
    let (client, node) = (run.client(), run.node());
    cut(run, client, node);
});

/// The network between a client and each member is cut, in one direction or both.
pub(in crate::scenario) const CUT_ALL: FaultEntry = fault("cut-all", QUEUE, |run| {
    let client = run.client();
    (0..run.setup.nodes.len()).for_each(|node| cut(run, client, node));
});

fn cut(run: &mut Drawing<'_>, client: usize, node: usize) {
    let directions = run.chance.pick(&[&Direction::BOTH[..], &[Direction::ToNode], &[Direction::ToClient]]);
    for direction in directions {
        run.now(Action::Cut { client, node, direction: *direction });
    }
    let after = run.span();
    run.push(after, Action::Heal { client, node });
}

/// Packets of a client to or from a member are slow from now on, some for longer than a request
/// may take.
pub(in crate::scenario) const SLOW: FaultEntry = fault("slow", QUEUE, |run| {
    let (client, node, direction) = (run.client(), run.node(), run.direction());
    let bound = run.chance.pick(&[300, 1_500]);
    let least = run.chance.millis(bound);
    run.now(Action::Slow { client, node, direction, latency: least..least + ms(50) });
});

/// For a while the latency of a client is up to several times the shortest TTL.
pub(in crate::scenario) const CRAWL: FaultEntry = fault("crawl", QUEUE, |run| {
    let (client, direction, least) = (run.client(), run.direction(), run.chance.millis(4_000));
    run.crawl(client, direction, least);
});

/// The key of a contender is deleted by hand.
pub(in crate::scenario) const DELETE_KEY: FaultEntry =
    fault("delete-key", &[FaultNeed::Queue, FaultNeed::Beyond], |run| {
        let (name, oldest) = (run.name(), !run.chance.one_in(3));
        run.queue(Duration::ZERO, QueueAction::DeleteKey { name, oldest });
    });

/// The session of a contender is ended by hand: on etcd its lease.
pub(in crate::scenario) const END_SESSION: FaultEntry =
    fault("end-session", &[FaultNeed::Queue, FaultNeed::Beyond], |run| {
        let (name, oldest) = (run.name(), !run.chance.one_in(3));
        run.queue(Duration::ZERO, QueueAction::EndSession { name, oldest });
    });

fn acquire(run: &mut Drawing<'_>) {
    let (client, name) = (run.client(), run.name());
    acquire_by(run, client, name);
}

fn acquire_by(run: &mut Drawing<'_>, client: usize, name: &'static str) {
    let (tag, wait, renew, ttl) = (run.next_tag(), wait(run), renew(run), ttl(run));
    let claim = (!run.chance.one_in(12)).then_some(Duration::ZERO);
    let hold = hold(run);
    let write_every = run.chance.one_in(3).then(|| ms(20) + run.chance.millis(500));
    run.now(Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every });
    add_later_actions(run, tag, hold.is_none() || claim.is_none());
}

fn campaign(run: &mut Drawing<'_>, name: &'static str) {
    let (client, tag, ttl, wait, renew) = (run.client(), run.next_tag(), ttl(run), wait(run), renew(run));
    let claim = (!run.chance.one_in(12)).then_some(Duration::ZERO);
    let hold = hold(run);
    run.queue(Duration::ZERO, QueueAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold });
    for _ in 0..run.chance.below(3) {
        let after = run.span();
        run.queue(after, QueueAction::Proclaim(tag));
    }
    add_later_actions(run, tag, hold.is_none() || claim.is_none());
}

fn wait(run: &mut Drawing<'_>) -> Wait {
    match run.chance.below(5) {
        0..3 => Wait::Forever,
        3 => Wait::For(run.chance.millis(8_000)),
        _ => Wait::Try,
    }
}

fn renew(run: &mut Drawing<'_>) -> Renew {
    match run.chance.below(8) {
        0..6 => Renew::Auto,
        6 => Renew::Manual,
        _ => Renew::AtMost(ms(1) + run.chance.millis(4_000)),
    }
}

fn ttl(run: &mut Drawing<'_>) -> Option<Duration> {
    let own = if run.habits.own_ttls { !run.chance.one_in(3) } else { run.chance.one_in(5) };
    own.then(|| Duration::from_secs(1 + run.chance.below(6)))
}

fn hold(run: &mut Drawing<'_>) -> Option<Duration> {
    // Long enough for late calls.
    if run.habits.late {
        return Some(run.chance.millis(1_500));
    }
    match run.chance.below(6) {
        0..4 => Some(run.chance.millis(400)),
        4 => Some(run.chance.millis(6_000)),
        _ => None,
    }
}

/// Draws the later actions of an application without a hold time.
fn add_later_actions(run: &mut Drawing<'_>, tag: u32, needed: bool) {
    if !needed {
        return;
    }
    for _ in 0..1 + run.chance.below(3) {
        let after = run.span();
        let action = match run.chance.below(5) {
            0 => Action::Release(tag),
            1 => Action::Claim(tag),
            2 => Action::Extend(tag),
            3 => Action::Write(tag),
            _ => Action::Abandon(tag),
        };
        run.push(after, action);
    }
}
