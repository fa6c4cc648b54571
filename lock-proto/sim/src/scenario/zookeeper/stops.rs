//! Runs in which servers are stopped for longer than sessions live, while clients whose sessions were
//! idle take locks.

use alloc::vec::Vec;
use core::time::Duration;

use super::super::etcd::draw::PLAIN;
use super::super::{Action, Draft, Step, Store};
use super::draw::{LOCKS, SERVERS, Servers, draft as draft_servers};
use crate::chance::Chance;
use crate::direction::Direction;
use lock_proto::{Renew, Wait};

/// How long a member runs between two stops at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    /// A leader asks all followers of which sessions they have heard.
    Round,
    /// Nothing is certain. Clients continue their session on a new connection with each renewal.
    Nothing,
}

const MS: Duration = Duration::from_millis(1);
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) fn draft(chance: &mut Chance, between: Between) -> Draft {
    // Followers seldom give their leader up before a session ends.
    let servers = Servers { members: &[3], sync_limits: &[50, 50, 20, 10], ..SERVERS };
    let Draft { mut setup, steps, excused } = draft_servers(chance, &PLAIN, &servers);
    // A byte string may end before anything is stopped.
    if chance.is_exhausted() {
        return Draft { setup, steps, excused };
    }
    let clients = setup.clients.len();
    let Store::Zookeeper(store) = &mut setup.store else { return Draft { setup, steps: Vec::new(), excused } };
    (store.idle_timeout, store.revalidate) = (IDLE_TIMEOUT, between == Between::Nothing);
    let (tick, ttl, patience) = (store.tick, store.session_ttl, store.request_timeout);
    let mut run = Drawing { chance, steps: Vec::new(), tag: 0, clients };
    let mut at = Duration::ZERO;
    for _ in 0..2 + run.chance.below(4) {
        if run.chance.is_exhausted() {
            break;
        }
        // All have a session.
        for client in 0..clients {
            run.acquire(at, client, LOCKS[client % LOCKS.len()], MS);
        }
        at += run.chance.duration(&(ttl / 2..ttl * 3));
        // The first member leads first.
        let member = if run.chance.one_in(2) { 0 } else { run.chance.index(3) };
        for _ in 0..1 + run.chance.below(3) {
            let most = run.chance.pick(&[ttl * 2, ttl * 2, tick * 2]);
            let resumed = at + run.chance.duration(&(MS..most));
            run.push(at, Action::PauseNode(member));
            run.push(resumed, Action::ResumeNode(member));
            run.contend(resumed, ttl, patience);
            at = resumed
                + match between {
                    Between::Round => tick + run.chance.duration(&(Duration::ZERO..tick * 2)),
                    Between::Nothing => {
                        let most = run.chance.pick(&[3 * MS, tick]);
                        run.chance.duration(&(Duration::ZERO..most))
                    }
                };
        }
        at += run.chance.duration(&(Duration::ZERO..ttl * 2));
    }
    let steps = run.steps;
    Draft { setup, steps, excused }
}

struct Drawing<'a> {
    chance: &'a mut Chance,
    steps: Vec<Step>,
    tag: u32,
    clients: usize,
}

impl Drawing<'_> {
    fn push(&mut self, at: Duration, action: Action) {
        self.steps.push(Step { at, action });
    }

    fn acquire(&mut self, at: Duration, client: usize, name: &'static str, hold: Duration) {
        self.tag += 1;
        let (tag, wait, renew, hold) = (self.tag, Wait::Forever, Renew::Auto, Some(hold));
        self.push(
            at,
            Action::Acquire {
                client,
                tag,
                name,
                ttl: None,
                wait,
                renew,
                claim: Some(Duration::ZERO),
                hold,
                write_every: None,
            },
        );
    }

    /// Two clients want a lock around the end of a stop, and the first one is then cut off from all
    /// servers, or stopped as well.
    fn contend(&mut self, resumed: Duration, ttl: Duration, patience: Duration) {
        let first = self.chance.index(self.clients);
        let name = self.chance.pick(&LOCKS);
        let before = self.chance.duration(&(Duration::ZERO..patience));
        let after = self.chance.millis(20);
        let hold = self.chance.pick(&[ttl * 3, ttl / 2]);
        self.acquire(resumed.saturating_sub(before), first, name, hold);
        self.acquire(resumed + after, (first + 1) % self.clients, name, ttl / 4);
        let lost = resumed + self.chance.millis(10);
        let back = lost + self.chance.duration(&(MS..ttl * 2));
        match self.chance.below(4) {
            0 => {}
            1 => {
                self.push(lost, Action::PauseClient(first));
                self.push(back, Action::ResumeClient(first));
            }
            _ => {
                for node in 0..3 {
                    for direction in Direction::BOTH {
                        self.push(lost, Action::Cut { client: first, node, direction });
                    }
                    self.push(back, Action::Heal { client: first, node });
                }
            }
        }
    }
}
