//! `with-lock`: runs a command while holding a lock, `flock(1)` for clusters.
//!
//! The main thread starts the command and supervises it. It receives all events through one channel
//! of [`event::MainEvent`]. An async runtime (`tasks`) or plain threads (`threads`) drive the lock.

pub mod args;
pub mod child;
pub mod event;
mod run;
mod tasks;
mod threads;

pub use run::main;
