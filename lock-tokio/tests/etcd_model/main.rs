//! Compares the simulated cluster with a real etcd: both get the same generated calls, and every
//! reply, watch message and error must match.
// S1
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod codec;
mod generate;
mod pair;
mod real;
mod special;

use lock_sim::etcd::{ClusterConfig, User};
use lock_testkit::Etcd;
use pair::Pair;

/// Number of seeds. For more: `ETCD_MODEL_SEEDS=100 cargo test -p lock-tokio --test etcd_model`
fn seeds() -> u64 {
    std::env::var("ETCD_MODEL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[test]
fn model_matches_etcd_on_generated_steps() {
    for seed in 1..=seeds() {
        let mut pair = Pair::new(ClusterConfig::new(1, seed), Etcd::start());
        pair.open_streams();
        let mut generator = pair.generator(seed);
        pair.run(&mut generator, 1_500);
        assert!(pair.messages > 500, "only {} messages of watches", pair.messages);
    }
}

#[test]
fn model_matches_etcd_with_users() {
    for seed in 1..=seeds() {
        let server = Etcd::start();
        for line in [
            "user add root:rpw",
            "role add root",
            "user grant-role root root",
            "role add app",
            "role grant-permission app readwrite lock/ lock0",
            "role grant-permission app readwrite k k2",
            "role grant-permission app read k2 l",
            "role grant-permission app write m n",
            "user add app:pw",
            "user grant-role app app",
            "user add nobody:pw",
            "auth enable",
        ] {
            server.etcdctl(&line.split(' ').collect::<Vec<_>>());
        }
        let app = User::new("app", "pw").read_write("lock/").read_write("k0").read_write("k1").read("k").write("m");
        let config =
            ClusterConfig::new(1, seed).user(User::new("root", "rpw").root()).user(app).user(User::new("nobody", "pw"));
        let mut pair = Pair::new(config, server);
        pair.add_invalid_user();
        pair.log_in("nobody", "pw");
        pair.log_in("app", "pw");
        pair.log_in("app", "pw");
        pair.log_in("root", "rpw");
        pair.open_streams();
        let mut generator = pair.generator(seed + 1_000);
        pair.run(&mut generator, 1_500);
    }
}
