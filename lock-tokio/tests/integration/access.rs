//! Passwords and ACLs: the commands and keys that a client needs, or can do without.

use lock_testkit::Redis;
use lock_tokio::redis::{Config, WAITING_SUFFIX, Wake};
use lock_tokio::{AcquireError, Backoff, Client, Guard, Release};

use crate::kit::{LONG_TTL, assert_clean, client, endpoint, exists, in_time, ms, release, take, wait_for, with};

/// Commands that every lock needs.
const NEEDED: [&str; 8] = ["eval", "evalsha", "get", "set", "pttl", "pexpire", "del", "time"];
/// Commands that wake waiters at a release.
const WAKING: [&str; 2] = ["exists", "rpush"];
/// Detects whether a new connection leads to the same server.
const COMPARING: [&str; 1] = ["info"];
/// Commands of a waiter.
const WAITING: [&str; 3] = ["blpop", "client|id", "client|unblock"];

/// Creates a user with these keys and commands only.
fn user(redis: &Redis, keys: &[&str], commands: &[&str]) -> Config {
    let mut rule: Vec<String> = ["ACL", "SETUSER", "app", "reset", "on", ">secret"].map(str::to_owned).to_vec();
    rule.extend(keys.iter().map(|key| format!("~{key}")));
    rule.extend(commands.iter().map(|command| format!("+{command}")));
    assert_eq!(redis.command(&rule).to_string(), "OK");
    redis.cli(&["ACL", "LOG", "RESET"]);
    Config::new([endpoint(&redis.url_with("app", "secret"))]).poll(Backoff::fixed(ms(20))).release_within(ms(300))
}

/// Waits for a lock of another client, then uses it. Returns the first error.
async fn use_all(redis: &Redis, ours: &Client, name: &str) -> Result<(), String> {
    let other = client(redis);
    let guard = take(&other, name, LONG_TTL).await;
    let mut waiting = ours.lock(name).ttl(LONG_TTL).acquire();
    // Long enough for a rejection or for all kinds of waiting.
    if let Ok(refused) = tokio::time::timeout(ms(150), &mut waiting).await {
        release(guard).await;
        return Err(format!("acquire: {}", refused.unwrap_err()));
    }
    release(guard).await;
    use_guard(in_time("the lock", waiting).await).await
}

/// Acquires a free lock, and uses it. Returns the first error.
async fn use_free(ours: &Client, name: &str) -> Result<(), String> {
    use_guard(in_time("a free lock", ours.lock(name).ttl(LONG_TTL).acquire()).await).await
}

/// Extends a lock twice and releases it. Returns the first error.
async fn use_guard(acquired: Result<Guard, AcquireError>) -> Result<(), String> {
    let guard = acquired.map_err(|error| format!("acquire: {error}"))?;
    tokio::time::sleep(ms(2)).await;
    let extended = async {
        guard.extend().await?;
        guard.extend().await
    };
    let extended = in_time("extend", extended).await.map_err(|error| format!("extend: {error}"));
    let released = in_time("release", guard.release()).await;
    extended?;
    if released == Release::Released { Ok(()) } else { Err(format!("release: {released:?}")) }
}

fn acl_log(redis: &Redis) -> String {
    redis.cli(&["ACL", "LOG"])
}

/// The documented ACL rules are sufficient for everything that a client does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_acl_rules_are_sufficient() {
    let redis = Redis::start();
    let all = [&NEEDED[..], &WAKING, &WAITING, &COMPARING].concat();
    let ours = with(user(&redis, &["job:*", "lock-proto:fence"], &all));
    use_all(&redis, &ours, "job:1").await.unwrap();
    assert_eq!(acl_log(&redis), "");
    // With a prefix one pattern covers the counter as well.
    let ours = with(user(&redis, &["app:*"], &all).prefix("app:"));
    release(take(&ours, "1", LONG_TTL).await).await;
    assert_eq!(acl_log(&redis), "");
    // Without wake-ups.
    let ours = with(user(&redis, &["job:*", "lock-proto:fence"], &NEEDED).wake(Wake::Poll));
    use_all(&redis, &ours, "job:1").await.unwrap();
    // With the lock's key only.
    let some = [&NEEDED[..], &COMPARING].concat();
    let ours = with(user(&redis, &["job:1"], &some).wake(Wake::Poll).fencing(false));
    use_all(&redis, &ours, "job:1").await.unwrap();
    assert_eq!(acl_log(&redis), "");
    // Without fencing tokens.
    let fewer: Vec<_> = all.iter().copied().filter(|command| *command != "time").collect();
    let ours = with(user(&redis, &["job:*"], &fewer).fencing(false));
    use_all(&redis, &ours, "job:1").await.unwrap();
    assert_eq!(acl_log(&redis), "");
    // A quorum reads the uptime of its nodes.
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    servers.iter().for_each(|redis| drop(user(redis, &["job:*"], &fewer)));
    let nodes = servers.iter().map(|redis| endpoint(&redis.url_with("app", "secret")));
    let ours = with(Config::new(nodes.collect::<Vec<_>>()).quarantine(ms(1000)));
    release(take(&ours, "job:1", ms(1000)).await).await;
    servers.iter().for_each(|redis| assert_eq!(acl_log(redis), ""));
    assert_clean(&redis).await;
}

/// Each of these commands is needed. A missing permission is reported with the server's message.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_required_command_is_reported() {
    for missing in NEEDED {
        let redis = Redis::start();
        let some: Vec<_> = [&NEEDED[..], &WAKING, &WAITING].concat().into_iter().filter(|c| *c != missing).collect();
        let config = user(&redis, &["job:*", "lock-proto:fence"], &some);
        let refused = "acquire: lock \"job:";
        // The first use of a script on a connection sends its source, by `EVAL`.
        let (free, held) = match missing {
            "pexpire" => ("extend: ", "extend: "),
            "del" => ("release: Unknown", "release: Unknown"),
            "evalsha" | "pttl" => ("extend: ", refused),
            _ => (refused, refused),
        };
        let of_free = use_free(&with(config.clone()), "job:2").await.unwrap_err();
        let of_held = use_all(&redis, &with(config), "job:1").await.unwrap_err();
        for (error, expected) in [(of_free, free), (of_held, held)] {
            assert!(error.starts_with(expected), "without {missing}: {error}");
            let said =
                ["NOPERM", "can't run this command", "no permissions to run"].iter().any(|text| error.contains(text));
            assert!(missing == "del" || said, "{error}");
        }
    }
}

/// Without the wake-up commands the client polls.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_polls_without_wake_up_commands() {
    for missing in [&WAKING[..], &WAITING].concat() {
        let redis = Redis::start();
        let some: Vec<_> = [&NEEDED[..], &WAKING, &WAITING].concat().into_iter().filter(|c| *c != missing).collect();
        let ours = with(user(&redis, &["job:*", "lock-proto:fence"], &some));
        for round in 0..3 {
            let done = use_all(&redis, &ours, &format!("job:{}", round % 2)).await;
            assert_eq!(done, Ok(()), "without {missing}");
        }
        assert_clean(&redis).await;
    }
}

/// Both clients may use the side keys of some names only. Those of the others cost a wake-up of no
/// other name.
// A7, U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_side_keys_do_not_disturb_other_names() {
    let redis = Redis::start();
    let all = [&NEEDED[..], &WAKING, &WAITING, &COMPARING].concat();
    let never = Backoff::fixed(core::time::Duration::from_secs(300));
    let config = user(&redis, &["good*", "bad?", "lock-proto:fence"], &all).poll(never);
    let [ours, theirs] = [(); 2].map(|()| with(config.clone()));
    let guards = [take(&theirs, "bad1", LONG_TTL).await, take(&theirs, "good1", LONG_TTL).await];
    let second = take(&theirs, "good2", LONG_TTL).await;
    let [bad, good, last] =
        ["bad1", "good1", "good2"].map(|name| tokio::spawn(ours.lock(name).ttl(LONG_TTL).acquire()));
    let marked = |name: &str| exists(&redis, &format!("{name}{WAITING_SUFFIX}"));
    wait_for("they listen", || marked("good1") && marked("good2")).await;
    // The announcement of the first one is refused.
    for guard in guards {
        release(guard).await;
    }
    release(in_time("the lock", good).await.unwrap().unwrap()).await;
    release(second).await;
    release(in_time("the lock", last).await.unwrap().unwrap()).await;
    bad.abort();
    assert_clean(&redis).await;
}

/// A user without access to the fence counter leaves nothing behind, and can disable fencing.
// A1, A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_fence_counter_is_refused_unless_fencing_is_off() {
    let redis = Redis::start();
    let all = [&NEEDED[..], &WAKING, &WAITING].concat();
    let config = user(&redis, &["job:*"], &all);
    let error = in_time("a refusal", with(config.clone()).lock("job:1").acquire()).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(error.to_string().contains("NOPERM"), "{error}");
    assert!(!exists(&redis, "job:1"));
    let ours = with(config.fencing(false));
    use_all(&redis, &ours, "job:1").await.unwrap();
    // No other name is allowed, either.
    let error = in_time("a refusal", ours.lock("elsewhere").acquire()).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert_clean(&redis).await;
}

/// Revoked permissions end a wait; once restored, the lock can be acquired.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_login_ends_wait_and_restored_login_locks_again() {
    let redis = Redis::builder().password("first").start();
    let ours = client(&redis);
    let guard = take(&ours, "a", LONG_TTL).await;
    let other = client(&redis);
    let waiting = tokio::spawn(other.lock("a").ttl(LONG_TTL).acquire());
    let mut operator = redis.connect();
    // The password changes: open connections stay, new ones are rejected.
    operator.command(&["CONFIG", "SET", "requirepass", "second"]).unwrap();
    assert!(guard.is_held());
    operator.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let error = in_time("a refusal", waiting).await.unwrap().unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(error.to_string().contains("WRONGPASS") && !error.to_string().contains("first"), "{error}");
    operator.command(&["CONFIG", "SET", "requirepass", "first"]).unwrap();
    release(guard).await;
    // The client keeps reporting the old error until it has tried again.
    let mut refused = 0;
    let next = loop {
        match in_time("acquire", other.lock("a").ttl(LONG_TTL).acquire()).await {
            Ok(guard) => break guard,
            Err(error) if error.is_refused() && refused < 1000 => refused += 1,
            Err(error) => panic!("after {refused} refusals: {error}"),
        }
        tokio::time::sleep(ms(10)).await;
    };
    release(next).await;
    assert_clean(&redis).await;
}

/// A lock in a separate database.
// P1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_are_isolated() {
    let redis = Redis::start();
    let guard = take(&with(Config::new([endpoint(&format!("{}/3", redis.url()))])), "a", LONG_TTL).await;
    // The same name in another database is a different lock.
    release(take(&client(&redis), "a", LONG_TTL).await).await;
    let mut third = redis.connect();
    third.command(&["SELECT", "3"]).unwrap();
    assert_eq!(third.command(&["GET", "a"]).unwrap().to_string(), guard.token().to_string());
    release(guard).await;
    let missing = with(Config::new([endpoint(&format!("{}/99", redis.url()))]));
    let error = in_time("a refusal", missing.lock("a").acquire()).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
}

/// Servers in cluster mode are rejected with a clear error before anything is taken.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster_is_refused_without_leaving_keys() {
    for served in [true, false] {
        let start = || Redis::builder().arg("cluster-enabled", "yes").start();
        let servers = [start(), start(), start()];
        if served {
            for redis in &servers {
                redis.serve_all_slots();
            }
        }
        let at = |count: usize, protocol: &str| {
            let nodes = servers.iter().take(count).map(|redis| endpoint(&format!("{}{protocol}", redis.url())));
            Config::new(nodes.collect::<Vec<_>>())
        };
        let resp3 = "?protocol=resp3";
        for config in [at(3, ""), at(3, resp3), at(1, resp3), at(1, resp3).fencing(false)] {
            let error = in_time("a refusal", with(config).lock("job:1").acquire()).await.unwrap_err();
            assert!(error.is_refused(), "{error}");
            assert!(error.to_string().contains("cluster (Redis Cluster is not supported)"), "{error}");
            servers.iter().for_each(|redis| assert_eq!(redis.keys(), [""; 0]));
        }
        if served {
            // The fence counter is in another slot, which the server checks before execution.
            let error = in_time("a refusal", with(at(1, "")).lock("job:1").acquire()).await.unwrap_err();
            assert!(error.to_string().contains("(Redis Cluster is not supported)"), "{error}");
            assert_eq!(servers[0].keys(), [""; 0]);
            // A single-node cluster serves single-key requests, and releases are fast.
            let ours = with(at(1, "").fencing(false).release_within(LONG_TTL));
            release(take(&ours, "job:1", LONG_TTL).await).await;
            assert_eq!(servers[0].keys(), [""; 0]);
        }
    }
}

/// A user with access to the locks' own keys only can release, even in a batch, and poll.
// U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_to_lock_keys_alone_is_sufficient() {
    let redis = Redis::start();
    let all = [&NEEDED[..], &WAKING, &WAITING].concat();
    let few = ["eval", "evalsha", "get", "set", "pttl", "pexpire", "del"];
    for (keys, commands) in [(&["job:1", "job:2"][..], &all[..]), (&["job:*"], &few)] {
        let config = user(&redis, keys, commands).fencing(false).release_within(LONG_TTL);
        let ours = with(config);
        use_all(&redis, &ours, "job:1").await.unwrap();
        let (one, two) = (take(&ours, "job:1", LONG_TTL).await, take(&ours, "job:2", LONG_TTL).await);
        let (one, two) = in_time("two releases", async { tokio::join!(one.release(), two.release()) }).await;
        assert_eq!((one, two), (Release::Released, Release::Released));
        assert_clean(&redis).await;
    }
}
