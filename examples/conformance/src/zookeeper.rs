//! Scenarios on ZooKeeper.

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use std::io::Write as _;
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use lock_proto::driver::{AcquireErrorKind, Client, LeadError, ProclaimError};
use lock_proto::redis::{Answer, Blocked, Cause, Loss, Release, Renew};
use lock_proto::zookeeper::Config;
use lock_proto::{Breach, ElectionEvent, Fault, Leader};
use lock_testkit::{Chroot, Session, TIMEOUT, ZooKeeper, ZooKeeperEnsemble};

use crate::kit::SLACK;
use crate::{Kit, Runtime};

const MS: Duration = Duration::from_millis(1);
/// Exceeds [`TIMEOUT`], so that nothing in a test ends because of it.
const LONG: Duration = Duration::from_secs(60);
/// The shortest for a tick of 200 ms is a second.
const TTL: Duration = Duration::from_secs(2);

fn config(chroot: &Chroot) -> Config {
    Config::parse(&chroot.url()).unwrap()
}

/// Waits until the clients have left nothing in the store but containers, which the server deletes.
async fn clean<R: Runtime>(kit: &Kit<R>, chroot: &Chroot) {
    kit.wait_for("all nodes are gone", || chroot.ephemerals().is_empty()).await;
}

pub async fn two_clients_exclude_each_other<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let (first, second) = (kit.client(&chroot.url()), kit.client(&chroot.url()));
    let guard = kit.take(&first, "a").await;
    assert!(guard.is_held());
    let nodes = chroot.nodes_of("a");
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    assert!(node.starts_with("_c_") && node.contains("-lock-"), "{node}");
    let czxid = chroot.server().stat(&format!("{}/a/{node}", chroot.path())).unwrap().czxid;
    assert_eq!(guard.fence().unwrap().get() >> 16, czxid.unsigned_abs());
    let failure = kit.in_time("try", second.lock("a").try_acquire()).await.unwrap_err();
    assert!(failure.is_busy() && !failure.is_timeout(), "{failure}");
    let mut waiting = second.lock("a").acquire();
    kit.still_waits(300 * MS, &mut waiting).await;
    assert_eq!(waiting.blocked(), Some(Blocked::Held));
    // The next in the queue gets the lock, with a greater fencing token.
    let before = guard.fence().unwrap();
    kit.release(guard).await;
    let guard = kit.in_time("the next holder", waiting).await.unwrap();
    assert!(guard.fence().unwrap() > before);
    drop(guard);
    for client in [first, second] {
        assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    }
    clean(&kit, &chroot).await;
}

pub async fn fences_grow_across_tasks_and_clients<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let clients: Vec<Client> = (0..3).map(|_| kit.client(&chroot.url())).collect();
    for round in 0..5 {
        let mut waiting: Vec<_> =
            clients.iter().flat_map(|client| (0..4).map(|_| Box::pin(client.lock("a").acquire()))).collect();
        let mut fences = Vec::new();
        while !waiting.is_empty() {
            let next = poll_fn(|cx| {
                for index in 0..waiting.len() {
                    if let Poll::Ready(guard) = waiting[index].as_mut().poll(cx) {
                        drop(waiting.swap_remove(index));
                        return Poll::Ready(guard.unwrap());
                    }
                }
                Poll::Pending
            });
            let guard = kit.in_time("the next grant", next).await;
            let second = poll_fn(|cx| Poll::Ready(waiting.iter_mut().any(|next| next.as_mut().poll(cx).is_ready())));
            assert!(!second.await, "two hold the lock");
            fences.push(guard.fence().unwrap());
            drop(guard);
        }
        assert!(fences.is_sorted_by(|a, b| a < b), "round {round}: {fences:?}");
    }
    drop(clients);
    clean(&kit, &chroot).await;
}

pub async fn acquisition_dropped_at_any_time_leaves_nothing<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    for micros in (0..20_000).step_by(900) {
        let client = kit.client(&chroot.url());
        let acquiring = client.lock("a").acquire();
        let guard = kit.cancel_after(Duration::from_micros(micros), acquiring).await;
        drop(guard);
        drop(client);
    }
    clean(&kit, &chroot).await;
    // On an open connection.
    let client = kit.client(&chroot.url());
    let _ = kit.take(&client, "a").await.release().await;
    for micros in (0..4_000).step_by(200) {
        drop(kit.cancel_after(Duration::from_micros(micros), client.lock("a").acquire()).await);
    }
    clean(&kit, &chroot).await;
    let guard = kit.take(&client, "a").await;
    // Dropping the last handle shuts the client down, but the lock is still released.
    drop(client);
    assert!(guard.is_held());
    drop(guard);
    clean(&kit, &chroot).await;
}

/// The session of the only ephemeral node.
fn session_of_holder(chroot: &Chroot) -> i64 {
    let nodes = chroot.ephemerals();
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    chroot.server().stat(&format!("{}{node}", chroot.path())).unwrap().ephemeral_owner
}

pub async fn expired_session_is_reported_as_loss<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let client = kit.with(config(&chroot).session_ttl(TTL));
    let guard = kit.take(&client, "a").await;
    let mut waiting = client.lock("a").acquire();
    kit.still_waits(20 * MS, &mut waiting).await;
    chroot.server().expire(session_of_holder(&chroot));
    let since = Instant::now();
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Gone);
    assert!(since.elapsed() < TTL, "noticed before it would have ended: {:?}", since.elapsed());
    assert!(!guard.is_held());
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Expired);
    // A new session replaces it.
    drop(kit.in_time("the next holder", waiting).await.unwrap());
    drop(client);
    clean(&kit, &chroot).await;
}

pub async fn deleted_node_is_reported_as_loss<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let client = kit.with(config(&chroot).session_ttl(TTL));
    let guard = kit.take(&client, "a").await;
    let node = chroot.nodes_of("a").pop().unwrap();
    assert!(chroot.delete("a", &node));
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Gone);
    drop((guard, client));
    clean(&kit, &chroot).await;
}

pub async fn hold_expires_within_ttl_while_server_is_paused<R: Runtime>(kit: Kit<R>) {
    let mut chroot = Chroot::alone(ZooKeeper::start());
    let client = kit.with(config(&chroot).session_ttl(TTL));
    let guard = kit.take(&client, "a").await;
    chroot.server().pause();
    let since = Instant::now();
    kit.in_time("at risk", guard.observer().at_risk()).await;
    assert!(guard.is_held(), "the warning comes before the loss");
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Expired);
    assert!(since.elapsed() <= TTL + SLACK, "{:?}", since.elapsed());
    chroot.server().resume();
    drop(guard);
    kit.release(kit.take(&client, "a").await).await;
    // A restarted server keeps its data.
    let guard = kit.take(&client, "b").await;
    chroot.server_mut().restart();
    kit.release(guard).await;
    drop(client);
    clean(&kit, &chroot).await;
}

pub async fn lock_with_own_ttl_is_extended_manually_then_expires<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let client = kit.client(&chroot.url());
    let lock = client.lock("a").ttl(TTL).renew(Renew::Manual);
    let guard = kit.in_time("acquire", lock.acquire()).await.unwrap();
    assert_eq!(guard.ttl(), TTL);
    let before = guard.valid_until();
    kit.in_time("extend", guard.extend()).await.unwrap();
    assert!(guard.valid_until() > before);
    assert_eq!(kit.in_time("the end", guard.lost()).await, Loss::Expired);
    drop((guard, client, lock));
    clean(&kit, &chroot).await;
}

pub async fn observer_sees_elected_leaders_and_proclamations<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let (first, second, third) = (kit.client(&chroot.url()), kit.client(&chroot.url()), kit.client(&chroot.url()));
    let election = third.election("board");
    assert_eq!(kit.in_time("nobody", election.leader()).await.unwrap(), None);
    let mut observation = election.observe().unwrap();
    assert_eq!(kit.in_time("nobody yet", observation.next()).await, Some(ElectionEvent::NoLeader));
    let seen = |event: Option<ElectionEvent>| -> Leader {
        let Some(ElectionEvent::Leader(leader)) = event else { panic!("{event:?}") };
        leader
    };

    let mut leadership = kit.in_time("elected", first.election("board").campaign("one")).await.unwrap();
    assert!(leadership.is_held() && leadership.fence().is_some());
    let leader = seen(kit.in_time("the first", observation.next()).await);
    assert_eq!(&*leader.value, b"one");
    let nodes = chroot.nodes_of("board");
    assert!(nodes.len() == 1 && nodes[0].contains("-latch-"), "{nodes:?}");

    let mut campaigning = second.election("board").campaign("two");
    kit.still_waits(200 * MS, &mut campaigning).await;
    kit.in_time("proclaim", leadership.proclaim("uno")).await.unwrap();
    let leader = seen(kit.in_time("the new value", observation.next()).await);
    assert_eq!(&*leader.value, b"uno");
    assert_eq!(kit.in_time("the leader", election.leader()).await.unwrap(), Some(leader));

    assert_eq!(kit.in_time("resign", leadership.resign()).await, Release::Released);
    let mut leadership = kit.in_time("the next", campaigning).await.unwrap();
    let leader = loop {
        match kit.in_time("the second", observation.next()).await {
            Some(ElectionEvent::Leader(leader)) => break leader,
            Some(ElectionEvent::NoLeader) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(&*leader.value, b"two");

    // Dropping a campaign withdraws it.
    drop(kit.cancel_after(50 * MS, first.election("board").campaign("three")).await);
    kit.wait_for("one node", || chroot.nodes_of("board").len() == 1).await;
    assert!(chroot.delete("board", &chroot.nodes_of("board")[0]));
    assert_eq!(kit.in_time("nobody", observation.next()).await, Some(ElectionEvent::NoLeader));
    let lost = kit.in_time("the result", leadership.proclaim("four")).await.unwrap_err();
    assert_eq!(lost, ProclaimError::Lost(Loss::Gone));
    drop(leadership);
    drop(observation);
    drop((first, second, third, election));
    clean(&kit, &chroot).await;
}

/// The whole life of a candidate and of an observer, dropped at every await point.
pub async fn election_cancelled_at_every_await_point_leaves_nothing<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let (client, other) = (kit.client(&chroot.url()), kit.client(&chroot.url()));
    let (election, theirs) = (client.election("board"), other.election("board"));
    kit.cancel_at_every_await(|| async {
        let mut leadership = election.campaign("one").await.unwrap();
        let mut observation = theirs.observe().unwrap();
        assert!(matches!(observation.next().await, Some(ElectionEvent::Leader(_))));
        leadership.proclaim("uno").await.unwrap();
        assert_eq!(theirs.leader().await.unwrap().map(|leader| leader.value), Some("uno".into()));
        leadership.resign_handle().resign();
        let end = leadership.lead(async |stop| stop.raised().await).await;
        assert_eq!((end.output, end.release), (Ok(()), Release::Released));
    })
    .await;
    clean(&kit, &chroot).await;
    drop((election, theirs, client, other));
}

pub async fn leader_resigns_after_work_ends_or_time_limit<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::alone(ZooKeeper::start());
    let client = kit.client(&chroot.url());
    let election = client.election("board").ttl(TTL);
    // The leader is asked to resign, and finishes its work first.
    let leadership = kit.in_time("elected", election.campaign("one")).await.unwrap();
    let resign_handle = leadership.resign_handle();
    let thread = thread::spawn(move || {
        thread::sleep(100 * MS);
        resign_handle.resign();
    });
    let end = leadership.lead(|stop| {
        let (chroot, kit) = (&chroot, &kit);
        async move {
            assert!(!stop.is_raised());
            stop.raised().await;
            kit.sleep(200 * MS).await;
            chroot.nodes_of("board").len()
        }
    });
    let end = kit.in_time("the work", end).await;
    assert_eq!((end.output, end.release), (Ok(1), Release::Released), "the leadership lasted until the work had ended");
    thread.join().unwrap();
    assert_eq!(chroot.nodes_of("board").len(), 0);

    // The leader is asked to resign, and ignores it.
    let leadership = kit.in_time("elected", election.campaign("two")).await.unwrap();
    leadership.resign_handle().resign();
    let since = Instant::now();
    let end = kit.in_time("the limit", leadership.lead(|_| core::future::pending::<()>())).await;
    assert_eq!((end.output, end.release), (Err(LeadError::Late), Release::Released));
    assert!(since.elapsed() >= TTL, "{:?}", since.elapsed());

    // Renewals fail: the leader is asked to stop, and then stopped.
    let leadership = kit.in_time("elected", election.campaign("three")).await.unwrap();
    chroot.server().pause();
    let mut raised = false;
    let end = leadership.lead(|stop| {
        let raised = &mut raised;
        async move {
            stop.raised().await;
            *raised = true;
            core::future::pending::<()>().await;
        }
    });
    let output = kit.cancel_after(2 * TTL, end).await.map(|end| end.output);
    chroot.server().resume();
    assert!(raised);
    assert!(matches!(output, None | Some(Err(LeadError::Lost(Loss::Expired)))), "{output:?}");
    drop((election, client));
    clean(&kit, &chroot).await;
}

pub async fn missing_permission_is_refused<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let server = chroot.server();
    let private = format!("{}/private", chroot.path());
    server.create_for(&private, "worker", "secret");
    let url = |login: &str| chroot.url().replace("zk://", &format!("zk://{login}")).replace(chroot.path(), &private);
    let client = kit.client(&url("worker:secret@"));
    kit.release(kit.take(&client, "a").await).await;
    for login in ["worker:wrong@", "stranger:secret@", ""] {
        let other = kit.client(&url(login));
        let limited = other.lock("a").wait(Duration::from_secs(3)).acquire();
        let refused = kit.in_time("refused", limited).await.unwrap_err();
        assert!(refused.is_refused(), "{login} {refused}");
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
    drop(client);
    clean(&kit, &chroot).await;
}

pub async fn missing_chroot_is_created<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let client = kit.client(&chroot.url().replace(chroot.path(), &format!("{}/missing", chroot.path())));
    let guard = kit.take(&client, "a").await;
    assert_eq!(chroot.nodes_of("missing/a").len(), 1);
    kit.release(guard).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    clean(&kit, &chroot).await;
}

pub async fn other_servers_are_reported_as_protocol_faults<R: Runtime>(kit: Kit<R>) {
    for (greeting, breach) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], Breach::Http1),
        (&[0x15, 3, 1, 0, 2, 2, 70], Breach::Tls),
        (b"-ERR unknown command\r\n", Breach::Resp),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("zk://{}?tick_ms=200", listener.local_addr().unwrap());
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(greeting);
                thread::spawn(move || {
                    thread::sleep(LONG);
                    drop(stream);
                });
            }
        });
        let client = kit.client(&url);
        let failed = kit.in_time("the result", client.lock("a").wait(2500 * MS).acquire()).await.unwrap_err();
        let AcquireErrorKind::TimedOut(report) = failed.kind() else { panic!("{failed}") };
        let expected = Answer::Unreachable(Cause::Fault(Fault::Protocol(breach)));
        assert_eq!(&*report.nodes, [expected], "{report}");
        assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    }
}

pub async fn client_fails_over_to_another_member<R: Runtime>(kit: Kit<R>) {
    let mut ensemble = ZooKeeperEnsemble::start();
    // The first endpoint is dead.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = ensemble.url().replace("zk://", &format!("zk://{},", nobody.local_addr().unwrap()));
    drop(nobody);
    let client = kit.with(Config::parse(&url).unwrap().session_ttl(LONG).release_within(TIMEOUT));
    let guard = kit.take(&client, "a").await;
    for member in [0, 1] {
        ensemble.member(member).kill();
        kit.sleep(100 * MS).await;
        ensemble.member(member).restart_without_waiting();
        assert!(guard.is_held());
        let waited = kit.in_time("another lock", client.lock("b").acquire()).await.unwrap();
        kit.release(waited).await;
        assert!(ensemble.leader() < 3);
    }
    assert!(guard.is_held(), "a session outlives a member");
    kit.release(guard).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    let leader = &ensemble.members()[ensemble.leader()];
    leader.run(Session::sync);
    assert_eq!((leader.children("/a"), leader.children("/b")), (vec![], vec![]));
}
