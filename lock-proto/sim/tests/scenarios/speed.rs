//! Speed of the simulation: `cargo test --release -p lock-sim --test scenarios --
//! --ignored speed --nocapture`.
//!
//! Budgets on one core: a million machine steps a second, twenty thousand short scenarios a minute.
//! A step is one input of a client or server; the second figure includes the network.

use core::time::Duration;
use std::time::Instant;

use lock_proto::redis::Wake;
use lock_proto::{Backoff, Renew, Wait};
use lock_sim::scenario::{Action, Pace, Step, StoreSetup};
use lock_sim::{Direction, Keep, Plan, Scenario};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Three clients, three nodes, sixty seconds, twenty requests for one lock, with faults.
fn short_plan(seed: u64) -> Plan {
    let mut plan = Plan::from_seed(Scenario::named("redis-contention").unwrap(), seed);
    plan.setup.clients = vec![Pace::default(); 3];
    plan.setup.nodes = vec![Pace::default(); 3];
    plan.setup.latency = ms(1)..ms(5);
    let StoreSetup::Redis(store) = &mut plan.setup.store else { unreachable!("a plan for Redis") };
    (store.ttl, store.round) = (Duration::from_secs(5), ms(50));
    (store.poll, store.wake) = (Backoff::fixed(ms(50)), Wake::Notify);
    let acquire = |tag: u32| Action::Acquire {
        client: tag as usize % 3,
        tag,
        name: "a",
        ttl: None,
        wait: Wait::Forever,
        renew: Renew::Auto,
        claim: Some(Duration::ZERO),
        hold: Some(ms(1_500)),
        write_every: None,
    };
    let mut steps: Vec<Step> = (0..20).map(|i| Step { at: ms(u64::from(i) * 2_900), action: acquire(i) }).collect();
    for (i, action) in [
        Action::Reset { client: 0, node: 1 },
        Action::Cut { client: 1, node: 2, direction: Direction::ToNode },
        Action::Heal { client: 1, node: 2 },
        Action::PauseClient(2),
        Action::ResumeClient(2),
        Action::KillNode(0),
        Action::RestartNode { node: 0, keep_data: true },
    ]
    .into_iter()
    .enumerate()
    {
        steps.push(Step { at: ms(i as u64 * 7_000 + 5_000), action });
    }
    steps.sort_by_key(|step| step.at);
    plan.steps = steps;
    plan
}

#[test]
#[ignore = "measures, and means nothing without --release"]
fn speed() {
    let measure = |what: &str, count: u64, plan: &dyn Fn(u64) -> Plan| {
        let (began, mut steps, mut all, mut grants, mut time) = (Instant::now(), 0, 0, 0, 0.0);
        for seed in 0..count {
            let outcome = plan(seed).run_keeping(Keep::Nothing);
            assert!(outcome.violations.is_empty(), "seed {seed}: {outcome}");
            all += outcome.steps + outcome.network_steps;
            (steps, grants, time) = (steps + outcome.steps, grants + outcome.grants, time + outcome.time.as_secs_f64());
        }
        let took = began.elapsed().as_secs_f64();
        println!(
            "{what}: {count} runs, {grants} grants, {:.0} s simulated each; {:.0} steps/s, {:.0} with the network's, {:.0} runs a minute",
            time / count as f64,
            steps as f64 / took,
            all as f64 / took,
            count as f64 * 60.0 / took
        );
    };
    measure("short scenarios", 1_000, &short_plan);
    let scenario = Scenario::named("redis-everything").unwrap();
    measure("everything", 1_000, &|seed| Plan::from_seed(scenario, seed));
}
