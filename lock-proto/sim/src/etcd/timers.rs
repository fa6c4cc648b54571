//! Timers.

use alloc::vec::Vec;
use core::time::Duration;

use super::connection::CallKind;
use super::refusal::RefusalStatus;
use super::{Cluster, ClusterOutput, calls};
use lock_proto::Instant;
use lock_proto::time::nanos;

impl Cluster {
    /// Handles everything that is due by `now`, in the order of time.
    pub(super) fn advance(&mut self, now: Instant) {
        let now = now.max(self.now);
        while let Some(at) = self.next_due().filter(|at| *at <= now) {
            self.now = self.now.max(at);
            self.fire();
        }
        self.now = now;
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let boxes = self.connections.values().flat_map(|connection| {
            let inbox = connection.inbox.front().map(|(at, _)| *at);
            let outbox = connection.outbox.front().map(|(at, _)| *at);
            let streams = connection.streams.values().filter_map(|stream| match &stream.kind {
                CallKind::KeepAlive(keep_alives) => keep_alives.next_due(),
                CallKind::Watch(watches, at) => watches.wants_progress().then_some(*at),
            });
            inbox.into_iter().chain(outbox).chain(streams)
        });
        let streams_end = (0..self.members.len()).filter_map(|member| self.streams_end(member));
        let pending = self.pending.front().map(|call| call.until);
        let timers = [pending, self.election, self.sync, self.next_revoke(), self.next_end_of_stale_reads()];
        boxes.chain(streams_end).chain(timers.into_iter().flatten()).min()
    }

    /// Returns the next time of work that runs every `interval`.
    pub(super) fn next_tick(&self, interval: Duration) -> Instant {
        self.tick_after(self.now, interval)
    }

    fn next_revoke(&self) -> Option<Instant> {
        self.leader?;
        let expiry = self.store.leases().next_expiry()?;
        Some(self.tick_after(expiry.back(Duration::from_nanos(1)), self.config.lessor_interval).max(self.now))
    }

    fn tick_after(&self, after: Instant, interval: Duration) -> Instant {
        let interval = nanos(interval).max(1);
        let ticks = nanos(after.since(self.epoch)) / interval + 1;
        self.epoch + Duration::from_nanos(ticks.saturating_mul(interval))
    }

    /// Handles everything that is due right now. Each step removes what made it due.
    fn fire(&mut self) {
        if self.election.is_some_and(|at| at <= self.now) {
            self.elect();
        }
        self.end_stale_reads();
        self.time_out();
        self.end_streams();
        self.revoke_expired();
        self.keep_alives_due();
        if self.sync.is_some_and(|at| at <= self.now) {
            self.sync_watches();
        }
        self.notify_progress();
        self.drain_queues();
    }

    /// Times out calls and keep-alives that have waited for a leader too long.
    fn time_out(&mut self) {
        while self.pending.front().is_some_and(|call| call.until <= self.now) {
            let Some(call) = self.pending.pop_front() else { return };
            let reached_log = call.forwarded || !calls::is_proposal(&call.request);
            let why = if reached_log { RefusalStatus::TIMED_OUT } else { RefusalStatus::DEADLINE_EXCEEDED };
            let reply = Err(why.status());
            self.emit(ClusterOutput::Reply { conn: call.conn, rpc: call.rpc, reply });
            if call.forwarded {
                self.call_orphaned(call.member, call.token, call.request);
            }
        }
        let now = self.now;
        self.end_where(|_, kind| match kind {
            CallKind::KeepAlive(keep_alives) => keep_alives.is_over(now),
            CallKind::Watch(..) => false,
        });
    }

    fn end_streams(&mut self) {
        for member in 0..self.members.len() {
            if self.streams_end(member).is_some_and(|at| at <= self.now) {
                self.end_where(|of, _| of == member);
            }
        }
    }

    pub(super) fn end_where(&mut self, over: impl Fn(usize, &CallKind) -> bool) {
        let mut ended = Vec::new();
        for (conn, connection) in &self.connections {
            let streams = connection.streams.iter().filter(|(_, stream)| over(connection.member, &stream.kind));
            ended.extend(streams.map(|(stream, _)| (*conn, *stream)));
        }
        for (conn, stream) in ended {
            self.end(conn, stream, RefusalStatus::NO_LEADER);
        }
    }

    /// Revokes expired leases, each in a separate revision.
    fn revoke_expired(&mut self) {
        if self.next_revoke().is_none_or(|at| at > self.now) {
            return;
        }
        for lease in self.store.leases().expired(self.now) {
            // Cannot fail: the lease was listed just now.
            let _ = self.store.revoke(lease);
            self.publish();
        }
    }

    fn sync_watches(&mut self) {
        let max = self.config.max_message;
        let mut parked = false;
        for member in 0..self.members.len() {
            let applied = self.members[member].applied;
            self.each_watch(member, |watches, store, out| {
                watches.sync(store, applied, max, out);
                parked |= watches.has_parked();
            });
        }
        self.sync = parked.then(|| self.next_tick(self.config.sync_interval));
    }

    fn notify_progress(&mut self) {
        // A minimum of 1 ms, so that the next notification is later than now.
        let (now, interval) = (self.now, self.config.progress_interval.max(Duration::from_millis(1)));
        let mut due = false;
        for connection in self.connections.values_mut() {
            for stream in connection.streams.values_mut() {
                if let CallKind::Watch(watches, at) = &mut stream.kind
                    && watches.wants_progress()
                    && *at <= now
                {
                    *at = now + interval;
                    due = true;
                }
            }
        }
        for member in 0..if due { self.members.len() } else { 0 } {
            let applied = self.members[member].applied;
            self.each_watch(member, |watches, _, out| watches.progress(applied, out));
        }
    }

    fn drain_queues(&mut self) {
        let conns: Vec<u64> = self.connections.keys().copied().collect();
        for conn in conns {
            while let Some(connection) = self.connections.get_mut(&conn)
                && connection.inbox.front().is_some_and(|(at, _)| *at <= self.now)
                && let Some((_, inbound)) = connection.inbox.pop_front()
            {
                self.take(conn, inbound);
            }
            while let Some(connection) = self.connections.get_mut(&conn)
                && connection.outbox.front().is_some_and(|(at, _)| *at <= self.now)
                && let Some((_, output)) = connection.outbox.pop_front()
            {
                self.outputs.push_back(output);
            }
        }
    }
}
