//! The measured workloads: state machines with a virtual clock and predefined replies.
//!
//! Nothing here depends on a real clock, on randomness or on addresses, so that each run takes the
//! same instructions.

pub mod callgrind;
pub mod etcd;
pub mod limits;
pub mod quorum;
pub mod redis;
pub mod resp;
pub mod rig;
pub mod zookeeper;

/// A workload with limits.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Name in `limits.txt`.
    pub name: &'static str,
    /// Description of one unit.
    pub unit: &'static str,
    /// Number of units per run.
    pub units: u32,
    /// Sets up the workload. The returned closure runs it, and may be called repeatedly.
    pub prepare: fn() -> Box<dyn FnMut()>,
}

/// All workloads.
pub static ALL: [Work; 9] = [
    Work { name: "redis", unit: "acquire + release, bytes to bytes", units: 1_000, prepare: || redis::cycles(false) },
    Work { name: "redis-fenced", unit: "the same with a fencing token", units: 1_000, prepare: || redis::cycles(true) },
    Work { name: "renewal", unit: "a renewal, one of 10 000 due", units: 10_000, prepare: redis::renewals },
    Work { name: "turn", unit: "release + next waiter, of 1 000 in a client", units: 1_000, prepare: redis::turns },
    Work { name: "quorum", unit: "acquire + release, 5 nodes", units: 200, prepare: quorum::cycles },
    Work { name: "resp", unit: "a command and its answer through a Pipe", units: 1_000, prepare: resp::commands },
    Work { name: "etcd", unit: "acquire + release, calls to calls", units: 1_000, prepare: etcd::cycles },
    Work { name: "etcd-turn", unit: "release + next waiter, of 1 000 in a client", units: 1_000, prepare: etcd::turns },
    Work { name: "zookeeper", unit: "acquire + release and its server", units: 1_000, prepare: zookeeper::cycles },
];

/// The workload with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Work> {
    ALL.iter().find(|work| work.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_work_is_found_by_name_and_runs_twice() {
        for work in &ALL {
            assert!(
                find(work.name).is_some_and(|found| found.unit == work.unit),
                "{} has a name of its own",
                work.name
            );
            let mut run = (work.prepare)();
            run();
            run();
        }
    }
}
