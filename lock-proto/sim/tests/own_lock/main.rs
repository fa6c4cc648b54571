//! Locks from outside this library in the simulated world.
// S12
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod etcd;

use core::time::Duration;

use lock_proto::redis::Client;
use lock_proto::{Acquire, Event, Instant, Loss, Release, Wait};
use lock_sim::own::search::SmallWorld;
use lock_sim::own::{Call, Context, Lost, OwnClient, OwnLock, find};
use lock_sim::redis::{Condition, RespReply, ScriptCalls, ScriptFn};
use lock_sim::scenario::{Backend, Bounds, Origin};
use lock_sim::{Keep, Plan, RedisClient, Rule, Scenario, World, scenarios};

const TAKE: u64 = 1;
const FREE: u64 = 2;
const RENEW: u64 = 3;
const FENCE: u64 = 4;
const RETRY: Duration = Duration::from_millis(20);

/// When a lock taken by this call ends, on a slow clock.
fn until(cx: &Context<'_>, call: Call) -> Instant {
    call.sent + (cx.ttl() * 98 / 100).saturating_sub(Duration::from_millis(2))
}

fn take(cx: &mut Context<'_>) {
    let ttl = cx.ttl().as_millis().to_string();
    cx.send(0, TAKE, &["SET", cx.name(), cx.token(), "NX", "PX", &ttl]);
}

/// A release by `DEL`, whoever has the lock.
#[derive(Clone, Debug, Hash)]
struct Naive;

impl OwnLock for Naive {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        take(cx);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.send(0, FREE, &["DEL", cx.name()]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (TAKE, Ok(RespReply::Ok)) => cx.grant(until(cx, call), None),
            (TAKE, _) => cx.retry(RETRY),
            _ => cx.released(Release::Released),
        }
    }
}

/// It only says that it needs several nodes.
#[derive(Clone, Debug, Hash)]
struct Quorum;

impl OwnLock for Quorum {
    const QUORUM: bool = true;

    fn acquire(&mut self, _: &mut Context<'_>) {}

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.released(Release::Released);
    }

    fn handle_reply(&mut self, _: &mut Context<'_>, _: Call, _: Result<RespReply, Lost>) {}
}

const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
                                  return 0";
const COMPARE_AND_EXPIRE: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
                                  return redis.call('pexpire', KEYS[1], ARGV[2])";

fn compare_and_delete(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    let mine = redis.call(&[b"GET", keys[0]])?.bytes() == Some(args[0]);
    if mine { redis.call(&[b"DEL", keys[0]]) } else { Ok(RespReply::Int(0)) }
}

fn compare_and_expire(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    let mine = redis.call(&[b"GET", keys[0]])?.bytes() == Some(args[0]);
    if mine { redis.call(&[b"PEXPIRE", keys[0], args[1]]) } else { Ok(RespReply::Int(0)) }
}

/// Two commands in a transaction: the lock, and a fencing token. Renewed, and released by a script.
#[derive(Clone, Debug, Hash)]
struct Careful {
    granted: Option<Call>,
    /// A flaw: the watchdog goes on after the release.
    endless: bool,
}

const CAREFUL: Careful = Careful { granted: None, endless: false };

impl Careful {
    fn renew_later(&self, cx: &mut Context<'_>) {
        cx.after(cx.ttl() / 3, RENEW);
    }
}

impl OwnLock for Careful {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        take(cx);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        if !self.endless {
            cx.cancel(RENEW);
        }
        cx.send(0, FREE, &["EVAL", COMPARE_AND_DELETE, "1", cx.name(), cx.token()]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (TAKE, Ok(RespReply::Ok)) => {
                self.granted = Some(call);
                // The lock may have ended before the counter is read.
                cx.send(0, FENCE, &["MULTI"]);
                cx.send(0, FENCE, &["GET", cx.name()]);
                cx.send(0, FENCE, &["INCR", "fences"]);
                cx.send(0, FENCE, &["EXEC"]);
            }
            (FENCE, Ok(RespReply::Array(found))) => match (found.as_slice(), self.granted) {
                ([RespReply::Bulk(token), RespReply::Int(fence)], Some(call)) if token == cx.token().as_bytes() => {
                    cx.grant(until(cx, call), Some(*fence as u64));
                    self.renew_later(cx);
                }
                _ => cx.retry(RETRY),
            },
            (FENCE, Ok(reply)) if !reply.is_error() => {}
            (TAKE | FENCE, _) => cx.retry(RETRY),
            (RENEW, Ok(RespReply::Int(1))) => {
                if cx.is_held() {
                    cx.grant(until(cx, call), None);
                }
                self.renew_later(cx);
            }
            (RENEW, Ok(RespReply::Int(_))) if self.endless => self.renew_later(cx),
            (RENEW, Ok(RespReply::Int(_))) => cx.lost(Loss::Gone),
            (RENEW, _) => self.renew_later(cx),
            (_, Ok(RespReply::Int(1))) => cx.released(Release::Released),
            (_, Ok(reply)) if !reply.is_error() => cx.released(Release::Expired),
            _ => cx.after(RETRY, FREE),
        }
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>, timer: u64) {
        if timer == FREE {
            return self.release(cx);
        }
        let ttl = cx.ttl().as_millis().to_string();
        cx.send(0, RENEW, &["EVAL", COMPARE_AND_EXPIRE, "1", cx.name(), cx.token(), &ttl]);
    }

    fn abandon(&mut self, cx: &mut Context<'_>) {
        // An attempt may be on its way.
        self.release(cx);
    }

    fn scripts(&self) -> &'static [(&'static str, ScriptFn)] {
        &[(COMPARE_AND_DELETE, compare_and_delete), (COMPARE_AND_EXPIRE, compare_and_expire)]
    }

    fn keeps(&self, key: &[u8]) -> bool {
        key == b"fences"
    }
}

/// Waits for a message of the holder in place of polling, and releases by `WATCH` and `MULTI`.
#[derive(Clone, Debug, Hash)]
struct Listening {
    subscribed: bool,
}

const CHANNEL: u64 = 5;
const WATCHED: u64 = 6;

impl OwnLock for Listening {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        if !self.subscribed {
            self.subscribed = true;
            cx.send_alone(0, CHANNEL, &["SUBSCRIBE", cx.name()]);
        }
        take(cx);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.send_alone(0, CHANNEL, &["UNSUBSCRIBE"]);
        cx.send_alone(0, FREE, &["WATCH", cx.name()]);
        cx.send_alone(0, WATCHED, &["GET", cx.name()]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (TAKE, Ok(RespReply::Ok)) => cx.grant(until(cx, call), None),
            // The holder may die silently.
            (TAKE, _) => cx.retry(cx.ttl() / 8),
            (CHANNEL, Err(Lost)) => self.subscribed = false,
            (WATCHED, Ok(reply)) if reply.bytes() == Some(cx.token().as_bytes()) => {
                cx.send_alone(0, RENEW, &["MULTI"]);
                cx.send_alone(0, RENEW, &["DEL", cx.name()]);
                cx.send_alone(0, RENEW, &["PUBLISH", cx.name(), "free"]);
                cx.send_alone(0, FENCE, &["EXEC"]);
            }
            (WATCHED | FENCE, Err(Lost) | Ok(RespReply::Error(_))) => cx.released(Release::Unknown),
            (WATCHED, Ok(_)) => cx.released(Release::Expired),
            (FENCE, Ok(RespReply::Array(_))) => cx.released(Release::Released),
            (FENCE, Ok(_)) => cx.released(Release::Expired),
            _ => {}
        }
    }

    fn handle_message(&mut self, cx: &mut Context<'_>, _: usize, message: RespReply) {
        assert_eq!(message.items().len(), 3, "{message:?}");
        if cx.is_waiting() {
            self.acquire(cx);
        }
    }
}

/// A holder is paused for longer than its TTL and then releases the next holder's lock.
fn late_release<C: RedisClient>(w: &mut World<C>) {
    let second = Duration::from_secs(1);
    let want = || Acquire::new("stock:42").ttl(2 * second);
    let first = w.acquire(0, want());
    w.expect(second, "the first holds", |w| w.is_held(0, first));
    w.pause_client(0);
    let next = w.acquire(1, want());
    w.expect(4 * second, "the second holds", |w| w.is_held(1, next));
    w.acquire(2, want());
    w.resume_client(0);
    w.release(0, first);
    w.run_for(second);
}

#[test]
fn blind_delete_is_found_by_handwritten_run() {
    // S12
    let mut naive = World::redis(1).clients(3).own_lock(Naive).build();
    naive.expect_violation();
    late_release(&mut naive);
    let found = naive.violations().iter().map(|found| found.rule).collect::<Vec<_>>();
    assert_eq!(found, [Rule::MutualExclusion], "{}", naive.log());

    let mut ours = World::redis(1).clients(3).build();
    late_release(&mut ours);
    assert!(ours.violations().is_empty());

    let mut careful = World::redis(1).clients(3).own_lock(CAREFUL).build();
    late_release(&mut careful);
    assert!(careful.violations().is_empty() && careful.node(0).calls()["exec"] >= 2);
}

#[test]
fn blind_delete_is_found_by_scenario() {
    let found = find(&Naive, "redis-pauses", 0..100, Rule::MutualExclusion).unwrap();
    assert!(found.plan.len() <= 6, "{found}");
    assert!(found.to_string().contains("BROKEN MutualExclusion"));
    assert!(found.picture().contains("Broken: one holder at a time"));
    let ours = found.plan.run_redis(Keep::Lines(200), Client::new);
    assert!(ours.violations.is_empty(), "{found}\n{ours}");
}

/// The text of the panic that this ends with.
fn panic_of(run: impl FnOnce() -> bool + core::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(run).unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

/// Regression: `find` ran nothing and found nothing.
#[test]
fn search_that_runs_nothing_panics() {
    let exclusion = Rule::MutualExclusion;
    assert_eq!(
        panic_of(|| find(&Naive, "redis-quorum", 0..10, exclusion).is_none()),
        "no seed of 0..10 draws redis-quorum with one node; it suits locks with `OwnLock::QUORUM`"
    );
    assert_eq!(
        panic_of(|| find(&Quorum, "redis-promotion", 0..10, exclusion).is_none()),
        "no seed of 0..10 draws redis-promotion with several nodes; it suits locks without `OwnLock::QUORUM`"
    );
    assert_eq!(panic_of(|| find(&Naive, "redis-pauses", 7..7, exclusion).is_none()), "there is no seed in 7..7");
    assert_eq!(
        panic_of(|| find(&Naive, "etcd-pauses", 0..10, exclusion).is_none()),
        "etcd-pauses is a scenario of etcd: use own::etcd::find"
    );
    assert_eq!(
        panic_of(|| find(&Naive, "zookeeper-pauses", 0..10, exclusion).is_none()),
        "zookeeper-pauses is a scenario of ZooKeeper, and own locks are on Redis or etcd"
    );
    let plan = || Plan::from_seed(Scenario::named("etcd-pauses").unwrap(), 0);
    assert_eq!(
        panic_of(|| plan().run_own(Keep::Nothing, Naive).fenced),
        "not a plan for Redis: etcd-pauses is a scenario of Etcd"
    );
}

/// Regression: the text named no lock, and [`Plan::replay`] replays the clients of this library.
#[test]
fn finding_says_how_to_find_it_again() {
    let found = find(&Naive, "redis-pauses", 0..100, Rule::MutualExclusion).unwrap();
    let Origin::Seed(seed) = found.plan.origin else { panic!("{found}") };
    let again = format!("again: find(&lock, \"redis-pauses\", {seed}..{}, Rule::MutualExclusion)", seed + 1);
    assert_eq!(found.to_string().lines().last(), Some(&*again), "{found}");
    let again = find(&Naive, "redis-pauses", seed..seed + 1, Rule::MutualExclusion).unwrap();
    assert_eq!(again.to_string(), found.to_string());
}

/// It makes one mistake at its end.
#[derive(Clone, Debug, Hash)]
enum Wrong {
    /// It never says that its release has ended.
    NeverReleased,
    /// It extends its TTL and does not say so.
    NeverExtended,
    /// It is granted without an end.
    Endless,
    /// Its key is not the name of the lock, and it knows that.
    Prefixed,
    /// Its key is not the name of the lock, and it says that it is released without a request.
    PrefixedAndKept,
}

impl Wrong {
    fn own_key(&self, cx: &Context<'_>) -> String {
        self.key(cx.name())
    }
}

impl OwnLock for Wrong {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        let ttl = cx.ttl().as_millis().to_string();
        let value = format!("{}/more", cx.token());
        cx.send(0, TAKE, &["SET", &self.own_key(cx), &value, "NX", "PX", &ttl]);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        if matches!(self, Self::PrefixedAndKept) {
            return cx.released(Release::Released);
        }
        let value = format!("{}/more", cx.token());
        cx.send(0, FREE, &["EVAL", COMPARE_AND_DELETE, "1", &self.own_key(cx), &value]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (TAKE, Ok(RespReply::Ok)) => {
                cx.grant(Some(until(cx, call)).filter(|_| !matches!(self, Self::Endless)), None)
            }
            (TAKE, _) => cx.retry(RETRY),
            (RENEW, _) => cx.grant(until(cx, call), None),
            _ if matches!(self, Self::NeverReleased) => {}
            (_, Ok(RespReply::Int(1))) => cx.released(Release::Released),
            (_, Ok(RespReply::Int(_))) => cx.released(Release::Expired),
            _ => cx.released(Release::Unknown),
        }
    }

    fn extend(&mut self, cx: &mut Context<'_>) {
        if !matches!(self, Self::NeverExtended) {
            return cx.extend_failed();
        }
        let ttl = cx.ttl().as_millis().to_string();
        cx.send(0, RENEW, &["PEXPIRE", &self.own_key(cx), &ttl]);
        // It renews itself, so the hold goes on.
        (1..5).for_each(|n| cx.after(cx.ttl() / 2 * n, n.into()));
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>, _: u64) {
        let ttl = cx.ttl().as_millis().to_string();
        cx.send(0, RENEW, &["PEXPIRE", &self.own_key(cx), &ttl]);
    }

    fn scripts(&self) -> &'static [(&'static str, ScriptFn)] {
        &[(COMPARE_AND_DELETE, compare_and_delete)]
    }

    fn key(&self, name: &str) -> String {
        if matches!(self, Self::Prefixed | Self::PrefixedAndKept) { format!("lock:{name}") } else { name.into() }
    }
}

/// Regression: the world said `Unknown` for the lock, and no rule was broken.
#[test]
fn release_that_never_ends_is_reported() {
    let found = find(&Wrong::NeverReleased, "redis-contention", 0..20, Rule::Notified).unwrap();
    assert!(found.to_string().contains("never called `released`, and waits for no reply"), "{found}");
    let silent = SmallWorld::new(Wrong::NeverReleased).ttl(Duration::from_millis(40)).search(20);
    let rule = silent.counterexample.unwrap().rule;
    assert!(rule.contains("never called `released`"), "{rule}");
    // With a server that does not answer, the outcome is unknown.
    let mut w = World::redis(1).own_lock(Wrong::NeverReleased).build();
    let second = Duration::from_secs(1);
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(second, "held", |w| w.is_held(0, lock));
    w.pause_node(0);
    w.release(0, lock);
    w.run_for(3 * second);
    assert_eq!(w.events(0, lock).last(), Some(&Event::Released(Release::Unknown)));
}

/// Regression: nobody waited for the end of an extension.
#[test]
fn extension_that_never_ends_is_reported() {
    for server_answers in [true, false] {
        let mut w = World::redis(1).own_lock(Wrong::NeverExtended).build();
        w.expect_violation();
        let second = Duration::from_secs(1);
        let lock = w.acquire(0, Acquire::new("a").ttl(2 * second));
        w.expect(second, "held", |w| w.is_held(0, lock));
        if !server_answers {
            w.pause_node(0);
        }
        w.extend(0, lock);
        w.run_for(3 * second);
        let found: Vec<_> = w.violations().iter().map(|found| found.rule).collect();
        assert_eq!(found, if server_answers { vec![Rule::Notified] } else { vec![] }, "{}", w.log());
    }
}

/// Regression: with a key that is not the name of the lock, strangers and checkers looked for
/// another key. A value that is more than the token was not recognised.
#[test]
fn key_of_its_own_is_known_to_the_rules() {
    for seed in 0..30 {
        let plan = Plan::from_seed(Scenario::named("redis-strangers").unwrap(), seed);
        if plan.setup.nodes.len() == 1 {
            let outcome = plan.run_own(Keep::Lines(100), Wrong::Prefixed);
            assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
        }
    }
    let found = find(&Wrong::PrefixedAndKept, "redis-contention", 0..20, Rule::TrueLoss).unwrap();
    assert!(found.to_string().contains("reports that its key is gone, and it exists: Released"), "{found}");
    let strangers = Plan::from_seed(Scenario::named("redis-strangers").unwrap(), 0);
    let log = strangers.run_own(Keep::Lines(10_000), Wrong::Prefixed).log;
    assert!(log.contains("a stranger puts"), "{log}");
}

#[test]
fn hold_without_end_is_for_ever() {
    let found = find(&Wrong::Endless, "redis-pauses", 0..100, Rule::MutualExclusion).unwrap();
    assert!(found.to_string().lines().any(|line| line.starts_with("BROKEN") && line.contains("for ever")), "{found}");
}

/// Regression: the log had requests and no replies.
#[test]
fn log_has_error_replies() {
    let mut w = World::redis(1).own_lock(Naive).build();
    w.set_condition(0, Condition::Loading, true);
    let _ = w.acquire(0, Acquire::new("a"));
    w.run_for(Duration::from_millis(20));
    assert!(w.log().lines().any(|line| line.contains("n0 to c0/c0.1: -LOADING ")), "{}", w.log());
}

/// Regression: the text was that of a list of structures.
#[test]
fn timer_that_is_left_is_named() {
    let found = find(&Careful { endless: true, ..CAREFUL }, "redis-contention", 0..20, Rule::Leftover).unwrap();
    let line = found.to_string();
    let line = line.lines().find(|line| line.starts_with("BROKEN")).unwrap();
    assert!(line.contains("s: client ") && line.contains(" has a timer at "), "{line}");
}

/// Runs of every scenario in which a single node keeps its promises.
fn runs(seeds: u64) -> impl Iterator<Item = Plan> {
    let within = |scenario: &&Scenario| scenario.backend == Backend::Redis && scenario.bounds == Bounds::Within;
    let plans =
        scenarios().iter().filter(within).flat_map(move |scenario| (0..seeds).map(move |seed| (scenario, seed)));
    plans.map(|(scenario, seed)| Plan::from_seed(scenario, seed)).filter(|plan| plan.setup.nodes.len() == 1)
}

#[test]
fn careful_lock_keeps_its_promises_in_every_scenario() {
    // S12
    let (mut grants, mut fenced) = (0, 0);
    for plan in runs(12) {
        let outcome = plan.run_own(Keep::Nothing, CAREFUL);
        assert!(outcome.violations.is_empty(), "{plan}\n{}", plan.run_own(Keep::Lines(200), CAREFUL));
        grants += outcome.grants;
        fenced += u64::from(outcome.fenced);
    }
    assert!(grants > 1_000 && fenced > 100, "{grants} grants, {fenced} runs with fencing tokens");
}

#[test]
fn lock_with_own_connections_keeps_its_promises() {
    let (mut grants, mut messages) = (0, 0);
    for plan in runs(10) {
        let outcome = plan.run_own(Keep::Lines(100), Listening { subscribed: false });
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
        grants += outcome.grants;
        messages += u64::from(outcome.log.contains("PUBLISH"));
    }
    assert!(grants > 300 && messages > 10, "{grants} grants, {messages} runs with messages");
}

/// The lock of the guide: a release by a script that compares the token.
#[derive(Clone, Debug, Hash)]
struct Compared;

impl OwnLock for Compared {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        take(cx);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.send(0, FREE, &["EVAL", COMPARE_AND_DELETE, "1", cx.name(), cx.token()]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (TAKE, Ok(RespReply::Ok)) => cx.grant(until(cx, call), None),
            (TAKE, _) => cx.retry(cx.ttl() / 2),
            (RENEW, Ok(RespReply::Int(1))) => {
                cx.grant(until(cx, call), None);
                cx.extended();
            }
            (RENEW, _) => cx.extend_failed(),
            (_, Ok(RespReply::Int(1))) => cx.released(Release::Released),
            _ => cx.released(Release::Expired),
        }
    }

    fn extend(&mut self, cx: &mut Context<'_>) {
        let ttl = cx.ttl().as_millis().to_string();
        cx.send(0, RENEW, &["EVAL", COMPARE_AND_EXPIRE, "1", cx.name(), cx.token(), &ttl]);
    }

    fn scripts(&self) -> &'static [(&'static str, ScriptFn)] {
        &[(COMPARE_AND_DELETE, compare_and_delete), (COMPARE_AND_EXPIRE, compare_and_expire)]
    }
}

#[test]
#[should_panic(expected = "a small world needs a node")]
fn small_world_without_nodes_is_refused() {
    let _ = SmallWorld::new(Naive).nodes(0);
}

#[test]
fn search_finds_blind_delete_and_nothing_in_its_repair() {
    // S12
    let naive = SmallWorld::new(Naive).ttl(Duration::from_millis(40)).acquires(2);
    let outcome = naive.search(16);
    let found = outcome.counterexample.unwrap();
    println!("{found}");
    assert_eq!(found.rule, "client 0 and client 1 both hold the lock");
    assert!(found.to_string().contains("executes DEL lock of client"), "{found}");

    let repaired = SmallWorld::new(Compared).ttl(Duration::from_millis(100)).acquires(2).pauses(1).cuts(1);
    let outcome = repaired.search(14);
    println!("{outcome}");
    assert!(outcome.to_string().ends_with(", not exhausted, no rule broken so far"), "{outcome}");
    assert!(outcome.counterexample.is_none() && outcome.states > 10_000, "{outcome}");
    assert_eq!(outcome.unreached().count(), 0, "{outcome}");

    // Without faults nothing is left to try.
    let calm = SmallWorld::new(Compared).search(usize::MAX);
    println!("{calm}");
    assert!(calm.to_string().ends_with(", nothing left, no rule broken"), "{calm}");
    assert!(calm.exhausted && calm.states > 100, "{calm}");
    let forgets = SmallWorld::new(Compared).restarts(1).search(20);
    assert_eq!(forgets.counterexample.unwrap().rule, "client 0 and client 1 both hold the lock");
}

#[test]
fn watchdog_that_outlives_its_release_is_found() {
    let endless = Careful { endless: true, ..CAREFUL };
    let found = find(&endless, "redis-contention", 0..20, Rule::Leftover).unwrap();
    assert!(found.plan.len() <= 2, "{found}");
}

#[test]
fn single_attempt_and_wait_end_without_the_lock() {
    let mut w = World::redis(1).clients(2).own_lock(CAREFUL).build();
    let second = Duration::from_secs(1);
    let first = w.acquire(0, Acquire::new("a"));
    w.expect(second, "the first holds", |w| w.is_held(0, first));
    let once = w.acquire(1, Acquire::new("a").wait(Wait::Try));
    let waits = w.acquire(1, Acquire::new("a").wait(Wait::For(second)));
    w.run_for(second / 2);
    assert!(matches!(w.events(1, once), [Event::Failed(_)]) && w.events(1, waits).is_empty());
    w.run_for(second);
    assert!(matches!(w.events(1, waits), [Event::Failed(_)]) && w.is_held(0, first));
    w.release(0, first);
    w.run_for(second);
    assert_eq!(w.events(0, first).last(), Some(&Event::Released(Release::Released)));
    assert!(w.is_quiet() && w.keys(0) == ["fences"]);
    assert!(w.machine(0).lock(first).is_none(), "nothing is remembered of it");
}

/// Regression: the check allowed 1 % of the TTL for drift, and the lock of the guide takes off 2 %.
#[test]
fn extension_may_leave_room_for_drift() {
    let mut w = World::redis(1).own_lock(Compared).build();
    let second = Duration::from_secs(1);
    let lock = w.acquire(0, Acquire::new("a").ttl(2 * second));
    w.expect(second, "held", |w| w.is_held(0, lock));
    w.run_for(second);
    w.extend(0, lock);
    w.run_for(second / 2);
    assert_eq!(w.events(0, lock).last(), Some(&Event::Extended));
    w.run_for(second);
    assert!(w.is_held(0, lock));
}

#[test]
fn guard_that_nobody_takes_is_released() {
    // The wait ends while the reply with the grant is on its way.
    let late = Duration::from_millis(50)..Duration::from_millis(60);
    let mut w = World::redis(1).clients(1).latency(late).own_lock(Naive).build();
    let lock = w.acquire(0, Acquire::new("a").wait(Wait::For(Duration::from_millis(195))));
    w.run_for(Duration::from_millis(190));
    assert!(w.get(0, "a").is_some() && w.events(0, lock).is_empty());
    w.run_for(Duration::from_secs(1));
    assert!(matches!(w.events(0, lock), [Event::Failed(_)]) && w.keys(0).is_empty());
}

#[test]
fn shutdown_releases_held_locks() {
    let mut w = World::redis(1).clients(2).own_lock(CAREFUL).build();
    let second = Duration::from_secs(1);
    let held = w.acquire(0, Acquire::new("a"));
    w.expect(second, "it holds", |w| w.is_held(0, held));
    let waits = w.acquire(0, Acquire::new("a"));
    w.shutdown(0, second);
    w.run_for(second);
    assert_eq!(w.stopped(0), Some(0));
    assert_eq!(w.events(0, held).last(), Some(&Event::Released(Release::Released)));
    assert!(matches!(w.events(0, waits), [Event::Failed(_)]));
    assert_eq!(w.keys(0), ["fences"]);

    // A server that does not answer.
    let held = w.acquire(1, Acquire::new("a"));
    w.expect(second, "it holds", |w| w.is_held(1, held));
    w.pause_node(0);
    w.shutdown(1, second);
    w.run_for(2 * second);
    assert_eq!((w.stopped(1), w.events(1, held).last()), (Some(1), Some(&Event::Released(Release::Unknown))));
}

#[test]
fn clients_of_own_locks_are_values() {
    let world = World::redis(1).clients(2).own_lock(CAREFUL).build();
    let client: &OwnClient<Careful> = world.machine(0);
    assert_eq!(format!("{:?}", client.clone()), format!("{client:?}"));
}
