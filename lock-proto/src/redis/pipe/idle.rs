//! Silent connections, and those that nothing needs.

use super::wire::Job;
use super::{Phase, Pipe, PipeOutput, Resp};
use crate::time::{Instant, soonest};

impl Pipe {
    /// Returns when to report that the connection is idle. A login on the open connection does not
    /// count as use: otherwise a client without locks would never close it.
    // P7
    pub(super) fn idle_due(&self) -> Option<Instant> {
        let Resp { last_used, idle_checked, .. } = self.state;
        let checks = self.state.config.idle_checks.filter(|_| self.is_up() && self.is_unused())?;
        let [first, second] = checks.map(|silence| Some(last_used + silence).filter(|at| *at > idle_checked));
        let again = checks.into_iter().min().map(|pause| last_used.max(idle_checked) + pause);
        soonest([first, second, again])
    }

    pub(super) fn check_idle(&mut self) {
        if self.idle_due().is_some_and(|due| due <= self.now) {
            self.state.idle_checked = self.now;
            self.outputs.push_back(PipeOutput::Idle(self.now.since(self.state.last_used)));
        }
    }

    /// Returns true if no command is queued and no reply is expected.
    pub(crate) fn is_unused(&self) -> bool {
        self.state.wire.is_idle()
    }

    /// Nothing needs the connection. If it has failed, it is not reopened before `open` or `send`.
    // P7
    pub const fn rest(&mut self) {
        self.state.rests = matches!(self.phase, Phase::BackingOff { .. });
    }

    /// Sends a `PING`, if the connection is up.
    pub fn ping(&mut self, now: Instant) {
        self.clock(now);
        if self.is_up() {
            self.submit_job(Job::Ping);
        }
    }
}
