//! What a client does with a real server, written once for every runtime: the handles are the same types everywhere (requirement D4).

use core::cell::{Cell, RefCell};
use core::future::{pending, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::time::Instant;

use lock_proto::driver::{AcquireError, Client, ConnectError, ExtendError, Guard, Host, Shutdown};
use lock_proto::redis::{Answer, Config, Endpoint, Failure, Loss, Protocol, Release, Renew, Target};
use lock_testkit::{PATIENCE, Redis, Value};

/// A runtime, and how to make clients on it.
pub(crate) struct Kit<H> {
    pub(crate) host: H,
    pub(crate) connect: fn(Config) -> Result<Client, ConnectError>,
}

const TTL: Duration = Duration::from_secs(2);

impl<H: Host> Kit<H> {
    fn client(&self, redis: &Redis) -> Client {
        self.with(config(redis))
    }

    fn with(&self, config: Config) -> Client {
        (self.connect)(config).unwrap()
    }

    /// Waits for a condition that others bring about.
    async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < end, "not in time: {what}");
            self.host.sleep(Duration::from_millis(3)).await;
        }
    }

    /// Runs a future that must end soon.
    async fn soon<F: Future>(&self, what: &str, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut limit = pin!(self.host.sleep(PATIENCE));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => {
                assert!(limit.as_mut().poll(cx).is_pending(), "not in time: {what}");
                Poll::Pending
            }
        })
        .await
    }

    /// Runs a future for a while, then drops it.
    async fn cancelled<F: Future>(&self, after: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut limit = pin!(self.host.sleep(after));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    async fn take(&self, client: &Client, name: &str) -> Guard {
        self.soon("acquire", client.lock(name).ttl(TTL).acquire()).await.unwrap()
    }
}

fn config(redis: &Redis) -> Config {
    Config::new([Endpoint::parse(&redis.url()).unwrap()])
}

fn exists(redis: &Redis, key: &str) -> bool {
    redis.cli(&["EXISTS", key]) == "1"
}

pub(crate) async fn take_and_give_back<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    let guard = kit.take(&client, "a").await;
    assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string());
    let Value::Int(left) = redis.command(&["PTTL", "a"]) else { panic!("no PTTL") };
    assert!(left > 0 && left <= 2000, "{left}");
    assert!(guard.is_held() && guard.remaining() <= TTL);
    let fence = guard.fence().unwrap();
    assert_eq!(kit.soon("release", guard.release()).await, Release::Released);
    assert!(!exists(&redis, "a"));
    assert!(kit.take(&client, "a").await.fence().unwrap() > fence);
}

pub(crate) async fn a_dropped_guard_gives_back<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    drop(kit.take(&client, "a").await);
    kit.until("the key is gone", || !exists(&redis, "a")).await;
    // The last guard shuts the client down, and is still given back.
    let guard = kit.take(&client, "b").await;
    drop(client);
    assert!(guard.is_held());
    drop(guard);
    kit.until("the key is gone", || !exists(&redis, "b")).await;
    kit.until("the connections are closed", || redis.cli(&["CLIENT", "LIST"]).lines().count() == 1).await;
}

pub(crate) async fn a_waiter_of_another_client_follows<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let (first, second) = (kit.client(&redis), kit.client(&redis));
    let guard = kit.take(&first, "a").await;
    let lock = second.lock("a");
    let mut waiting = pin!(lock.acquire());
    assert!(kit.cancelled(Duration::from_millis(200), waiting.as_mut()).await.is_none());
    let released = kit.soon("release", guard.release()).await;
    assert_eq!(released, Release::Released);
    let guard = kit.soon("the next holder", waiting).await.unwrap();
    assert!(guard.is_held());
}

pub(crate) async fn busy_and_timed_out<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
    let client = kit.client(&redis);
    let error = kit.soon("one attempt", client.lock("a").try_once().acquire()).await.unwrap_err();
    let AcquireError::Failed(Failure::TimedOut(report)) = error else { panic!("{error}") };
    assert!(report.is_busy(), "{report}");
    let begun = Instant::now();
    let error = kit.soon("a wait", client.lock("a").wait(Duration::from_millis(300)).acquire()).await.unwrap_err();
    let AcquireError::Failed(Failure::TimedOut(report)) = error else { panic!("{error}") };
    assert!(matches!(&*report.nodes, [Answer::Taken(_)]), "{report}");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(redis.cli(&["GET", "a"]), "somebody");
}

/// Futures dropped at any time leave no key: the catalogue's C1, C3, C5.
pub(crate) async fn cancelled_acquisitions_leave_nothing<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    for micros in (0..2000).step_by(50) {
        let name = format!("k{micros}");
        let taken = kit.cancelled(Duration::from_micros(micros), client.lock(&name).acquire()).await;
        drop(taken);
    }
    // Also on a connection that is not open yet.
    let fresh = kit.client(&redis);
    let _ = kit.cancelled(Duration::ZERO, fresh.lock("fresh").acquire()).await;
    kit.until("all keys are gone", || redis.keys().iter().all(|key| key.starts_with("lock-proto:"))).await;
}

pub(crate) async fn a_lock_outlives_its_ttl_while_it_is_held<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    let ttl = Duration::from_millis(300);
    let guard = kit.soon("acquire", client.lock("a").ttl(ttl).acquire()).await.unwrap();
    let end = Instant::now() + 4 * ttl;
    while Instant::now() < end {
        assert!(guard.is_held());
        assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string());
        kit.host.sleep(ttl / 10).await;
    }
    let manual = client.lock("b").ttl(ttl).renew(Renew::Manual);
    let guard = kit.soon("acquire", manual.acquire()).await.unwrap();
    kit.host.sleep(ttl / 2).await;
    kit.soon("extend", guard.extend()).await.unwrap();
    assert!(guard.remaining() > ttl / 2);
    assert_eq!(kit.soon("loss", guard.lost()).await, Loss::Expired);
    assert!(matches!(kit.soon("extend", guard.extend()).await, Err(ExtendError::Lost(Loss::Expired))));
}

pub(crate) async fn protected_work_ends_with_the_lock<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    let done = kit.soon("work", kit.take(&client, "a").await.protect(async { 42 })).await;
    assert_eq!((done.output, done.release), (Ok(42), Release::Released));
    assert!(!exists(&redis, "a"));

    let guard = kit.take(&client, "a").await;
    let observer = guard.observer();
    let work = async {
        redis.cli(&["DEL", "a"]);
        pending::<()>().await;
    };
    let done = kit.soon("loss", guard.protect(work)).await;
    assert_eq!(done.output, Err(Loss::Gone));
    assert!(!observer.is_held());
    assert_eq!(kit.soon("observer", observer.lost()).await, Some(Loss::Gone));
}

/// The server falls silent: warned, then lost, at the latest when the key could end (L1).
pub(crate) async fn a_silent_server<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    let guard = kit.take(&client, "a").await;
    let observer = guard.observer();
    redis.pause();
    let begun = Instant::now();
    kit.soon("risk", observer.at_risk()).await;
    assert!(guard.is_held() && guard.remaining() <= TTL / 4);
    assert_eq!(kit.soon("loss", guard.lost()).await, Loss::Expired);
    assert!(!guard.is_held() && begun.elapsed() <= TTL);
    redis.resume();
    let released = kit.soon("release", guard.release()).await;
    assert!(matches!(released, Release::Released | Release::Expired), "{released:?}");
    kit.until("the key is gone", || !exists(&redis, "a")).await;
}

pub(crate) async fn a_server_restarted_without_its_data<H: Host>(kit: Kit<H>) {
    let mut redis = Redis::start();
    let client = kit.client(&redis);
    let guard = kit.take(&client, "a").await;
    redis.restart_empty();
    let loss = kit.soon("loss", guard.lost()).await;
    assert!(matches!(loss, Loss::Gone | Loss::Expired), "{loss}");
    assert!(!guard.is_held());
    let before = guard.fence();
    let _ = kit.soon("release", guard.release()).await;
    assert!(
        kit.take(&client, "a").await.fence() > before,
        "requirement A9: the fence survives the loss of its counter"
    );
}

pub(crate) async fn a_shutdown_drains<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let client = kit.client(&redis);
    let (a, _b) = (kit.take(&client, "a").await, kit.take(&client, "b").await);
    let lock = client.lock("a");
    let mut waiting = pin!(lock.acquire());
    assert!(kit.cancelled(Duration::from_millis(10), waiting.as_mut()).await.is_none());
    let done = kit.soon("shutdown", client.shutdown(PATIENCE)).await;
    assert_eq!(done, kit.soon("a second shutdown", client.shutdown(PATIENCE)).await);
    let Shutdown { unreleased, .. } = done;
    assert_eq!(unreleased, 0);
    assert!(!exists(&redis, "a") && !exists(&redis, "b"));
    assert_eq!(kit.soon("loss", a.lost()).await, Loss::ShutDown);
    assert_eq!(kit.soon("waiter", waiting).await.unwrap_err(), AcquireError::ShutDown);
}

pub(crate) async fn unix_sockets_and_passwords<H: Host>(kit: Kit<H>) {
    let redis = Redis::builder().unix_socket().password("s3cret").acl("app", "on >hidden ~* &* +@all").start();
    let path = redis.socket().to_str().unwrap().into();
    let mut socket = Endpoint::parse(&redis.url()).unwrap();
    socket.target = Target::Unix { path };
    let user = Endpoint::parse(&redis.url_with("app", "hidden")).unwrap();
    let mut resp3 = user.clone();
    resp3.protocol = Protocol::Resp3;
    for endpoint in [socket, user, resp3] {
        let client = kit.with(Config::new([endpoint]));
        let guard = kit.take(&client, "a").await;
        assert!(!format!("{client:?}{guard:?}").contains("s3cret"));
        assert_eq!(kit.soon("release", guard.release()).await, Release::Released);
    }
    let wrong = kit.with(Config::new([Endpoint::parse(&redis.url_with("app", "wrong")).unwrap()]));
    let error = kit.soon("refusal", wrong.lock("a").acquire()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Failed(Failure::Refused(_))), "{error}");
    assert!(!error.to_string().contains("wrong"), "{error}");
}

pub(crate) async fn a_quorum_with_a_dead_node<H: Host>(kit: Kit<H>) {
    let mut nodes = Redis::start_many(3);
    let config = |nodes: &[Redis]| {
        let nodes = nodes.iter().map(|redis| Endpoint::parse(&redis.url()).unwrap());
        // Nodes count once they are older than this.
        Config::new(nodes.collect::<Vec<_>>()).quarantine(TTL)
    };
    let client = kit.with(config(&nodes));
    nodes[1].kill();
    let guard = kit.take(&client, "a").await;
    assert!(guard.fence().is_none());
    assert!(exists(&nodes[0], "a") && exists(&nodes[2], "a"));
    assert_eq!(kit.soon("release", guard.release()).await, Release::Released);
    assert!(!exists(&nodes[0], "a") && !exists(&nodes[2], "a"));
    nodes[2].kill();
    let one_of_three = client.lock("a").ttl(TTL).wait(Duration::from_millis(500));
    let error = kit.soon("no quorum", one_of_three.acquire()).await.unwrap_err();
    let AcquireError::Failed(Failure::TimedOut(report)) = error else { panic!("{error}") };
    assert!(!report.is_busy() && report.nodes.len() == 3, "{report}");
    kit.until("nothing is left on the living node", || !exists(&nodes[0], "a")).await;
}

/// Many tasks and two clients on one lock: no two inside at once.
pub(crate) async fn nobody_else_is_inside<H: Host>(kit: Kit<H>) {
    let redis = Redis::start();
    let clients = [kit.client(&redis), kit.client(&redis)];
    let inside = Cell::new(0);
    let fences = RefCell::new(Vec::new());
    let work = |client: Client| {
        let (kit, inside, fences) = (&kit, &inside, &fences);
        async move {
            for _ in 0..10 {
                let guard = kit.take(&client, "a").await;
                inside.set(inside.get() + 1);
                fences.borrow_mut().push(guard.fence().unwrap());
                kit.host.sleep(Duration::from_micros(200)).await;
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

/// Makes a test of each scenario.
macro_rules! all {
    ($run:path) => {
        $crate::scenarios::all!($run:
            take_and_give_back a_dropped_guard_gives_back a_waiter_of_another_client_follows busy_and_timed_out
            cancelled_acquisitions_leave_nothing a_lock_outlives_its_ttl_while_it_is_held
            protected_work_ends_with_the_lock a_silent_server a_server_restarted_without_its_data a_shutdown_drains
            unix_sockets_and_passwords a_quorum_with_a_dead_node nobody_else_is_inside);
    };
    ($run:path: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $run($crate::scenarios::$name);
        }
    )+};
}
pub(crate) use all;
