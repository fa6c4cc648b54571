//! The servers, and the faults that happen to them.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use lock_sim::etcd::ClusterConfig;
use lock_sim::redis::{Node, NodeConfig};
use lock_sim::test_server::{CommonScripts, EtcdServer, RedisServer};

use super::command::{Command, Server};
use super::line::Line;

pub(super) struct Stage {
    redis: Vec<Redis>,
    etcd: Option<EtcdServer>,
    members: Vec<Line>,
}

struct Redis {
    served: RedisServer,
    line: Line,
    /// Its replica, from the moment replication stopped.
    replica: Option<Box<Node>>,
}

/// Servers of a quorum have been running for a while.
const UPTIME: Duration = Duration::from_secs(3_600);

/// Opens the line to a server on the port `number` after the first one; 0 for any port.
async fn open(name: &str, first: u16, number: usize, server: SocketAddr) -> io::Result<Line> {
    let port = match first {
        0 => 0,
        _ => u16::try_from(usize::from(first) + number).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: the ports end at 65535, {first} is too high"))
        })?,
    };
    Line::open(port, server).await.map_err(|error| named(format_args!("{name}, port {port}"), &error))
}

/// An error with what it is about.
pub(super) fn named(what: impl fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl Stage {
    pub(super) async fn start(redis: usize, redis_port: u16, etcd: usize, etcd_port: u16) -> io::Result<Self> {
        let mut servers = Vec::new();
        for number in 0..redis {
            let config = NodeConfig::new(number as u64 + 1).uptime(UPTIME).interpreter(Arc::new(CommonScripts));
            let served = RedisServer::start(config)?;
            let line = open(&format!("redis{number}"), redis_port, number, served.address()).await?;
            servers.push(Redis { served, line, replica: None });
        }
        let (mut cluster, mut members) = (None, Vec::new());
        if etcd > 0 {
            let served = EtcdServer::start(etcd, ClusterConfig::new(etcd, 1))?;
            for (number, address) in served.addresses().iter().enumerate() {
                members.push(open(&format!("etcd{number}"), etcd_port, number, *address).await?);
            }
            // Clients that ask for the members learn the ports that they can reach.
            let urls = members.iter().map(|line| format!("http://{}", line.address())).collect();
            served.with_cluster(|cluster, _| cluster.set_client_urls(urls));
            cluster = Some(served);
        }
        Ok(Self { redis: servers, etcd: cluster, members })
    }

    /// The servers and their URLs, one a line.
    pub(super) fn list(&self) -> String {
        let redis = self.redis.iter().enumerate();
        let redis = redis.map(|(number, redis)| format!("redis{number} redis://{}", redis.line.address()));
        let etcd = self.members.iter().enumerate();
        let etcd = etcd.map(|(number, line)| format!("etcd{number} http://{}", line.address()));
        redis.chain(etcd).collect::<Vec<_>>().join("\n")
    }

    fn redis(&mut self, number: usize) -> Result<&mut Redis, String> {
        self.redis.get_mut(number).ok_or_else(|| format!("there is no redis{number}"))
    }

    fn line(&self, server: Server) -> Result<&Line, String> {
        let (line, name) = match server {
            Server::Redis(number) => (self.redis.get(number).map(|redis| &redis.line), format!("redis{number}")),
            Server::Etcd(number) => (self.members.get(number), format!("etcd{number}")),
        };
        line.ok_or_else(|| format!("there is no {name}"))
    }

    fn cluster(&self, member: usize) -> Result<&EtcdServer, String> {
        let cluster = self.etcd.as_ref().filter(|_| member < self.members.len());
        cluster.ok_or_else(|| format!("there is no etcd{member}"))
    }

    pub(super) fn carry_out(&mut self, command: &Command) -> Result<String, String> {
        match command {
            Command::List => return Ok(self.list()),
            Command::Pause(Server::Redis(number)) => self.redis(*number)?.served.pause(),
            Command::Continue(Server::Redis(number)) => self.redis(*number)?.served.resume(),
            // A stopped member hears neither its clients nor the others. A single one that lost its
            // quorum would be elected anew, and renew all leases.
            Command::Pause(server @ Server::Etcd(member)) => {
                let cluster = self.cluster(*member)?;
                if self.members.len() > 1 {
                    cluster.with_cluster(|cluster, now| cluster.isolate(now, *member));
                }
                self.line(*server)?.cut(None, true);
            }
            Command::Continue(server @ Server::Etcd(member)) => {
                self.cluster(*member)?.with_cluster(|cluster, now| cluster.heal(now, *member));
                self.line(*server)?.cut(None, false);
            }
            Command::Cut(server, direction) => self.line(*server)?.cut(*direction, true),
            Command::Heal(server) => self.line(*server)?.cut(None, false),
            Command::Delay(server, direction, time) => self.line(*server)?.delay(*direction, *time),
            Command::Reset(server) => self.line(*server)?.reset(),
            Command::Kill(Server::Redis(number)) => self.redis(*number)?.served.kill(),
            Command::Kill(Server::Etcd(member)) => {
                self.cluster(*member)?.with_cluster(|cluster, now| cluster.crash(now, *member));
                self.line(Server::Etcd(*member))?.reset();
            }
            Command::Start(Server::Redis(number), keep_data) => {
                self.redis(*number)?.served.restart(*keep_data).map_err(|error| error.to_string())?;
            }
            Command::Start(Server::Etcd(_), false) => return Err("a member of etcd keeps its data".into()),
            Command::Start(Server::Etcd(member), true) => {
                self.cluster(*member)?.with_cluster(|cluster, now| cluster.start(now, *member));
            }
            Command::StopReplication(number) => {
                let redis = self.redis(*number)?;
                redis.replica = Some(Box::new(redis.served.with_node(|node, _| node.clone())));
            }
            Command::Promote(number) => {
                let redis = self.redis(*number)?;
                redis.served.kill();
                if let Some(replica) = redis.replica.take() {
                    redis.served.with_node(|node, _| *node = *replica);
                }
                redis.served.restart(true).map_err(|error| error.to_string())?;
            }
            Command::Clock(number, by, forward) => self
                .redis(*number)?
                .served
                .with_node(|node, now| if *forward { node.jump_forward(now, *by) } else { node.jump_back(now, *by) }),
            Command::Evict(number, key) => {
                if !self.redis(*number)?.served.with_node(|node, now| node.remove(now, key)) {
                    return Err(format!("there is no key {key}"));
                }
            }
            Command::Keys(Server::Redis(number)) => {
                let keys = self.redis(*number)?.served.with_node(|node, now| node.keys(now));
                return Ok(keys.iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>().join("\n"));
            }
            Command::Keys(Server::Etcd(member)) => {
                let keys = self.cluster(*member)?.with_cluster(|cluster, _| cluster.keys());
                return Ok(keys.iter().map(|kv| kv.key.escape_ascii().to_string()).collect::<Vec<_>>().join("\n"));
            }
            Command::Isolate(member) => {
                self.cluster(*member)?.with_cluster(|cluster, now| cluster.isolate(now, *member))
            }
            Command::Join(member) => self.cluster(*member)?.with_cluster(|cluster, now| cluster.heal(now, *member)),
            Command::ChangeLeader => {
                if !self.cluster(0)?.with_cluster(|cluster, now| cluster.change_leader(now)) {
                    return Err("there is no other candidate".into());
                }
            }
            Command::Quit => {}
        }
        Ok(String::new())
    }
}
