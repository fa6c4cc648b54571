//! Silent connections, and those that nothing needs.

use super::wire::Job;
use super::{Phase, Pipe, PipeOutput};
use crate::time::{Instant, soonest};

impl Pipe {
    /// Returns when to report that the connection is idle. A login on the open connection does not
    /// count as use: otherwise a client without locks would never close it.
    // P7
    pub(super) fn idle_due(&self) -> Option<Instant> {
        let Phase::Up { idle_checked, .. } = self.phase else { return None };
        let checks = self.config.idle_checks.filter(|_| self.wire.is_idle())?;
        let [first, second] = checks.map(|silence| Some(self.last_used + silence).filter(|at| *at > idle_checked));
        let again = checks.into_iter().min().map(|pause| self.last_used.max(idle_checked) + pause);
        soonest([first, second, again])
    }

    pub(super) fn check_idle(&mut self) {
        if self.idle_due().is_some_and(|due| due <= self.now)
            && let Phase::Up { idle_checked, .. } = &mut self.phase
        {
            *idle_checked = self.now;
            self.outputs.push_back(PipeOutput::Idle(self.now.since(self.last_used)));
        }
    }

    /// Returns true if no command is queued and no reply is expected.
    pub(crate) fn is_unused(&self) -> bool {
        self.wire.is_idle()
    }

    /// Nothing needs the connection. If it has failed, it is not reopened before `open` or `send`.
    // P7
    pub const fn rest(&mut self) {
        if let Phase::BackingOff { reopens, .. } = &mut self.phase {
            *reopens = false;
        }
    }

    /// Sends a `PING`, if the connection is up.
    pub fn ping(&mut self, now: Instant) {
        self.clock(now);
        if self.is_up() {
            self.submit_job(Job::Ping);
        }
    }
}
