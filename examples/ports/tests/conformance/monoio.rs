//! The conformance suite on monoio.

use core::time::Duration;
use std::cell::RefCell;

use futures_util::future::{AbortHandle, abortable};
use lock_conformance::Task;
use monoio::blocking::DefaultThreadPool;
use monoio::time::TimeDriver;
use monoio::{FusionDriver, FusionRuntime, IoUringDriver, LegacyDriver, RuntimeBuilder};
use ports::monoio::Monoio;

struct OnMonoio {
    runtime: RefCell<FusionRuntime<TimeDriver<IoUringDriver>, TimeDriver<LegacyDriver>>>,
    /// monoio keeps the tasks of a runtime that was dropped, so they are aborted instead.
    tasks: RefCell<Vec<AbortHandle>>,
}

impl lock_conformance::Runtime for OnMonoio {
    type Host = Monoio;

    fn new() -> Self {
        // io_uring, or epoll where the kernel has none.
        let builder = RuntimeBuilder::<FusionDriver>::new().enable_timer();
        let pool = Box::new(DefaultThreadPool::new(1));
        let runtime = builder.attach_thread_pool(pool).build().expect("a runtime");
        Self { runtime: RefCell::new(runtime), tasks: RefCell::default() }
    }

    fn host(&self) -> Monoio {
        Monoio::default()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.borrow_mut().block_on(future)
    }

    fn spawn(&self, task: Task<Monoio>) {
        let (task, handle) = abortable(task);
        self.tasks.borrow_mut().push(handle);
        drop(monoio::spawn(task));
    }
}

impl Drop for OnMonoio {
    fn drop(&mut self) {
        self.tasks.get_mut().iter().for_each(AbortHandle::abort);
        self.runtime.get_mut().block_on(async { monoio::time::sleep(Duration::ZERO).await });
    }
}

lock_conformance::suite!(OnMonoio);
