//! The `contention` tool of the package lock-examples, with `--peer` for other libraries.
//!
//! `cargo run --release --manifest-path examples/bench/Cargo.toml --bin contention -- report`.

#[cfg(feature = "etcd-client")]
mod etcd_client;
mod kazoo;
mod redis_loop;
mod rslock;
mod zookeeper_client;

use std::env;
use std::process::ExitCode;

use lock_examples::contention::{
    Contender, Failed, Job, Outcome, Peer, Peers, Store, lock_names, main as contention, measure,
};

fn main() -> ExitCode {
    let backends = env::var_os("LOCK_BACKEND");
    ExitCode::from(contention(env::args_os().skip(1), backends.as_deref(), &Others))
}

struct Others;

impl Peers for Others {
    fn list(&self) -> Vec<Peer> {
        vec![
            Peer {
                name: "rslock",
                about: format!(
                    "rslock {}: tries again after a random time of at most the poll interval",
                    version_of("rslock")
                ),
                store: Store::Redis { quorum: true },
                max_clients: None,
            },
            Peer {
                name: "redis-rs",
                about: format!(
                    "redis {} and a loop written by hand: SET NX PX every poll interval, a script to delete",
                    version_of("redis")
                ),
                store: Store::Redis { quorum: false },
                max_clients: None,
            },
            #[cfg(feature = "etcd-client")]
            Peer {
                name: "etcd-client",
                about: format!(
                    "etcd-client {}: the server's Lock call, a lease for each task",
                    version_of("etcd-client")
                ),
                store: Store::Etcd,
                max_clients: None,
            },
            Peer {
                name: "zookeeper-client",
                about: format!(
                    "zookeeper-client {}: its lock with the nodes of Curator",
                    version_of("zookeeper-client")
                ),
                store: Store::ZooKeeper,
                max_clients: None,
            },
            Peer {
                name: "kazoo",
                about: "kazoo, a process of Python for each task, which is told by a pipe what to do".to_owned(),
                store: Store::ZooKeeper,
                max_clients: Some(kazoo::MAX_CLIENTS),
            },
        ]
    }

    fn measure(&self, peer: &str, job: &Job) -> Result<Outcome, Failed> {
        match peer {
            "rslock" => run(job, rslock::Client::open, rslock::Task::new),
            "redis-rs" => run(job, redis_loop::Client::open, redis_loop::Task::new),
            #[cfg(feature = "etcd-client")]
            "etcd-client" => run(job, etcd_client::Client::open, etcd_client::Task::new),
            "zookeeper-client" => run(job, zookeeper_client::Client::open, zookeeper_client::Task::new),
            "kazoo" => run(job, kazoo::Client::open, kazoo::Task::new),
            other => Err(Failed::usage(format_args!("--peer: {other:?} is not known"))),
        }
    }
}

/// Measures tasks created by `task`, on as many clients created by `open` as the job requires.
fn run<C, T: Contender>(
    job: &Job,
    open: impl AsyncFn(&Job) -> Result<C, Failed>,
    task: impl Fn(&C, &Job, String) -> T,
) -> Result<Outcome, Failed> {
    job.runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..job.connections() {
            clients.push(open(job).await?);
        }
        let tasks = lock_names(job).into_iter().enumerate();
        let tasks = tasks.filter_map(|(n, name)| Some(task(clients.get(job.connection_of(n))?, job, name)));
        measure(job, tasks.collect()).await
    })?
}

/// The version of a dependency, from the lock file.
fn version_of(package: &str) -> &'static str {
    let entry = format!("name = \"{package}\"\nversion = \"");
    let rest = include_str!("../../../Cargo.lock").split_once(&entry).map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default()
}
