//! Scenarios on Redis.

use core::cell::{Cell, RefCell};
use core::future::{pending, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::io;
use std::path::Path;
use std::time::Instant;

use lock_driver::{AcquireErrorKind, Client, ExtendError, Guard, Host as _, OwnerKeyError, OwnerKeyExt as _, Shutdown};
use lock_proto::redis::{Config, Endpoint, Protocol};
use lock_proto::{Answer, Loss, Release, Renew, Target};
use lock_testkit::{Redis, TIMEOUT, Value};

pub use crate::addresses::{host_name_is_resolved_by_system_resolver, replica_at_first_address_is_skipped};
use crate::kit::SLACK;
use crate::{Kit, Runtime};

const TTL: Duration = Duration::from_secs(2);

async fn take<R: Runtime>(kit: &Kit<R>, client: &Client, name: &str) -> Guard {
    kit.in_time("acquire", client.lock(name).ttl(TTL).acquire()).await.unwrap()
}

fn exists(redis: &Redis, key: &str) -> bool {
    redis.cli(&["EXISTS", key]) == "1"
}

pub async fn acquire_sets_key_and_release_deletes_it<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    let guard = take(&kit, &client, "a").await;
    assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string());
    let Value::Int(left) = redis.command(&["PTTL", "a"]) else { panic!("no PTTL") };
    assert!(left > 0 && left <= 2000, "{left}");
    assert!(guard.is_held() && guard.remaining() <= TTL);
    let fence = guard.fence().unwrap();
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Released);
    assert!(!exists(&redis, "a"));
    assert!(take(&kit, &client, "a").await.fence().unwrap() > fence);
}

pub async fn dropped_guard_releases_lock<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    drop(take(&kit, &client, "a").await);
    kit.wait_for("the key is gone", || !exists(&redis, "a")).await;
    // Dropping the last guard shuts the client down, after a release.
    let guard = take(&kit, &client, "b").await;
    drop(client);
    assert!(guard.is_held());
    drop(guard);
    kit.wait_for("the key is gone", || !exists(&redis, "b")).await;
    kit.wait_for("the connections are closed", || redis.cli(&["CLIENT", "LIST"]).lines().count() == 1).await;
}

pub async fn waiter_of_other_client_acquires_after_release<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let (first, second) = (kit.client(&redis.url()), kit.client(&redis.url()));
    let guard = take(&kit, &first, "a").await;
    let lock = second.lock("a");
    let mut waiting = pin!(lock.acquire());
    kit.still_waits(Duration::from_millis(200), waiting.as_mut()).await;
    let released = kit.in_time("release", guard.release()).await;
    assert_eq!(released, Release::Released);
    let guard = kit.in_time("the next holder", waiting).await.unwrap();
    assert!(guard.is_held());
}

pub async fn try_reports_busy_and_wait_times_out<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
    let client = kit.client(&redis.url());
    let error = kit.in_time("one attempt", client.lock("a").try_acquire()).await.unwrap_err();
    assert!(error.is_busy() && !error.is_unreachable(), "{error}");
    let start = Instant::now();
    let error = kit.in_time("a wait", client.lock("a").wait(Duration::from_millis(300)).acquire()).await.unwrap_err();
    let AcquireErrorKind::TimedOut(report) = error.kind() else { panic!("{error}") };
    assert!(matches!(&*report.nodes, [Answer::Taken(_)]), "{report}");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(redis.cli(&["GET", "a"]), "somebody");
}

/// The end of a connection is seen at once. A stream that hides it makes the next request wait for
/// its timeout.
pub async fn ended_connection_is_replaced_at_once<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let long = TIMEOUT * 10;
    let config = Config::parse(&redis.url()).unwrap().request_timeout(long).ping_after(long);
    let client = kit.with(config);
    let lock = client.lock("a").ttl(long * 10);
    for _ in 0..3 {
        let guard = kit.in_time("acquire", lock.acquire()).await.unwrap();
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(kit.in_time("release", guard.release()).await, Release::Released);
    }
}

/// Futures dropped at any time leave no key.
// docs/failures.md: C1, C3, C5.
pub async fn cancelled_acquisitions_leave_nothing<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    for micros in (0..2000).step_by(50) {
        let name = format!("k{micros}");
        let taken = kit.cancel_after(Duration::from_micros(micros), client.lock(&name).acquire()).await;
        drop(taken);
    }
    // Also on a connection that is still being opened.
    let fresh = kit.client(&redis.url());
    let _ = kit.cancel_after(Duration::ZERO, fresh.lock("fresh").acquire()).await;
    kit.wait_for("all keys are gone", || redis.keys().iter().all(|key| key.starts_with("lock-proto:"))).await;
}

pub async fn held_lock_is_renewed_past_ttl<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    let ttl = Duration::from_secs(1);
    let guard = kit.in_time("acquire", client.lock("a").ttl(ttl).acquire()).await.unwrap();
    let end = Instant::now() + 4 * ttl;
    while Instant::now() < end {
        assert!(guard.is_held());
        assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string());
        kit.sleep(ttl / 10).await;
    }
    let manual = client.lock("b").ttl(ttl).renew(Renew::Manual);
    let guard = kit.in_time("acquire", manual.acquire()).await.unwrap();
    kit.sleep(ttl / 2).await;
    kit.in_time("extend", guard.extend()).await.unwrap();
    assert!(guard.remaining() > ttl / 2);
    assert_eq!(kit.in_time("loss", guard.lost()).await, Loss::Expired);
    assert!(matches!(kit.in_time("extend", guard.extend()).await, Err(ExtendError::Lost(Loss::Expired))));
}

pub async fn protected_work_ends_with_lock<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    let done = kit.in_time("work", take(&kit, &client, "a").await.protect(async { 42 })).await;
    assert_eq!((done.output, done.release), (Ok(42), Release::Released));
    assert!(!exists(&redis, "a"));

    let guard = take(&kit, &client, "a").await;
    let observer = guard.observer();
    let work = async {
        redis.cli(&["DEL", "a"]);
        pending::<()>().await;
    };
    let done = kit.in_time("loss", guard.protect(work)).await;
    assert_eq!(done.output, Err(Loss::Gone));
    assert!(!observer.is_held());
    assert_eq!(kit.in_time("observer", observer.lost()).await, Some(Loss::Gone));
}

/// The server falls silent: the holder is warned, then loses the lock before the key can expire.
// docs/failures.md: L1.
pub async fn paused_server_warns_holder_then_expires_hold<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    let guard = take(&kit, &client, "a").await;
    let observer = guard.observer();
    redis.pause();
    let start = Instant::now();
    kit.in_time("risk", observer.at_risk()).await;
    assert!(guard.is_held() && guard.remaining() <= TTL / 4);
    assert_eq!(kit.in_time("loss", guard.lost()).await, Loss::Expired);
    assert!(!guard.is_held() && start.elapsed() <= TTL + SLACK);
    redis.resume();
    let released = kit.in_time("release", guard.release()).await;
    assert!(matches!(released, Release::Released | Release::Expired), "{released:?}");
    kit.wait_for("the key is gone", || !exists(&redis, "a")).await;
}

pub async fn restart_without_data_loses_lock_but_fence_grows<R: Runtime>(kit: Kit<R>) {
    let mut redis = Redis::start();
    let client = kit.client(&redis.url());
    let guard = take(&kit, &client, "a").await;
    redis.restart_empty();
    let loss = kit.in_time("loss", guard.lost()).await;
    assert!(matches!(loss, Loss::Gone | Loss::Expired), "{loss}");
    assert!(!guard.is_held());
    let before = guard.fence();
    let _ = kit.in_time("release", guard.release()).await;
    assert!(
        take(&kit, &client, "a").await.fence() > before,
        "requirement A9: the fence survives the loss of its counter"
    );
}

pub async fn shutdown_releases_locks_and_ends_waiters<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    let (a, _b) = (take(&kit, &client, "a").await, take(&kit, &client, "b").await);
    let lock = client.lock("a");
    let mut waiting = pin!(lock.acquire());
    kit.still_waits(Duration::from_millis(10), waiting.as_mut()).await;
    let done = kit.in_time("shutdown", client.shutdown(TIMEOUT)).await;
    assert_eq!(done, kit.in_time("a second shutdown", client.shutdown(TIMEOUT)).await);
    let Shutdown { unreleased, .. } = done;
    assert_eq!(unreleased, 0);
    assert!(!exists(&redis, "a") && !exists(&redis, "b"));
    assert_eq!(kit.in_time("loss", a.lost()).await, Loss::ShutDown);
    assert_eq!(*kit.in_time("waiter", waiting).await.unwrap_err().kind(), AcquireErrorKind::ShutDown);
}

pub async fn unix_sockets_and_logins_are_supported<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::builder().unix_socket().password("s3cret").acl("app", "on >hidden ~* &* +@all").start();
    let path = redis.socket().to_str().unwrap().into();
    let mut socket = Endpoint::parse(&redis.url()).unwrap();
    socket.target = Target::Unix { path };
    let user = Endpoint::parse(&redis.url_with("app", "hidden")).unwrap();
    let mut resp3 = user.clone();
    resp3.protocol = Protocol::Resp3;
    for endpoint in [socket, user, resp3] {
        let client = kit.with(Config::new([endpoint]));
        let guard = take(&kit, &client, "a").await;
        assert!(!format!("{client:?}{guard:?}").contains("s3cret"));
        assert_eq!(kit.in_time("release", guard.release()).await, Release::Released);
    }
    let wrong = kit.with(Config::parse(&redis.url_with("app", "wrong")).unwrap());
    let error = kit.in_time("refusal", wrong.lock("a").acquire()).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(!error.to_string().contains("wrong"), "{error}");
}

pub async fn quorum_of_three_tolerates_one_dead_node_not_two<R: Runtime>(kit: Kit<R>) {
    let mut nodes = Redis::start_many(3);
    let config = |nodes: &[Redis]| {
        let nodes = nodes.iter().map(|redis| Endpoint::parse(&redis.url()).unwrap());
        // Nodes count once they have been up for this long.
        Config::new(nodes.collect::<Vec<_>>()).quarantine(TTL)
    };
    let client = kit.with(config(&nodes));
    nodes[1].kill();
    let guard = take(&kit, &client, "a").await;
    assert!(guard.fence().is_none());
    assert!(exists(&nodes[0], "a") && exists(&nodes[2], "a"));
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Released);
    assert!(!exists(&nodes[0], "a") && !exists(&nodes[2], "a"));
    nodes[2].kill();
    let one_of_three = client.lock("a").ttl(TTL).wait(Duration::from_millis(500));
    let error = kit.in_time("no quorum", one_of_three.acquire()).await.unwrap_err();
    let AcquireErrorKind::TimedOut(report) = error.kind() else { panic!("{error}") };
    assert!(!report.is_busy() && report.nodes.len() == 3, "{report}");
    kit.wait_for("nothing is left on the living node", || !exists(&nodes[0], "a")).await;
}

/// Many tasks and two clients compete for one lock, with at most one inside.
pub async fn contending_tasks_exclude_each_other<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let clients = [kit.client(&redis.url()), kit.client(&redis.url())];
    let inside = Cell::new(0);
    let fences = RefCell::new(Vec::new());
    let work = |client: Client| {
        let (kit, inside, fences) = (&kit, &inside, &fences);
        async move {
            for _ in 0..10 {
                let guard = take(kit, &client, "a").await;
                inside.set(inside.get() + 1);
                fences.borrow_mut().push(guard.fence().unwrap());
                kit.sleep(Duration::from_micros(200)).await;
                assert_eq!(inside.get(), 1);
                inside.set(0);
                drop(guard);
            }
        }
    };
    let mut tasks: Vec<_> = (0..8).map(|n| Some(Box::pin(work(clients[n % 2].clone())))).collect();
    poll_fn(|cx| {
        for task in &mut tasks {
            if task.as_mut().is_some_and(|running| running.as_mut().poll(cx).is_ready()) {
                *task = None;
            }
        }
        if tasks.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    drop(tasks);
    let fences = fences.into_inner();
    assert_eq!(fences.len(), 80);
    assert!(fences.is_sorted_by(|a, b| a < b), "requirement A9: {fences:?}");
}

pub async fn redis_has_no_elections<R: Runtime>(kit: Kit<R>) {
    let redis = Redis::start();
    let client = kit.client(&redis.url());
    let election = client.election("board");
    let errors = [
        kit.in_time("leader", election.leader()).await.unwrap_err(),
        election.observe().unwrap_err(),
        kit.in_time("campaign", election.campaign("x")).await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| *error.kind() == AcquireErrorKind::NoElections), "{errors:?}");
    let guard = kit.take(&client, "a").await;
    assert_eq!((guard.owner_key(), guard.owner_key_guard()), (None, Err(OwnerKeyError::NoKey)));
}

pub async fn host_reads_files<R: Runtime>(kit: Kit<R>) {
    let (host, file) = (kit.runtime().host(), Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")));
    assert_eq!(host.read_file(file).await.unwrap(), std::fs::read(file).unwrap());
    let error = host.read_file(Path::new("/there/is/none")).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let folder = lock_testkit::temporary();
    assert!(host.read_file(folder.path()).await.is_err());
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'x'; 2 << 20]).unwrap();
    let error = host.read_file(&large).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
}
