//! A thread for calls that block.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::future::poll_fn;
use core::time::Duration;
use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use crate::foreign::{foreign, foreign_value};
use crate::register::store::RegisterError;
use crate::shared::Batch;
use crate::slot::Slot;

/// How long a drop waits for the call under way, and for the value to be dropped.
const DROP_WITHIN: Duration = Duration::from_secs(1);

type FileJob<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A value, and the thread that uses it. Not a pool's: a full pool would stop the renewals.
// RF1
pub(super) struct Worker<S> {
    jobs: Option<Sender<FileJob<S>>>,
    /// In a mutex, so that the register can be shared.
    ended: Mutex<Receiver<()>>,
}

impl<S: Send + 'static> Worker<S> {
    pub(super) fn spawn(mut value: S) -> io::Result<Self> {
        let (jobs, queue) = channel::<FileJob<S>>();
        let (end, ended) = channel();
        Builder::new().name("lock-file".into()).spawn(move || {
            for job in queue {
                foreign(|| job(&mut value));
            }
            drop(value);
            drop(end);
        })?;
        Ok(Self { jobs: Some(jobs), ended: Mutex::new(ended) })
    }

    /// Runs a call after those before it, whether or not anybody waits for its end.
    pub(super) fn send(&self, call: impl FnOnce(&mut S) + Send + 'static) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(Box::new(call)).is_ok())
    }

    /// As [`send`](Self::send), with the call's result. The call begins at once, and continues if the
    /// future is dropped.
    pub(super) fn call<T: Send + 'static, F>(
        &self,
        call: F,
    ) -> impl Future<Output = Result<T, RegisterError>> + use<T, F, S>
    where
        F: FnOnce(&mut S) -> Result<T, RegisterError> + Send + 'static,
    {
        let result = Arc::new(Slot::default());
        let slot = Arc::clone(&result);
        let sent = self.send(move |value| {
            let done =
                foreign_value(|| call(value)).unwrap_or_else(|| Err(RegisterError::unknown("the call panicked")));
            let mut batch = Batch::default();
            slot.notify(done, true, false, &mut batch);
            batch.run();
        });
        async move {
            if !sent {
                return Err(RegisterError::not_sent("the thread has ended"));
            }
            let done = poll_fn(|cx| result.poll(cx)).await;
            // The only value is the last one.
            done.unwrap_or_else(|| Err(RegisterError::unknown("the call has ended")))
        }
    }
}

impl<S> Drop for Worker<S> {
    fn drop(&mut self) {
        self.jobs = None;
        // A file system may hang.
        if let Ok(ended) = self.ended.get_mut() {
            let _ = ended.recv_timeout(DROP_WITHIN);
        }
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
