//! RedLock: the same lock on a majority of independent servers.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_proto::Release;
use lock_sim::own::{Call, Context, Lost, OwnLock};
use lock_sim::redis::{RespReply, ScriptFn};

use crate::compared::{COMPARE_AND_DELETE, compare_and_delete};

#[derive(Clone, Debug, Default, Hash)]
pub struct RedLock {
    /// Servers that were started a moment ago have no vote: they may have lost their data.
    quarantine: bool,
    attempt: u64,
    votes: BTreeSet<usize>,
    young: BTreeSet<usize>,
    /// How many servers have confirmed the release, and how many have answered or will not.
    freed: usize,
    answered: usize,
}

const FREE: u64 = 0;
const UPTIME: u64 = 1;
/// Longer than any TTL.
const QUARANTINE: u64 = 10;

impl RedLock {
    pub fn with_quarantine() -> Self {
        Self { quarantine: true, ..Self::default() }
    }

    /// Each attempt has a value of its own, so that a late delete of an old one does no harm.
    fn value(&self, cx: &Context<'_>) -> String {
        format!("{}/{}", cx.token(), self.attempt)
    }

    fn free(&mut self, cx: &mut Context<'_>) {
        (self.freed, self.answered) = (0, 0);
        let value = self.value(cx);
        cx.send_all(FREE, &["EVAL", COMPARE_AND_DELETE, "1", cx.name(), &value]);
    }
}

impl OwnLock for RedLock {
    const QUORUM: bool = true;

    fn acquire(&mut self, cx: &mut Context<'_>) {
        // The numbers from 2 on are attempts.
        self.attempt = self.attempt.max(1) + 1;
        self.votes.clear();
        if self.quarantine {
            cx.send_all(UPTIME, &["INFO", "server"]);
        }
        let (value, ttl) = (self.value(cx), cx.ttl().as_millis().to_string());
        cx.send_all(self.attempt, &["SET", cx.name(), &value, "NX", "PX", &ttl]);
        cx.after(cx.ttl() / 10, self.attempt);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (FREE, reply) => {
                self.answered += 1;
                self.freed += usize::from(matches!(reply, Ok(RespReply::Int(_))));
                if self.answered == cx.nodes() && !cx.is_waiting() {
                    let is_free = self.freed > cx.nodes() / 2;
                    cx.released(if is_free { Release::Released } else { Release::Unknown });
                }
            }
            (UPTIME, Ok(info)) => {
                let info = String::from_utf8_lossy(info.bytes().unwrap_or_default()).into_owned();
                let uptime = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")?.parse().ok());
                match uptime.unwrap_or(0) < QUARANTINE {
                    true => self.young.insert(call.node),
                    false => self.young.remove(&call.node),
                };
            }
            (attempt, Ok(RespReply::Ok)) if attempt == self.attempt && !self.young.contains(&call.node) => {
                self.votes.insert(call.node);
                if self.votes.len() > cx.nodes() / 2 && cx.is_waiting() {
                    cx.cancel(attempt);
                    cx.grant(call.sent + cx.ttl() * 97 / 100, None);
                }
            }
            _ => {}
        }
    }

    /// The round is over without a majority.
    fn handle_timeout(&mut self, cx: &mut Context<'_>, _: u64) {
        self.free(cx);
        // A vote that comes now is too late: its key is being deleted.
        self.attempt += 1;
        let pause = 10 + cx.random(50);
        cx.retry(Duration::from_millis(pause));
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        self.free(cx);
    }

    fn scripts(&self) -> &'static [(&'static str, ScriptFn)] {
        &[(COMPARE_AND_DELETE, compare_and_delete)]
    }
}
