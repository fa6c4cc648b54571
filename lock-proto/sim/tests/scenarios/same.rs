//! Compares the behaviour of two builds, for `make same-runs`: one line per scenario.

use core::fmt::Write as _;

use lock_sim::{Keep, Plan, scenarios};

use super::number;

/// Writes digests of all logs and fingerprints of each scenario to the file `LOCK_DIGESTS`.
#[test]
#[ignore = "writes a file, for make same-runs"]
fn digests() {
    let path = std::env::var_os("LOCK_DIGESTS").expect("LOCK_DIGESTS names the file to write");
    let first = number("LOCK_FIRST").unwrap_or(0);
    let seeds = first..first + number("LOCK_SEEDS").unwrap_or(1_000);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all = scenarios();
    let lines = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|thread| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let mut lines = Vec::new();
                    for (place, scenario) in all.iter().enumerate().skip(thread).step_by(threads) {
                        let (mut logs, mut facts, mut grants) = (0, 0, 0);
                        for seed in seeds.clone() {
                            let outcome = Plan::from_seed(scenario, seed).run_keeping(Keep::Digest);
                            logs = add(logs, outcome.digest.0);
                            facts = add(facts, outcome.fingerprint);
                            grants += outcome.grants;
                        }
                        lines.push((
                            place,
                            format!("{:28} {grants:9} grants  facts {facts:016x}  log {logs:016x}", scenario.name),
                        ));
                    }
                    lines
                })
            })
            .collect();
        let mut lines: Vec<_> = runs.into_iter().flat_map(|run| run.join().unwrap()).collect();
        lines.sort_unstable();
        lines
    });
    let mut text = String::new();
    for (_, line) in lines {
        writeln!(text, "{line}").unwrap();
    }
    std::fs::write(path, text).unwrap();
}

const fn add(sum: u64, digest: u64) -> u64 {
    sum.rotate_left(5).wrapping_mul(0x0000_0100_0000_01b3) ^ digest
}
