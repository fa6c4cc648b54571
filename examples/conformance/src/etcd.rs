//! Scenarios on etcd.

use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use lock_proto::driver::etcd::OwnerKeyExt as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use lock_proto::driver::etcd::OwnerError;
use lock_proto::driver::{AcquireErrorKind, Client, LeadError, ProclaimError};
use lock_proto::etcd::{Config, ElectionEvent, Leader};
use lock_proto::redis::{Answer, Blocked, Cause, Loss, Release, Renew};
use lock_proto::{Breach, Fault};
use lock_testkit::{Etcd, EtcdCluster, TIMEOUT};

use crate::kit::SLACK;
use crate::{Kit, Runtime};

const MS: Duration = Duration::from_millis(1);
/// Exceeds [`TIMEOUT`], so that nothing in a test ends because of it.
const LONG: Duration = Duration::from_secs(60);

/// Waits until the clients have left nothing in the store.
async fn clean<R: Runtime>(kit: &Kit<R>, etcd: &Etcd) {
    kit.wait_for("all keys and leases are gone", || etcd.keys().is_empty() && etcd.leases().is_empty()).await;
}

pub async fn two_clients_exclude_each_other<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let (first, second) = (kit.client(&etcd.url()), kit.client(&etcd.url()));
    let guard = kit.take(&first, "a").await;
    assert!(guard.is_held() && guard.remaining() <= Duration::from_secs(10));
    let keys = etcd.keys_of("a/");
    let owner = guard.owner().unwrap();
    assert_eq!(keys, [String::from_utf8_lossy(&owner.key)]);
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
    clean(&kit, &etcd).await;
}

pub async fn fences_grow_across_tasks_and_clients<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let clients: Vec<Client> = (0..3).map(|_| kit.client(&etcd.url())).collect();
    for round in 0..5 {
        let mut waiting: Vec<_> =
            clients.iter().flat_map(|client| (0..4).map(|_| Box::pin(client.lock("a").acquire()))).collect();
        let mut fences = Vec::new();
        while !waiting.is_empty() {
            let guard = kit
                .in_time(
                    "the next grant",
                    poll_fn(|cx| {
                        for index in 0..waiting.len() {
                            if let Poll::Ready(guard) = waiting[index].as_mut().poll(cx) {
                                drop(waiting.swap_remove(index));
                                return Poll::Ready(guard.unwrap());
                            }
                        }
                        Poll::Pending
                    }),
                )
                .await;
            let second = poll_fn(|cx| Poll::Ready(waiting.iter_mut().any(|next| next.as_mut().poll(cx).is_ready())));
            assert!(!second.await, "two hold the lock");
            fences.push(guard.fence().unwrap());
            drop(guard);
        }
        assert!(fences.is_sorted_by(|a, b| a < b), "round {round}: {fences:?}");
    }
    drop(clients);
    clean(&kit, &etcd).await;
}

pub async fn acquisition_dropped_at_any_time_leaves_nothing<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    for micros in (0..20_000).step_by(900) {
        let client = kit.client(&etcd.url());
        let acquiring = client.lock("a").acquire();
        let guard = kit.cancel_after(Duration::from_micros(micros), acquiring).await;
        drop(guard);
        drop(client);
    }
    clean(&kit, &etcd).await;
    // On an open connection.
    let client = kit.client(&etcd.url());
    let _ = kit.take(&client, "a").await.release().await;
    for micros in (0..4_000).step_by(200) {
        drop(kit.cancel_after(Duration::from_micros(micros), client.lock("a").acquire()).await);
    }
    kit.wait_for("the key is gone", || etcd.keys().is_empty()).await;
    let guard = kit.take(&client, "a").await;
    // Dropping the last handle shuts the client down, but the lock is still released.
    drop(client);
    assert!(guard.is_held());
    drop(guard);
    clean(&kit, &etcd).await;
}

pub async fn revoked_lease_is_reported_as_loss<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let client = kit.with(Config::parse(&etcd.url()).unwrap().session_ttl(Duration::from_secs(2)));
    let guard = kit.take(&client, "a").await;
    let mut waiting = client.lock("a").acquire();
    kit.still_waits(20 * MS, &mut waiting).await;
    etcd.revoke(&etcd.leases()[0]);
    let since = Instant::now();
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Gone);
    assert!(since.elapsed() < Duration::from_secs(2), "noticed before it would have ended: {:?}", since.elapsed());
    assert!(!guard.is_held() && guard.owner().is_none());
    assert_eq!(guard.owner_guard(), Err(OwnerError::Lost(Loss::Gone)));
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Expired);
    // A new session replaces it.
    drop(kit.in_time("the next holder", waiting).await.unwrap());
    drop(client);
    clean(&kit, &etcd).await;
}

pub async fn deleted_key_is_reported_as_loss<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let client = kit.with(Config::parse(&etcd.url()).unwrap().watch_own_after(Duration::ZERO));
    let guard = kit.take(&client, "a").await;
    let key = etcd.keys_of("a/").pop().unwrap();
    assert!(etcd.delete(&key));
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Gone);
    drop((guard, client));
    clean(&kit, &etcd).await;
}

pub async fn hold_expires_within_ttl_while_server_is_paused<R: Runtime>(kit: Kit<R>) {
    let mut etcd = Etcd::start();
    let client = kit.client(&etcd.url());
    let guard = kit.in_time("acquire", client.lock("a").ttl(Duration::from_secs(1)).acquire()).await.unwrap();
    etcd.pause();
    let since = Instant::now();
    kit.in_time("at risk", guard.observer().at_risk()).await;
    assert!(guard.is_held(), "the warning comes before the loss");
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Expired);
    assert!(since.elapsed() <= Duration::from_secs(1) + SLACK, "{:?}", since.elapsed());
    etcd.resume();
    drop(guard);
    kit.release(kit.take(&client, "a").await).await;
    // A restarted server keeps its data.
    let guard = kit.take(&client, "b").await;
    etcd.restart();
    assert!(guard.is_held());
    kit.release(guard).await;
    drop(client);
    clean(&kit, &etcd).await;
}

pub async fn lock_with_own_ttl_is_extended_manually_then_expires<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let client = kit.client(&etcd.url());
    let lock = client.lock("a").ttl(Duration::from_secs(1)).renew(Renew::Manual);
    let guard = kit.in_time("acquire", lock.acquire()).await.unwrap();
    assert_eq!(guard.ttl(), Duration::from_secs(1));
    let before = guard.valid_until();
    kit.in_time("extend", guard.extend()).await.unwrap();
    assert!(guard.valid_until() > before);
    assert_eq!(kit.in_time("the end", guard.lost()).await, Loss::Expired);
    drop((guard, client, lock));
    clean(&kit, &etcd).await;
}

pub async fn owner_key_revision_matches_store_and_grows_on_hand_over<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let client = kit.client(&etcd.url());
    let guard = kit.take(&client, "a").await;
    let owner = guard.owner_guard().unwrap();
    let key = core::str::from_utf8(&owner.key).unwrap();
    let fields = etcd.etcdctl(&["get", key, "-w", "fields"]);
    assert!(fields.contains(&format!("\"ModRevision\" : {}", owner.mod_revision)), "{fields}");
    assert!(fields.contains(&format!("\"CreateRevision\" : {}", owner.create_revision)), "{fields}");
    // A local hand-over changes the key.
    let waiting = client.lock("a").acquire();
    drop(guard);
    let next = kit.in_time("the next holder", waiting).await.unwrap();
    let now = next.owner().unwrap();
    assert!((now.create_revision, now.mod_revision) > (owner.create_revision, owner.mod_revision), "{now:?} {owner:?}");
    drop((next, client));
    clean(&kit, &etcd).await;
}

pub async fn observer_sees_elected_leaders_and_proclamations<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let (first, second, third) = (kit.client(&etcd.url()), kit.client(&etcd.url()), kit.client(&etcd.url()));
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
    assert_eq!((&*leader.value, &leader.key), (&b"one"[..], &leadership.owner().unwrap().key));

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
    kit.wait_for("one key", || etcd.keys_of("board/").len() == 1).await;
    assert!(etcd.delete(core::str::from_utf8(&leader.key).unwrap()));
    assert_eq!(kit.in_time("nobody", observation.next()).await, Some(ElectionEvent::NoLeader));
    let lost = kit.in_time("the result", leadership.proclaim("four")).await.unwrap_err();
    assert_eq!(lost, ProclaimError::Lost(Loss::Gone));
    drop(leadership);
    drop(observation);
    drop((first, second, third, election));
    clean(&kit, &etcd).await;
}

pub async fn leader_resigns_after_work_ends_or_time_limit<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let client = kit.client(&etcd.url());
    let election = client.election("board").ttl(Duration::from_secs(1));
    // The leader is asked to resign, and finishes its work first.
    let leadership = kit.in_time("elected", election.campaign("one")).await.unwrap();
    let resign_handle = leadership.resign_handle();
    let thread = thread::spawn(move || {
        thread::sleep(100 * MS);
        resign_handle.resign();
    });
    let end = leadership.lead(|stop| {
        let etcd = &etcd;
        let kit = &kit;
        async move {
            assert!(!stop.is_raised());
            stop.raised().await;
            kit.sleep(200 * MS).await;
            etcd.keys_of("board/").len()
        }
    });
    let end = kit.in_time("the work", end).await;
    assert_eq!((end.output, end.release), (Ok(1), Release::Released), "the leadership lasted until the work had ended");
    thread.join().unwrap();
    assert_eq!(etcd.keys_of("board/").len(), 0);

    // The leader is asked to resign, and ignores it.
    let leadership = kit.in_time("elected", election.campaign("two")).await.unwrap();
    leadership.resign_handle().resign();
    let since = Instant::now();
    let end = kit.in_time("the limit", leadership.lead(|_| core::future::pending::<()>())).await;
    assert_eq!((end.output, end.release), (Err(LeadError::Late), Release::Released));
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());

    // Renewals fail: the leader is asked to stop, and then stopped.
    let leadership = kit.in_time("elected", election.campaign("three")).await.unwrap();
    etcd.pause();
    let mut raised = false;
    let end = leadership.lead(|stop| {
        let raised = &mut raised;
        async move {
            stop.raised().await;
            *raised = true;
            core::future::pending::<()>().await;
        }
    });
    let output = kit.cancel_after(Duration::from_secs(2), end).await.map(|end| end.output);
    etcd.resume();
    assert!(raised);
    assert!(matches!(output, None | Some(Err(LeadError::Lost(Loss::Expired)))), "{output:?}");
    drop((election, client));
    clean(&kit, &etcd).await;
}

pub async fn wrong_login_and_missing_permission_are_refused<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::builder().user("worker", "secret", Some("jobs/")).start();
    let client = kit.client(&etcd.url_with("worker", "secret"));
    kit.release(kit.take(&client, "jobs/1").await).await;
    let limited = |client: &Client, name: &str| client.lock(name).wait(Duration::from_secs(3)).acquire();
    let refused = kit.in_time("refused", limited(&client, "other")).await.unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    let stranger = kit.client(&etcd.url_with("worker", "wrong"));
    let refused = kit.in_time("refused", limited(&stranger, "jobs/1")).await.unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    let nobody = kit.client(&format!("etcd://{}", etcd.address()));
    let refused = kit.in_time("refused", limited(&nobody, "jobs/1")).await.unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    drop((client, stranger, nobody));
    clean(&kit, &etcd).await;
}

pub async fn non_etcd_servers_are_reported_as_protocol_faults<R: Runtime>(kit: Kit<R>) {
    for (greeting, breach) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], Breach::Http1),
        (&[0x15, 3, 1, 0, 2, 2, 70], Breach::Tls),
        (b"-ERR unknown command\r\n", Breach::Resp),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("etcd://{}", listener.local_addr().unwrap());
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
    let mut cluster = EtcdCluster::start(3);
    // The first endpoint is dead.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = cluster.url().replace("etcd://", &format!("etcd://{},", nobody.local_addr().unwrap()));
    drop(nobody);
    let client = kit.client(&url);
    let guard = kit.take(&client, "a").await;
    for member in [0, 1] {
        cluster.member(member).kill();
        kit.sleep(100 * MS).await;
        cluster.member(member).restart_without_waiting();
        assert!(guard.is_held());
        let waited = kit.in_time("another lock", client.lock("b").acquire()).await.unwrap();
        kit.release(waited).await;
        assert!(cluster.leader() < 3);
    }
    assert!(guard.is_held(), "a session outlives a member");
    kit.release(guard).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    assert_eq!(cluster.etcdctl(&["get", "--prefix", ""]), "");
}

/// The whole life of a candidate and of an observer, dropped at every await point.
pub async fn election_cancelled_at_every_await_point_leaves_nothing<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let (client, other) = (kit.client(&etcd.url()), kit.client(&etcd.url()));
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
    kit.wait_for("no candidate is left", || etcd.keys().is_empty()).await;
    drop((election, theirs, client, other));
    clean(&kit, &etcd).await;
}
