//! Data structures that the machines share: values, ordered, and without an allocation where it counts.

pub(crate) mod burst;
mod deadlines;
mod slots;
mod timed_queue;

pub(crate) use deadlines::Deadlines;
pub(crate) use slots::Slots;
pub(crate) use timed_queue::Waiting;
