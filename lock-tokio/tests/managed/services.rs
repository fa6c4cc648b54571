//! Each service's list of commands, as the rules of an ACL user or as renamed commands.

use core::time::Duration;
use std::collections::BTreeSet;

use lock_testkit::{Redis, RedisBuilder, TIMEOUT};
use lock_tokio::redis::{Config, UnknownAge};
use lock_tokio::{AcquireError, Backoff, Blocked, Client};

use crate::kit::{assert_clean, endpoint, in_time, is_waiting, ms, release, take, wait_for, wait_until_blocked, with};

/// Renewed three times within a second, so that a test sees more than one TTL pass.
const TTL: Duration = ms(900);
/// A poll interval that never expires within a test.
const NEVER: Backoff = Backoff::fixed(Duration::from_secs(300));
const SOON: Backoff = Backoff::fixed(ms(20));

// Redis 6.2 forbids whole commands only, so some rules forbid more than the service does.

/// Amazon ElastiCache without cluster mode, and MemoryDB: commands for operators.
const AMAZON: &str = "+@all -acl -bgrewriteaof -bgsave -config -debug -migrate -module -psync -replicaof -save \
                      -shutdown -slaveof -sync";
/// Google Memorystore for Valkey and for Redis: a list of what is allowed, without `CLIENT UNBLOCK`
/// and `ROLE`. Only the commands that matter here.
const MEMORYSTORE: &str = "+auth +blpop +client|getname +client|id +client|info +client|kill +client|list \
                           +client|setname +del +echo +eval +evalsha +exists +expire +get +hello +info +mget +pexpire \
                           +ping +pttl +rpush +select +set +time";
/// Redis Cloud, Redis Software, and Azure Managed Redis.
const ENTERPRISE: &str = "+@all -acl -bgrewriteaof -bgsave -client +client|caching +client|getname +client|id \
                          +client|info +client|kill +client|list +client|setname +client|unblock -config -debug \
                          -failover -migrate -module -psync -replicaof -reset -role -save -select -shutdown -slaveof \
                          -swapdb -sync";
/// Upstash: a list of what is allowed, here that of Redis 6.2. No `CLIENT`, no `INFO`, no `ROLE`.
const UPSTASH: &str = "+auth +hello +echo +ping +reset +select +@string +@list +eval +evalsha +script|exists \
                       +script|load +script|flush +copy +del +exists +expire +expireat +keys +persist +pexpire \
                       +pexpireat +pttl +rename +scan +touch +ttl +type +unlink +dbsize +flushall +flushdb +time";
/// Dragonfly has no `CLIENT UNBLOCK`, and its `INFO` has no run id.
const DRAGONFLY: &str = "+@all -client +client|caching +client|getname +client|id +client|info +client|kill \
                         +client|list +client|pause +client|setname +client|tracking -info";
/// Amazon ElastiCache Serverless: cluster mode, and few commands about connections.
const SERVERLESS: &str = "+@all -@admin -@dangerous -client +client|getname +client|reply +client|setname";
/// Oracle's OCI Cache, sharded: nothing that runs a script.
const NO_SCRIPTS: &str = "+@all -@scripting";

fn builder(rules: &str) -> RedisBuilder {
    Redis::builder().acl("app", &format!("on >secret ~* &* {rules}"))
}

/// The settings of a client with a name, by which the test finds its connections where the service
/// allows that.
fn settings(redis: &Redis, name: &str) -> Config {
    let mut at = endpoint(&redis.url_with("app", "secret"));
    at.client_name = Some(name.into());
    Config::new([at])
}

/// Holds a lock past its TTL, hands it to a waiter of another client, and shuts both down.
async fn lock_and_hand_over(holder: Client, waiter: Client) {
    let guard = take(&holder, "job:1", TTL).await;
    let mut waiting = waiter.lock("job:1").ttl(TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    let from = guard.valid_until();
    wait_for("renewals past the TTL", || guard.valid_until().duration_since(from) > TTL).await;
    assert!(guard.is_held() && !waiting.is_finished());
    // Several at once.
    let guards: Vec<_> = (0..10).map(|n| holder.lock(format!("job:many:{n}")).ttl(TTL).acquire()).collect();
    for guard in guards {
        release(in_time("acquire", guard).await.unwrap()).await;
    }
    release(guard).await;
    release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    for client in [holder, waiter] {
        assert_eq!(in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    }
}

/// The commands that were refused to the user: the names of `ACL LOG`'s entries.
fn refused_commands(redis: &Redis) -> BTreeSet<String> {
    let log = redis.cli(&["ACL", "LOG", "1000"]);
    let lines: Vec<&str> = log.lines().collect();
    let objects = lines.iter().zip(lines.iter().skip(1)).filter(|(field, _)| **field == "object");
    // Redis 6.2 logs the command without its subcommand.
    objects.map(|(_, name)| name.split('|').next().unwrap().to_ascii_lowercase()).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

async fn refusal(config: Config) -> AcquireError {
    let error = in_time("a refusal", with(config).lock("job:1").ttl(TTL).acquire()).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    error
}

/// Nothing that locks need is forbidden, so releases wake waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_for_operators_only_change_nothing() {
    for rules in [AMAZON, ENTERPRISE] {
        let redis = builder(rules).start();
        let clients = ["holder", "waiter"].map(|name| with(settings(&redis, name).poll(NEVER)));
        let [holder, waiter] = clients;
        lock_and_hand_over(holder, waiter).await;
        assert_eq!(refused_commands(&redis), names(&[]), "{rules}");
        assert_clean(&redis).await;
    }
    // Azure Cache for Redis: "unknown command" instead of a refusal.
    let renamed = ["BGREWRITEAOF", "BGSAVE", "CONFIG", "DEBUG", "MIGRATE", "SAVE", "SHUTDOWN", "SLAVEOF", "CLUSTER"];
    let redis =
        renamed.iter().fold(builder("+@all"), |redis, name| redis.arg("rename-command", format!("{name} \"\"")));
    let redis = redis.start();
    assert!(redis.cli(&["CONFIG", "GET", "port"]).contains("unknown command"));
    let [holder, waiter] = ["holder", "waiter"].map(|name| with(settings(&redis, name).poll(NEVER)));
    lock_and_hand_over(holder, waiter).await;
    assert_clean(&redis).await;
}

/// A service with a single database refuses another one by the name of the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_select_is_refused_by_name() {
    let redis = builder(ENTERPRISE).start();
    let url = format!("{}/3", redis.url_with("app", "secret"));
    let error = refusal(Config::new([endpoint(&url)])).await.to_string();
    assert!(error.contains("'select'") && !error.contains("secret"), "{error}");
    assert_eq!(redis.keys(), [""; 0]);
}

/// Releases wake waiters. A wait for other names begins when the one before has ended; until then
/// its names are polled.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_end_by_themselves_without_unblock() {
    for rules in [MEMORYSTORE, DRAGONFLY] {
        let redis = builder(rules).start();
        let [holder, waiter] = ["holder", "waiter"].map(|name| with(settings(&redis, name).poll(NEVER)));
        lock_and_hand_over(holder, waiter).await;
        let [holder, waiter] = ["holder", "waiter"].map(|name| with(settings(&redis, name).poll(SOON)));
        let guards = [take(&holder, "job:1", TTL).await, take(&holder, "job:2", TTL).await];
        let first = tokio::spawn(waiter.lock("job:1").ttl(TTL).acquire());
        wait_for("it listens", || is_waiting(&redis, "waiter")).await;
        let second = tokio::spawn(waiter.lock("job:2").ttl(TTL).acquire());
        wait_for("it tried to change the wait", || refused_commands(&redis).contains("client")).await;
        let [one, two] = guards;
        release(two).await;
        release(in_time("the second", second).await.unwrap().unwrap()).await;
        release(one).await;
        release(in_time("the first", first).await.unwrap().unwrap()).await;
        assert!(refused_commands(&redis).is_subset(&names(&["client", "info"])), "{:?}", refused_commands(&redis));
        assert_clean(&redis).await;
    }
}

/// Without `CLIENT` and `INFO` releases still wake waiters, and each new connection verifies what
/// is held.
// A7, Q6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_needs_neither_client_nor_info() {
    let redis = builder(UPSTASH).start();
    let [holder, waiter] = ["holder", "waiter"].map(|name| with(settings(&redis, name).poll(NEVER)));
    lock_and_hand_over(holder, waiter).await;
    assert_eq!(refused_commands(&redis), names(&["client", "info"]));
    assert_clean(&redis).await;
    let holder = with(settings(&redis, "holder"));
    let guard = take(&holder, "job:1", TTL).await;
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let from = guard.valid_until();
    wait_for("renewals past the TTL", || guard.valid_until().duration_since(from) > TTL).await;
    assert!(guard.is_held());
    release(guard).await;
    assert_clean(&redis).await;
}

/// A quorum must know how long each node has been up, or be told to trust it.
// Q6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_without_info_is_refused_unless_trusted() {
    for rules in [UPSTASH, DRAGONFLY] {
        let servers = [(); 3].map(|()| builder(rules).start());
        let config = || {
            let nodes = servers.iter().map(|redis| endpoint(&redis.url_with("app", "secret")));
            Config::new(nodes.collect::<Vec<_>>()).quarantine(TTL).poll(SOON)
        };
        let error = refusal(config()).await.to_string();
        assert!(error.contains("NOPERM") && error.contains("'info'"), "{error}");
        // Attempts were sent before each node refused `INFO`. Cleanup deletes their keys.
        wait_for("cleanup", || servers.iter().all(|redis| redis.keys().is_empty())).await;
        let [holder, waiter] = [(); 2].map(|()| with(config().unknown_age(UnknownAge::Trust)));
        lock_and_hand_over(holder, waiter).await;
        for redis in &servers {
            assert_clean(redis).await;
        }
    }
}

/// ElastiCache Serverless and MemoryDB are clusters.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_in_cluster_mode_are_refused_before_anything_is_taken() {
    for rules in [SERVERLESS, AMAZON] {
        let redis = builder(rules).arg("cluster-enabled", "yes").start();
        redis.serve_all_slots();
        let error = refusal(settings(&redis, "app")).await.to_string();
        assert!(error.contains("Redis Cluster is not supported"), "{error}");
        assert_eq!(redis.keys(), [""; 0]);
    }
}

/// A service that runs no scripts is refused at once. The message says which commands are needed.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_without_scripts_is_refused_by_name() {
    let forbidden = builder(NO_SCRIPTS).start();
    let renamed = ["EVAL", "EVALSHA", "SCRIPT"].iter();
    let unknown = renamed.fold(builder("+@all"), |redis, name| redis.arg("rename-command", format!("{name} \"\"")));
    let unknown = unknown.start();
    for redis in [&forbidden, &unknown] {
        let client = with(settings(redis, "app"));
        for _ in 0..2 {
            let error = in_time("a refusal", client.lock("job:1").ttl(TTL).acquire()).await.unwrap_err();
            assert!(error.is_refused(), "{error}");
            let text = error.to_string();
            // Redis 6.2 quotes unknown commands differently.
            assert!(text.to_ascii_lowercase().replace('`', "'").contains("'eval"), "{text}");
            assert!(text.contains("allow EVAL and EVALSHA"), "{text}");
        }
        let error = in_time("a refusal", client.lock("job:1").try_acquire()).await.unwrap_err();
        assert!(error.is_refused(), "{error}");
        // Also where a plain `SET` would take the lock.
        let error = refusal(settings(redis, "app").fencing(false)).await.to_string();
        assert!(error.contains("allow EVAL and EVALSHA"), "{error}");
        assert_eq!(redis.keys(), [""; 0]);
        in_time("shutdown", client.shutdown(TIMEOUT)).await;
    }
    // So is a quorum of them.
    let servers = [(); 3].map(|()| builder(NO_SCRIPTS).start());
    let nodes = servers.iter().map(|redis| endpoint(&redis.url_with("app", "secret")));
    wait_for("the quarantine is over", || servers.iter().all(|redis| uptime(redis) >= 1)).await;
    let error = refusal(Config::new(nodes.collect::<Vec<_>>()).quarantine(TTL)).await.to_string();
    assert!(error.contains("allow EVAL and EVALSHA"), "{error}");
    servers.iter().for_each(|redis| assert_eq!(redis.keys(), [""; 0]));
}

/// A command that the scripts need has another name. A retry would not find it either.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renamed_command_of_scripts_is_refused() {
    for renamed in ["GET", "SET", "TIME"] {
        let redis = Redis::builder().arg("rename-command", format!("{renamed} \"\"")).start();
        let error = refusal(Config::new([endpoint(&redis.url())])).await.to_string();
        assert!(error.contains("called from script") || error.contains("called from Lua"), "{renamed}: {error}");
        assert!(error.contains("access rules"), "{renamed}: {error}");
        assert_eq!(redis.keys(), [""; 0]);
    }
}

fn uptime(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "server"]);
    let seconds = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")).unwrap();
    seconds.trim().parse().unwrap()
}
