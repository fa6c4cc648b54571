//! Wake-up in a quorum, by one of its nodes.
// A7

use super::*;

/// The node that wakes waiters: the last of three.
const WAKE: NodeId = NodeId::new(2);

fn hub() -> Hub {
    Hub::new(3, |c| c.unknown_age(UnknownAge::Trust).wake(Wake::Notify))
}

fn node(call: &CallId) -> NodeId {
    call.node()
}

impl Hub {
    /// Two nodes refused the head, which has subscribed. The attempt on the third is in flight.
    fn refused_by_two(&mut self) -> CallId {
        self.acquire(0, want());
        let mut calls = self.takes();
        let last = calls.pop().unwrap();
        assert_eq!(node(&last), WAKE);
        calls.into_iter().for_each(|call| self.reply(1, call, busy()));
        last
    }

    fn listens(&mut self, at: u64) {
        self.locks.handle_subscribed(ms(at), WAKE, &Key::new(b"", b"a"));
        self.drain();
    }

    fn hint(&mut self, at: u64) {
        self.locks.handle_signal(ms(at), WAKE, &Key::new(b"", b"a"));
        self.drain();
    }

    /// The head waits, and the node that wakes waiters has confirmed its subscription.
    fn waits(&mut self) {
        let last = self.refused_by_two();
        self.reply(1, last, busy());
        self.listens(2);
        for call in self.takes() {
            self.reply(3, call, busy());
        }
        assert_eq!(self.requests(), []);
    }
}

fn marks(requests: &[(CallId, Request)]) -> Vec<NodeId> {
    let marks = |request: &Request| matches!(request, Request::Take { waiting_ms: 1.., .. });
    requests.iter().filter(|(_, request)| marks(request)).map(|(call, _)| node(call)).collect()
}

#[test]
fn subscription_on_wake_node_triggers_attempt() {
    // A7
    let mut hub = hub();
    let last = hub.refused_by_two();
    hub.reply(1, last, busy());
    let key = Key::new(b"", b"a");
    for (node, takes) in [(0, 0), (1, 0), (2, 3), (2, 0)] {
        hub.locks.handle_subscribed(ms(2), NodeId::new(node), &key);
        hub.drain();
        assert_eq!(hub.takes().len(), takes, "{node}");
    }
}

/// The second attempt starts before the reply to the first. (Scenario `redis-calm`, seed 37.)
#[test]
fn attempt_delayed_by_pending_reply_sets_marker() {
    // A7
    let mut hub = hub();
    let last = hub.refused_by_two();
    hub.listens(2);
    assert_eq!(hub.takes().len(), 2);
    hub.reply(3, last, busy());
    assert_eq!(marks(&hub.requests()), [WAKE]);
}

/// The second attempt ends before the reply to the first. (Scenario `redis-calm`, seed 37.)
#[test]
fn missed_marker_is_set_after_late_reply() {
    // A7
    let mut hub = hub();
    let last = hub.refused_by_two();
    hub.listens(2);
    for call in hub.takes() {
        hub.reply(3, call, busy());
    }
    assert_eq!(hub.requests(), []);
    hub.reply(4, last, busy());
    assert_eq!(marks(&hub.requests()), [WAKE]);
}

/// A reply to the attempt of a lost hold, whose guard is still out.
#[test]
fn node_that_answers_attempt_of_lost_hold_is_asked_again() {
    // H6, P6
    let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
    let first = hub.acquire(0, want());
    let mut takes = hub.takes();
    let late = takes.pop().unwrap();
    for call in takes {
        hub.reply(1, call, Reply::Granted { fence: fences(100) });
    }
    hub.locks.claim(ms(1), first).unwrap();
    hub.acquire(2, want());
    hub.at(3_000);
    let (call, _) = hub.requests().into_iter().find(|(_, sent)| matches!(sent, Request::Extend { .. })).unwrap();
    hub.reply(3_001, call, Reply::Absent);
    assert_eq!(hub.take_events().last(), Some(&Event::Lost(Loss::Gone)));
    assert_eq!(hub.takes().iter().map(node).collect::<Vec<_>>(), [0, 1].map(NodeId::new));
    hub.reply(3_002, late, busy());
    assert_eq!(hub.takes().iter().map(node).collect::<Vec<_>>(), [NodeId::new(2)]);
}

/// The token was on the other two nodes only. (Scenario `redis-calm`, seed 397.)
#[test]
fn release_is_also_sent_to_wake_node() {
    // A7
    let mut hub = hub();
    let id = hub.acquire(0, want());
    for call in hub.takes() {
        hub.reply(1, call, if node(&call) == WAKE { busy() } else { Reply::Granted { fence: None } });
    }
    hub.locks.claim(ms(1), id).unwrap();
    hub.locks.release(ms(2), id).unwrap();
    hub.drain();
    let releases = |request: &Request| matches!(request, Request::Release { announce: true, .. });
    let to: Vec<_> = hub.requests().iter().filter(|(_, sent)| releases(sent)).map(|(call, _)| node(call)).collect();
    assert_eq!(to, [0, 1, 2].map(NodeId::new));
}

/// The node that wakes waiters is down, and has no token: each name would otherwise be kept until
/// it is up again.
#[test]
fn release_to_dead_wake_node_leaves_nothing_behind() {
    // A7
    let mut hub = hub();
    for at in 0..10 {
        let id = hub.acquire(at, Acquire::new(format!("order:{at}")).ttl(for_ms(10_000)));
        let down = || Reply::NotSent(Fault::Refused.into());
        for call in hub.takes() {
            hub.reply(at, call, if node(&call) == WAKE { down() } else { Reply::Granted { fence: None } });
        }
        hub.locks.claim(ms(at), id).unwrap();
        hub.locks.release(ms(at), id).unwrap();
        hub.drain();
        for (call, _) in hub.requests() {
            let deleted = Reply::Deleted { number: at + 1, awaited: false };
            hub.reply(at, call, if node(&call) == WAKE { down() } else { deleted });
        }
        assert!(hub.take_events().contains(&Event::Released(Release::Released)));
        assert!(hub.locks.is_idle(), "{at}");
    }
}

/// A node without power neither accepts nor refuses a connection: the attempt and the delete on it
/// fail long after the release.
#[test]
fn release_during_attempt_on_dead_node_leaves_nothing_behind() {
    // A4, M8
    let deleted = || Reply::Deleted { number: 1, awaited: false };
    for (dead, take_first) in [(0, true), (0, false), (2, true), (2, false)] {
        for (found, outcome) in [(deleted(), Release::Released), (Reply::Absent, Release::Expired)] {
            let mut hub = hub();
            let id = hub.acquire(0, want());
            let (mut silent, calls): (Vec<_>, Vec<_>) =
                hub.takes().into_iter().partition(|call| node(call) == NodeId::new(dead));
            calls.into_iter().for_each(|call| hub.reply(1, call, Reply::Granted { fence: None }));
            hub.locks.claim(ms(1), id).unwrap();
            hub.locks.release(ms(10), id).unwrap();
            hub.drain();
            for (call, _) in hub.requests() {
                if node(&call) == NodeId::new(dead) {
                    silent.push(call);
                } else {
                    hub.reply(11, call, found.clone());
                }
            }
            assert_eq!(silent.len(), 2);
            if !take_first {
                silent.reverse();
            }
            silent.into_iter().for_each(|call| hub.reply(500, call, Reply::NotSent(Fault::TimedOut.into())));
            assert!(hub.take_events().contains(&Event::Released(outcome)), "node {dead}");
            assert!(hub.locks.is_idle(), "node {dead}, its take first: {take_first}");
        }
    }
}

/// That node answers the release 20 ms after the others.
#[test]
fn acquisition_after_release_waits_for_slow_wake_node() {
    // A7
    let mut hub = hub();
    let id = hub.acquire(0, want());
    for call in hub.takes() {
        hub.reply(1, call, Reply::Granted { fence: None });
    }
    hub.locks.claim(ms(1), id).unwrap();
    hub.locks.release(ms(2), id).unwrap();
    hub.drain();
    let (slow, fast): (Vec<_>, Vec<_>) = hub.requests().into_iter().partition(|(call, _)| node(call) == WAKE);
    for (call, _) in fast {
        hub.reply(3, call, Reply::Deleted { number: 1, awaited: false });
    }
    hub.acquire(4, want());
    hub.at(23);
    assert_eq!(hub.requests(), []);
    // The release woke a waiter of another client.
    hub.reply(24, slow[0].0, Reply::Deleted { number: 1, awaited: true });
    assert_eq!(hub.requests(), []);
    assert!(hub.take_events().contains(&Event::Blocked(Blocked::Held)));
}

/// The release has not reached the other nodes yet. (Scenario `redis-calm`, seed 411.)
#[test]
fn attempt_that_overtakes_release_is_retried_soon() {
    // A7
    let mut hub = hub();
    hub.waits();
    let poll = hub.locks.next_deadline().unwrap();
    hub.hint(10);
    for call in hub.takes() {
        hub.reply(14, call, busy());
    }
    let next = hub.locks.next_deadline().unwrap();
    assert!((ms(18)..=ms(22)).contains(&next) && next < poll, "{next} instead of {poll}");
    // The next attempt is an ordinary poll.
    hub.locks.handle_timeout(next);
    hub.drain();
    for call in hub.takes() {
        hub.reply(26, call, busy());
    }
    assert!(hub.locks.next_deadline().unwrap() > ms(100));
}

/// The node reports a release while the others grant the lock. The marker is gone, but other
/// clients still wait. (Scenario `redis-calm`, seed 3795.)
#[test]
fn signal_during_won_attempt_is_passed_on() {
    // A7
    let mut hub = hub();
    hub.waits();
    let poll = hub.locks.next_deadline().unwrap();
    hub.locks.handle_timeout(poll);
    hub.drain();
    let takes = hub.takes();
    let since = poll.since(ms(0)).as_millis() as u64;
    hub.hint(since + 1);
    for call in &takes {
        hub.reply(since + 1, *call, if node(call) == WAKE { busy() } else { Reply::Granted { fence: None } });
    }
    let sent = hub.requests();
    assert!(matches!(&sent[..], [(call, Request::Announce { .. })] if node(call) == WAKE), "{sent:?}");
}

/// The holder lacks a node, which grants each attempt of the waiter.
#[test]
fn repeated_split_votes_are_retried_less_and_less_often() {
    // Q2
    let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust).poll(Backoff::exponential(for_ms(10), for_ms(300))));
    hub.acquire(0, want());
    let mut attempts = Vec::new();
    let mut now = ms(0);
    while now < ms(10_000) {
        for (call, request) in hub.requests() {
            let reply = match request {
                Request::Take { .. } if call.node() == NodeId::new(0) => Reply::Granted { fence: None },
                Request::Take { .. } => Reply::Busy { expires: Expiry::In(for_ms(60_000)) },
                _ => Reply::Deleted { number: 1, awaited: false },
            };
            if matches!(request, Request::Take { .. }) && call.node() == NodeId::new(0) {
                attempts.push(now);
            }
            hub.locks.handle_reply(now, call, &reply);
        }
        hub.drain();
        now = hub.locks.next_deadline().unwrap();
        hub.locks.handle_timeout(now);
        hub.drain();
    }
    assert!((20..200).contains(&attempts.len()), "{} attempts in 10 s", attempts.len());
}
