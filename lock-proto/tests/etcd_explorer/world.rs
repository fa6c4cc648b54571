//! The store, the processes and the adversary.

use std::collections::BTreeMap;

use bytes::Bytes;
use lock_proto::etcd::{Reply, Request};
use lock_proto::{Cause, Fault, Instant, LockId};

use crate::etcd::Store;
use crate::process::{Acquisition, Fences, Process, State, draw_request, name};
use crate::seeds::Rng;

const MS: u64 = 1_000_000;
const STEPS: usize = 600;
/// Everything must be over within this time after the faults: several TTLs for each acquisition.
const SETTLED_WITHIN: u64 = 120_000 * MS;

pub(crate) struct World {
    now: u64,
    rng: Rng,
    store: Store,
    processes: Vec<Process>,
    /// Requests that timed out and are executed later.
    late_requests: Vec<(u64, Request)>,
    fences: Fences,
    names: u64,
    /// Keys are deleted and written by hand, so only fencing is guaranteed, not mutual exclusion.
    by_hand: bool,
    next_id: u128,
    log: bool,
}

impl World {
    pub(crate) fn new(seed: u64, log: bool) -> Self {
        let mut rng = Rng(seed);
        let names = 1 + rng.below(2);
        let by_hand = rng.one_in(4);
        let mut world = Self {
            now: 1_000 * MS,
            rng,
            store: Store::new(),
            processes: Vec::new(),
            late_requests: Vec::new(),
            fences: Fences { seen: BTreeMap::new(), by_hand },
            names,
            by_hand,
            next_id: 0,
            log,
        };
        for _ in 0..2 + world.rng.below(2) {
            let process = world.new_process();
            world.processes.push(process);
        }
        world
    }

    fn new_process(&mut self) -> Process {
        self.next_id += 1;
        Process::new(self.now, self.next_id, &mut self.rng, self.log)
    }

    fn log_event(&self, what: &dyn core::fmt::Debug) {
        if self.log {
            println!("{:>12}us {what:?}", self.now / 1_000);
        }
    }

    pub(crate) fn chaos(&mut self) {
        for _ in 0..STEPS {
            let p = self.rng.index(self.processes.len());
            match self.rng.below(100) {
                // Mostly no faults; otherwise no client would hold a lock that could be lost.
                0..22 => self.serve(p),
                22..34 => self.advance_to_next(),
                34..40 => self.advance(self.now + self.rng.clone().below(20 * MS)),
                40..41 => {
                    let far = self.rng.below(4_000) * MS;
                    self.advance(self.now + far);
                }
                41..53 => self.execute(p),
                53..62 => self.deliver(p),
                62..65 => self.fail(p, false),
                65..68 => self.fail(p, true),
                68..73 => self.open_watches(p),
                73..78 => self.deliver_changes(p),
                78..79 => self.break_watches(p),
                79..80 => self.processes[p].paused = true,
                80..83 => self.processes[p].paused = false,
                83..84 if self.by_hand => self.tamper(),
                84..85 if self.rng.one_in(6) => self.crash(p),
                85..86 if self.rng.one_in(20) => self.shut_down(p),
                86..87 if self.rng.one_in(3) => self.revoke_by_hand(),
                _ => self.verb(p),
            }
            self.run_timers();
        }
    }

    fn advance(&mut self, to: u64) {
        self.now = self.now.max(to);
        self.store.expire(Instant::from_nanos(self.now));
        let due: Vec<Request> =
            self.late_requests.extract_if(.., |(at, _)| *at <= to).map(|(_, request)| request).collect();
        for request in due {
            let reply = self.store.execute(Instant::from_nanos(self.now), &request);
            self.log_event(&("late", request, reply));
        }
    }

    fn advance_to_next(&mut self) {
        let processes = self.processes.iter().filter(|process| !process.paused).filter_map(Process::deadline);
        let late_requests = self.late_requests.iter().map(|(at, _)| *at);
        if let Some(next) = processes.chain(self.store.next_expiry().map(Instant::as_nanos)).chain(late_requests).min()
        {
            self.advance(next);
        }
    }

    /// Like [`advance_to_next`](Self::advance_to_next), but always advances.
    fn advance_on(&mut self) {
        let before = self.now;
        self.advance_to_next();
        if self.now <= before {
            self.advance(before + MS);
        }
    }

    /// Runs due timers of all running processes, then checks the invariants.
    fn run_timers(&mut self) {
        for process in &mut self.processes {
            if process.paused {
                continue;
            }
            let clock = process.clock(self.now);
            while let Some(place) = process.requests.iter().position(|sent| sent.until <= clock.as_nanos()) {
                let sent = process.requests.remove(place).unwrap();
                let late = self.rng.below(3);
                if late == 0 {
                    self.late_requests.push((self.now + self.rng.below(1_500) * MS, sent.request.clone()));
                }
                process.hub.handle_reply(clock, sent.call, &Reply::Unknown(Cause::Fault(Fault::TimedOut)));
            }
            process.hub.handle_timeout(clock);
            process.drain(self.now, &mut self.fences);
        }
        self.check_exclusion();
    }

    fn check_exclusion(&self) {
        let mut holders: BTreeMap<u8, (u128, LockId)> = BTreeMap::new();
        for process in &self.processes {
            for (id, acquisition) in &process.acquisitions {
                let until = process.hub.valid_until(*id);
                assert!(until.is_none() || acquisition.state == State::Held, "{id} is {:?}", acquisition.state);
                if until.is_some_and(|until| until > process.clock(self.now)) {
                    let me = (process.id, *id);
                    let other = holders.insert(acquisition.name, me);
                    assert!(
                        other.is_none() || self.by_hand,
                        "{me:?} and {other:?} both hold {} at {}us",
                        acquisition.name,
                        self.now / 1_000
                    );
                }
            }
        }
    }

    fn execute(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.requests.is_empty() {
            return;
        }
        // Calls are concurrent: any of them may be first.
        let place = self.rng.index(process.requests.len());
        let sent = process.requests.remove(place).unwrap();
        let reply = self.store.execute(Instant::from_nanos(self.now), &sent.request);
        process.replies.push_back((sent.call, reply.clone()));
        self.log_event(&("executed", p, sent.call, reply));
    }

    fn deliver(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.paused || process.replies.is_empty() {
            return;
        }
        let place = self.rng.index(process.replies.len());
        let (call, reply) = process.replies.remove(place).unwrap();
        process.hub.handle_reply(process.clock(self.now), call, &reply);
    }

    fn fail(&mut self, p: usize, answer: bool) {
        let cause = Cause::Fault(Fault::Reset);
        let process = &mut self.processes[p];
        if process.paused {
            return;
        }
        let clock = process.clock(self.now);
        if answer {
            if let Some((call, _)) = process.replies.pop_front() {
                process.hub.handle_reply(clock, call, &Reply::Unknown(cause));
            }
        } else if let Some(sent) = process.requests.pop_front() {
            let reply = match self.rng.below(3) {
                0 => Reply::NotSent(cause),
                1 => Reply::Unknown(cause),
                _ => {
                    self.late_requests.push((self.now + self.rng.below(1_500) * MS, sent.request));
                    Reply::Unknown(cause)
                }
            };
            process.hub.handle_reply(clock, sent.call, &reply);
        }
    }

    fn open_watches(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.paused {
            return;
        }
        let (clock, all) = (process.clock(self.now), self.store.changes.len());
        let closed: Vec<_> =
            process.watches.iter().filter(|(_, w)| w.next_change.is_none()).map(|(id, _)| *id).collect();
        for id in closed {
            let Some(watch) = process.watches.get_mut(&id) else { continue };
            watch.next_change = Some(all);
            process.hub.handle_watching(clock, id, self.store.revision());
            process.drain(self.now, &mut self.fences);
        }
    }

    fn deliver_changes(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if !process.paused {
            process.deliver_changes(self.now, &self.store.changes);
        }
    }

    fn break_watches(&mut self, p: usize) {
        let process = &mut self.processes[p];
        let clock = process.clock(self.now);
        let open: Vec<_> = process.watches.iter().filter(|(_, w)| w.next_change.is_some()).map(|(id, _)| *id).collect();
        for id in open {
            if let Some(watch) = process.watches.get_mut(&id) {
                watch.next_change = None;
                process.hub.handle_unsubscribed(clock, id);
                process.drain(self.now, &mut self.fences);
            }
        }
    }

    fn tamper(&mut self) {
        let keys: Vec<Bytes> = self.store.keys().keys().cloned().collect();
        if let Some(key) = keys.get(self.rng.index(keys.len().max(1))) {
            self.log_event(&("by hand", key));
            self.store.delete(key);
        }
    }

    fn revoke_by_hand(&mut self) {
        // A holder learns of it only by an event, so mutual exclusion is not guaranteed.
        if self.by_hand {
            let leases: Vec<i64> = self.store.leases().keys().copied().collect();
            if let Some(lease) = leases.get(self.rng.index(leases.len().max(1))) {
                self.log_event(&("revoked by hand", lease));
                self.store.revoke(*lease);
            }
        }
    }

    fn crash(&mut self, p: usize) {
        self.log_event(&("crash", p));
        for sent in &self.processes[p].requests.clone() {
            if self.rng.one_in(2) {
                self.late_requests.push((self.now + self.rng.below(1_500) * MS, sent.request.clone()));
            }
        }
        self.processes[p] = self.new_process();
    }

    fn shut_down(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if !process.paused && !process.stopped {
            process.hub.shutdown(process.clock(self.now), core::time::Duration::from_secs(2));
            // The shutdown releases the locks, so their holders do not.
            for acquisition in process.acquisitions.values_mut() {
                if matches!(acquisition.state, State::Held | State::Lost) {
                    acquisition.state = State::Released;
                }
            }
            process.drain(self.now, &mut self.fences);
        }
        if self.processes[p].stopped {
            assert!(self.processes[p].acquisitions.is_empty(), "{:?}", self.processes[p].acquisitions);
            self.processes[p] = self.new_process();
        }
    }

    fn serve(&mut self, p: usize) {
        for _ in 0..12 {
            let waiting = !self.processes[p].requests.is_empty();
            if waiting {
                self.execute(p);
            }
            self.deliver(p);
            self.open_watches(p);
            self.deliver_changes(p);
            self.now += self.rng.below(300_000);
            self.run_timers();
        }
        self.claim_offers(p);
    }

    fn claim_offers(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.paused {
            return;
        }
        let clock = process.clock(self.now);
        for (id, acquisition) in &mut process.acquisitions {
            if acquisition.state == State::Offered && process.hub.claim(clock, *id).is_ok() {
                acquisition.state = State::Held;
            }
        }
        process.drain(self.now, &mut self.fences);
    }

    fn verb(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.paused || process.stopped {
            return;
        }
        let clock = process.clock(self.now);
        let any: Vec<LockId> = process.acquisitions.keys().copied().collect();
        let one = any.get(self.rng.index(any.len().max(1))).copied();
        let verb = self.rng.below(9);
        if self.log {
            println!("{:>12}us p{} verb {verb} of {one:?}", self.now / 1_000, process.id);
        }
        match (verb, one) {
            (0 | 1, _) if any.len() < 6 => {
                let of = self.rng.below(self.names) as u8;
                let want = draw_request(&mut self.rng, of);
                // One of the names is an election.
                let id = if of == 1 {
                    process.hub.campaign(clock, &want, format!("p{}", process.id).into())
                } else {
                    process.hub.acquire(clock, &want)
                };
                if let Ok(id) = id {
                    process.acquisitions.insert(id, Acquisition { name: of, state: State::Waiting });
                }
            }
            (2, Some(id)) => {
                let claimed = process.hub.claim(clock, id).is_ok();
                if let Some(known) = process.acquisitions.get_mut(&id).filter(|_| claimed) {
                    assert_eq!(known.state, State::Offered);
                    known.state = State::Held;
                }
            }
            (3, Some(id)) => {
                let released = process.hub.release(clock, id).is_ok();
                // Events from before the release are reported before its result.
                if let Some(known) = process.acquisitions.get_mut(&id).filter(|_| released) {
                    known.state = State::Released;
                }
            }
            (4, Some(id)) => {
                process.drain(self.now, &mut self.fences);
                process.hub.abandon(clock, id);
                process.acquisitions.remove(&id);
            }
            (5, Some(id)) => {
                let _ = process.hub.extend(clock, id);
            }
            (6, Some(id)) => {
                let _ = process.hub.owner_guard(clock, id);
            }
            (7, Some(id)) if process.acquisitions[&id].name == 1 => {
                let _ = process.hub.proclaim(clock, id, format!("at {}", self.now).into());
            }
            (8, _) => {
                if process.queries.len() < 3 {
                    let election = name(1);
                    let query = if self.rng.one_in(2) {
                        process.hub.observe(clock, election.as_bytes())
                    } else {
                        process.hub.leader(clock, election.as_bytes())
                    };
                    process.queries.extend(query.ok());
                } else if let Some(query) = process.queries.pop_first() {
                    process.drain(self.now, &mut self.fences);
                    process.hub.close_query(clock, query);
                }
            }
            _ => {}
        }
        process.drain(self.now, &mut self.fences);
    }

    pub(crate) fn settle(&mut self) {
        self.log_event(&"--- the faults are over ---");
        for process in &mut self.processes {
            process.paused = false;
        }
        let end = self.now + SETTLED_WITHIN;
        loop {
            for p in 0..self.processes.len() {
                while !self.processes[p].requests.is_empty() {
                    self.execute(p);
                }
                while !self.processes[p].replies.is_empty() {
                    self.deliver(p);
                }
                self.open_watches(p);
                self.deliver_changes(p);
                self.claim_offers(p);
                self.release_all(p);
            }
            self.run_timers();
            let busy = self.processes.iter().any(|process| !process.requests.is_empty());
            let done = self.processes.iter().all(|process| process.acquisitions.is_empty());
            // Requests that may still arrive are watched for.
            if !busy && done && self.late_requests.is_empty() && self.store.keys().is_empty() {
                break;
            }
            if !busy {
                self.advance_on();
            }
            assert!(self.now < end, "{}", self.unsettled());
        }
        self.shut_down_all(end);
    }

    fn release_all(&mut self, p: usize) {
        let process = &mut self.processes[p];
        let clock = process.clock(self.now);
        process.drain(self.now, &mut self.fences);
        let ids: Vec<LockId> = process.acquisitions.keys().copied().collect();
        for id in ids {
            if matches!(process.acquisitions[&id].state, State::Held | State::Lost)
                && process.hub.release(clock, id).is_ok()
            {
                process.acquisitions.get_mut(&id).unwrap().state = State::Released;
            }
        }
        process.drain(self.now, &mut self.fences);
    }

    fn shut_down_all(&mut self, end: u64) {
        for process in &mut self.processes {
            process.hub.shutdown(process.clock(self.now), core::time::Duration::from_secs(60));
        }
        while self.processes.iter().any(|process| !process.stopped) {
            for p in 0..self.processes.len() {
                self.processes[p].drain(self.now, &mut self.fences);
                while !self.processes[p].requests.is_empty() {
                    self.execute(p);
                }
                while !self.processes[p].replies.is_empty() {
                    self.deliver(p);
                }
                self.open_watches(p);
            }
            self.run_timers();
            if self.processes.iter().all(|process| process.requests.is_empty() || process.stopped) {
                self.advance_on();
            }
            assert!(self.now < end + SETTLED_WITHIN, "{}", self.unsettled());
        }
        for process in &self.processes {
            assert_eq!(process.hub.next_deadline(), None, "a timer runs after the end");
        }
        // A lease whose grant was executed after its revocation expires; it has no keys.
        assert!(self.store.keys().is_empty(), "left: {:?}", self.store.keys());
    }

    fn unsettled(&self) -> String {
        let mut text = format!("not settled at {}us; keys {:?}", self.now / 1_000, self.store.keys());
        for process in &self.processes {
            text += &format!("\np{}: {:?}\n{:#?}", process.id, process.acquisitions, process.hub);
        }
        text
    }
}
