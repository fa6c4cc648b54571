//! Fuzz target: see `lock_fuzz::zk_pipe`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(zk_pipe);
