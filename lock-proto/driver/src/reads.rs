//! Reads of files that outlast the attempts to connect that began them.
// P5

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::{Context, Waker};
use std::path::Path;

use super::host::{Host, Reading};

/// Unfinished reads. Later attempts continue them: each read from a file system that hangs occupies
/// a thread.
#[derive(Default)]
pub(super) struct Reads(Vec<(Box<str>, Reading)>);

impl Reads {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Continues an unfinished read of this file, or begins one. The content of a finished one may
    /// be outdated.
    pub(super) fn read<H: Host>(&mut self, host: &H, path: &str) -> (Box<str>, Reading) {
        while let Some(place) = self.0.iter().position(|(of, _)| **of == *path) {
            let (path, mut reading) = self.0.swap_remove(place);
            if reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                return (path, reading);
            }
        }
        (path.into(), host.read_file(Path::new(path)))
    }

    /// Keeps reads that have not finished.
    pub(super) fn keep(&mut self, unfinished: impl IntoIterator<Item = (Box<str>, Reading)>) {
        self.0.extend(unfinished);
    }
}
