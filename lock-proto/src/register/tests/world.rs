//! Two clients on one register, with clocks that differ, late requests, lost and stale replies.

use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use crate::register::flaw::RegisterFlaw;
use crate::register::{Client, Config, Entry, Output, Record, Reply, Request, Revision};
use crate::{Acquire, Backoff, CallId, ClientId, Drift, Event, Fault, Instant, LockClient as _, LockId, Machine as _};

const LONG: Duration = Duration::from_millis(120);
const SHORT: Duration = Duration::from_millis(60);

/// What the application has of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Has {
    Waits,
    Held,
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    client: Client,
    id: ClientId,
    now: Instant,
    locks: Vec<(LockId, Has)>,
    /// How many acquisitions it has begun.
    begun: u8,
    /// Requests that were not executed, and replies on their way.
    wire: Vec<(CallId, Wire)>,
    /// When an acquisition ended first since it had nothing to do, in ticks.
    ended: Option<u64>,
    /// It has given up to clean the register.
    gave_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wire {
    Request { request: Request, reported: bool, is_late: bool },
    Reply(Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisterMove {
    Tick,
    Acquire {
        side: usize,
    },
    Release {
        side: usize,
        place: usize,
    },
    Abandon {
        side: usize,
        place: usize,
    },
    /// The request is executed, and its reply arrives.
    Answer {
        side: usize,
        place: usize,
    },
    Execute {
        side: usize,
        place: usize,
    },
    Deliver {
        side: usize,
        place: usize,
    },
    /// A read shows what was there before.
    Stale {
        side: usize,
        place: usize,
    },
    /// The host reports an unknown outcome. The request may still be executed.
    Unknown {
        side: usize,
        place: usize,
    },
    /// Nothing of the first client reaches the store any more.
    Cut,
    /// Somebody deletes the record.
    Delete,
}

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SearchPlan {
    pub(super) flaw: Option<RegisterFlaw>,
    /// The store ignores what a write expects.
    pub(super) unconditional: bool,
    /// The store tells the age of a record.
    pub(super) age: bool,
    pub(super) ticks: u64,
    pub(super) unknown: u8,
    pub(super) stale: u8,
    pub(super) deletes: u8,
    pub(super) cuts: u8,
    /// How many acquisitions each client begins.
    pub(super) begun: [u8; 2],
    /// Every other of them has a short TTL.
    pub(super) short: bool,
    pub(super) releases: bool,
    pub(super) cancels: bool,
    /// How many requests may be late: time passes before the reply arrives, or another one
    /// overtakes it.
    pub(super) late: u8,
    /// One step of real time, in ms.
    pub(super) tick: u64,
    /// The clocks of the clients are a tenth too slow, and a tenth too fast.
    pub(super) drift: bool,
    /// How often a waiter polls, in ms.
    pub(super) poll: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegisterWorld {
    plan: SearchPlan,
    ticks: u64,
    sides: [Side; 2],
    /// The record, and when it was written.
    register: Option<(Record, u64)>,
    /// What it held before.
    before: Option<Option<(Record, u64)>>,
    fence: u64,
    was_deleted: bool,
    is_cut: bool,
    /// A write has replaced the record of the other client, which holds the lock.
    overwrote: bool,
}

impl Side {
    fn holds(&self) -> bool {
        self.locks.iter().any(|(id, _)| self.client.valid_until(*id).is_some_and(|until| until > self.now))
    }
}

/// The same content has the same revision, as the entity tag of an object store has.
fn revision(record: &Record) -> Revision {
    let Record { version, writer, .. } = record;
    Revision::new(
        version.wrapping_mul(1 << 20).wrapping_add(writer.number * 4 + writer.client.bits() as u64).to_le_bytes(),
    )
}

impl RegisterWorld {
    pub(super) fn new(plan: SearchPlan) -> Self {
        let side = |n: u8| {
            let mut config = Config::new()
                .drift(Drift { divisor: 10, margin: Duration::from_millis(2) })
                .poll(Backoff::fixed(Duration::from_millis(plan.poll)))
                .clock_margin(Duration::from_millis(20))
                .request_timeout(Duration::from_millis(90));
            config.store.flaw = plan.flaw;
            let id = ClientId::from_bits(u128::from(n) + 1);
            let now = Instant::from_millis(1_000);
            let mut client = Client::new(now, config, id, u64::from(n)).unwrap();
            client.set_time_of_day(now, Duration::from_secs(1_000));
            Side { client, id, now, locks: Vec::new(), begun: 0, wire: Vec::new(), ended: None, gave_up: false }
        };
        let sides = [side(0), side(1)];
        Self {
            plan,
            ticks: 0,
            sides,
            register: None,
            before: None,
            fence: 0,
            was_deleted: false,
            is_cut: false,
            overwrote: false,
        }
    }

    pub(super) fn moves(&self) -> Vec<RegisterMove> {
        let mut moves = Vec::new();
        let is_used = self.sides.iter().any(|side| side.begun > 0);
        if is_used && self.ticks < self.plan.ticks && self.newly_late() <= self.plan.late {
            moves.push(RegisterMove::Tick);
        }
        for (side, of) in self.sides.iter().enumerate() {
            for (place, (_, wire)) in of.wire.iter().enumerate() {
                match wire {
                    Wire::Request { reported: true, .. } => moves.push(RegisterMove::Execute { side, place }),
                    Wire::Request { request, reported: false, is_late } => {
                        moves.push(RegisterMove::Answer { side, place });
                        if *is_late || self.plan.late > 0 {
                            moves.push(RegisterMove::Execute { side, place });
                        }
                        if self.plan.unknown > 0 && matches!(request, Request::Write { .. }) {
                            moves.push(RegisterMove::Unknown { side, place });
                        }
                        if self.plan.stale > 0 && matches!(request, Request::Read { .. }) && self.before.is_some() {
                            moves.push(RegisterMove::Stale { side, place });
                        }
                    }
                    Wire::Reply(_) => moves.push(RegisterMove::Deliver { side, place }),
                }
            }
            for (place, (_, has)) in of.locks.iter().enumerate() {
                match has {
                    Has::Waits if self.plan.cancels => moves.push(RegisterMove::Abandon { side, place }),
                    Has::Held | Has::Lost if self.plan.releases => moves.push(RegisterMove::Release { side, place }),
                    _ => {}
                }
            }
            if of.begun < self.plan.begun[side] {
                moves.push(RegisterMove::Acquire { side });
            }
        }
        if self.plan.cuts > 0 && self.sides[0].begun > 0 {
            moves.push(RegisterMove::Cut);
        }
        if self.plan.deletes > 0 && self.may_delete() {
            moves.push(RegisterMove::Delete);
        }
        moves
    }

    /// Nobody may delete the record of a holder while a create is in flight, or before the other
    /// client has seen it: that gives two holders, and only the fence tells them apart.
    // RG3
    fn may_delete(&self) -> bool {
        let Some((record, _)) = &self.register else { return false };
        let creates = |(_, wire): &(CallId, Wire)| {
            matches!(wire, Wire::Request { request: Request::Write { expected: None, .. }, .. })
        };
        let others = self.sides.iter().filter(|side| side.id != record.writer.client);
        let in_flight = |side: &Side| !side.wire.is_empty();
        let mut known = others.map(|side| side.client.shows(record) && !in_flight(side));
        !self.sides.iter().any(|side| side.wire.iter().any(creates)) && known.all(|known| known)
    }

    pub(super) fn apply(&mut self, next: RegisterMove) -> Result<(), &'static str> {
        match next {
            RegisterMove::Tick => {
                self.plan.late -= self.newly_late();
                for (_, wire) in self.sides.iter_mut().flat_map(|side| &mut side.wire) {
                    if let Wire::Request { is_late, .. } = wire {
                        *is_late = true;
                    }
                }
                self.ticks += 1;
                let tick = self.plan.tick;
                let by = if self.plan.drift { [tick * 9 / 10, tick * 11 / 10] } else { [tick; 2] };
                for (side, by) in self.sides.iter_mut().zip(by) {
                    side.now = side.now + Duration::from_millis(by);
                    side.client.handle_timeout(side.now);
                    side.client.set_time_of_day(side.now, Duration::from_millis(1_000_000 + self.ticks * tick));
                }
            }
            RegisterMove::Acquire { side } => {
                let side = &mut self.sides[side];
                let short = self.plan.short && side.begun % 2 == 1;
                side.begun += 1;
                let request = Acquire::new("x").ttl(if short { SHORT } else { LONG });
                let id = side.client.acquire(side.now, &request).unwrap();
                side.locks.push((id, Has::Waits));
            }
            RegisterMove::Release { side, place } => {
                let side = &mut self.sides[side];
                let (id, _) = side.locks.remove(place);
                side.ended.get_or_insert(self.ticks);
                side.client.release(side.now, id).unwrap();
            }
            RegisterMove::Abandon { side, place } => {
                let side = &mut self.sides[side];
                let (id, _) = side.locks.remove(place);
                side.ended.get_or_insert(self.ticks);
                side.client.abandon(side.now, id);
            }
            RegisterMove::Answer { side, place } => {
                let place = self.execute(side, place);
                self.deliver(side, place);
            }
            RegisterMove::Execute { side, place } => {
                if matches!(self.sides[side].wire[place].1, Wire::Request { is_late: false, .. }) {
                    self.plan.late -= 1;
                }
                self.execute(side, place);
            }
            RegisterMove::Deliver { side, place } => self.deliver(side, place),
            RegisterMove::Stale { side, place } => {
                self.plan.stale -= 1;
                let before = self.before.clone().flatten();
                self.sides[side].wire[place].1 = Wire::Reply(self.shown(before));
                self.deliver(side, place);
            }
            RegisterMove::Unknown { side, place } => {
                self.plan.unknown -= 1;
                let side = &mut self.sides[side];
                let (call, wire) = &mut side.wire[place];
                if let Wire::Request { reported, is_late, .. } = wire {
                    (*reported, *is_late) = (true, true);
                }
                side.client.handle_reply(side.now, *call, &Reply::Unknown(Fault::TimedOut.into()));
            }
            RegisterMove::Cut => {
                self.plan.cuts -= 1;
                self.is_cut = true;
                self.sides[0].wire.clear();
            }
            RegisterMove::Delete => {
                self.plan.deletes -= 1;
                self.was_deleted = true;
                self.before = Some(self.register.take());
            }
        }
        self.drain()?;
        self.check()
    }

    /// Returns how many requests are late once time passes, and were not before.
    fn newly_late(&self) -> u8 {
        let is_late = |wire: &Wire| matches!(wire, Wire::Request { is_late: false, .. });
        self.sides.iter().flat_map(|side| &side.wire).filter(|(_, wire)| is_late(wire)).count() as u8
    }

    fn shown(&self, entry: Option<(Record, u64)>) -> Reply {
        let Some((record, at)) = entry else { return Reply::Absent };
        let revision = revision(&record);
        let entry = Entry::new(record, revision);
        Reply::Record(if self.plan.age {
            entry.age(Duration::from_millis((self.ticks - at) * self.plan.tick))
        } else {
            entry
        })
    }

    /// Executes a request, and returns the place of its reply.
    fn execute(&mut self, side: usize, place: usize) -> usize {
        let (_, wire) = &self.sides[side].wire[place];
        let Wire::Request { request, reported, .. } = wire.clone() else { unreachable!("only requests are executed") };
        let reply = match request {
            Request::Read { .. } => self.shown(self.register.clone()),
            Request::Write { record, expected, .. } => {
                let is_expected = match (&self.register, &expected) {
                    (None, None) => true,
                    (Some((there, _)), Some(expected)) => revision(there) == expected.revision,
                    (None, Some(_)) | (Some(_), None) => false,
                };
                if is_expected || self.plan.unconditional {
                    let revision = revision(&record);
                    self.overwrote |= self.sides[1 - side].holds();
                    self.before = Some(self.register.replace((record, self.ticks)));
                    Reply::Written(revision)
                } else {
                    Reply::Conflict
                }
            }
        };
        if reported {
            self.sides[side].wire.remove(place);
        } else {
            self.sides[side].wire[place].1 = Wire::Reply(reply);
        }
        place
    }

    fn deliver(&mut self, side: usize, place: usize) {
        let side = &mut self.sides[side];
        let (call, wire) = side.wire.remove(place);
        if let Wire::Reply(reply) = wire {
            side.client.handle_reply(side.now, call, &reply);
        }
    }

    fn drain(&mut self) -> Result<(), &'static str> {
        for (n, side) in self.sides.iter_mut().enumerate() {
            while let Some(output) = side.client.poll_output() {
                match output {
                    Output::Send { .. } if self.is_cut && n == 0 => {}
                    Output::Send { call, request, .. } => {
                        if side.wire.len() >= 2 {
                            side.wire.remove(0);
                        }
                        side.wire.push((call, Wire::Request { request, reported: false, is_late: false }));
                    }
                    Output::Event { lock, event } => {
                        let Some(place) = side.locks.iter().position(|(id, _)| *id == lock) else { continue };
                        match event {
                            Event::Granted(grant) => {
                                let fence = grant.fence.unwrap().get();
                                if fence <= self.fence {
                                    return Err("a fence did not grow");
                                }
                                self.fence = fence;
                                side.client.claim(side.now, lock).unwrap();
                                side.locks[place].1 = Has::Held;
                            }
                            Event::Lost(_) => side.locks[place].1 = Has::Lost,
                            Event::Withdrawn => drop(side.locks.remove(place)),
                            _ => {}
                        }
                    }
                    Output::Watch { .. } | Output::Unwatch { .. } => {}
                    Output::Operation { .. } | Output::Stopped { .. } => unreachable!("not in these tests"),
                }
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), &'static str> {
        if self.sides.iter().filter(|side| side.holds()).count() > 1 {
            return Err("two holders");
        }
        if self.overwrote {
            return Err("the record of a holder was replaced");
        }
        let mut gave_ups = Vec::new();
        for side in &self.sides {
            if side.client.next_deadline().is_some_and(|at| at <= side.now) {
                return Err("served, and still due");
            }
            // After a TTL it may give up.
            let ended = side.ended.unwrap_or(self.ticks);
            let gave_up = (self.ticks - ended) * self.plan.tick * 11 / 10 > 60;
            let unclean = if side.client.is_idle() { self.unclean(side) } else { None };
            if let Some(unclean) = unclean.filter(|_| !side.gave_up && !gave_up && !self.was_deleted) {
                return Err(unclean);
            }
            gave_ups.push(unclean.is_some());
        }
        for (side, gave_up) in self.sides.iter_mut().zip(gave_ups) {
            if side.client.is_idle() {
                (side.ended, side.gave_up) = (None, gave_up);
            }
        }
        Ok(())
    }

    /// A client without locks has nothing in the register, nor on its way there.
    // RG4
    fn unclean(&self, side: &Side) -> Option<&'static str> {
        let there = self.register.as_ref().map(|(record, _)| record);
        if there.is_some_and(|record| record.held && record.writer.client == side.id) {
            return Some("a record is left");
        }
        let may_come = side.wire.iter().any(|(_, wire)| match wire {
            Wire::Request { request: Request::Write { record, expected, .. }, .. } => {
                record.held && expected.as_ref().map(|entry| &entry.record) == there
            }
            _ => false,
        });
        may_come.then_some("a write was forgotten")
    }

    /// Returns how many acquisitions have the lock.
    pub(super) fn held(&self) -> usize {
        self.sides.iter().flat_map(|side| &side.locks).filter(|(_, has)| *has == Has::Held).count()
    }
}

impl Client {
    /// Returns true if the client was last shown this record.
    fn shows(&self, record: &Record) -> bool {
        let slot = self.locks.locks.slot_of_key(&Bytes::from_static(b"x"));
        let lock = slot.and_then(|slot| self.locks.locks.get(slot));
        lock.is_some_and(|lock| lock.store.shows(record))
    }
}
