//! The program `oversell`.

use std::ffi::{OsStr, OsString};
use std::thread;

use clap::Parser;
use lock_driver::StoreSettings;

use super::{BUYERS, Locking, Outcome, STOCK, Stall, TTL, run_sale, run_sale_on};
use crate::cli::args::parse_or_exit;
use crate::cli::backend::Backend;
use crate::cli::failed::{Failed, check_servers};
use crate::cli::runtime::Runtime;
use crate::cli::{SHUTDOWN_TIMEOUT, exit, print, run_number};

/// Sells to more buyers than there are goods, under locks of this library. Takes about ten TTLs:
/// some 20 s, or minutes on ZooKeeper with a long tick.
#[derive(Debug, Parser)]
#[command(name = "oversell", version)]
struct Options {
    /// Simulates the sale at once instead, with this seed, and with a naive lock beside.
    #[arg(conflicts_with = "backends")]
    seed: Option<u64>,

    /// A URL as for `with-lock`, several times for a quorum [default: $LOCK_BACKEND (separated by
    /// spaces), else a folder of this user]
    #[arg(long = "backend", value_name = "URL")]
    backends: Vec<String>,
}

/// Runs the program and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>, default_backends: Option<&OsStr>) -> u8 {
    let Options { seed, backends: given } = match parse_or_exit(args, exit::USAGE) {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(seed) = seed {
        print(&format_args!(
            "{BUYERS} buyers, {STOCK} items in stock, a lock with a TTL of {TTL:?} around `read the stock, work, write one less`."
        ));
        print(&format_args!("Every fourth buyer stalls for longer than the TTL. Items oversold (seed {seed}):\n"));
        let rows = Locking::ALL.map(|locking| (locking, Stall::ALL.map(|stall| run_sale(locking, stall, seed))));
        return print_table(&rows);
    }
    print(&format_args!("{BUYERS} buyers, each a client of its own, {STOCK} items in stock."));
    print(&"Every fourth buyer stalls for longer than the TTL. Items oversold:\n");
    let chosen = Backend::choose(given, default_backends, &[], "locks").map_err(Failed::usage);
    let sold = chosen.and_then(|(backend, notice)| {
        if let Some(notice) = notice {
            eprintln!("oversell: {notice}");
        }
        sell_on(&backend)
    });
    match sold {
        Ok(rows) => print_table(&rows),
        Err(Failed { code, why }) => {
            eprintln!("oversell: {why}");
            code
        }
    }
}

type Row = (Locking, [Outcome; Stall::ALL.len()]);

/// Runs all sales at the same time, each under its own lock.
fn sell_on(backend: &Backend) -> Result<Vec<Row>, Failed> {
    let has_fences = !matches!(backend, Backend::Store(StoreSettings::Redis(config)) if config.is_quorum());
    let lockings = if has_fences { &[Locking::Ours, Locking::Fenced][..] } else { &[Locking::Ours] };
    // The buyers would wait for the servers until their turn should have come.
    Runtime::Tokio.block_on(async {
        let client = backend.connect()?;
        let answer = check_servers(&client).await;
        client.shutdown(SHUTDOWN_TIMEOUT).await;
        answer
    })??;
    // The same names each time in a folder, which keeps a record of each name.
    let run = if matches!(backend, Backend::Store(StoreSettings::File(_))) { 0 } else { run_number() };
    let sell = |locking: Locking, stall: Stall| {
        run_sale_on(backend, &format!("oversell:{run:016x}:{locking:?}:{stall:?}"), locking, stall)
    };
    thread::scope(|scope| {
        let sell = &sell;
        let sales: Vec<_> = lockings
            .iter()
            .map(|locking| (*locking, Stall::ALL.map(|stall| scope.spawn(move || sell(*locking, stall)))))
            .collect();
        let finish = |(locking, sales): (Locking, [thread::ScopedJoinHandle<'_, _>; Stall::ALL.len()])| {
            let mut outcomes = [Outcome::default(); Stall::ALL.len()];
            for (outcome, sale) in outcomes.iter_mut().zip(sales) {
                *outcome = sale.join().unwrap_or_else(|_| Err(Failed::unreachable("a sale's thread panicked")))?;
            }
            Ok((locking, outcomes))
        };
        sales.into_iter().map(finish).collect()
    })
}

fn print_table(rows: &[Row]) -> u8 {
    let stalls: String = Stall::ALL.iter().map(|stall| format!("{stall:>22}")).collect();
    print(&format_args!("{:24}{stalls}", ""));
    let mut as_promised = true;
    for (locking, outcomes) in rows {
        let oversold: String = outcomes.iter().map(|outcome| format!("{:>22}", outcome.oversold())).collect();
        print(&format_args!("{locking:24}{oversold}"));
        as_promised &=
            Stall::ALL.into_iter().zip(outcomes).all(|(stall, outcome)| outcome.is_as_promised(*locking, stall));
    }
    print(
        &"\nA renewed lock tolerates a slow service. A process that was stopped finds out first that its lock is lost.\n\
          No lock can help between the last check and the write; only a table that rejects old fencing tokens can.",
    );
    if as_promised {
        exit::SUCCESS
    } else {
        print(&"\nThis is not the expected result, see the table.");
        1
    }
}
