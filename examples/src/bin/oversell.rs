//! How a naive lock sells more than there is: `oversell [SEED]`. Needs no server.

use std::env;
use std::process::ExitCode;

use lock_examples::oversell::{BUYERS, Locking, Outcome, STOCK, Stall, TTL, play};

fn main() -> ExitCode {
    let seed = match env::args().nth(1).map(|text| (text.parse::<u64>(), text)) {
        None => 1,
        Some((Ok(seed), _)) => seed,
        Some((Err(_), text)) => {
            eprintln!("oversell: {text:?} is no seed: give a number");
            return ExitCode::from(64);
        }
    };
    println!(
        "{BUYERS} buyers, {STOCK} things to sell, a lock of {TTL:?} around `read the stock, work, write one less`."
    );
    println!("Every fourth buyer stalls for longer than the lock lasts. Sold beyond the stock (seed {seed}):\n");
    print!("{:24}", "");
    for stall in Stall::ALL {
        print!("{stall:>22}");
    }
    println!();
    let mut as_promised = true;
    for locking in Locking::ALL {
        print!("{locking:24}");
        for stall in Stall::ALL {
            let outcome = play(locking, stall, seed);
            print!("{:>22}", outcome.oversold());
            as_promised &= is_as_promised(locking, stall, &outcome);
        }
        println!();
    }
    println!(
        "\nA lock that is renewed bears a slow service. A process that was stopped is told first thing that its lock is lost.\n\
         Between the last look at the lock and the write no lock can help, only the table that refuses an old fencing token."
    );
    if as_promised {
        ExitCode::SUCCESS
    } else {
        println!("\nThis is not what was promised: see the table.");
        ExitCode::FAILURE
    }
}

/// What the documentation says of each case.
const fn is_as_promised(locking: Locking, stall: Stall, outcome: &Outcome) -> bool {
    match (locking, stall) {
        (Locking::Naive, Stall::SlowService | Stall::Stopped | Stall::StoppedBeforeWrite) => outcome.oversold() > 0,
        (Locking::Ours, Stall::SlowService | Stall::Stopped)
        | (Locking::Fenced, Stall::SlowService | Stall::Stopped | Stall::StoppedBeforeWrite) => outcome.oversold() == 0,
        // No lock can promise it.
        (Locking::Ours, Stall::StoppedBeforeWrite) => true,
    }
}
