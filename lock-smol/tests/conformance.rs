//! The conformance suite on smol and, with its feature, on async-std.
//!
//! `.ci/check-adapters` ensures that no tokio runtime exists in this process; `no_tokio_thread_exists`
//! verifies it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lock_conformance::{Kit, Runtime, Server, Task};
use lock_smol::{Client, ConnectError, Settings, Smol};

struct OnSmol(smol::Executor<'static>);

impl Runtime for OnSmol {
    type Host = Smol;

    fn new() -> Self {
        Self(smol::Executor::new())
    }

    fn host(&self) -> Smol {
        Smol::new()
    }

    fn connect(&self, settings: Settings) -> Result<Client, ConnectError> {
        lock_smol::connect_with(settings)
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        smol::block_on(self.0.run(future))
    }

    fn spawn(&self, task: Task<Self::Host>) {
        self.0.spawn(task).detach();
    }
}

mod smol_runtime {
    use super::*;
    lock_conformance::suite!(OnSmol);

    #[test]
    fn no_tokio_thread_exists() {
        without_tokio::<OnSmol>();
    }
}

#[cfg(feature = "async-std")]
mod async_std_runtime {
    use super::*;
    use std::sync::Mutex;

    use async_std::task::{self, JoinHandle};
    use lock_smol::async_std::{AsyncStd, connect_with};

    /// async-std has one executor per process, which never ends, so tasks are cancelled instead.
    #[derive(Default)]
    struct OnAsyncStd(Mutex<Vec<JoinHandle<()>>>);

    impl Runtime for OnAsyncStd {
        type Host = AsyncStd;

        fn new() -> Self {
            Self::default()
        }

        fn host(&self) -> AsyncStd {
            AsyncStd::new()
        }

        fn connect(&self, settings: Settings) -> Result<Client, ConnectError> {
            connect_with(settings)
        }

        fn block_on<F: Future>(&self, future: F) -> F::Output {
            task::block_on(future)
        }

        fn spawn(&self, task: Task<Self::Host>) {
            self.0.lock().unwrap().push(task::spawn(task));
        }
    }

    impl Drop for OnAsyncStd {
        fn drop(&mut self) {
            for task in self.0.get_mut().unwrap().drain(..) {
                task::block_on(task.cancel());
            }
        }
    }

    lock_conformance::suite!(OnAsyncStd);

    #[test]
    fn no_tokio_thread_exists() {
        without_tokio::<OnAsyncStd>();
    }
}

/// Holds a lock on each store and checks which threads work for it.
fn without_tokio<R: Runtime>() {
    lock_conformance::run(|kit: Kit<R>| async move {
        for server in [Server::redis(), Server::etcd(), Server::zookeeper()] {
            let guard = lock_conformance::hold(&kit, &server).await;
            let threads = lock_conformance::thread_names();
            assert!(guard.is_held());
            assert!(!threads.iter().any(|name| name.contains("tokio")), "{threads:?}");
        }
    });
}
