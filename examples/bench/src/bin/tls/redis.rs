//! This library and redis-rs on one Redis server, each over TLS and plain.

use std::fs;
use std::time::Duration;

use lock_testkit::{Authority, Redis, TIMEOUT};
use redis::aio::MultiplexedConnection;
use redis::{Client, IntoConnectionInfo as _, Script, TlsCertificates};

use crate::cycles::{Cycle, Series, print, print_head};

const ROUNDS: usize = 31;
const TTL_MS: u64 = 30_000;
const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub async fn contest(span: Duration) {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    let ours = [redis.url(), redis.lock_url()].map(|url| lock_bench::connect(&url).expect("a URL of the testkit"));
    let peers = [connect(redis.url(), None).await, {
        let ca = fs::read(authority.ca()).expect("the authority's certificate");
        connect(format!("rediss://{}", redis.tls_address()), Some(ca)).await
    }];
    for tasks in [1, 64] {
        let [mut own, mut other] = [const { [Series::NEW; 2] }; 2];
        for _ in 0..ROUNDS {
            for (series, client) in own.iter_mut().zip(&ours) {
                series.measure(redis.pid(), span, (0..tasks).map(|n| client.lock(format!("ours:{n}")))).await;
            }
            for (series, connection) in other.iter_mut().zip(&peers) {
                series.measure(redis.pid(), span, (0..tasks).map(|n| Peer::new(connection, n))).await;
            }
        }
        print_head("Redis", tasks, ROUNDS, span);
        print("this library", &own);
        print("redis-rs", &other);
        println!("budget: 1.35, and no more than redis-rs\n");
    }
    for client in ours {
        client.shutdown(TIMEOUT).await;
    }
}

async fn connect(url: String, ca: Option<Vec<u8>>) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a URL of the testkit");
    let client = match ca {
        Some(_) => Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: ca }),
        None => Client::open(info),
    };
    client.expect("a good certificate").get_multiplexed_async_connection().await.expect("a connection")
}

/// A common handwritten lock: `SET NX PX` with a token, and a script that deletes the key if it has
/// the token.
struct Peer {
    connection: MultiplexedConnection,
    delete: Script,
    name: String,
    tokens: u64,
}

impl Peer {
    fn new(connection: &MultiplexedConnection, task: usize) -> Self {
        let (connection, delete, name) = (connection.clone(), Script::new(DELETE), format!("redis-rs:{task}"));
        Self { connection, delete, name, tokens: 0 }
    }
}

impl Cycle for Peer {
    async fn cycle(&mut self) {
        self.tokens += 1;
        let token = format!("{}:{}", self.name, self.tokens);
        let mut set = redis::cmd("SET");
        set.arg(&self.name).arg(&token).arg("NX").arg("PX").arg(TTL_MS);
        let taken: Option<String> = set.query_async(&mut self.connection).await.expect("a reply");
        assert!(taken.is_some(), "nobody else wants it");
        let deleted: u32 =
            self.delete.key(&self.name).arg(token).invoke_async(&mut self.connection).await.expect("a reply");
        assert_eq!(deleted, 1, "the key is ours");
    }
}
