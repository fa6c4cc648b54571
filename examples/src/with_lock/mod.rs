//! `with-lock`: runs a command while holding a lock, `flock(1)` for clusters.
//!
//! The main thread starts the command and decides about its life. It learns of the world through one channel of [`news::News`]:
//! the lock is driven on other threads, by an async runtime (`tasks`) or by plain threads (`threads`).

pub mod args;
pub mod child;
pub mod news;
mod run;
mod tasks;
mod threads;

pub use run::main;
