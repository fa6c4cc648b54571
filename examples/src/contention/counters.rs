//! What the servers say of themselves: commands executed, processor time used.

use core::net::SocketAddr;
use core::ops::Sub;
use core::time::Duration;
use std::net::ToSocketAddrs as _;

use lock_proto::driver::Settings;
use lock_proto::redis::{Endpoint, Target};
use lock_testkit::{Connection, Value, http_get};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What servers have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// Redis: commands executed, those of scripts too (`INFO commandstats`). etcd: messages received, on streams too.
    pub(super) commands: u64,
    /// User and system.
    pub(super) cpu: Duration,
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { commands: self.commands.saturating_sub(before.commands), cpu: self.cpu.saturating_sub(before.cpu) }
    }
}

impl core::iter::Sum for Spent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self { commands: a.commands + b.commands, cpu: a.cpu + b.cpu })
    }
}

/// The servers of a run, as far as they can be asked.
#[derive(Debug)]
pub(super) enum Servers {
    Redis(Vec<Endpoint>),
    Etcd(Vec<SocketAddr>),
}

impl Servers {
    /// Those with these URLs; what is wrong with them is told elsewhere.
    pub(super) fn of(backends: &[String]) -> Self {
        match Settings::parse(backends) {
            Ok(Settings::Redis(config)) => Self::Redis(config.nodes().to_vec()),
            Ok(Settings::Etcd(config)) => {
                let address = |target: &Target| address(target);
                Self::Etcd(config.endpoints().iter().filter_map(|endpoint| address(&endpoint.target)).collect())
            }
            Ok(_) | Err(_) => Self::Redis(Vec::new()),
        }
    }

    /// What they have done so far; `None` if one of them does not tell.
    pub(super) fn sample(&self) -> Option<Spent> {
        match self {
            Self::Redis(nodes) => nodes.iter().map(redis).sum(),
            Self::Etcd(members) => members.iter().map(|member| etcd(*member)).sum(),
        }
    }
}

fn address(target: &Target) -> Option<SocketAddr> {
    // Not of Unix sockets.
    let Target::Tcp { host, port } = target else { return None };
    (&**host, *port).to_socket_addrs().ok()?.next()
}

fn redis(node: &Endpoint) -> Option<Spent> {
    let mut connection = Connection::open(address(&node.target)?, PATIENCE).ok()?;
    if let Some(password) = &node.password {
        let user = node.username.as_deref().unwrap_or("default");
        connection.command(&["AUTH", user, password.expose()]).ok()?;
    }
    let mut info = |section| match connection.command(&["INFO", section]) {
        Ok(Value::Text(text)) => Some(String::from_utf8_lossy(&text).into_owned()),
        Ok(_) | Err(_) => None,
    };
    Some(Spent { commands: commands_of(&info("commandstats")?), cpu: redis_cpu(&info("cpu")?)? })
}

/// The sum of `cmdstat_get:calls=2,usec=…`.
fn commands_of(stats: &str) -> u64 {
    let calls = |line: &str| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter_map(calls).sum()
}

fn redis_cpu(info: &str) -> Option<Duration> {
    let seconds = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    Duration::try_from_secs_f64(seconds("used_cpu_user:")? + seconds("used_cpu_sys:")?).ok()
}

fn etcd(member: SocketAddr) -> Option<Spent> {
    let page = http_get(member, "/metrics", PATIENCE).ok()?;
    let sum = |name: &str| -> f64 {
        let figures = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        figures
            .filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'))
            .filter_map(|(_, n)| n.parse::<f64>().ok())
            .sum()
    };
    let cpu = Duration::try_from_secs_f64(sum("process_cpu_seconds_total")).ok()?;
    Some(Spent { commands: sum("grpc_server_msg_received_total") as u64, cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_redis_are_read() {
        let stats =
            "# Commandstats\r\ncmdstat_set:calls=12,usec=9,usec_per_call=0.75\r\ncmdstat_config|get:calls=3,usec=1\r\n";
        assert_eq!(commands_of(stats), 15);
        let info = "# CPU\r\nused_cpu_sys:0.5\r\nused_cpu_user:1.25\r\nused_cpu_sys_children:9\r\n";
        assert_eq!(redis_cpu(info), Some(Duration::from_millis(1750)));
    }
}
