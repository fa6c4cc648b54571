//! Data structures of the machines. They are values with a defined order, and avoid allocation on
//! hot paths.

pub(crate) mod burst;
mod deadlines;
mod few;
mod slots;
mod timed_queue;

pub(crate) use deadlines::Deadlines;
pub(crate) use few::Few;
pub(crate) use slots::Slots;
pub(crate) use timed_queue::Waiting;
