//! An exhaustive search of the lifecycle: every order of verbs, replies and time, up to a bound.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::hash::{BuildHasher as _, Hash};
use core::time::Duration;
use std::hash::RandomState;

use super::fake::{Fake, Out, Short, context};
use crate::id::LockId;
use crate::lock::{Context, Event, Failure, Lock, Loss, Release, Renew, Wait, Waiter};
use crate::time::Instant;

const TICK: Duration = Duration::from_millis(30);

/// What the application knows of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum KnownState {
    New,
    Waits,
    Offered,
    /// With this many extensions to be answered.
    Held(u8),
    Lost,
    Releasing,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Acquire(u32),
    Claim(u32),
    Extend(u32),
    Release(u32),
    Abandon(u32),
    Grant { prepare: bool },
    Busy,
    Renew { complete: bool },
    Lose,
    ReleaseDone,
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SearchWorld {
    lock: Lock<Fake>,
    now: Instant,
    known: [KnownState; 3],
    /// Those who wait, in the order of their arrival.
    queue: VecDeque<u32>,
}

fn id(slot: u32) -> LockId {
    LockId { slot, generation: 0 }
}

/// The acquisitions differ in all that the lifecycle treats differently.
fn waiter(slot: u32, since: Instant) -> Waiter<Short> {
    let (terms, renew, wait) = match slot {
        0 => (Short(false), Renew::Auto, Wait::Forever),
        1 => (Short(false), Renew::AtMost(2 * TICK), Wait::For(3 * TICK)),
        _ => (Short(true), Renew::Auto, Wait::Try),
    };
    // The third tries once, or waits, depending on when it comes.
    let wait = if slot == 2 && since.as_nanos() % 2 == 1 { Wait::Forever } else { wait };
    Waiter { id: id(slot), terms, renew, wait, since }
}

impl SearchWorld {
    fn new(start: Instant) -> Self {
        Self { lock: Lock::new(0), now: start, known: [KnownState::New; 3], queue: VecDeque::new() }
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::from([Move::Tick]);
        for slot in 0..3 {
            match self.known[slot as usize] {
                KnownState::New => moves.push(Move::Acquire(slot)),
                KnownState::Waits => moves.push(Move::Abandon(slot)),
                KnownState::Offered => moves.extend([Move::Claim(slot), Move::Release(slot), Move::Abandon(slot)]),
                KnownState::Held(open) => {
                    moves.extend([Move::Release(slot), Move::Abandon(slot)]);
                    if open < 2 {
                        moves.push(Move::Extend(slot));
                    }
                }
                KnownState::Lost => moves.extend([Move::Release(slot), Move::Abandon(slot)]),
                KnownState::Releasing => moves.push(Move::Abandon(slot)),
                KnownState::Ended => {}
            }
        }
        if self.lock.store.contends.is_some() {
            moves.extend([Move::Grant { prepare: false }, Move::Grant { prepare: true }, Move::Busy]);
        }
        if self.lock.store.hold.is_some() {
            moves.extend([Move::Renew { complete: true }, Move::Lose]);
        }
        if self.lock.store.prepares {
            moves.push(Move::Renew { complete: false });
        }
        if !self.lock.store.releasing.is_empty() {
            moves.push(Move::ReleaseDone);
        }
        moves
    }

    fn apply(&mut self, ctx: &mut Context<Fake>, next: Move) {
        match next {
            Move::Acquire(slot) => {
                self.known[slot as usize] = KnownState::Waits;
                self.queue.push_back(slot);
                self.lock.acquire(ctx, waiter(slot, self.now));
            }
            Move::Claim(slot) => {
                if self.lock.claim(ctx, id(slot)).is_ok() {
                    self.known[slot as usize] = KnownState::Held(0);
                    assert!(self.lock.valid_until(id(slot), ctx) > Some(self.now), "claimed, and not valid");
                }
            }
            Move::Extend(slot) => {
                if self.lock.extend(ctx, id(slot)).is_ok()
                    && let KnownState::Held(open) = &mut self.known[slot as usize]
                {
                    *open += 1;
                }
            }
            Move::Release(slot) => {
                if self.lock.release(ctx, id(slot)).is_ok() {
                    self.known[slot as usize] = KnownState::Releasing;
                }
            }
            Move::Abandon(slot) => {
                self.lock.abandon(ctx, id(slot));
                self.known[slot as usize] = KnownState::Ended;
                self.queue.retain(|waits| *waits != slot);
            }
            Move::Grant { prepare } => self.lock.step(ctx, |lock, ctx| lock.store.granted(&mut ctx.env, prepare)),
            Move::Busy => self.lock.step(ctx, |lock, ctx| lock.store.busy(&mut ctx.env)),
            Move::Renew { complete } => {
                self.lock.step(ctx, |lock, ctx| lock.store.renewed(&mut ctx.env, complete));
            }
            Move::Lose => self.lock.step(ctx, |lock, ctx| lock.store.lost(&mut ctx.env)),
            Move::ReleaseDone => self.lock.step(ctx, |lock, ctx| lock.store.released(&mut ctx.env)),
            Move::Tick => {
                self.now = self.now + TICK;
                ctx.advance(self.now);
                self.lock.timeout(ctx);
                assert!(self.lock.deadline(ctx).is_none_or(|(at, _)| at > self.now), "served, and still due");
            }
        }
    }

    /// Takes note of an event. Panics if it does not follow from the earlier ones.
    fn note(&mut self, Out(lock, event): Out, was: &Self) {
        let slot = lock.slot;
        let known = &mut self.known[slot as usize];
        *known = match (&event, *known) {
            (Event::Blocked(_), KnownState::Waits) => KnownState::Waits,
            (Event::Granted(grant), KnownState::Waits) => {
                assert_eq!(self.queue.pop_front(), Some(slot), "granted out of order");
                assert!(grant.valid_until > self.now, "granted, and not valid");
                KnownState::Offered
            }
            (Event::Withdrawn, KnownState::Offered) => KnownState::Ended,
            (Event::Failed(Failure::TimedOut(_)), KnownState::Waits) => {
                self.queue.retain(|waits| *waits != slot);
                KnownState::Ended
            }
            (Event::Renewed { .. } | Event::AtRisk { .. }, KnownState::Held(_) | KnownState::Offered) => *known,
            (Event::Extended, KnownState::Held(open @ 1..)) => KnownState::Held(open - 1),
            (Event::Lost(loss), KnownState::Held(_)) => {
                assert!(*loss != Loss::MaxHold || slot == 1, "only the second has a limit");
                KnownState::Lost
            }
            // The lost hold was released in the same call.
            (Event::Lost(_), KnownState::Releasing) if matches!(was.known[slot as usize], KnownState::Held(_)) => {
                *known
            }
            (Event::Released(release), KnownState::Releasing) => {
                assert!(*release != Release::Taken && *release != Release::Expired);
                KnownState::Ended
            }
            (event, known) => panic!("{event:?} for {slot}, which is {known:?}"),
        };
    }

    /// Checks what must be true between inputs.
    fn check(&self, ctx: &Context<Fake>) {
        let has = |known: &&KnownState| matches!(known, KnownState::Offered | KnownState::Held(_));
        let held = self.known.iter().filter(has).count();
        assert!(held <= 1, "two have it");
        for slot in 0..3 {
            let valid = self.lock.valid_until(id(slot), ctx);
            assert_eq!(valid.is_some(), matches!(self.known[slot as usize], KnownState::Held(_)));
            assert!(valid.is_none_or(|until| until > self.now), "an ended hold counts as valid");
            // The store is at the same point.
            let store = &self.lock.store;
            let (lost, releasing) = (store.left.contains(&id(slot)), store.releasing.contains(&id(slot)));
            assert_eq!(lost, self.known[slot as usize] == KnownState::Lost);
            assert_eq!(releasing, self.known[slot as usize] == KnownState::Releasing, "a release is not answered");
        }
        // The store contends for the one who has waited longest, unless this client has the lock.
        let contends = self.lock.store.contends.as_ref().map(|waiter| waiter.id.slot);
        let first = self.queue.front().copied().filter(|_| self.lock.store.hold.is_none());
        assert_eq!(contends, first);
        let over = self.known.iter().all(|known| matches!(known, KnownState::New | KnownState::Ended));
        if over && self.lock.store.releasing.is_empty() {
            assert!(self.lock.is_over(), "nothing is left to do");
        }
    }

    fn after(&self, ctx: &mut Context<Fake>, next: Move) -> Self {
        let mut world = self.clone();
        ctx.env.now = self.now;
        world.apply(ctx, next);
        while let Some(event) = ctx.poll_output() {
            // The application has abandoned it: no event may follow.
            world.note(event, self);
        }
        world.check(ctx);
        world
    }
}

/// Searches breadth first, up to `states` states from `start`. Returns how many moves deep all were
/// seen.
fn search(start: Instant, states: usize) -> usize {
    let hasher = RandomState::new();
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut ctx = context();
    let mut level = Vec::from([SearchWorld::new(start)]);
    for depth in 0.. {
        let mut deeper = Vec::new();
        for world in &level {
            for next in world.moves() {
                let world = world.after(&mut ctx, next);
                if seen.insert(hash(&hasher, &world)) {
                    deeper.push(world);
                }
            }
            if seen.len() >= states {
                return depth;
            }
        }
        if deeper.is_empty() {
            return usize::MAX;
        }
        level = deeper;
    }
    unreachable!("the range has no end")
}

fn hash(hasher: &RandomState, world: &SearchWorld) -> u64 {
    // Times count from now.
    hasher.hash_one(world)
}

#[test]
fn every_order_of_inputs_keeps_the_lifecycle() {
    // M10, M11, A5, T2, H5
    let depth = search(Instant::from_millis(1_000), 60_000);
    assert!(depth >= 7, "only {depth} moves deep");
}

/// The third acquisition waits.
#[test]
fn every_order_of_inputs_with_three_waiters_keeps_the_lifecycle() {
    // M10, M11, A8
    let depth = search(Instant::from_millis(1_000).after(1), 60_000);
    assert!(depth >= 7, "only {depth} moves deep");
}
