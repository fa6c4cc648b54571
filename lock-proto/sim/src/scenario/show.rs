//! Plans as text.

use core::fmt;
use core::time::Duration;

use super::{Action, Bounds, Origin, Pace, Plan, Step};
use crate::world::Provider;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.scenario.name, self.scenario.about)?;
        if let Bounds::Beyond(what) = self.scenario.bounds {
            write!(f, " (beyond the bounds: {what})")?;
        }
        match &self.origin {
            Origin::Seed(seed) => write!(f, "\n  drawn from seed {seed}")?,
            Origin::Bytes(bytes) => write!(f, "\n  drawn from {} bytes", bytes.len())?,
        }
        f.write_str(match (self.changed, self.is_as_drawn()) {
            (true, _) => ", then shrunk\n",
            (false, true) => "\n",
            (false, false) => ", then changed\n",
        })?;
        writeln!(f, "  packet latency {:?}; world seed {}", self.setup.latency, self.setup.seed)?;
        if !self.setup.service.is_zero() {
            writeln!(f, "  a server takes {:?} for a command", self.setup.service)?;
        }
        if let Some(trips) = self.setup.tls {
            writeln!(f, "  clients connect by TLS, with a handshake of {trips} round trips")?;
        }
        if let Some(Provider { delay, valid_for, caches }) = &self.setup.credentials {
            writeln!(f, "  credentials take {delay:?}, valid for {valid_for:?}, cached: {caches}")?;
        }
        if self.setup.stale {
            writeln!(f, "  clients get data from ended connections")?;
        }
        for (lane, paces) in [("client", &self.setup.clients), ("node", &self.setup.nodes)] {
            for (i, Pace { offset, drift_ppm }) in paces.iter().enumerate() {
                writeln!(f, "  {lane} {i}: its clock reads {offset:?} at first and gains {drift_ppm} µs a second")?;
            }
        }
        writeln!(f, "  {:?}", self.setup.store)?;
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "{i:>4}  {step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.3}s  {}", self.at.as_secs_f64(), self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { client, tag, name, ttl, wait, renew, claim, hold, write_every } => {
                write!(f, "client {client} requests {name} as #{tag}: wait {wait:?}, renew {renew:?}")?;
                if let Some(ttl) = ttl {
                    write!(f, ", TTL {ttl:?}")?;
                }
                match hold {
                    Some(hold) => write!(f, ", holds it for {hold:?}")?,
                    None => f.write_str(", holds it until released")?,
                }
                if let Some(every) = write_every {
                    write!(f, ", writes every {every:?}")?;
                }
                show_claim(f, *claim)
            }
            Self::Claim(tag) => write!(f, "#{tag} is claimed"),
            Self::Extend(tag) => write!(f, "#{tag} is extended"),
            Self::Release(tag) => write!(f, "#{tag} is released"),
            Self::Abandon(tag) => write!(f, "#{tag} is dropped"),
            Self::Write(tag) => write!(f, "#{tag} writes"),
            Self::Shutdown { client, within } => write!(f, "client {client} is shut down within {within:?}"),
            Self::PauseClient(client) => write!(f, "client {client} is paused"),
            Self::SuspendClient(client) => write!(f, "client {client} is suspended and its clock stops"),
            Self::ResumeClient(client) => write!(f, "client {client} resumes"),
            Self::KillClient(client) => write!(f, "client {client} dies"),
            Self::PauseNode(node) => write!(f, "node {node} is paused"),
            Self::ResumeNode(node) => write!(f, "node {node} resumes"),
            Self::KillNode(node) => write!(f, "node {node} dies"),
            Self::RestartNode { node, keep_data: true } => write!(f, "node {node} starts with its data"),
            Self::RestartNode { node, keep_data: false } => write!(f, "node {node} starts empty"),
            Self::JumpNode { node, ms } => write!(f, "the clock of node {node} is set by {ms} ms"),
            Self::Cut { client, node, direction } => write!(f, "client {client}, node {node}: cut {direction}"),
            Self::Heal { client, node } => write!(f, "client {client}, node {node}: healed"),
            Self::Reset { client, node } => write!(f, "client {client}, node {node}: connections reset"),
            Self::Stall { client, node, direction, span } => {
                write!(f, "the connections of client {client} to node {node} lose packets {direction} for {span:?}")
            }
            Self::BlockSocket { client, node, span } => {
                write!(f, "the sockets of client {client} to node {node} take nothing for {span:?}")
            }
            Self::Slow { client, node, direction, latency } => {
                write!(f, "client {client}, node {node}: {latency:?} {direction}")
            }
            Self::Handshake { client, node, handshake } => write!(f, "client {client}, node {node}: {handshake}"),
            Self::Source(source) => write!(f, "{source}"),
            Self::ChangePasswords(keep) => write!(f, "passwords change, the old ones work for {keep:?}"),
            Self::Queue(action) => write!(f, "{action}"),
            Self::Redis(action) => write!(f, "{action}"),
            Self::Etcd(action) => write!(f, "{action}"),
            Self::Zookeeper(action) => write!(f, "{action}"),
            Self::Register(action) => write!(f, "{action}"),
        }
    }
}

pub(super) fn show_claim(f: &mut fmt::Formatter<'_>, claim: Option<Duration>) -> fmt::Result {
    match claim {
        Some(Duration::ZERO) => Ok(()),
        Some(after) => write!(f, ", claims it after {after:?}"),
        None => f.write_str(", does not claim it"),
    }
}
