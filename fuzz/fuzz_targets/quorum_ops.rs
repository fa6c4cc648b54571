//! Fuzz target: see `lock_fuzz::quorum_ops`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(quorum_ops);
