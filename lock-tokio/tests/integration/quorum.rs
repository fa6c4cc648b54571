//! Several servers, some of which are dead, silent, new, or identical.

use core::time::Duration;

use lock_testkit::Redis;
use lock_tokio::redis::{Config, UnknownAge};
use lock_tokio::{AcquireErrorKind, Answer, Loss};
use tokio::time::timeout;

use crate::kit::{
    LONG_TTL, assert_clean, endpoint, exists, in_time, ms, release, take, timed_out, tried_in_vain, wait_for, with,
};

/// Servers that hide their uptime, for clients that trust them. They can grant at once.
pub(crate) fn start_without_uptime(count: usize) -> Vec<Redis> {
    (0..count).map(|_| Redis::builder().acl("trusted", "on >secret ~* +@all -info").start()).collect()
}

/// Returns the settings of a client of [`start_without_uptime`] servers.
pub(crate) fn quorum(servers: &[Redis]) -> Config {
    let nodes: Vec<_> = servers.iter().map(|redis| endpoint(&redis.url_with("trusted", "secret"))).collect();
    Config::new(nodes).quarantine(LONG_TTL).unknown_age(UnknownAge::Trust)
}

fn plain_quorum(servers: &[Redis], quarantine: Duration) -> Config {
    Config::new(servers.iter().map(|redis| endpoint(&redis.url())).collect::<Vec<_>>()).quarantine(quarantine)
}

fn count(servers: &[Redis], key: &str) -> usize {
    servers.iter().filter(|redis| exists(redis, key)).count()
}

/// A quorum of five works with two dead nodes, but not with three. The report has every node.
// Q1, Q4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_of_five_tolerates_two_dead_nodes_not_three() {
    let mut servers = start_without_uptime(5);
    let client = with(quorum(&servers));
    servers[1].kill();
    servers[4].kill();
    let guard = take(&client, "a", ms(900)).await;
    assert!(guard.fence().is_none(), "requirement A9: a quorum has no fencing token");
    let before = guard.valid_until();
    wait_for("it is renewed", || guard.valid_until() > before).await;
    release(guard).await;

    let held = take(&client, "held", ms(900)).await;
    servers[2].kill();
    assert_eq!(in_time("loss", held.lost()).await, Loss::Expired);
    let report = timed_out(in_time("a wait", client.lock("a").ttl(LONG_TTL).wait(ms(700)).acquire()).await);
    let dead = |answer: &Answer| matches!(answer, Answer::Unreachable(_) | Answer::Unknown(_));
    let expected = [false, true, true, false, true];
    assert_eq!(report.nodes.iter().map(dead).collect::<Vec<_>>(), expected, "{report}");
    assert!(!report.is_busy(), "{report}");
    let text = report.to_string();
    assert!((0..5).all(|node| text.contains(&format!("node {node}: "))), "{text}");
    assert!(text.contains("refused the connection"), "{text}");
    drop(held);
    for alive in [0, 3] {
        assert_clean(&servers[alive]).await;
    }
    // The third one restarts, which makes a majority.
    servers[2].restart();
    release(take(&client, "a", LONG_TTL).await).await;
}

/// A silent minority delays no client, and its grants are released when it resumes.
// Q1, A3, A4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_paused_minority_are_released_on_resume() {
    let servers = start_without_uptime(5);
    let client = with(quorum(&servers));
    release(take(&client, "warm", LONG_TTL).await).await;
    servers[0].pause();
    servers[3].pause();
    let held = take(&client, "held", LONG_TTL).await;
    release(take(&client, "a", LONG_TTL).await).await;
    for redis in [&servers[0], &servers[3]] {
        redis.resume();
        wait_for("the released keys are gone", || !exists(redis, "a")).await;
        assert!(held.is_held());
    }
    release(held).await;
    for redis in &servers {
        assert_clean(redis).await;
    }
}

/// A node that lost its data gets the token again while a majority confirms it, then counts.
// Q3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_restarted_empty_is_seeded_again() {
    let mut servers = start_without_uptime(3);
    let client = with(quorum(&servers));
    let ttl = ms(1500);
    let guard = take(&client, "a", ttl).await;
    servers[0].restart_empty();
    wait_for("it is seeded", || servers[0].cli(&["GET", "a"]) == guard.token().to_string()).await;
    assert!(guard.is_held());
    // It counts in place of another one.
    servers[1].kill();
    let before = guard.valid_until();
    wait_for("the other two renew it", || guard.valid_until() > before && guard.remaining() > ttl / 2).await;
    wait_for("for longer than a TTL", || guard.valid_until().duration_since(before) > ttl).await;
    assert!(guard.is_held());
    release(guard).await;
    assert_clean(&servers[0]).await;
    assert_clean(&servers[2]).await;
}

/// Without a majority the token is not written again, and the holder is notified.
// Q3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_not_seeded_again_after_all_nodes_are_flushed() {
    let mut servers = start_without_uptime(3);
    let client = with(quorum(&servers));
    let guard = take(&client, "a", ms(1500)).await;
    servers[0].restart_empty();
    wait_for("the first is seeded", || exists(&servers[0], "a")).await;
    for redis in &servers {
        redis.cli(&["FLUSHALL"]);
    }
    assert_eq!(in_time("loss", guard.lost()).await, Loss::Gone);
    assert_eq!(count(&servers, "a"), 0, "requirement H1");
    drop(guard);
}

/// Nodes that restarted empty form no second majority before the longest TTL has passed.
// Q6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_restarted_empty_form_no_second_majority() {
    let mut servers = Redis::start_many(3);
    let quarantine = Duration::from_secs(2);
    let (holder, other) = (with(plain_quorum(&servers, quarantine)), with(plain_quorum(&servers, quarantine)));
    // The servers are new themselves.
    let report = tried_in_vain(in_time("a try", holder.lock("a").ttl(quarantine).try_acquire()).await);
    assert!(report.nodes.contains(&Answer::RecentlyRestarted), "{report}");
    let guard = take(&holder, "a", quarantine).await;
    let observer = guard.observer();
    let start = std::time::Instant::now();
    servers[0].restart_empty();
    servers[2].restart_empty();
    // Two of three have lost their data. The holder may still believe in its lock, or even have it.
    loop {
        let report = tried_in_vain(in_time("a try", other.lock("a").ttl(quarantine).try_acquire()).await);
        assert!(!report.nodes.contains(&Answer::Granted), "{report}");
        // The first tries may be sent before this client has seen the restarts, and be rejected by
        // the holder's token. On a busy machine the restarts may take as long as the quarantine.
        if report.nodes.contains(&Answer::RecentlyRestarted) || start.elapsed() > quarantine {
            break;
        }
    }
    let second = match timeout(3 * quarantine, other.lock("a").ttl(quarantine).acquire()).await {
        Ok(second) => {
            assert!(!observer.is_held(), "two hold it");
            drop(guard);
            second.unwrap()
        }
        // It renewed between the restarts: the first server got its key again, so a majority had
        // it.
        Err(_) => {
            assert!(observer.is_held(), "it is free");
            release(guard).await;
            take(&other, "a", quarantine).await
        }
    };
    release(second).await;
    for redis in &servers {
        assert_clean(redis).await;
    }
}

/// A node without permission for INFO is reported, or trusted by configuration.
// Q6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_unknown_age_are_refused_or_trusted() {
    let servers = start_without_uptime(3);
    let refusing = with(quorum(&servers).unknown_age(UnknownAge::Refuse));
    let error = in_time("a refusal", refusing.lock("a").acquire()).await.unwrap_err();
    let AcquireErrorKind::Refused(report) = error.kind() else { panic!("{error}") };
    // Decided as soon as no majority is left.
    let rejected = report.nodes.iter().filter(|answer| matches!(answer, Answer::Rejected(_))).count();
    assert!(rejected >= 2, "{report}");
    assert!(report.to_string().contains("info"), "{report}");
    // A grant of a node whose identity was still unknown is released in the background.
    wait_for("nothing is left", || count(&servers, "a") == 0).await;
    release(take(&with(quorum(&servers)), "a", LONG_TTL).await).await;
}

/// One server with two addresses counts as one.
// Q6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_under_two_names_is_refused() {
    let servers = Redis::start_many(2);
    let twin = format!("redis://localhost:{}", servers[0].port());
    let client = lock_tokio::connect_quorum([servers[0].url(), servers[1].url(), twin]).unwrap();
    let error = in_time("a refusal", client.lock("a").acquire()).await.unwrap_err();
    let AcquireErrorKind::EqualNodes(a, b) = error.kind() else { panic!("{error}") };
    let mut nodes = [a.index(), b.index()];
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 2], "{error}");
    assert!(error.to_string().contains("same server"), "{error}");
    // Later acquisitions fail as well, and nothing is left.
    let again = in_time("a refusal", client.lock("b").acquire()).await.unwrap_err();
    assert!(matches!(again.kind(), AcquireErrorKind::EqualNodes(..)) && again.is_refused(), "{again}");
    let ping = in_time("a refusal", client.ping()).await.unwrap_err();
    assert!(matches!(ping.kind(), AcquireErrorKind::EqualNodes(..)), "{ping}");
    for redis in &servers {
        assert_clean(redis).await;
    }
}
