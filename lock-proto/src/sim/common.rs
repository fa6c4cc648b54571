//! What both worlds, [`World`](super::World) and [`etcd::World`](super::etcd::World), do in the same way.

use core::time::Duration;

/// So many steps without time moving are a loop without end.
pub(super) const MAX_SPINS: u32 = 100_000;
/// More violations of one rule than these are not kept. Those of the others are: a promise may be broken after one that was none.
pub(super) const MAX_VIOLATIONS: usize = 100;

/// How far a clock is set, for the record.
pub(super) fn signed(by: Duration) -> i64 {
    i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)
}

/// The methods of a world for which it does not matter what the servers are, for its `impl`.
///
/// The world's module has `Client`, its kind of machine, and `Builder` in scope. What differs is its own: `step`, the event loop; `verb`
/// and `must`, a call of a client's machine; `pump_client`, which carries out what that asks for.
macro_rules! common {
    () => {
        // ---- what applications do ----

        /// Takes an offered lock. Needed only if [`auto_claim`](Self::auto_claim) is off.
        pub fn claim(&mut self, client: usize, lock: LockId) {
            self.journal.write(self.now, format_args!("c{client} {lock} claim"));
            self.take(client, lock);
            self.pump_client(client);
        }

        /// Gives a lock back.
        pub fn release(&mut self, client: usize, lock: LockId) {
            self.journal.write(self.now, format_args!("c{client} {lock} release"));
            let answer_by = self.after(client, self.clients[client].machine.config().release_within);
            self.checker.gives_back(client, lock, Some(answer_by));
            self.point(client, lock, || Point::GaveBack);
            self.must(client, lock, |machine, now| machine.release(now, lock));
            self.pump_client(client);
        }

        /// Drops an acquisition: a cancelled wait, or a guard that went out of scope. Nothing more is told of it.
        pub fn abandon(&mut self, client: usize, lock: LockId) {
            self.journal.write(self.now, format_args!("c{client} {lock} abandon"));
            if self.stage(client, lock).is_some_and(|stage| stage != Stage::Over) {
                self.point(client, lock, || Point::GaveBack);
            }
            self.checker.abandoned(client, lock);
            self.tell_machine(client, |machine, now| machine.abandon(now, lock));
        }

        /// Asks for more time.
        pub fn extend(&mut self, client: usize, lock: LockId) {
            self.journal.write(self.now, format_args!("c{client} {lock} extend"));
            self.must(client, lock, |machine, now| machine.extend(now, lock));
            let process = &mut self.clients[client];
            let (local, drift) = (process.local(self.now), process.machine.config().drift);
            if let Some(record) = process.records.get_mut(&lock) {
                let slack = record.ttl / drift.divisor + drift.margin;
                record.extends.push_back(local + record.ttl.saturating_sub(slack));
            }
            self.pump_client(client);
        }

        /// An extend has its answer: the request that brought it about must have left after it was asked for.
        fn check_extend(&mut self, client: usize, lock: LockId, event: &Event) {
            if !matches!(event, Event::Extended | Event::ExtendFailed(_)) {
                return;
            }
            let until = self.clients[client].machine.valid_until(lock);
            let Some(record) = self.clients[client].records.get_mut(&lock) else { return };
            let Some(least) = record.extends.pop_front().filter(|_| *event == Event::Extended) else { return };
            if until.is_some_and(|until| until < least) {
                let text =
                    format!("client {client} {lock} was extended by a request that had left before it was asked for");
                self.checker.report(self.now, Rule::Told, text);
            }
        }

        /// Any verb on the machine of a client, with the client's own time; what it asks for is carried out.
        ///
        /// # Errors
        ///
        /// What the verb answers.
        pub fn try_verb<T>(
            &mut self,
            client: usize,
            verb: impl FnOnce(&mut Client, Instant) -> Result<T, Misuse>,
        ) -> Result<T, Misuse> {
            let done = self.verb(client, verb);
            self.pump_client(client);
            done
        }

        /// Whether locks are claimed as soon as they are offered. Default: yes.
        pub const fn auto_claim(&mut self, on: bool) {
            self.auto_claim = on;
        }

        /// The client process is stopped, as by `SIGSTOP` or a suspended machine: it hears and does nothing, while its clock goes on.
        pub fn pause_client(&mut self, client: usize) {
            self.journal.write(self.now, format_args!("c{client} paused"));
            if self.is_running(client) {
                self.set_process(client, State::Paused);
            }
        }

        // ---- time ----

        /// True time since the start.
        #[must_use]
        pub const fn now(&self) -> Instant {
            self.now
        }

        /// Lets `time` pass.
        pub fn run_for(&mut self, time: Duration) {
            let end = self.now + time;
            while self.step(end) {}
        }

        /// Lets time pass until `condition` holds, at most this long; whether it did.
        pub fn run_until(&mut self, within: Duration, mut condition: impl FnMut(&Self) -> bool) -> bool {
            let end = self.now + within;
            loop {
                if condition(self) {
                    return true;
                }
                if !self.step(end) {
                    return condition(self);
                }
            }
        }

        /// Lets time pass until `condition` holds.
        ///
        /// # Panics
        ///
        /// If it does not within this time.
        #[track_caller]
        pub fn expect(&mut self, within: Duration, what: &str, condition: impl FnMut(&Self) -> bool) {
            if !self.run_until(within, condition) {
                self.fail(&format!("not within {within:?}: {what}"));
            }
        }

        // ---- questions ----

        /// Everything that was told of an acquisition so far.
        #[must_use]
        pub fn events(&self, client: usize, lock: LockId) -> &[Event] {
            self.clients[client].records.get(&lock).map_or(&[], |record| &record.events)
        }

        /// When each of [`events`](Self::events) was told, in true time.
        #[must_use]
        pub fn event_times(&self, client: usize, lock: LockId) -> &[Instant] {
            self.clients[client].records.get(&lock).map_or(&[], |record| &record.times)
        }

        /// What was granted, if it was.
        #[must_use]
        pub fn grant(&self, client: usize, lock: LockId) -> Option<&Grant> {
            self.clients[client].records.get(&lock)?.grant.as_ref()
        }

        /// Whether the lock is claimed and valid by the client's own clock, and neither lost nor given back.
        #[must_use]
        pub fn is_held(&self, client: usize, lock: LockId) -> bool {
            let process = &self.clients[client];
            self.stage(client, lock) == Some(Stage::Held)
                && process.machine.valid_until(lock).is_some_and(|until| until > process.local(self.now))
        }

        /// Whether nothing more will be told of it.
        #[must_use]
        pub fn is_over(&self, client: usize, lock: LockId) -> bool {
            self.stage(client, lock) == Some(Stage::Over)
        }

        /// Where an acquisition stands; `None` if nobody asked for it.
        #[must_use]
        pub fn stage(&self, client: usize, lock: LockId) -> Option<Stage> {
            self.checker.stage(client, lock)
        }

        /// Every acquisition that this client was asked for.
        pub fn locks(&self, client: usize) -> impl Iterator<Item = LockId> {
            self.clients[client].records.keys().copied()
        }

        /// Whether a client process runs: it is neither stopped nor dead.
        #[must_use]
        pub fn is_running(&self, client: usize) -> bool {
            self.clients[client].state == State::Running
        }

        /// Whether a client process is dead.
        #[must_use]
        pub fn is_dead(&self, client: usize) -> bool {
            self.clients[client].state == State::Down
        }

        /// Whether the client has said that its shutdown is over, and how much may be left: locks that it could not release, on etcd keys
        /// and leases.
        #[must_use]
        pub fn stopped(&self, client: usize) -> Option<u32> {
            self.clients[client].stopped
        }

        /// The machine of a client.
        #[must_use]
        pub fn machine(&self, client: usize) -> &Client {
            &self.clients[client].machine
        }

        /// How often a machine was called so far: a verb of a client, something that reaches a client or a server, a deadline of one.
        #[must_use]
        pub const fn steps(&self) -> u64 {
            self.steps
        }

        /// The same of the network: a packet is handed to it, and the time comes at which it arrives (or is held back by a cut).
        #[must_use]
        pub const fn network_steps(&self) -> u64 {
            self.network.steps()
        }

        /// How often a lock was granted in this world.
        #[must_use]
        pub const fn grants(&self) -> u64 {
            self.checker.grants()
        }

        // ---- checks and log ----

        /// From now on violations are collected, not the end of the run: for scenarios that break the bounds.
        pub const fn expect_violation(&mut self) {
            self.expect_violation = true;
        }

        /// What the checkers have found.
        #[must_use]
        pub fn violations(&self) -> &[Violation] {
            &self.violations
        }

        /// How often somebody was granted a lock, or more time for it, while another believed to hold it.
        #[must_use]
        pub const fn overlaps(&self) -> u64 {
            self.checker.overlaps()
        }

        /// Something that the one who drives the world has found.
        pub fn report(&mut self, rule: Rule, text: String) {
            self.checker.report(self.now, rule, text);
            self.check();
        }

        /// Whether a machine broke its contract, so that nothing happens any more.
        #[must_use]
        pub const fn is_halted(&self) -> bool {
            self.halted
        }

        /// Adds a line to the log.
        pub fn note(&mut self, what: &str) {
            self.journal.write(self.now, format_args!("-- {what}"));
            self.word(None, || what.into());
        }

        /// The log so far, as far as it is kept. The same seed and the same calls give the same bytes.
        #[must_use]
        pub fn log(&self) -> String {
            self.journal.text()
        }

        /// The end of the log, as far as it is kept.
        #[must_use]
        pub fn log_tail(&self, lines: usize) -> String {
            self.journal.tail(lines)
        }

        /// A digest of every line of the log, and their number.
        #[must_use]
        pub const fn log_digest(&self) -> (u64, u64) {
            self.journal.digest()
        }

        /// A digest of what the clients sent and what their applications were told, which does not depend on names.
        #[must_use]
        pub const fn fingerprint(&self) -> u64 {
            self.journal.facts.get()
        }

        /// The record of the run so far, if it was asked for by [`Builder::traced`]. It ends here.
        pub fn take_trace(&mut self) -> Trace {
            self.recorder.finish(self.now)
        }

        // ---- inside ----

        /// The key under which a client locks `name`.
        fn full_name(&self, client: usize, name: &[u8]) -> Arc<[u8]> {
            [&self.clients[client].machine.config().prefix[..], name].concat().into()
        }

        /// True time at which the client's clock will have gone on by this.
        fn after(&self, client: usize, by: Duration) -> Instant {
            let process = &self.clients[client];
            process.when(process.local(self.now) + by)
        }

        /// The end of validity that an event tells, in true time.
        fn valid_until(&self, client: usize, event: &Event) -> Option<Instant> {
            let (Event::Granted(Grant { valid_until, .. }) | Event::Renewed { valid_until }) = event else {
                return None;
            };
            Some(self.clients[client].when(*valid_until))
        }

        /// A verb that cannot be refused; what it asks for is carried out.
        fn tell_machine(&mut self, client: usize, verb: impl FnOnce(&mut Client, Instant)) {
            let _ = self.try_verb(client, |machine, now| {
                verb(machine, now);
                Ok(())
            });
        }

        /// The application takes what it is offered.
        fn take(&mut self, client: usize, lock: LockId) {
            self.must(client, lock, |machine, now| machine.claim(now, lock));
            self.checker.claimed(client, lock);
            self.point(client, lock, || Point::Claimed);
        }

        /// Goes to the time of what comes `next`, at most to `end`; whether that is to happen now.
        fn advance(&mut self, next: Instant, end: Instant) -> bool {
            if next > end {
                self.now = self.now.max(end);
                return false;
            }
            if next > self.now {
                self.now = next;
                self.spins = 0;
            }
            self.spins += 1;
            if self.spins > MAX_SPINS {
                self.halt("time stands still: a machine wants to be called again and again".into());
            }
            !self.halted
        }

        /// Puts into the record how far an acquisition is.
        fn point(&mut self, client: usize, lock: LockId, point: impl FnOnce() -> Point) {
            let Some(record) = self.clients[client].records.get(&lock) else { return };
            self.recorder.note(self.now, || What::Lock { client, lock, name: record.shown(), point: point() });
        }

        /// Puts a word about somebody, or about no one in particular, into the record.
        fn word(&mut self, lane: Option<Lane>, text: impl FnOnce() -> String) {
            self.recorder.note(self.now, || What::Note { lane, text: text() });
        }

        /// The clock of a client goes on, if it stood still.
        fn start_clock(&mut self, client: usize) {
            let process = &mut self.clients[client];
            let Some(since) = process.asleep.take() else { return };
            process.clock.stood_still(since, self.now);
            let slept = self.now.since(since);
            self.recorder.note(self.now, || What::Clock { lane: Lane::Client(client), by: -signed(slept) });
            self.checker.slept(self.now, client, slept);
            self.check();
        }

        /// A client process stops, goes on or dies.
        fn set_process(&mut self, client: usize, state: State) {
            self.clients[client].state = state;
            self.recorder.note(self.now, || What::State { lane: Lane::Client(client), state });
        }

        /// Takes in what the checkers have found.
        fn check(&mut self) {
            while let Some(found) = self.checker.poll_violation() {
                self.journal.write(self.now, format_args!("VIOLATION {found}"));
                self.recorder.note(self.now, || What::Violation(found.clone()));
                if !self.expect_violation {
                    self.fail(&format!("{found}"));
                }
                if self.violations.iter().filter(|known| known.rule == found.rule).count() < MAX_VIOLATIONS {
                    self.violations.push(found);
                }
            }
        }

        /// A machine does what it must never do: no sense in going on.
        fn halt(&mut self, text: String) {
            self.halted = true;
            self.report(Rule::Contract, text);
        }

        #[track_caller]
        fn fail(&self, what: &str) -> ! {
            panic!("{what}\n  seed {}, at {}; the end of the log:\n{}", self.seed, self.now, self.journal.tail(80));
        }
    };
}

/// The settings of every world, for the `impl` of its `Builder`.
///
/// The builder's module has `Config` and `Client`, its kind of machine, and `Process`, what runs one, in scope.
macro_rules! settings {
    () => {
        /// How many client processes there are.
        pub const fn clients(mut self, count: usize) -> Self {
            self.clients = count;
            self
        }

        /// Where all chance comes from.
        pub const fn seed(mut self, seed: u64) -> Self {
            self.seed = seed;
            self
        }

        /// How long a packet travels, in each direction.
        pub const fn latency(mut self, latency: Range<Duration>) -> Self {
            self.latency = latency;
            self
        }

        /// Changes the settings of every client.
        pub fn config(mut self, change: impl Fn(Config) -> Config + 'static) -> Self {
            self.config = Box::new(change);
            self
        }

        /// Changes the settings of client `i`, after those of all.
        pub fn config_of(mut self, i: usize, change: impl Fn(Config) -> Config + 'static) -> Self {
            self.overrides.push((i, Box::new(change)));
            self
        }

        /// The clock of client `i` reads `offset` at the start and gains `drift_ppm` µs a second. Without this it reads another time in
        /// each process, and keeps true pace.
        pub fn clock(mut self, i: usize, offset: Duration, drift_ppm: i32) -> Self {
            self.clocks.push((i, nanos(offset), drift_ppm));
            self
        }

        /// How much of a log is made. It changes nothing else, and nothing at all is fastest. Default: the last 100 000 lines.
        pub const fn keep(mut self, keep: Keep) -> Self {
            self.keep = keep;
            self
        }

        /// Whether a [`Trace`](crate::sim::Trace) is made for pictures: see [`World::take_trace`]. Default: no.
        pub const fn traced(mut self, on: bool) -> Self {
            self.traced = on;
            self
        }

        /// The client processes: these settings, changed as it was asked for.
        fn processes(&self, now: Instant, rng: &mut Rng, plain: &Config) -> Vec<Process> {
            let mut clients = Vec::new();
            for i in 0..self.clients {
                let mut config = (self.config)(plain.clone());
                for (_, change) in self.overrides.iter().filter(|(which, _)| *which == i) {
                    config = change(config);
                }
                let set = self.clocks.iter().rev().find(|(which, _, _)| *which == i);
                // Drawn in any case, so that setting one clock changes nothing else.
                let anywhere = rng.below(1 << 40);
                let (offset, drift) = set.map_or((anywhere, 0), |(_, offset, drift)| (*offset, *drift));
                let id = ClientId::from_bits(u128::from(rng.next()) << 64 | u128::from(rng.next()));
                match Client::new(Instant::from_nanos(offset), config, id, rng.next()) {
                    Ok(machine) => clients.push(Process::new(machine, Clock::new(now, offset, drift))),
                    Err(error) => panic!("client {i} cannot be configured like this: {error}"),
                }
            }
            clients
        }

        fn recorder(&self, nodes: usize) -> Recorder {
            if self.traced { Recorder::on(self.clients, nodes) } else { Recorder::default() }
        }
    };
}

pub(super) use {common, settings};

#[cfg(test)]
mod tests {
    use super::MAX_VIOLATIONS;
    use crate::sim::{Rule, World, etcd};

    #[test]
    fn a_rule_that_is_broken_without_end_hides_no_other() {
        macro_rules! check {
            ($world:expr) => {
                let mut w = $world.build();
                w.expect_violation();
                for _ in 0..2 * MAX_VIOLATIONS {
                    w.report(Rule::MutualExclusion, "again".into());
                }
                w.report(Rule::Contract, "once".into());
                assert_eq!(w.violations().len(), MAX_VIOLATIONS + 1);
                assert_eq!(w.violations().last().map(|found| found.rule), Some(Rule::Contract));
            };
        }
        check!(World::redis(1));
        check!(etcd::World::cluster(1));
    }
}
