//! Fuzz target: see `lock_fuzz::election_ops`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(election_ops);
