//! Fuzz target: see `lock_fuzz::etcd_ops`.
#![cfg_attr(fuzzing, no_main)]

lock_fuzz::fuzz_target!(etcd_ops);
