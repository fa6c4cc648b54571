//! Time: what is due, and when.

use core::time::Duration;

use super::Ensemble;
use super::connection::LoginState;
use super::member::{Down, FollowerLink, MemberRole, pop_front_if};
use lock_proto::Instant;
use lock_proto::time::nanos;

/// The wall clock of the servers at the start, in ms since 1970.
const START: u64 = 1_700_000_000_000;
/// Connections of silent clients are closed at multiples of this, once their session has timed out.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a new connection may be silent.
const SESSIONLESS: Duration = Duration::from_secs(10);

impl Ensemble {
    /// Moves the time forward and handles everything that is due until then.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            self.now = self.now.max(due);
            self.fire();
        }
        self.now = self.now.max(now);
    }

    /// Returns the first multiple of `interval` after a time.
    pub(super) fn tick_after(&self, after: Instant, interval: Duration) -> Instant {
        let interval = nanos(interval).max(1);
        let ticks = nanos(after.since(self.epoch)) / interval + 1;
        self.epoch + Duration::from_nanos(ticks.saturating_mul(interval))
    }

    /// Returns the wall clock of the servers.
    pub(super) fn millis(&self) -> i64 {
        let since = u64::try_from(self.now.since(self.epoch).as_millis()).unwrap_or(u64::MAX);
        i64::try_from(START.saturating_add(since)).unwrap_or(i64::MAX)
    }

    /// Returns when the wall clock showed `millis`.
    pub(super) fn instant(&self, millis: i64) -> Instant {
        self.epoch + Duration::from_millis(millis.unsigned_abs().saturating_sub(START))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let links = self.links.values().flat_map(|link| self.link_due(link));
        let members = (0..self.members.len()).filter_map(|member| self.member_due(member));
        let silent = self.connections.keys().filter_map(|conn| self.silence_ends(*conn));
        links.chain(members).chain(silent).chain(self.election_due()).min()
    }

    fn link_due(&self, link: &FollowerLink) -> impl Iterator<Item = Instant> {
        let reachable = self.is_reachable(link.leader, link.follower);
        let (leader, follower) = (&self.members[link.leader], &self.members[link.follower]);
        let down = link.to_follower.front().filter(|_| reachable && follower.runs()).map(|(due, _)| *due);
        let up = link.to_leader.front().filter(|_| reachable && leader.runs()).map(|(due, _)| *due);
        let lost = link.leader_deaf.filter(|_| link.leader_open && leader.runs()).map(|since| self.gives_up(since));
        let left =
            link.follower_deaf.filter(|_| link.follower_open && follower.runs()).map(|since| self.gives_up(since));
        // The leader asks twice a tick which sessions were heard.
        let asks = match &follower.role {
            MemberRole::Following { touched, .. } if !touched.is_empty() && link.leader_open && leader.runs() => {
                Some(self.asks_at(link))
            }
            MemberRole::Following { .. } | MemberRole::Looking { .. } | MemberRole::Leading(_) => None,
        };
        [down, up, lost, left, asks].into_iter().flatten()
    }

    /// Returns when a leader that runs asks which sessions were heard.
    fn asks_at(&self, link: &FollowerLink) -> Instant {
        self.tick_after(link.asks_after, self.config.tick / 2).max(self.members[link.leader].awake)
    }

    /// Returns when a side gives up a connection. Something was last heard at a multiple of half a
    /// tick.
    fn gives_up(&self, deaf: Instant) -> Instant {
        let half = self.config.tick / 2;
        self.tick_after(deaf, half).back(half) + self.config.sync_timeout()
    }

    fn member_due(&self, member: usize) -> Option<Instant> {
        let server = &self.members[member];
        let leading = server.leading().filter(|_| server.runs())?;
        let next = [leading.sessions.next_expiry(), leading.gives_up, self.next_container(member)];
        next.into_iter().flatten().min()
    }

    /// Returns when a member closes the connection of a client that it does not hear.
    fn silence_ends(&self, conn: u64) -> Option<Instant> {
        let connection = self.connections.get(&conn).filter(|found| self.members[found.member].runs())?;
        let timeout = match connection.state {
            LoginState::New => SESSIONLESS,
            LoginState::Starting(session) | LoginState::Open(session) => {
                Duration::from_millis(session.timeout.unsigned_abs().into())
            }
        };
        Some(self.tick_after(connection.last_heard + timeout, SILENCE))
    }

    /// Handles what is due right now. Each step removes what made it due.
    fn fire(&mut self) {
        self.deliver();
        let links: Vec<u64> = self.links.keys().copied().collect();
        for id in links {
            self.ask(id);
            self.give_up(id);
        }
        for member in 0..self.members.len() {
            if self.member_due(member).is_some_and(|at| at <= self.now) {
                self.expire_sessions(member);
                self.delete_containers(member);
                if self.members[member].leading().is_some_and(|l| l.gives_up.is_some_and(|at| at <= self.now)) {
                    self.step_down(member);
                }
            }
        }
        if self.election_due().is_some_and(|at| at <= self.now) {
            self.elect();
        }
        let conns: Vec<u64> = self.connections.keys().copied().collect();
        for conn in conns {
            if self.silence_ends(conn).is_some_and(|at| at <= self.now) {
                self.close(conn);
            }
        }
    }

    /// Delivers the messages between members that are due.
    fn deliver(&mut self) {
        let links: Vec<u64> = self.links.keys().copied().collect();
        for id in links {
            while let Some(link) = self.links.get(&id)
                && self.is_reachable(link.leader, link.follower)
                && self.members[link.follower].runs()
                && let Some(link) = self.links.get_mut(&id)
                && let Some((_, message)) = pop_front_if(&mut link.to_follower, |(due, _)| *due <= self.now)
            {
                if link.follower_open {
                    self.handle_down(id, message);
                }
            }
            while let Some(link) = self.links.get(&id)
                && self.is_reachable(link.leader, link.follower)
                && self.members[link.leader].runs()
                && let Some(link) = self.links.get_mut(&id)
                && let Some((_, message)) = pop_front_if(&mut link.to_leader, |(due, _)| *due <= self.now)
            {
                if link.leader_open {
                    self.handle_up(id, message);
                }
            }
        }
    }

    fn ask(&mut self, id: u64) {
        let Some(link) = self.links.get(&id) else { return };
        let touched = match &self.members[link.follower].role {
            MemberRole::Following { touched, .. } => !touched.is_empty(),
            MemberRole::Looking { .. } | MemberRole::Leading(_) => false,
        };
        let due = self.asks_at(link) <= self.now;
        if touched && due && link.leader_open && self.members[link.leader].runs() {
            if let Some(link) = self.links.get_mut(&id) {
                link.asks_after = self.now;
            }
            self.send_down(id, Down::Ping);
        }
    }

    fn give_up(&mut self, id: u64) {
        let Some(link) = self.links.get(&id) else { return };
        let (leader, follower) = (link.leader, link.follower);
        let over = |since: Option<Instant>| since.is_some_and(|since| self.gives_up(since) <= self.now);
        let lost = over(link.leader_deaf) && link.leader_open && self.members[leader].runs();
        let left = over(link.follower_deaf) && link.follower_open && self.members[follower].runs();
        if left {
            self.stop_following(follower);
        }
        if lost {
            self.lose_follower(id);
        }
    }

    /// A leader that too few follow steps down, unless enough have come back.
    fn step_down(&mut self, leader: usize) {
        if !self.has_majority(leader) {
            return self.look(leader);
        }
        if let Some(leading) = self.members[leader].leading_mut() {
            leading.gives_up = None;
        }
    }
}
