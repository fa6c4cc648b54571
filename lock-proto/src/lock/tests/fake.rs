//! A store of few lines: a server grants, refuses, renews and loses as the test says.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::Misuse;
use crate::id::{CallId, ClientId, LockId};
use crate::lock::{
    Acquire, Answer, Blocked, Config, Context, Env, Event, Fact, Grant, Holding, Locks, Loss, NoElections,
    OperationEvent, OperationId, Order, Release, SharedState, Store, Terms, Token, Wait, Waiter,
};
use crate::time::Instant;

pub(super) const TTL: Duration = Duration::from_millis(90);
const RELEASE_WITHIN: Duration = Duration::from_millis(60);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Short(pub(super) bool);

impl Terms for Short {
    fn may_follow(&self, holder: &Self) -> bool {
        self == holder
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NoShared;

impl SharedState<Fake> for NoShared {
    type Query = NoElections;

    fn ping(_: &mut Env<Fake>, _: CallId) {}

    fn stopped(_: &mut Locks<Fake>, _: u32) -> Out {
        unreachable!("the tests do not shut the hub down")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Out(pub(super) LockId, pub(super) Event);

impl From<(LockId, Event)> for Out {
    fn from((lock, event): (LockId, Event)) -> Self {
        Self(lock, event)
    }
}

impl From<(OperationId, OperationEvent)> for Out {
    fn from(event: (OperationId, OperationEvent)) -> Self {
        unreachable!("no operation is started: {event:?}")
    }
}

/// What the server was asked, and has not answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fake {
    pub(super) contends: Option<Waiter<Short>>,
    pub(super) hold: Option<(LockId, Holding)>,
    pub(super) prepares: bool,
    pub(super) extends: u8,
    /// Holds that are lost, and whose guard is alive.
    pub(super) left: Vec<LockId>,
    pub(super) releasing: Vec<LockId>,
}

impl Fake {
    fn full(now: Instant) -> Holding {
        Holding { until: now + TTL, ttl: TTL.as_nanos() as u64, hands_over_until: Some(now + TTL) }
    }

    fn grant(env: &mut Env<Self>, id: LockId, holding: Holding) {
        let token = Token { client: ClientId::from_bits(1), number: 1 };
        env.report(Fact::Granted(id, Grant::new(token, None, TTL, holding.until)));
    }

    /// The server grants the lock. `prepare`: it is not complete yet.
    pub(super) fn granted(&mut self, env: &mut Env<Self>, prepare: bool) {
        let Some(waiter) = self.contends.take() else { return };
        let holding = Self::full(env.now);
        self.hold = Some((waiter.id, holding));
        env.report(Fact::Taken(waiter.id, holding));
        self.prepares = prepare;
        if !prepare {
            Self::grant(env, waiter.id, holding);
        }
    }

    pub(super) fn busy(&mut self, env: &mut Env<Self>) {
        let Some(waiter) = &self.contends else { return };
        if waiter.wait == Wait::Try {
            self.contends = None;
            env.report(Fact::NotTaken);
        } else {
            env.blocked(Blocked::Held);
        }
    }

    /// The server renews the hold, or completes the grant.
    pub(super) fn renewed(&mut self, env: &mut Env<Self>, complete: bool) {
        let Some((id, holding)) = &mut self.hold else { return };
        if self.prepares && !complete {
            return env.report(Fact::Unprepared(*id));
        }
        *holding = Self::full(env.now);
        if core::mem::take(&mut self.prepares) {
            Self::grant(env, *id, *holding);
        } else {
            env.report(Fact::Renewed(*id, core::mem::take(&mut self.extends).into()));
        }
    }

    /// The server has lost the key.
    pub(super) fn lost(&self, env: &mut Env<Self>) {
        if let Some((id, _)) = self.hold {
            env.report(Fact::Lost(id, Loss::Gone));
        }
    }

    pub(super) fn released(&mut self, env: &mut Env<Self>) {
        for id in self.releasing.drain(..) {
            env.report(Fact::Released(id, Release::Released, Box::default()));
        }
    }

    /// Ends a hold, wherever it is. Returns false if there is none of this acquisition.
    fn take(&mut self, id: LockId) -> bool {
        let held = self.hold.take_if(|(holder, _)| *holder == id).is_some();
        if held {
            (self.prepares, self.extends) = (false, 0);
        }
        held || remove(&mut self.left, id)
    }
}

impl Store for Fake {
    type Key = u8;
    type Terms = Short;
    type Settings = ();
    type Shared = NoShared;
    type Output = Out;

    fn new(_: u8) -> Self {
        Self::default()
    }

    fn key(&self) -> &u8 {
        &0
    }

    fn terms_of(_: &Config<()>, _: &Acquire) -> Result<(u8, Short), Misuse> {
        Ok((0, Short(false)))
    }

    fn order(&mut self, env: &mut Env<Self>, order: Order<Short>) {
        match order {
            Order::Contend(waiter) => {
                assert!(self.hold.is_none(), "contends while it holds");
                self.contends = waiter;
            }
            Order::Claim(id) => assert_eq!(self.hold.map(|(holder, _)| holder), Some(id)),
            Order::Extend(id) => {
                assert_eq!(self.hold.map(|(holder, _)| holder), Some(id));
                self.extends = (self.extends + 1).min(2);
            }
            Order::HandOver { from, to } => {
                let (holder, holding) = self.hold.expect("there is a hold to hand over");
                assert_eq!(holder, from);
                (self.hold, self.prepares, self.extends) = (Some((to.id, holding)), false, 0);
                Self::grant(env, to.id, holding);
            }
            Order::Leave { id, .. } => {
                assert!(self.take(id), "{id} is left, and was not held");
                self.left.push(id);
            }
            Order::End { id, answer, .. } => {
                assert!(self.take(id), "{id} has ended, and was not held");
                if answer {
                    self.releasing.push(id);
                }
            }
            Order::GiveUp(id) => {
                assert!(remove(&mut self.releasing, id), "there is nothing to give up");
                env.report(Fact::Released(id, Release::Unknown, Box::default()));
            }
            Order::ShutDown => {}
        }
    }

    fn timeout(&mut self, _: &mut Env<Self>) {}

    fn deadline(&self, _: &Env<Self>) -> Option<(Instant, &'static str)> {
        None
    }

    fn holding(&self, _: &Env<Self>, id: LockId) -> Option<Holding> {
        self.hold.filter(|(holder, _)| *holder == id).map(|(_, holding)| holding)
    }

    fn answers(&self) -> Box<[Answer]> {
        Box::new([Answer::Silent])
    }

    fn after_step(&mut self, _: &mut Env<Self>) {}

    fn is_drained(&self, _: &Env<Self>) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.contends.is_none() && self.hold.is_none() && self.left.is_empty() && self.releasing.is_empty()
    }
}

fn remove(ids: &mut Vec<LockId>, id: LockId) -> bool {
    let before = ids.len();
    ids.retain(|known| *known != id);
    ids.len() < before
}

pub(super) fn context() -> Context<Fake> {
    let config = Config { release_within: RELEASE_WITHIN, ..Config::with(TTL, TTL, ()) };
    Context::with(Instant::ZERO, config, 7, NoShared)
}
