//! The sale.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lock_proto::Fence;
use lock_proto::fence::FenceCheck;
use lock_tokio::connect_on_runtime;
use lock_tokio::redis::Config;
use tokio::runtime::Builder;

use crate::{SaleError, Stock};

/// Number of buyers.
pub const BUYERS: u32 = 16;
/// Number of goods.
pub const GOODS: i64 = 6;
/// TTL of the lock.
pub const TTL: Duration = Duration::from_millis(400);
/// How long a buyer stalls: long enough for the next holder to write.
pub const STALL: Duration = Duration::from_millis(1_500);
const WORK: Duration = Duration::from_millis(10);
const STALL_EVERY: u32 = 4;
const WAIT: Duration = Duration::from_secs(60);

/// How the buyers keep out of each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all.
    Naive,
    /// `SELECT … FOR UPDATE`, or what the store has in its place.
    RowLock,
    /// A write that fails if somebody else wrote since the read; then again from the start.
    Optimistic,
    /// The lock of this library on Redis; each buyer checks that it holds it.
    Lock,
    /// The same, and the store refuses outdated tokens.
    FencedLock,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 5] = [Self::Naive, Self::RowLock, Self::Optimistic, Self::Lock, Self::FencedLock];

    /// A few words for a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::RowLock => "FOR UPDATE",
            Self::Optimistic => "optimistic",
            Self::Lock => "lock",
            Self::FencedLock => "lock with fence",
        }
    }
}

/// How a sale went.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaleResult {
    /// Orders that were confirmed.
    pub sold: u32,
    /// Goods that the store says are left.
    pub left: i64,
    /// Writes that the store refused, because another one came between.
    pub refused: u32,
    /// How long it took.
    pub time: Duration,
}

impl SaleResult {
    /// Orders beyond the stock.
    #[must_use]
    pub fn oversold(&self) -> u32 {
        self.sold.saturating_sub(GOODS as u32)
    }
}

/// Sells [`GOODS`] to [`BUYERS`], each with a connection and a thread of its own. The lock is on
/// the Redis server `locks`, under the name `name`.
///
/// # Errors
///
/// The store or the lock's server cannot be reached, or refused a request.
///
/// # Panics
///
/// If a buyer's thread does.
pub fn sell<S: Stock>(
    connect: impl Fn() -> Result<S, SaleError> + Sync,
    way: Way,
    locks: &str,
    name: &str,
) -> Result<SaleResult, SaleError> {
    let (start, reads, sale) = (Instant::now(), AtomicU32::new(0), Mutex::new(SaleResult::default()));
    let till = Till { way, locks, name, reads: &reads, sale: &sale };
    thread::scope(|scope| {
        let buyers: Vec<_> = (0..BUYERS).map(|_| scope.spawn(|| till.serve(&mut connect()?))).collect();
        buyers.into_iter().try_for_each(|buyer| buyer.join().expect("a buyer"))
    })?;
    let mut sale = sale.into_inner().expect("no buyer panicked");
    (sale.time, sale.left) = (start.elapsed(), connect()?.read()?);
    Ok(sale)
}

struct Till<'a> {
    way: Way,
    locks: &'a str,
    name: &'a str,
    reads: &'a AtomicU32,
    sale: &'a Mutex<SaleResult>,
}

impl Till<'_> {
    fn serve(&self, stock: &mut impl Stock) -> Result<(), SaleError> {
        match self.way {
            Way::Naive => {
                let left = stock.read()?;
                if left > 0 {
                    self.work();
                    stock.write(left - 1)?;
                    self.count(true);
                }
            }
            Way::RowLock => {
                if stock.sell_exclusively(&mut || self.work())? {
                    self.count(true);
                }
            }
            Way::Optimistic => {
                // A buyer stalls once at most.
                let mut attempts = 0;
                let mut work = || {
                    attempts += 1;
                    if attempts == 1 { self.work() } else { thread::sleep(WORK) }
                };
                loop {
                    match stock.sell_if_unchanged(&mut work)? {
                        Some(true) => break self.count(true),
                        Some(false) => break,
                        None => self.count(false),
                    }
                }
            }
            Way::Lock | Way::FencedLock => self.serve_under_lock(stock)?,
        }
        Ok(())
    }

    fn serve_under_lock(&self, stock: &mut impl Stock) -> Result<(), SaleError> {
        // The driver runs inside `block_on` only. A buyer at work is a process that stands still.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, guard) = runtime.block_on(async {
            let client = connect_on_runtime(Config::parse(self.locks)?)?;
            let guard = client.lock(self.name).ttl(TTL).wait(WAIT).acquire().await?;
            Ok::<_, SaleError>((client, guard))
        })?;
        let fence = (self.way == Way::FencedLock).then(|| guard.fence()).flatten();
        if let Some(sold) = self.sell_held(stock, || guard.is_held(), fence)? {
            self.count(sold);
        }
        runtime.block_on(async {
            // Also if it was lost: the outcome says so.
            let _ = guard.release().await;
            client.shutdown(TTL).await;
        });
        Ok(())
    }

    /// Sells one under the lock. Returns whether the store accepted it, and `None` if there was
    /// nothing to sell.
    fn sell_held(
        &self,
        stock: &mut impl Stock,
        is_held: impl Fn() -> bool,
        fence: Option<Fence>,
    ) -> Result<Option<bool>, SaleError> {
        // The token first: from here on no older holder changes what is read below.
        // F5
        if let Some(fence) = fence
            && stock.claim(fence)? != FenceCheck::Accepted
        {
            return Ok(Some(false));
        }
        let left = stock.read()?;
        if left <= 0 || !is_held() {
            return Ok(None);
        }
        self.work();
        match fence {
            Some(fence) => Ok(Some(stock.write_fenced(left - 1, fence)? == FenceCheck::Accepted)),
            None => stock.write(left - 1).map(|()| Some(true)),
        }
    }

    /// Works, or stalls in place of it.
    fn work(&self) {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        thread::sleep(if read % STALL_EVERY == STALL_EVERY / 2 { STALL } else { WORK });
    }

    fn count(&self, sold: bool) {
        let mut sale = self.sale.lock().expect("no buyer panicked");
        if sold { sale.sold += 1 } else { sale.refused += 1 }
    }
}
