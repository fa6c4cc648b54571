//! A flash sale with more buyers than goods, and a lock around "read the stock, take one".
//!
//! The shop reads the stock, works for a while, and writes back one less. Only the lock makes that
//! correct. Every buyer is its own process, the server is simulated, and time is virtual. So
//! nothing needs to be installed, and a seed always gives the same run. [`run_sale_on`] runs the sale
//! on real servers instead.

mod program;
mod servers;

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use lock_proto::{Acquire, Event, Instant, LockId};
use lock_sim::{Rng, World};

pub use self::program::main;
pub use self::servers::run_sale_on;

/// Number of buyers.
pub const BUYERS: usize = 24;
/// Number of goods.
pub const STOCK: i64 = 8;
/// TTL of the lock.
pub const TTL: Duration = Duration::from_secs(10);
const LOCK: &str = "sale";
const READING: Duration = Duration::from_millis(20);
const WORKING: Duration = Duration::from_millis(10);
const RETRY: Duration = Duration::from_millis(50);
/// Long after the last buyer should be done.
const CLOSING_TIME: Instant = Instant::from_millis(60 * 60 * 1_000);
const STALL_EVERY: u32 = 4;

/// The lock that the shop uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// `SET key 1 NX PX 10000`, and `DEL key` at the end: no renewal, and no check of the owner.
    Naive,
    /// The lock of this library; the shop checks `is_held()` before it writes.
    Ours,
    /// The same, and the stock's table rejects outdated fencing tokens.
    Fenced,
}

/// What happens to every fourth buyer between the read and the write of the stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// A service call takes longer than the TTL.
    SlowService,
    /// The whole process is stopped for longer than the TTL.
    Stopped,
    /// The process is stopped after its last check of the lock, just before the write.
    StoppedBeforeWrite,
}

impl Locking {
    /// All locks.
    pub const ALL: [Self; 3] = [Self::Naive, Self::Ours, Self::Fenced];
}

impl Stall {
    /// All stalls.
    pub const ALL: [Self; 3] = [Self::SlowService, Self::Stopped, Self::StoppedBeforeWrite];
}

impl fmt::Display for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Naive => "SET NX, and DEL",
            Self::Ours => "this library",
            Self::Fenced => "this library + fencing",
        })
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SlowService => "slow service",
            Self::Stopped => "process stopped",
            Self::StoppedBeforeWrite => "stopped before write",
        })
    }
}

/// Result of a sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Confirmed orders.
    pub orders: i64,
    /// Orders dropped because the shop noticed that it had lost the lock.
    pub abandoned: u32,
    /// Writes that the stock's table rejected.
    pub rejected: u32,
}

impl Outcome {
    /// Returns true if the outcome is the one that the documentation states.
    #[must_use]
    pub const fn is_as_promised(&self, locking: Locking, stall: Stall) -> bool {
        match (locking, stall) {
            (Locking::Naive, Stall::SlowService | Stall::Stopped | Stall::StoppedBeforeWrite) => self.oversold() > 0,
            (Locking::Ours, Stall::SlowService | Stall::Stopped)
            | (Locking::Fenced, Stall::SlowService | Stall::Stopped | Stall::StoppedBeforeWrite) => {
                self.orders == STOCK
            }
            // No lock can promise anything here.
            (Locking::Ours, Stall::StoppedBeforeWrite) => true,
        }
    }

    /// Returns how many goods were sold beyond the stock.
    #[must_use]
    pub const fn oversold(&self) -> i64 {
        if self.orders > STOCK { self.orders - STOCK } else { 0 }
    }
}

/// Runs one sale.
///
/// # Panics
///
/// Panics if a buyer waits for the lock forever.
#[must_use]
pub fn run_sale(locking: Locking, stall: Stall, seed: u64) -> Outcome {
    Sale::new(locking, stall, seed).run()
}

/// The stock's table. It executes commands in order of arrival.
struct Table {
    stock: i64,
    greatest_fence: u64,
}

impl Table {
    /// `UPDATE … SET stock = …, fence = … WHERE fence <= …`. Returns true if a row changed.
    const fn write(&mut self, stock: i64, fence: Option<u64>) -> bool {
        if let Some(fence) = fence {
            if fence < self.greatest_fence {
                return false;
            }
            self.greatest_fence = fence;
        }
        self.stock = stock;
        true
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Request,
    Read,
    Write { seen: i64, stopped: bool },
}

/// Returns true if the buyer with the `read`th look at the stock stalls.
const fn stalls(read: u32) -> bool {
    read % STALL_EVERY == STALL_EVERY / 2
}

struct Sale {
    locking: Locking,
    stall: Stall,
    world: World,
    rng: Rng,
    table: Table,
    agenda: BTreeMap<(Instant, u64), (usize, Action)>,
    serial: u64,
    /// Waiters and the holder of the lock.
    locks: Vec<Option<LockId>>,
    waiting: Vec<usize>,
    reads: u32,
    outcome: Outcome,
}

impl Sale {
    fn new(locking: Locking, stall: Stall, seed: u64) -> Self {
        let world = World::redis(1).clients(BUYERS).seed(seed).log_limit(200).build();
        let mut sale = Self {
            locking,
            stall,
            world,
            rng: Rng::new(seed),
            table: Table { stock: STOCK, greatest_fence: 0 },
            agenda: BTreeMap::new(),
            serial: 0,
            locks: vec![None; BUYERS],
            waiting: Vec::new(),
            reads: 0,
            outcome: Outcome::default(),
        };
        for buyer in 0..BUYERS {
            let arrival = sale.rng.duration(&(Duration::ZERO..Duration::from_millis(200)));
            sale.plan(arrival, buyer, Action::Request);
        }
        sale
    }

    fn plan(&mut self, after: Duration, buyer: usize, action: Action) {
        self.serial += 1;
        self.agenda.insert((self.world.now() + after, self.serial), (buyer, action));
    }

    fn run(mut self) -> Outcome {
        // Buyers that wait for a lock are not on the agenda, so run until the next lock event.
        while !self.agenda.is_empty() || !self.waiting.is_empty() {
            assert!(self.world.now() < CLOSING_TIME, "a buyer is never served:\n{}", self.world.log());
            let limit = self.agenda.first_key_value().map_or(TTL * 2, |((at, _), _)| at.since(self.world.now()));
            let (waiting, locks) = (self.waiting.clone(), self.locks.clone());
            let served = |world: &World| {
                waiting
                    .iter()
                    .copied()
                    .find(|buyer| locks[*buyer].is_some_and(|lock| world.grant(*buyer, lock).is_some()))
            };
            self.world.run_until(limit, |world| served(world).is_some());
            if let Some(buyer) = served(&self.world) {
                self.waiting.retain(|other| *other != buyer);
                self.plan(READING, buyer, Action::Read);
            } else if let Some((_, (buyer, action))) = self.agenda.pop_first() {
                self.act(buyer, action);
            }
        }
        self.outcome
    }

    fn act(&mut self, buyer: usize, action: Action) {
        match action {
            Action::Request => self.request(buyer),
            Action::Read => {
                let seen = self.table.stock;
                if seen <= 0 {
                    self.release(buyer);
                } else if self.stalls() {
                    let stopped = self.stall != Stall::SlowService;
                    if stopped {
                        self.world.pause_client(buyer);
                    }
                    let pause = TTL + self.rng.duration(&(Duration::from_millis(500)..Duration::from_secs(5)));
                    self.plan(pause, buyer, Action::Write { seen, stopped });
                } else {
                    self.plan(WORKING, buyer, Action::Write { seen, stopped: false });
                }
            }
            Action::Write { seen, stopped } => {
                let checked_before_pause = stopped && self.stall == Stall::StoppedBeforeWrite;
                if stopped {
                    self.world.resume_client(buyer);
                }
                if checked_before_pause || self.is_held(buyer) {
                    self.write(buyer, seen);
                } else {
                    self.outcome.abandoned += 1;
                }
                self.release(buyer);
            }
        }
    }

    const fn stalls(&mut self) -> bool {
        self.reads += 1;
        stalls(self.reads)
    }

    fn request(&mut self, buyer: usize) {
        match self.locking {
            Locking::Naive => {
                let ttl = TTL.as_millis().to_string();
                if self.command(&["SET", LOCK, "1", "NX", "PX", &ttl]).starts_with(b"+OK") {
                    self.plan(READING, buyer, Action::Read);
                } else {
                    self.plan(RETRY, buyer, Action::Request);
                }
            }
            Locking::Ours | Locking::Fenced => {
                self.locks[buyer] = Some(self.world.acquire(buyer, Acquire::new(LOCK).ttl(TTL)));
                self.waiting.push(buyer);
            }
        }
    }

    fn is_held(&self, buyer: usize) -> bool {
        match self.locking {
            // The naive lock cannot tell.
            Locking::Naive => true,
            Locking::Ours | Locking::Fenced => self.locks[buyer].is_some_and(|lock| self.world.is_held(buyer, lock)),
        }
    }

    fn write(&mut self, buyer: usize, seen: i64) {
        let fence = match self.locking {
            Locking::Naive | Locking::Ours => None,
            Locking::Fenced => {
                self.locks[buyer].and_then(|lock| self.world.grant(buyer, lock)?.fence).map(|fence| fence.get())
            }
        };
        if self.table.write(seen - 1, fence) {
            self.outcome.orders += 1;
        } else {
            self.outcome.rejected += 1;
        }
    }

    fn release(&mut self, buyer: usize) {
        match self.locking {
            Locking::Naive => drop(self.command(&["DEL", LOCK])),
            Locking::Ours | Locking::Fenced => {
                if let Some(lock) = self.locks[buyer].take() {
                    let released =
                        self.world.events(buyer, lock).iter().any(|event| matches!(event, Event::Released(_)));
                    if !released {
                        self.world.abandon(buyer, lock);
                    }
                }
            }
        }
    }

    /// Executes a command on its own connection, without delay.
    fn command(&mut self, args: &[&str]) -> Vec<u8> {
        const CONN: u64 = u64::MAX;
        let mut bytes = format!("*{}\r\n", args.len());
        for arg in args {
            bytes.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        self.world.on_node(0, "another client's command", |node, now| {
            node.handle_connected(now, CONN);
            node.handle_received(now, CONN, bytes.as_bytes());
            let answer = node.outgoing(CONN).to_vec();
            node.handle_disconnected(now, CONN);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naive_lock_oversells_and_this_library_does_not() {
        for seed in 0..2 {
            for stall in Stall::ALL {
                let naive = run_sale(Locking::Naive, stall, seed);
                assert!(naive.oversold() > 0, "{stall:?}, seed {seed}: {naive:?}");
                let fenced = run_sale(Locking::Fenced, stall, seed);
                assert_eq!(fenced.orders, STOCK, "{stall:?}, seed {seed}: {fenced:?}");
            }
            for stall in [Stall::SlowService, Stall::Stopped] {
                let ours = run_sale(Locking::Ours, stall, seed);
                assert_eq!(ours.orders, STOCK, "{stall:?}, seed {seed}: {ours:?}");
            }
        }
    }

    #[test]
    fn pause_before_write_oversells_without_fencing() {
        let oversold: i64 =
            (0..2).map(|seed| run_sale(Locking::Ours, Stall::StoppedBeforeWrite, seed).oversold()).sum();
        assert!(oversold > 0, "the pause must oversell");
    }

    #[test]
    fn same_seed_gives_same_run() {
        for locking in Locking::ALL {
            assert_eq!(run_sale(locking, Stall::Stopped, 7), run_sale(locking, Stall::Stopped, 7));
        }
    }
}
