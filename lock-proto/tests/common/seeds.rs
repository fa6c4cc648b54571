//! Runs drawn from seeds.

use std::panic::catch_unwind;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs `LOCK_SEEDS` seeds from `LOCK_FIRST` on, or only `LOCK_SEED`, with a log.
pub(crate) fn run_seeds(seeds: u64, run: fn(seed: u64, log: bool)) {
    if let Some(seed) = number("LOCK_SEED") {
        return run(seed, true);
    }
    let first = number("LOCK_FIRST").unwrap_or(0);
    let mut failed = Vec::new();
    for seed in first..first + number("LOCK_SEEDS").unwrap_or(seeds) {
        if catch_unwind(|| run(seed, false)).is_err() {
            println!("run it again by LOCK_SEED={seed}");
            failed.push(seed);
            if failed.len() >= 10 {
                break;
            }
        }
    }
    assert!(failed.is_empty(), "failed seeds: {failed:?}");
}
