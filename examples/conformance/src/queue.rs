//! Scenarios of the stores with queues, sessions and elections: etcd and ZooKeeper.

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use std::io::Write as _;
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use lock_driver::{AcquireErrorKind, Client, ElectionEvent, LeadError, ProclaimError};
use lock_proto::{Answer, Blocked, Breach, Cause, Fault, Leader, Loss, Release, Renew};
use lock_testkit::TIMEOUT;

use crate::kit::{LONG, MS, SLACK};
use crate::server::ServerSettings as _;
use crate::{Kit, Runtime, Server};

pub async fn two_clients_exclude_each_other<R: Runtime>(kit: Kit<R>, server: Server) {
    let (first, second) = (kit.with(server.settings()), kit.with(server.settings()));
    let guard = kit.take(&first, "a").await;
    assert!(guard.is_held() && guard.remaining() <= server.ttl());
    assert_eq!(server.keys_of("a").len(), 1);
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
    kit.clean(&server).await;
}

pub async fn fences_grow_across_tasks_and_clients<R: Runtime>(kit: Kit<R>, server: Server) {
    let clients: Vec<Client> = (0..3).map(|_| kit.with(server.settings())).collect();
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
    kit.clean(&server).await;
}

pub async fn acquisition_dropped_at_any_time_leaves_nothing<R: Runtime>(kit: Kit<R>, server: Server) {
    for micros in (0..20_000).step_by(900) {
        let client = kit.with(server.settings());
        let acquiring = client.lock("a").acquire();
        let guard = kit.cancel_after(Duration::from_micros(micros), acquiring).await;
        drop(guard);
        drop(client);
    }
    kit.clean(&server).await;
    // On an open connection.
    let client = kit.with(server.settings());
    let _ = kit.take(&client, "a").await.release().await;
    for micros in (0..4_000).step_by(200) {
        drop(kit.cancel_after(Duration::from_micros(micros), client.lock("a").acquire()).await);
    }
    kit.wait_for("the key is gone", || server.held() == 0).await;
    let guard = kit.take(&client, "a").await;
    // Dropping the last handle shuts the client down, but the lock is still released.
    drop(client);
    assert!(guard.is_held());
    drop(guard);
    kit.clean(&server).await;
}

pub async fn ended_session_is_reported_as_loss<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let guard = kit.take(&client, "a").await;
    let mut waiting = client.lock("a").acquire();
    kit.still_waits(20 * MS, &mut waiting).await;
    server.end_session();
    let since = Instant::now();
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Gone);
    assert!(since.elapsed() < server.ttl(), "noticed before it would have ended: {:?}", since.elapsed());
    assert!(!guard.is_held());
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Expired);
    // A new session replaces it.
    drop(kit.in_time("the next holder", waiting).await.unwrap());
    drop(client);
    kit.clean(&server).await;
}

pub async fn deleted_key_is_reported_as_loss<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let guard = kit.take(&client, "a").await;
    server.delete_key("a");
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Gone);
    drop((guard, client));
    kit.clean(&server).await;
}

pub async fn hold_expires_within_ttl_while_server_is_paused<R: Runtime>(kit: Kit<R>, mut server: Server) {
    let client = kit.with(server.settings_with(LONG));
    let guard = kit.in_time("acquire", client.lock("a").ttl(server.own_ttl()).acquire()).await.unwrap();
    server.pause();
    let since = Instant::now();
    kit.in_time("at risk", guard.observer().at_risk()).await;
    assert!(guard.is_held(), "the warning comes before the loss");
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Expired);
    assert!(since.elapsed() <= server.own_ttl() + SLACK, "{:?}", since.elapsed());
    server.resume();
    drop(guard);
    kit.release(kit.take(&client, "a").await).await;
    // A restarted server keeps its data.
    let guard = kit.take(&client, "b").await;
    server.restart();
    assert!(guard.is_held());
    // Acquire another lock first: a release does not wait long for the client to reconnect.
    kit.release(kit.take(&client, "c").await).await;
    kit.release(guard).await;
    drop(client);
    kit.clean(&server).await;
}

pub async fn lock_with_own_ttl_is_extended_manually_then_expires<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let lock = client.lock("a").ttl(server.own_ttl()).renew(Renew::Manual);
    let guard = kit.in_time("acquire", lock.acquire()).await.unwrap();
    assert_eq!(guard.ttl(), server.own_ttl());
    let before = guard.valid_until();
    kit.in_time("extend", guard.extend()).await.unwrap();
    assert!(guard.valid_until() > before);
    assert_eq!(kit.in_time("the end", guard.lost()).await, Loss::Expired);
    drop((guard, client, lock));
    kit.clean(&server).await;
}

pub async fn observer_sees_elected_leaders_and_proclamations<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = || kit.with(server.settings());
    let (first, second, third) = (client(), client(), client());
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
    let keys = server.keys_of("board");
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let key = match &server {
        Server::ZooKeeper(chroot) => format!("{}/board/{key}", chroot.path()),
        Server::Etcd(_) | Server::Redis(_) => key.clone(),
    };
    assert_eq!(leader.key, key);

    let mut campaigning = second.election("board").campaign("two");
    kit.still_waits(200 * MS, &mut campaigning).await;
    let revision = kit.in_time("proclaim", leadership.proclaim("uno")).await.unwrap();
    let leader = seen(kit.in_time("the new value", observation.next()).await);
    assert_eq!((&*leader.value, leader.mod_revision), (&b"uno"[..], revision));
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
    kit.wait_for("one key", || server.keys_of("board").len() == 1).await;
    server.delete_key("board");
    assert_eq!(kit.in_time("nobody", observation.next()).await, Some(ElectionEvent::NoLeader));
    let lost = kit.in_time("the result", leadership.proclaim("four")).await.unwrap_err();
    assert_eq!(lost, ProclaimError::Lost(Loss::Gone));
    drop(leadership);
    drop(observation);
    drop((first, second, third, election));
    kit.clean(&server).await;
}

/// The whole life of a candidate and of an observer, dropped at every await point.
pub async fn election_cancelled_at_every_await_point_leaves_nothing<R: Runtime>(kit: Kit<R>, server: Server) {
    let (client, other) = (kit.with(server.settings()), kit.with(server.settings()));
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
    kit.wait_for("no candidate is left", || server.held() == 0).await;
    drop((election, theirs, client, other));
    kit.clean(&server).await;
}

pub async fn leader_resigns_after_work_ends_or_time_limit<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let election = client.election("board").ttl(server.own_ttl());
    // The leader is asked to resign, and finishes its work first.
    let leadership = kit.in_time("elected", election.campaign("one")).await.unwrap();
    let resign_handle = leadership.resign_handle();
    let thread = thread::spawn(move || {
        thread::sleep(100 * MS);
        resign_handle.resign();
    });
    let end = leadership.lead(|stop| {
        let (server, kit) = (&server, &kit);
        async move {
            assert!(!stop.is_raised());
            stop.raised().await;
            kit.sleep(200 * MS).await;
            server.keys_of("board").len()
        }
    });
    let end = kit.in_time("the work", end).await;
    assert_eq!((end.output, end.release), (Ok(1), Release::Released), "the leadership lasted until the work had ended");
    thread.join().unwrap();
    assert!(!server.has_key("board"));

    // The leader is asked to resign, and ignores it.
    let leadership = kit.in_time("elected", election.campaign("two")).await.unwrap();
    leadership.resign_handle().resign();
    let since = Instant::now();
    let end = kit.in_time("the limit", leadership.lead(|_| core::future::pending::<()>())).await;
    assert_eq!((end.output, end.release), (Err(LeadError::Late), Release::Released));
    assert!(since.elapsed() >= server.own_ttl(), "{:?}", since.elapsed());

    // Renewals fail: the leader is asked to stop, and then stopped.
    let leadership = kit.in_time("elected", election.campaign("three")).await.unwrap();
    server.pause();
    let mut raised = false;
    let end = leadership.lead(|stop| {
        let raised = &mut raised;
        async move {
            stop.raised().await;
            *raised = true;
            core::future::pending::<()>().await;
        }
    });
    let output = kit.cancel_after(2 * server.own_ttl(), end).await.map(|end| end.output);
    server.resume();
    assert!(raised);
    assert!(matches!(output, None | Some(Err(LeadError::Lost(Loss::Expired)))), "{output:?}");
    drop((election, client));
    kit.clean(&server).await;
}

pub async fn other_servers_are_reported_as_protocol_faults<R: Runtime>(kit: Kit<R>, server: Server) {
    for (greeting, breach) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], Breach::Http1),
        (&[0x15, 3, 1, 0, 2, 2, 70], Breach::Tls),
        (b"-ERR unknown command\r\n", Breach::Resp),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = server.url_at(listener.local_addr().unwrap());
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
