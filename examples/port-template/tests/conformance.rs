//! The conformance suite. Needs redis-server, etcd and ZooKeeper.

use lock_conformance::Task;
use port_template::{MyHost, MyRuntime};

struct OnMine(MyRuntime);

impl lock_conformance::Runtime for OnMine {
    type Host = MyHost;

    fn new() -> Self {
        Self(MyRuntime::default())
    }

    fn host(&self) -> MyHost {
        MyHost::default()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn spawn(&self, task: Task<MyHost>) {
        self.0.spawn(task);
    }
}

lock_conformance::suite!(OnMine);
