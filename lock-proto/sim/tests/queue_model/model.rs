//! Clients, the store and the possible next events, as a model for `stateright`.

use core::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use lock_proto::Instant;
use lock_proto::etcd::Request;
use lock_sim::search::Canon;
use stateright::{Model, Property};

use crate::client::{Client, Phase, SECOND, describe_request};
use crate::etcd::Store;
use crate::{CALLS, EPOCH, FENCES, REVISIONS, TTL, WATCHES};

const ONE: &str = "one owner";
pub(crate) const FIRST: &str = "the owner's key was created first";
pub(crate) const OWN: &str = "only own keys are removed, tokens grow, events fit";
const END: &str = "at an end everybody was served";
const SERVED: &str = "everybody is served, and the queue is empty";
pub(crate) const SUCCESSOR: &str = "one dies with the lock, and another gets it";
pub(crate) const PROMISES: [&str; 5] = [ONE, FIRST, OWN, END, SERVED];
pub(crate) const SOMETIMES: [&str; 3] = ["the first gets it", "the last gets it", "all wait at once"];

const HORIZON: u64 = EPOCH + 60 * SECOND.as_nanos() as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Ours,
    /// A client does not check that its own key still exists.
    NoOwnKeyCheck,
    /// A key is deleted without comparing its revision.
    BlindUnlock,
}

/// Maximum number of faults on one path.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct Budget {
    /// Lost requests or replies. A lost request is executed later or never.
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    /// Waiters' keys that an operator deletes.
    pub(crate) tampers: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// How often each client requests the lock, one request at a time.
    pub(crate) acquires: Vec<u8>,
    pub(crate) budget: Budget,
    pub(crate) variant: Variant,
    /// Replies arrive at once.
    pub(crate) prompt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Acquire(usize),
    Release(usize, usize),
    /// The store executes a request of a client. Requests are concurrent.
    Execute(usize, usize),
    Reply(usize, usize),
    LoseRequest(usize, usize),
    LoseReply(usize, usize),
    /// A lost request is executed late.
    ExecuteLate(usize),
    Open(usize),
    /// Watch events are delivered to a client.
    Deliver(usize),
    Crash(usize),
    Tamper(usize),
    /// Time passes until the next timer.
    Pass,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    now: u64,
    pub(crate) clients: Vec<Arc<Client>>,
    pub(crate) store: Arc<Store>,
    late_requests: Vec<Request>,
    left: Budget,
    pub(crate) broken: Option<String>,
    fence: u64,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.fingerprint());
    }
}

impl State {
    /// Hashes the state, normalized by the values of counters and clocks.
    fn fingerprint(&self) -> u64 {
        let at = Instant::from_nanos;
        let mut canon = Canon::new()
            .times(at(EPOCH)..at(EPOCH + (1 << 43)), TTL / 2, TTL / 30)
            .ids(REVISIONS)
            .ids(FENCES)
            .ids(CALLS)
            .ids(WATCHES);
        canon.now(at(self.now));
        for client in &self.clients {
            client.hash_state(&self.store.changes, &mut canon);
        }
        self.store.revision().hash(&mut canon);
        for kv in self.store.keys().into_values() {
            kv.hash(&mut canon);
        }
        self.store.leases().hash(&mut canon);
        (&self.late_requests, self.left, self.broken.is_some(), self.fence).hash(&mut canon);
        canon.fingerprint()
    }

    pub(crate) const fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn with<R>(&mut self, client: usize, f: impl FnOnce(&mut Client, Instant) -> R) -> R {
        let now = self.now();
        let client = Arc::make_mut(&mut self.clients[client]);
        let result = f(client, now);
        self.broken = self.broken.take().or_else(|| client.broken.take());
        for fence in client.fences.drain(..) {
            if fence <= self.fence {
                self.broken.get_or_insert_with(|| format!("fencing token {fence} is granted after {}", self.fence));
            }
            self.fence = fence;
        }
        result
    }

    fn awake(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().map(|client| &**client).filter(|client| !client.crashed)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.awake().all(|client| client.acquires == 0 && client.acquisitions.is_empty() && client.requests.is_empty())
    }

    fn execute(&mut self, world: &Queue, request: &Request) -> lock_proto::etcd::Reply {
        let now = self.now();
        let blind = self.blind(world, request);
        let held = |client: &Client| Some(client.hub.owner(client.holds(self.now())?)?.key);
        let held: Vec<Bytes> = self.awake().filter_map(held).collect();
        let store = Arc::make_mut(&mut self.store);
        let before = store.changes.len();
        let reply = store.execute(now, blind.as_ref().unwrap_or(request));
        if let Request::Delete { queue, lease, .. } = request {
            for change in store.changes.iter().skip(before) {
                if change.kv.key != queue.key(*lease) {
                    self.broken = Some("an unlock removes somebody else's key".into());
                } else if held.contains(&change.kv.key) {
                    self.broken = Some("an unlock removes the key of a lock that is held".into());
                }
            }
        }
        reply
    }

    /// Returns the same request without its revision check.
    fn blind(&self, world: &Queue, request: &Request) -> Option<Request> {
        let Request::Delete { queue, lease, .. } = request else { return None };
        let there = self.store.keys().remove(&queue.key(*lease)).filter(|_| world.variant == Variant::BlindUnlock)?;
        Some(Request::Delete { queue: queue.clone(), lease: *lease, modified: there.mod_revision })
    }

    fn next(&self) -> Option<u64> {
        let clients = self.awake().filter_map(|client| client.hub.next_deadline()).map(Instant::as_nanos);
        clients.chain(self.store.next_expiry().map(Instant::as_nanos)).filter(|at| *at > self.now).min()
    }

    /// Returns the key of a client that waits and holds nothing.
    fn waiter_key(&self, c: usize) -> Option<Bytes> {
        let client = &self.clients[c];
        if client.crashed || !client.waits() || client.acquisitions.iter().any(|known| known.phase != Phase::Waiting) {
            return None;
        }
        // Clients choose their leases, so the key identifies its client.
        let keys = self.store.keys();
        let first = keys.values().min_by_key(|kv| kv.create_revision)?.create_revision;
        keys.into_values().find(|kv| kv.create_revision != first).map(|kv| kv.key)
    }
}

impl Queue {
    fn can_pass(&self, state: &State) -> bool {
        let changes = state.store.changes.len();
        let Some(next) = state.next() else { return false };
        let next = Instant::from_nanos(next);
        state.now < HORIZON
            && !state.is_done()
            && state.clients.iter().all(|client| client.is_quiet(changes))
            && state.awake().all(|client| next <= client.release_by())
            // Time passes only if some client has a request.
            && (state.awake().any(|client| !client.acquisitions.is_empty()))
    }
}

fn one_owner(_: &Queue, state: &State) -> bool {
    state.clients.iter().filter(|client| client.holds(state.now()).is_some()).count() <= 1
}

/// The holder has the oldest key.
fn first_owns(_: &Queue, state: &State) -> bool {
    let first = state.store.keys().into_values().min_by_key(|kv| kv.create_revision).map(|kv| kv.key);
    let owners = state.awake().filter_map(|client| client.hub.owner(client.holds(state.now())?));
    owners.into_iter().all(|owner| first.as_ref() == Some(&owner.key))
}

fn unbroken(_: &Queue, state: &State) -> bool {
    state.broken.is_none()
}

/// In final states every waiter has been served.
fn ends_well(model: &Queue, state: &State) -> bool {
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    let sound = one_owner(model, state) && first_owns(model, state) && unbroken(model, state);
    if !actions.is_empty() || !sound {
        return true;
    }
    let served = |(client, acquires): (&Arc<Client>, &u8)| client.crashed || client.served >= *acquires;
    state.is_done() && state.clients.iter().zip(&model.acquires).all(served)
}

fn all_served(model: &Queue, state: &State) -> bool {
    let served = |(client, acquires): (&Arc<Client>, &u8)| client.served >= *acquires;
    state.is_done() && state.clients.iter().zip(&model.acquires).all(served) && state.store.keys().is_empty()
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |(index, acquires): (usize, &u8)| {
            let mut client = Client::new(index, *acquires);
            client.credulous = self.variant == Variant::NoOwnKeyCheck;
            Arc::new(client)
        };
        let store = Store::starting_at(REVISIONS.start as i64 + 1);
        vec![State {
            now: EPOCH,
            clients: self.acquires.iter().enumerate().map(client).collect(),
            store: Arc::new(store),
            late_requests: Vec::new(),
            left: self.budget,
            broken: None,
            fence: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Stop at a violation, so that the counterexample ends there.
        if !(one_owner(self, state) && first_owns(self, state) && unbroken(self, state)) {
            return;
        }
        let (left, changes) = (state.left, state.store.changes.len());
        for (c, client) in state.clients.iter().enumerate().filter(|(_, client)| !client.crashed) {
            actions.extend((0..client.requests.len()).map(|place| Action::Execute(c, place)));
            actions.extend((0..client.replies.len()).map(|place| Action::Reply(c, place)));
            if left.losses > 0 {
                actions.extend((0..client.requests.len()).map(|place| Action::LoseRequest(c, place)));
                actions.extend((0..client.replies.len()).map(|place| Action::LoseReply(c, place)));
            }
            if client.has_closed() {
                actions.push(Action::Open(c));
            }
            if client.has_changes(changes) {
                actions.push(Action::Deliver(c));
            }
            if client.acquires > 0 && client.acquisitions.is_empty() {
                actions.push(Action::Acquire(c));
            }
            actions.extend(client.releasable().map(|place| Action::Release(c, place)));
            if left.crashes > 0 && !client.acquisitions.is_empty() {
                actions.push(Action::Crash(c));
            }
            if left.tampers > 0 && state.waiter_key(c).is_some() {
                actions.push(Action::Tamper(c));
            }
        }
        actions.extend((0..state.late_requests.len()).map(Action::ExecuteLate));
        if self.can_pass(state) {
            actions.push(Action::Pass);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Acquire(c) => next.with(c, Client::acquire),
            Action::Release(c, place) => next.with(c, |client, now| client.release(now, place)),
            Action::Execute(c, place) => {
                let sent = next.with(c, |client, _| client.requests.remove(place));
                let reply = next.execute(self, &sent.request);
                next.with(c, |client, now| {
                    client.replies.push((sent, reply));
                    if self.prompt {
                        client.answered(now, client.replies.len() - 1);
                    }
                });
            }
            Action::Reply(c, place) => next.with(c, |client, now| client.answered(now, place)),
            Action::LoseRequest(c, place) => {
                next.left.losses -= 1;
                let request = next.with(c, |client, now| client.lose_request(now, place));
                next.late_requests.push(request);
            }
            Action::LoseReply(c, place) => {
                next.left.losses -= 1;
                next.with(c, |client, now| client.lose_reply(now, place));
            }
            Action::ExecuteLate(place) => {
                let request = next.late_requests.remove(place);
                next.execute(self, &request);
            }
            Action::Open(c) => {
                let (changes, revision) = (next.store.changes.len(), next.store.revision());
                next.with(c, |client, now| client.open(now, changes, revision));
            }
            Action::Deliver(c) => {
                let store = next.store.clone();
                next.with(c, |client, now| client.deliver_changes(now, &store.changes));
            }
            Action::Crash(c) => {
                next.left.crashes -= 1;
                let requests = next.with(c, |client, _| {
                    client.crashed = true;
                    core::mem::take(&mut client.requests)
                });
                next.late_requests.extend(requests.into_iter().map(|sent| sent.request));
            }
            Action::Tamper(c) => {
                next.left.tampers -= 1;
                let key = state.waiter_key(c)?;
                Arc::make_mut(&mut next.store).delete(&key);
            }
            Action::Pass => {
                next.now = state.next()?;
                Arc::make_mut(&mut next.store).expire(Instant::from_nanos(next.now));
                for c in 0..next.clients.len() {
                    let client = &next.clients[c];
                    if !client.crashed && client.hub.next_deadline().is_some_and(|at| at <= next.now()) {
                        next.with(c, Client::serve);
                    }
                }
            }
        }
        Some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        format!("{action:?}")
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let [first, last, all_wait] = SOMETIMES;
        let mut properties = vec![
            Property::always(ONE, one_owner),
            Property::always(FIRST, first_owns),
            Property::always(OWN, unbroken),
            Property::always(END, ends_well),
            Property::sometimes(first, |_, state: &State| state.clients[0].served > 0),
            Property::sometimes(last, |_, state: &State| state.clients.last().is_some_and(|client| client.served > 0)),
            Property::sometimes(all_wait, |_, state: &State| state.clients.iter().all(|client| client.waits())),
            Property::sometimes("everybody gets it", |model: &Self, state: &State| {
                state.clients.iter().zip(&model.acquires).all(|(client, acquires)| client.served >= *acquires)
            }),
        ];
        if self.budget.crashes > 0 {
            properties.push(Property::sometimes(SUCCESSOR, |_, state: &State| {
                let heir = state.awake().any(|client| client.served > 0);
                heir && state.clients.iter().any(|client| client.crashed && client.served > 0)
            }));
        }
        if self.budget.losses + self.budget.crashes + self.budget.tampers == 0 {
            properties.push(Property::eventually(SERVED, all_served));
        }
        properties
    }
}

pub(crate) fn describe(state: &State, action: Action) -> String {
    let client_name = |c: usize| (b'A' + c as u8) as char;
    let what = match action {
        Action::Acquire(c) => format!("{} wants the lock", client_name(c)),
        Action::Release(c, _) => format!("{} releases the lock", client_name(c)),
        Action::Execute(c, place) => {
            format!(
                "the store executes for {}: {}",
                client_name(c),
                describe_request(&state.clients[c].requests[place].request)
            )
        }
        Action::Reply(c, place) => {
            let (sent, reply) = &state.clients[c].replies[place];
            format!("{} gets the reply to: {}: {reply:?}", client_name(c), describe_request(&sent.request))
        }
        Action::LoseRequest(c, place) => {
            format!(
                "a request of {} is lost: {}",
                client_name(c),
                describe_request(&state.clients[c].requests[place].request)
            )
        }
        Action::LoseReply(c, place) => {
            format!(
                "a reply to {} is lost: {}",
                client_name(c),
                describe_request(&state.clients[c].replies[place].0.request)
            )
        }
        Action::ExecuteLate(place) => {
            format!("the store executes what was lost: {}", describe_request(&state.late_requests[place]))
        }
        Action::Open(c) => format!("the watches of {} are opened", client_name(c)),
        Action::Deliver(c) => format!("{} gets its watch events", client_name(c)),
        Action::Crash(c) => format!("{} dies", client_name(c)),
        Action::Tamper(c) => format!("the key of {} is deleted by hand", client_name(c)),
        Action::Pass => "time passes".into(),
    };
    format!("{:>6} ms  {what}", (state.now - EPOCH) / 1_000_000)
}
