//! Shows how a naive lock oversells: `oversell [SEED]`. Needs no server.

use std::env;
use std::process::ExitCode;

use clap::Parser;
use lock_examples::cli::args::parse_or_exit;
use lock_examples::cli::exit;
use lock_examples::oversell::{BUYERS, Locking, Outcome, STOCK, Stall, TTL, run_sale};

/// Shows how a naive lock sells more than there is.
#[derive(Debug, Parser)]
#[command(name = "oversell", version)]
struct Options {
    /// Seed of the simulation.
    #[arg(default_value = "1")]
    seed: u64,
}

fn main() -> ExitCode {
    let seed = match parse_or_exit(env::args_os().skip(1), exit::USAGE) {
        Ok(Options { seed }) => seed,
        Err(code) => return ExitCode::from(code),
    };
    println!(
        "{BUYERS} buyers, {STOCK} items in stock, a lock with a TTL of {TTL:?} around `read the stock, work, write one less`."
    );
    println!("Every fourth buyer stalls for longer than the TTL. Items oversold (seed {seed}):\n");
    print!("{:24}", "");
    for stall in Stall::ALL {
        print!("{stall:>22}");
    }
    println!();
    let mut as_promised = true;
    for locking in Locking::ALL {
        print!("{locking:24}");
        for stall in Stall::ALL {
            let outcome = run_sale(locking, stall, seed);
            print!("{:>22}", outcome.oversold());
            as_promised &= is_as_promised(locking, stall, &outcome);
        }
        println!();
    }
    println!(
        "\nA renewed lock tolerates a slow service. A process that was stopped finds out first that its lock is lost.\n\
         No lock can help between the last check and the write; only a table that rejects old fencing tokens can."
    );
    if as_promised {
        ExitCode::SUCCESS
    } else {
        println!("\nThis is not the expected result, see the table.");
        ExitCode::FAILURE
    }
}

/// Returns true if the outcome is the one that the documentation states.
const fn is_as_promised(locking: Locking, stall: Stall, outcome: &Outcome) -> bool {
    match (locking, stall) {
        (Locking::Naive, Stall::SlowService | Stall::Stopped | Stall::StoppedBeforeWrite) => outcome.oversold() > 0,
        (Locking::Ours, Stall::SlowService | Stall::Stopped)
        | (Locking::Fenced, Stall::SlowService | Stall::Stopped | Stall::StoppedBeforeWrite) => outcome.oversold() == 0,
        // No lock can promise anything here.
        (Locking::Ours, Stall::StoppedBeforeWrite) => true,
    }
}
