//! Untrusted servers: memory stays bounded, the connection is dropped, the result of the request is
//! unknown, and the client recovers once a correct server is reachable.
// P3

use std::fs;

use lock_testkit::{Redis, Stopwatch};
use lock_tokio::lock_proto::{Breach, Fault};
use lock_tokio::redis::Config;
use lock_tokio::{Answer, Backoff, Blocked, Cause, Client, Loss};
use tokio::time::{Instant, sleep};

use crate::kit::{LONG_TTL, assert_clean, endpoint, in_time, ms, release, take, timed_out, wait_until_blocked, with};
use crate::peer::{Behaviour, Peer};

/// More than one connection may read: frames are bounded, and socket buffers hold some megabytes.
const MAX_WRITTEN: u64 = 32 << 20;
/// Total size of an uninterrupted flood.
const FLOOD: usize = 256 << 20;

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn short_timeouts(url: &str) -> Config {
    Config::new([endpoint(url)]).request_timeout(ms(200)).poll(Backoff::fixed(ms(20)))
}

/// Runs a client against this behaviour, checks the fault, and lets a real server take over.
async fn expect_fault(parameters: &str, behaviour: Behaviour, faults: &[Fault]) {
    let peer = Peer::start(behaviour);
    let client = with(short_timeouts(&format!("{}{parameters}", peer.url())));
    let before = resident();
    let report = timed_out(in_time("a wait", client.lock("a").ttl(LONG_TTL).wait(ms(500)).acquire()).await);
    let [Answer::Unknown(Cause::Fault(fault)) | Answer::Unreachable(Cause::Fault(fault))] = &*report.nodes else {
        panic!("{report}")
    };
    assert!(faults.contains(fault), "{report}");
    assert!(peer.max_written() < MAX_WRITTEN, "{} bytes were taken in", peer.max_written());
    // A coarse bound, because other tests run in the same process.
    assert!(resident().saturating_sub(before) < 8 * MAX_WRITTEN, "{before} → {}", resident());
    recover(&peer, &client).await;
}

/// Replaces the peer by a real server and checks that the client recovers.
async fn recover(peer: &Peer, client: &Client) {
    let redis = Redis::start();
    peer.forward_to(redis.address());
    release(take(client, "a", LONG_TTL).await).await;
    assert_clean(&redis).await;
}

const fn breach(breach: Breach) -> Fault {
    Fault::Protocol(breach)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_of_another_protocol_is_recognised() {
    let tls: Behaviour = |conn| {
        conn.request()?;
        conn.write(&[0x15, 3, 1, 0, 2, 2, 70])?;
        conn.drain()
    };
    expect_fault("", tls, &[breach(Breach::Tls)]).await;
    let http: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")?;
        conn.drain()
    };
    expect_fault("", http, &[breach(Breach::Http1)]).await;
    let silent: Behaviour = |conn| conn.request().map(drop);
    expect_fault("", silent, &[Fault::ClosedEarly]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deeply_nested_reply_is_rejected() {
    // P3
    let nest: Behaviour = |conn| {
        conn.request()?;
        conn.write(&b"*1\r\n".repeat(10_000))?;
        conn.drain()
    };
    expect_fault("", nest, &[breach(Breach::TooDeep)]).await;
    let maps: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"%0\r\n")?;
        conn.request()?;
        conn.write(&b"%1\r\n+a\r\n".repeat(10_000))?;
        conn.drain()
    };
    expect_fault("?protocol=resp3", maps, &[breach(Breach::TooDeep)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_reply_lengths_are_rejected() {
    // P3
    let bulk: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"$4611686018427387904\r\n")?;
        conn.flood(b"x", FLOOD)
    };
    let array: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"*4611686018427387904\r\n")?;
        conn.flood(b":1\r\n", FLOOD)
    };
    for behaviour in [bulk, array] {
        expect_fault("", behaviour, &[breach(Breach::TooLong)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_garbage_is_rejected() {
    // P3
    let noise: Behaviour = |conn| {
        conn.request()?;
        conn.flood(b"\x00\xff garbage", FLOOD)
    };
    expect_fault("", noise, &[breach(Breach::Malformed)]).await;
    let status: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"+")?;
        conn.flood(b"x", FLOOD)
    };
    let error: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"-ERR ")?;
        conn.flood(b"x", FLOOD)
    };
    for behaviour in [status, error] {
        expect_fault("", behaviour, &[breach(Breach::TooLong)]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrequested_replies_are_rejected() {
    // P3
    let talkative: Behaviour = |conn| conn.flood(b":1\r\n", FLOOD);
    // The first one may look like a malformed reply to the request.
    expect_fault("", talkative, &[breach(Breach::Unsolicited), breach(Breach::WrongReply)]).await;
    let wrong: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"*3\r\n:1\r\n:2\r\n:3\r\n")?;
        conn.drain()
    };
    expect_fault("", wrong, &[breach(Breach::WrongReply)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_reply_times_out() {
    // P3
    let half: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"*2\r\n:1\r\n:17")?;
        conn.drain()
    };
    let silence: Behaviour = |conn| conn.drain();
    for behaviour in [half, silence] {
        expect_fault("", behaviour, &[Fault::TimedOut]).await;
    }
    // A login without a reply.
    let mute: Behaviour = |conn| conn.drain();
    let peer = Peer::start(mute);
    let url = peer.url().replace("redis://", "redis://:secret@");
    let client = with(short_timeouts(&url).connect_timeout(ms(300)));
    let report = timed_out(in_time("a wait", client.lock("a").ttl(LONG_TTL).wait(ms(500)).acquire()).await);
    assert!(matches!(&*report.nodes, [Answer::Unreachable(Cause::Fault(Fault::TimedOut))]), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_pushes_drop_connection() {
    // P3
    let pushes: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"%0\r\n")?;
        conn.request()?;
        conn.flood(
            b">2\r\n+message\r\n+a message that nobody has subscribed to, of which there are very many\r\n",
            FLOOD,
        )
    };
    expect_fault("?protocol=resp3", pushes, &[breach(Breach::TooManyPushes)]).await;
    // RESP2 has no push messages.
    expect_fault(
        "",
        |conn| conn.flood(b">1\r\n+x\r\n", FLOOD),
        &[breach(Breach::Malformed), breach(Breach::Unsolicited)],
    )
    .await;
}

/// Unsent data uses little memory, and the client gives up in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_requests_use_bounded_memory() {
    // P3
    let peer = Peer::start(|conn| {
        conn.stall();
        Ok(())
    });
    let client = with(short_timeouts(&peer.url()));
    let before = resident();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4000 {
        let lock = client.lock(format!("{n:0>500}")).ttl(LONG_TTL).wait(ms(600));
        tasks.spawn(async move { timed_out(lock.acquire().await) });
    }
    while let Some(report) = in_time("the end of the waits", tasks.join_next()).await {
        let report = report.unwrap();
        assert!(!report.is_busy(), "{report}");
    }
    assert!(resident().saturating_sub(before) < 8 * MAX_WRITTEN, "{before} → {}", resident());
    recover(&peer, &client).await;
}

/// Reconnect backoff grows, so there are only a few connections a second.
// P1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_hangs_up_is_retried_with_backoff() {
    // P3
    let at_once: Behaviour = |_| Ok(());
    let after_the_request: Behaviour = |conn| conn.request();
    for behaviour in [at_once, after_the_request] {
        let peer = Peer::start(behaviour);
        let client = with(short_timeouts(&peer.url()));
        let begun = Instant::now();
        let report = timed_out(in_time("a wait", client.lock("a").ttl(LONG_TTL).wait(ms(1500)).acquire()).await);
        assert!(matches!(&*report.nodes, [Answer::Unknown(_) | Answer::Unreachable(_)]), "{report}");
        // 10 ms, 20 ms, 40 ms … up to the request timeout, each up to a quarter shorter: 6 in the
        // first 300 ms, then at most one in 150 ms.
        let max_written = 8 + u64::try_from(begun.elapsed().as_millis()).unwrap() / 100;
        assert!(
            (2..=max_written).contains(&peer.connects()),
            "{} connections in {:?}",
            peer.connects(),
            begun.elapsed()
        );
        recover(&peer, &client).await;
    }
}

/// A grant from such a server is valid by the client's clock only.
// T1, T2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_followed_by_garbage_expires_within_ttl() {
    let generous: Behaviour = |conn| {
        conn.request()?;
        conn.write(b"*4\r\n:1\r\n:77\r\n:1\r\n:0\r\n")?;
        conn.request()?;
        conn.flood(b"\x01", FLOOD)
    };
    let peer = Peer::start(generous);
    let client = with(short_timeouts(&peer.url()).release_within(ms(200)));
    let ttl = ms(600);
    let guard = take(&client, "a", ttl).await;
    assert_eq!(guard.fence().unwrap().get(), 77);
    let begun = Stopwatch::start();
    assert_eq!(in_time("loss", guard.lost()).await, Loss::Expired);
    begun.assert_within(ttl, "the loss");
    drop(guard);
    recover(&peer, &client).await;
}

/// Invalid data on the wake-up connection affects no lock, and polling continues.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_wake_connection_affects_no_lock() {
    let noise: Behaviour = |conn| {
        conn.request()?;
        conn.flood(b"\x01", FLOOD)
    };
    let silence: Behaviour = |conn| conn.drain();
    let hang_up: Behaviour = |conn| conn.request();
    for behaviour in [noise, silence, hang_up] {
        let redis = Redis::start();
        redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
        let peer = Peer::in_front_of(redis.address(), b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID", behaviour);
        let client = with(short_timeouts(&peer.url()).connect_timeout(ms(200)));
        let held = take(&client, "held", LONG_TTL).await;
        let mut waiting = client.lock("a").ttl(LONG_TTL).acquire();
        wait_until_blocked(&mut waiting, Blocked::Held).await;
        let waiting = tokio::spawn(waiting);
        sleep(ms(300)).await;
        assert!(held.is_held() && !waiting.is_finished());
        assert!((2..=12).contains(&peer.connects()), "{} connections", peer.connects());
        redis.cli(&["DEL", "a"]);
        release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
        release(held).await;
        assert_clean(&redis).await;
    }
}
