//! Plays a plan in the world of its store.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use super::queue::QueueAction;
use super::{Action, Bounds, Outcome, Plan, panic_text};
use crate::check::{Rule, Stage};
use crate::trace::Trace;
use crate::world::World;
use crate::world::store::SimServers;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::Misuse;
use lock_proto::{Acquire, OperationId};

/// Maximum round trips from a release to the next grant without faults, see [`Rule::Prompt`].
pub(super) const TRIPS: u32 = 8;

/// What clients of this library promise while nothing fails.
pub(super) struct Promises {
    /// See [`World::expect_kept`].
    pub(super) kept: Option<Duration>,
    /// See [`World::expect_prompt`].
    pub(super) prompt: Option<(u32, Duration, Duration)>,
}

/// Servers for which plans are drawn.
pub(super) trait PlanServers: SimServers {
    /// What else a run keeps.
    type Run;

    fn promises(run: &Self::Run, plan: &Plan) -> Promises;
    /// Called before the first step.
    fn begin_plan(_: &mut Runner<Self>, _: &Plan) {}
    /// Carries out an action that depends on the kind of server.
    fn act_on_servers(r: &mut Runner<Self>, action: &Action);
    /// Ends all faults and applications, and checks what is left.
    fn finish_plan(r: &mut Runner<Self>);
}

/// A plan that is being played.
pub(super) struct Runner<S: PlanServers> {
    pub(super) w: World<S>,
    pub(super) own: S::Run,
    /// The clients are prompt, and do nothing twice.
    ours: bool,
    /// The TTL of requests without one; `None` for the client's default.
    ttl: Option<Duration>,
    /// The longest TTL so far.
    pub(super) longest: Duration,
    locks: BTreeMap<u32, (usize, LockId)>,
    queries: BTreeMap<u32, (usize, OperationId)>,
    stopping: Vec<bool>,
}

impl<S: PlanServers> Runner<S> {
    /// `longest`: the TTL of the client's sessions, if it has some.
    /// `ours`: the clients are those of this library.
    pub(super) fn new(
        plan: &Plan,
        w: World<S>,
        own: S::Run,
        ours: bool,
        ttl: Option<Duration>,
        longest: Duration,
    ) -> Self {
        let stopping = vec![false; plan.setup.clients.len()];
        Self { w, own, ours, ttl, longest, locks: BTreeMap::new(), queries: BTreeMap::new(), stopping }
    }

    /// Plays the plan and returns all violations, excused or not.
    pub(super) fn run(mut self, plan: &Plan) -> (Outcome, Trace) {
        self.w.expect_violation();
        // A panic in a machine counts as a violation.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.play(plan))) {
            self.w.report(Rule::Contract, format!("panic: {}", panic_text(&panic)));
        }
        let mut w = self.w;
        let trace = w.take_trace();
        let outcome = Outcome {
            violations: w.violations().to_vec(),
            excused: Vec::new(),
            grants: w.grants(),
            handovers: w.handovers(),
            steps: w.steps(),
            network_steps: w.network_steps(),
            time: w.now().since(Instant::ZERO),
            digest: w.log_digest(),
            fingerprint: w.fingerprint(),
            log: w.log(),
            fenced: w.has_fences(),
        };
        (outcome, trace)
    }

    fn expect(&mut self, plan: &Plan) {
        self.w.expect_once();
        if let Some(provider) = &plan.setup.credentials {
            self.w.set_provider(provider.clone());
        }
        let Promises { kept, prompt } = S::promises(&self.own, plan);
        if let Some(most) = kept {
            self.w.expect_kept(most);
        }
        if let Some((trips, slack, most)) = prompt {
            self.w.expect_prompt(trips, slack, most);
        }
    }

    fn play(&mut self, plan: &Plan) {
        if plan.scenario.bounds == Bounds::Within && self.ours {
            self.expect(plan);
        }
        S::begin_plan(self, plan);
        for step in &plan.steps {
            let now = self.w.now().since(Instant::ZERO);
            self.w.run_for(step.at.saturating_sub(now));
            self.act(&step.action);
        }
        S::finish_plan(self);
    }

    /// Returns an acquisition whose application can act: its process is not paused.
    fn lock(&self, tag: u32) -> Option<(usize, LockId)> {
        self.locks.get(&tag).copied().filter(|(client, _)| self.w.is_running(*client))
    }

    fn held(&self, tag: u32) -> Option<(usize, LockId)> {
        self.lock(tag).filter(|(client, lock)| self.w.is_held(*client, *lock))
    }

    /// Returns whether the application of a client may make requests.
    fn may_request(&self, client: usize) -> bool {
        self.stopping.get(client).is_some_and(|stopping| !stopping) && self.w.is_running(client)
    }

    fn act(&mut self, action: &Action) {
        if self.w.is_halted() || action.client().is_some_and(|client| client >= self.stopping.len()) {
            return;
        }
        match action {
            Action::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every } => {
                let want = Acquire::new(name).wait(*wait).renew(*renew);
                self.request(*client, *tag, want, *ttl, |w, want| {
                    w.try_acquire(*client, want, *claim, *hold, *write_every)
                });
            }
            Action::Claim(tag) => {
                if let Some((client, lock)) = self.lock(*tag).filter(|(c, lock)| self.w.is_offered(*c, *lock)) {
                    self.w.claim(client, lock);
                }
            }
            Action::Extend(tag) => {
                if let Some((client, lock)) = self.held(*tag) {
                    self.w.extend(client, lock);
                }
            }
            Action::Release(tag) => {
                let Some((client, lock)) = self.lock(*tag) else { return };
                if matches!(self.w.stage(client, lock), Some(Stage::Offered | Stage::Held | Stage::Lost)) {
                    self.w.release(client, lock);
                }
            }
            Action::Abandon(tag) => {
                if let Some((client, lock)) = self.lock(*tag) {
                    self.w.abandon(client, lock);
                }
            }
            Action::Write(tag) => {
                if let Some((client, lock)) = self.held(*tag) {
                    self.w.write(client, lock);
                }
            }
            Action::Shutdown { client, within } => {
                if self.may_request(*client) {
                    self.stopping[*client] = true;
                    self.w.shutdown(*client, *within);
                }
            }
            Action::PauseClient(client) => self.w.pause_client(*client),
            Action::SuspendClient(client) => self.w.suspend_client(*client),
            Action::ResumeClient(client) => self.w.resume_client(*client),
            Action::KillClient(client) => self.w.kill_client(*client),
            Action::Cut { client, node, direction } => self.w.cut(*client, *node, *direction),
            Action::Heal { client, node } => self.w.heal(*client, *node),
            Action::Slow { client, node, direction, latency } => {
                self.w.slow(*client, *node, *direction, latency.clone());
            }
            Action::Stall { client, node, direction, span } => self.w.stall(*client, *node, *direction, *span),
            Action::BlockSocket { client, node, span } => self.w.block_socket(*client, *node, *span),
            Action::Source(source) => self.w.set_source(*source),
            Action::ChangePasswords(keep) => self.w.change_passwords(*keep),
            Action::Handshake { client, node, handshake } => self.w.set_handshake(*client, *node, *handshake),
            Action::Queue(QueueAction::Campaign { client, tag, name, ttl, wait, renew, claim, hold }) => {
                let want = Acquire::new(name).wait(*wait).renew(*renew);
                self.request(*client, *tag, want, *ttl, |w, want| {
                    w.try_campaign(*client, want, format!("#{tag}"), *claim, *hold)
                });
            }
            Action::Queue(QueueAction::Proclaim(tag)) => {
                if let Some((client, lock)) = self.held(*tag) {
                    let value = format!("#{tag} at {}", self.w.now());
                    self.w.proclaim(client, lock, value);
                }
            }
            Action::Queue(QueueAction::Observe { client, tag, name, always }) => {
                if self.may_request(*client) {
                    let query = if *always { self.w.observe(*client, name) } else { self.w.leader(*client, name) };
                    self.queries.insert(*tag, (*client, query));
                }
            }
            Action::Queue(QueueAction::Close(tag)) => {
                if let Some((client, query)) = self.queries.get(tag).copied()
                    && self.may_request(client)
                {
                    self.w.close_query(client, query);
                }
            }
            Action::PauseNode(_)
            | Action::ResumeNode(_)
            | Action::KillNode(_)
            | Action::RestartNode { .. }
            | Action::JumpNode { .. }
            | Action::Reset { .. }
            | Action::Queue(_)
            | Action::Redis(_)
            | Action::Etcd(_)
            | Action::Zookeeper(_)
            | Action::Register(_) => S::act_on_servers(self, action),
        }
    }

    fn request(
        &mut self,
        client: usize,
        tag: u32,
        want: Acquire,
        ttl: Option<Duration>,
        request: impl FnOnce(&mut World<S>, &Acquire) -> Result<LockId, Misuse>,
    ) {
        if !self.may_request(client) {
            return;
        }
        let mut want = want;
        if let Some(ttl) = ttl.or(self.ttl) {
            want = want.ttl(ttl);
            self.longest = self.longest.max(ttl);
        }
        match request(&mut self.w, &want) {
            Ok(lock) => _ = self.locks.insert(tag, (client, lock)),
            Err(misuse) => self.w.report(Rule::Contract, format!("client {client} cannot acquire: {misuse}")),
        }
    }
}
