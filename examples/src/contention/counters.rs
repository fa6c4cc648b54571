//! Statistics reported by the servers: executed commands and processor time.

use core::net::SocketAddr;
use core::ops::Sub;
use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};

use super::process;
use crate::cli::args::parse_backends;
use lock_driver::StoreSettings;
use lock_proto::Target;
use lock_proto::redis::Endpoint;
use lock_testkit::{Connection, Value, http_get};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Totals of the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerUsage {
    /// Redis: executed commands, including those of scripts (`INFO commandstats`). etcd: received
    /// messages, including those on streams. ZooKeeper: received packets (`srvr`).
    pub(super) commands: u64,
    /// Commands that only scripts use here, except `SET`.
    in_scripts: u64,
    sets: u64,
    /// Processor time, user and system, if it is known.
    pub(super) cpu: Option<Duration>,
}

/// How a run uses `SET`, which Redis counts alike inside and outside of scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sets {
    /// Clients send it: the other libraries.
    Sent,
    /// Only scripts use it: this library with fencing tokens.
    InScripts,
    /// Both: this library without fencing tokens.
    Both,
}

impl ServerUsage {
    /// Returns the number of commands that clients sent. The servers do not report it, but every
    /// command here except `SET` is either sent or used in scripts.
    pub(super) const fn requests(&self, sets: Sets) -> Option<u64> {
        let sent = self.commands.saturating_sub(self.in_scripts);
        match sets {
            Sets::Sent => Some(sent),
            Sets::InScripts => Some(sent.saturating_sub(self.sets)),
            Sets::Both => None,
        }
    }
}

impl Sub for ServerUsage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            commands: self.commands.saturating_sub(before.commands),
            in_scripts: self.in_scripts.saturating_sub(before.in_scripts),
            sets: self.sets.saturating_sub(before.sets),
            cpu: self.cpu.zip(before.cpu).map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

impl core::iter::Sum for ServerUsage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self { cpu: Some(Duration::ZERO), ..Self::default() }, |a, b| Self {
            commands: a.commands + b.commands,
            in_scripts: a.in_scripts + b.in_scripts,
            sets: a.sets + b.sets,
            cpu: a.cpu.zip(b.cpu).map(|(a, b)| a + b),
        })
    }
}

/// The servers of a run that can be queried.
#[derive(Debug)]
pub(super) enum Servers {
    Redis(Vec<Endpoint>),
    Etcd(Vec<SocketAddr>),
    ZooKeeper(Vec<SocketAddr>),
}

impl Servers {
    /// Connects to these URLs. Skips invalid ones, which are reported elsewhere.
    pub(super) fn of(backends: &[String]) -> Self {
        match parse_backends(backends) {
            Ok(StoreSettings::Redis(config)) => Self::Redis(config.nodes().to_vec()),
            Ok(StoreSettings::Etcd(config)) => {
                let address = |target: &Target| address(target);
                Self::Etcd(config.endpoints().iter().filter_map(|endpoint| address(&endpoint.target)).collect())
            }
            Ok(StoreSettings::ZooKeeper(config)) => {
                Self::ZooKeeper(config.servers().iter().filter_map(address).collect())
            }
            Ok(_) | Err(_) => Self::Redis(Vec::new()),
        }
    }

    /// Returns the totals so far; `None` if a server does not report them.
    pub(super) fn sample(&self) -> Option<ServerUsage> {
        match self {
            Self::Redis(nodes) => nodes.iter().map(redis).sum(),
            Self::Etcd(members) => members.iter().map(|member| etcd(*member)).sum(),
            Self::ZooKeeper(members) => members.iter().map(|member| zookeeper(*member)).sum(),
        }
    }
}

fn address(target: &Target) -> Option<SocketAddr> {
    // Unix sockets are not supported.
    let Target::Tcp { host, port } = target else { return None };
    (&**host, *port).to_socket_addrs().ok()?.next()
}

fn redis(node: &Endpoint) -> Option<ServerUsage> {
    let mut connection = Connection::open(address(&node.target)?, TIMEOUT).ok()?;
    if let Some(password) = &node.login.password {
        let user = node.login.username.as_deref().unwrap_or("default");
        connection.command(&["AUTH", user, password.expose()]).ok()?;
    }
    let mut info = |section| match connection.command(&["INFO", section]) {
        Ok(Value::Text(text)) => Some(String::from_utf8_lossy(&text).into_owned()),
        Ok(_) | Err(_) => None,
    };
    let usage = commands_of(&info("commandstats")?);
    Some(ServerUsage { cpu: Some(redis_cpu(&info("cpu")?)?), ..usage })
}

/// The commands that the scripts of all libraries here use, apart from `SET`.
const SCRIPT_COMMANDS: [&str; 8] = ["get", "mget", "del", "pttl", "time", "exists", "pexpire", "rpush"];

/// Sums lines such as `cmdstat_get:calls=2,usec=…`.
fn commands_of(stats: &str) -> ServerUsage {
    let mut usage = ServerUsage::default();
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    for (name, rest) in lines {
        let calls = rest.split(',').next().and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0);
        usage.commands += calls;
        if SCRIPT_COMMANDS.contains(&name) {
            usage.in_scripts += calls;
        }
        if name == "set" {
            usage.sets += calls;
        }
    }
    usage
}

fn redis_cpu(info: &str) -> Option<Duration> {
    let seconds = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    Duration::try_from_secs_f64(seconds("used_cpu_user:")? + seconds("used_cpu_sys:")?).ok()
}

fn etcd(member: SocketAddr) -> Option<ServerUsage> {
    let page = http_get(member, "/metrics", TIMEOUT).ok()?;
    let sum = |name: &str| -> f64 {
        let figures = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        figures
            .filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'))
            .filter_map(|(_, n)| n.parse::<f64>().ok())
            .sum()
    };
    let cpu = Duration::try_from_secs_f64(sum("process_cpu_seconds_total")).ok()?;
    let commands = sum("grpc_server_msg_received_total") as u64;
    Some(ServerUsage { commands, cpu: Some(cpu), ..ServerUsage::default() })
}

fn zookeeper(member: SocketAddr) -> Option<ServerUsage> {
    let mut stream = TcpStream::connect_timeout(&member, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(b"srvr").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let commands = answer.lines().find_map(|line| line.strip_prefix("Received: ")?.parse().ok())?;
    // It reports no processor time.
    Some(ServerUsage { commands, cpu: process::cpu_of_listener(member.port()), ..ServerUsage::default() })
}

#[cfg(test)]
mod tests {
    use lock_proto::redis::script;

    use super::*;

    #[test]
    fn commands_of_own_scripts_are_known() {
        let calls = script::ALL.iter().flat_map(|script| script.source.split("call('").skip(1));
        let commands: Vec<String> =
            calls.filter_map(|call| Some(call.split_once('\'')?.0.to_ascii_lowercase())).collect();
        assert!(["set", "mget"].iter().all(|known| commands.iter().any(|command| command == known)), "{commands:?}");
        for command in commands {
            assert!(command == "set" || SCRIPT_COMMANDS.contains(&&*command), "{command} is counted as sent");
        }
    }

    #[test]
    fn redis_command_and_cpu_stats_are_parsed() {
        let stats = "# Commandstats\r\ncmdstat_set:calls=12,usec=9,usec_per_call=0.75\r\ncmdstat_get:calls=5,usec=1\r\n\
                     cmdstat_evalsha:calls=2,usec=1\r\ncmdstat_config|get:calls=3,usec=1\r\n";
        let usage = commands_of(stats);
        assert_eq!(usage.commands, 22);
        assert_eq!(
            [Sets::Sent, Sets::InScripts, Sets::Both].map(|sets| usage.requests(sets)),
            [Some(17), Some(5), None]
        );
        let info = "# CPU\r\nused_cpu_sys:0.5\r\nused_cpu_user:1.25\r\nused_cpu_sys_children:9\r\n";
        assert_eq!(redis_cpu(info), Some(Duration::from_millis(1750)));
    }
}
