//! Faults of Redis nodes, and what their applications do.

use core::time::Duration;

use super::drawing::{Drawing, ms};
use super::{FaultEntry, FaultNeed, fault};
use crate::direction::Direction;
use crate::redis::Condition;
use crate::scenario::{Action, Backend, RedisAction};
use lock_proto::{Renew, Wait};

const CONDITIONS: [Condition; 4] =
    [Condition::Loading, Condition::OutOfMemory, Condition::ReadOnly, Condition::DiskError];
const REDIS: FaultNeed = FaultNeed::Store(Backend::Redis);

/// One lock is requested.
pub(in crate::scenario) const REQUEST: FaultEntry = fault("request", &[REDIS], |run| {
    let (tag, client, name) = (run.next_tag(), run.client(), run.name());
    let longest = run.setup.store.ttl();
    let wait = match run.chance.below(4) {
        3 => Wait::Try,
        2 => Wait::For(run.chance.millis(2_000)),
        _ => Wait::Forever,
    };
    let renew = match run.chance.below(6) {
        5 => Renew::Manual,
        4 => Renew::AtMost(ms(1) + run.chance.millis(2_000)),
        _ => Renew::Auto,
    };
    let hold = if run.chance.one_in(4) { None } else { Some(run.span() / 2) };
    let ttl = run.chance.one_in(3).then(|| longest / 2 + longest / 16 * (tag % 8));
    let write_every = if run.chance.one_in(2) { None } else { Some(ms(5) + run.chance.millis(100)) };
    let claim = (!run.chance.one_in(16)).then_some(Duration::ZERO);
    run.now(Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every });
    if run.habits.drops > 0 && run.chance.one_in(20 / run.habits.drops) {
        let most = run.chance.pick(&[run.setup.latency.end * 6, ms(100), longest * 2]);
        let after = run.chance.duration(&(Duration::ZERO..most));
        run.push(after, Action::Abandon(tag));
    }
});

/// A lock is claimed, extended, released, written with, or dropped.
pub(in crate::scenario) const LOCK_ACTION: FaultEntry = fault("lock-action", &[REDIS], |run| {
    let Some(tag) = recent_tag(run) else { return };
    let action = match run.chance.below(6) {
        0 | 1 => Action::Release(tag),
        2 => Action::Extend(tag),
        3 => Action::Claim(tag),
        4 => Action::Write(tag),
        _ => Action::Abandon(tag),
    };
    run.now(action);
});

/// The latest request is dropped soon.
pub(in crate::scenario) const ABANDON: FaultEntry = fault("abandon", &[REDIS], |run| {
    let Some(tag) = recent_tag(run) else { return };
    // The number keeps the draws of `LOCK_ACTION`.
    run.chance.below(6);
    run.now(Action::Abandon(tag));
});

fn recent_tag(run: &mut Drawing<'_>) -> Option<u32> {
    let back = (run.tag > 0).then(|| run.chance.below(8.min(u64::from(run.tag))))?;
    Some(run.tag - u32::try_from(back).unwrap_or(0))
}

/// A client requests each lock separately, and releases all of them at once.
pub(in crate::scenario) const BUNCH: FaultEntry = fault("bunch", &[REDIS], |run| {
    let (client, span) = (run.client(), run.span());
    for name in run.habits.names {
        run.acquire(Duration::ZERO, client, name, Wait::For(span / 2), None);
        run.push(span, Action::Release(run.tag));
    }
});

/// All clients take all locks repeatedly. The counter is lost about when the last grants are known.
pub(in crate::scenario) const BURST: FaultEntry = fault("burst", &[REDIS, FaultNeed::Beyond], |run| {
    let (node, trip) = (run.node(), run.setup.latency.end * 2);
    let rounds = 1 + run.chance.below(12);
    let lost = trip + run.chance.duration(&(Duration::ZERO..trip * 4));
    match run.chance.below(3) {
        0 => run.push(lost, Action::Redis(RedisAction::Evict { node, name: None })),
        1 => {
            run.push(lost, Action::KillNode(node));
            run.push(lost + ms(1), Action::RestartNode { node, keep_data: false });
        }
        _ => {
            run.now(Action::Redis(RedisAction::StopReplication(node)));
            run.push(lost, Action::Redis(RedisAction::Promote(node)));
        }
    }
    for at in (0..rounds).map(|_| Duration::ZERO).chain([lost + ms(1)]) {
        for client in 0..run.setup.clients.len() {
            for name in run.habits.names {
                run.acquire(at, client, name, Wait::For(trip * 20), Some(Duration::ZERO));
            }
        }
    }
});

/// A request arrives after its client has given up and used the name again.
pub(in crate::scenario) const LATE: FaultEntry = fault("late", &[REDIS], |run| {
    let (client, node, name, ttl) = (run.client(), run.node(), run.name(), run.setup.store.ttl());
    // Less than the shortest TTL: clients do not clean up requests that arrive later.
    let span = ttl / 3 + run.chance.duration(&(Duration::ZERO..ttl / 8));
    run.now(Action::Stall { client, node, direction: Direction::ToNode, span });
    let again = ttl / 4 + run.chance.duration(&(Duration::ZERO..ttl / 8));
    let hold = run.chance.duration(&(Duration::ZERO..ttl / 16));
    run.acquire(Duration::ZERO, client, name, Wait::Try, Some(hold));
    run.acquire(again, client, name, Wait::For(ttl), Some(hold));
});

pub(in crate::scenario) const SHUTDOWN: FaultEntry = fault("shutdown", &[REDIS], |run| {
    let (client, within) = (run.client(), run.chance.millis(3_000));
    run.now(Action::Shutdown { client, within });
});

/// A node restarts with its data.
pub(in crate::scenario) const CRASH: FaultEntry = fault("crash", &[REDIS], |run| restart(run, true));

/// A node restarts without its data.
pub(in crate::scenario) const FORGET: FaultEntry = fault("forget", &[REDIS], |run| restart(run, false));

/// A node restarts, without its data if it is one of a quorum.
pub(in crate::scenario) const FORGET_IN_QUORUM: FaultEntry = fault("forget-in-quorum", &[REDIS], |run| {
    let single = run.setup.nodes.len() == 1;
    restart(run, single);
});

fn restart(run: &mut Drawing<'_>, keep_data: bool) {
    let (node, span) = (run.node(), run.span());
    // Sometimes so fast that only the connections reveal it.
    if !run.chance.one_in(3) {
        run.now(Action::KillNode(node));
    }
    run.push(span, Action::RestartNode { node, keep_data });
}

/// The network to a node is cut in both directions, for one client or all.
pub(in crate::scenario) const PARTITION: FaultEntry = fault("partition", &[REDIS], |run| cut(run, true));

/// The network to a node is cut in one direction, for one client or all.
pub(in crate::scenario) const ONE_DIRECTION: FaultEntry = fault("one-direction", &[REDIS], |run| cut(run, false));

fn cut(run: &mut Drawing<'_>, both: bool) {
    let (node, span) = (run.node(), run.span());
    let clients = if run.chance.one_in(3) {
        0..run.setup.clients.len()
    } else {
        let client = run.client();
        client..client + 1
    };
    let directions = if both { Direction::BOTH.to_vec() } else { alloc::vec![run.direction()] };
    for client in clients {
        for direction in &directions {
            run.now(Action::Cut { client, node, direction: *direction });
        }
        run.push(span, Action::Heal { client, node });
    }
}

/// Packets of a client to or from a node are slow for a while.
pub(in crate::scenario) const SLOW: FaultEntry = fault("slow", &[REDIS], |run| {
    let (client, node, direction) = (run.client(), run.node(), run.direction());
    let (least, usual) = (run.chance.millis(200), run.setup.latency.clone());
    let slow = |latency| Action::Slow { client, node, direction, latency };
    run.for_a_while(slow(least..least + ms(50)), slow(usual));
});

/// For a while the latency of a client is up to several times the shortest TTL.
pub(in crate::scenario) const CRAWL: FaultEntry = fault("crawl", &[REDIS], |run| {
    let (client, direction, ttl) = (run.client(), run.direction(), run.setup.store.ttl());
    // The shortest TTL is half of the longest.
    let least = run.chance.duration(&(Duration::ZERO..ttl * 2));
    run.crawl(client, direction, least);
});

/// A node refuses commands for a while.
pub(in crate::scenario) const REFUSE: FaultEntry = fault("refuse", &[REDIS], |run| {
    let (node, condition) = (run.node(), run.chance.pick(&CONDITIONS));
    let state = |on| Action::Redis(RedisAction::Condition { node, condition, on });
    run.for_a_while(state(true), state(false));
});

pub(in crate::scenario) const FLUSH_SCRIPTS: FaultEntry = fault("flush-scripts", &[REDIS], |run| {
    let node = run.node();
    run.now(Action::Redis(RedisAction::FlushScripts(node)));
});

pub(in crate::scenario) const LOG_OUT: FaultEntry = fault("log-out", &[REDIS, FaultNeed::Login], |run| {
    let node = run.node();
    run.now(Action::Redis(RedisAction::LogOut(node)));
});

/// The clock of a node is set, forward or back.
pub(in crate::scenario) const JUMP: FaultEntry = fault("jump", &[REDIS, FaultNeed::Beyond], |run| {
    let (node, by) = (run.node(), jump(run));
    let ms = if run.chance.one_in(3) { -by } else { by };
    run.now(Action::JumpNode { node, ms });
});

pub(in crate::scenario) const JUMP_FORWARD: FaultEntry = fault("jump-forward", &[REDIS, FaultNeed::Beyond], |run| {
    let (node, ms) = (run.node(), jump(run));
    run.now(Action::JumpNode { node, ms });
});

fn jump(run: &mut Drawing<'_>) -> i64 {
    i64::try_from(run.chance.below(5_000)).unwrap_or(0)
}

/// A node evicts a key, or the counter of fencing tokens.
pub(in crate::scenario) const EVICT: FaultEntry = fault("evict", &[REDIS, FaultNeed::Beyond], |run| {
    let node = run.node();
    let name = if run.chance.one_in(3) { None } else { Some(run.name()) };
    run.now(Action::Redis(RedisAction::Evict { node, name }));
});

/// Another program puts a lock or data where a key is free.
pub(in crate::scenario) const STRANGER: FaultEntry = fault("stranger", &[REDIS], |run| {
    let (node, name) = (run.node(), run.name());
    let key_ttl = ms(1) + run.span().min(run.setup.store.ttl());
    let list = run.chance.one_in(2);
    run.now(Action::Redis(RedisAction::Occupy { node, name, list, key_ttl }));
});

/// A replica without the last writes is promoted.
pub(in crate::scenario) const PROMOTE: FaultEntry = fault("promote", &[REDIS, FaultNeed::Beyond], |run| {
    let node = run.node();
    run.for_a_while(Action::Redis(RedisAction::StopReplication(node)), Action::Redis(RedisAction::Promote(node)));
});

/// Like `PROMOTE`, with a replica that has been running for long, in place of a node of a quorum.
pub(in crate::scenario) const FAIL_OVER: FaultEntry = fault("fail-over", &[REDIS, FaultNeed::Nodes(3)], |run| {
    let node = run.node();
    run.for_a_while(Action::Redis(RedisAction::StopReplication(node)), Action::Redis(RedisAction::FailOver(node)));
});

/// For a while the address of a node leads a client to another node.
pub(in crate::scenario) const REDIRECT: FaultEntry = fault("redirect", &[REDIS, FaultNeed::Nodes(3)], |run| {
    let (client, node, to) = (run.client(), run.node(), run.node());
    let redirect = |to| Action::Redis(RedisAction::Redirect { client, node, to });
    run.for_a_while(redirect(to), redirect(node));
});

/// A node restarts without its data, and its clock jumps forward at once.
pub(in crate::scenario) const FORGET_AND_STEP: FaultEntry =
    fault("forget-and-step", &[REDIS, FaultNeed::Beyond], |run| {
        let node = run.node();
        run.now(Action::RestartNode { node, keep_data: false });
        run.now(Action::JumpNode { node, ms: 10_000 });
    });
