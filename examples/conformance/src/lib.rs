//! The conformance suite: the behaviour of a client on real servers, written once and run for every
//! adapter.
//!
//! An adapter implements [`Runtime`] for its runtime. The suite then gives it a test for each
//! scenario, under the same names as for every other adapter:
//!
//! ```ignore
//! struct Smol(smol::Executor<'static>);
//!
//! impl lock_conformance::Runtime for Smol {
//!     type Host = lock_smol::Smol;
//!     // …
//! }
//!
//! lock_conformance::suite!(Smol);
//! ```
//!
//! The scenarios need `redis-server` and `etcd`, and start their own servers. `docs/porting.md` of
//! the repository says what to do if a scenario fails.
// D4

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]
#![allow(missing_docs, reason = "the scenarios are named after what they show")]

mod addresses;
pub mod etcd;
mod kit;
pub mod redis;
pub mod runtime_faults;
mod server;
pub mod shared;

use lock_proto::driver::{Client, ConnectError, Host, Settings};

pub use kit::Kit;
pub use server::Server;

/// A runtime, and how clients are created on it. Only this differs between adapters.
pub trait Runtime: Sized + 'static {
    /// The adapter's host. Must be `Send`, because [`spawn`](Self::spawn) requires it.
    type Host: Host<Stream: Send, Resolve: Send, Connect: Send, Sleep: Send> + Send;

    /// Starts a runtime. Dropping it drops the tasks that were spawned on it.
    fn new() -> Self;

    /// The host for a driver.
    fn host(&self) -> Self::Host;

    /// Creates a client as users of the adapter do, and runs its driver. Called inside
    /// [`block_on`](Self::block_on).
    ///
    /// # Errors
    ///
    /// Those of the adapter.
    fn connect(&self, settings: Settings) -> Result<Client, ConnectError>;

    /// Runs a future to completion on this thread.
    fn block_on<F: Future>(&self, future: F) -> F::Output;

    /// Starts a task. It need not make progress outside of [`block_on`](Self::block_on).
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

/// Runs a scenario on a new runtime.
pub fn run<R: Runtime, F: Future<Output = ()>>(scenario: impl FnOnce(Kit<R>) -> F) {
    let kit = Kit::<R>::new();
    let runtime = kit.runtime();
    runtime.block_on(scenario(kit));
}

/// Creates a test of every scenario for the given runtime.
#[macro_export]
macro_rules! suite {
    ($runtime:ty) => {
        mod redis {
            use super::*;
            $crate::suite!(@alone $runtime, redis:
                take_and_give_back a_dropped_guard_gives_back a_waiter_of_another_client_follows busy_and_timed_out
                cancelled_acquisitions_leave_nothing a_lock_outlives_its_ttl_while_it_is_held
                protected_work_ends_with_the_lock a_silent_server a_server_restarted_without_its_data a_shutdown_drains
                unix_sockets_and_passwords a_quorum_with_a_dead_node nobody_else_is_inside
                a_name_whose_first_address_is_a_replica a_name_of_the_system redis_has_no_elections
                the_host_reads_files);
            $crate::suite!(@shared $runtime, redis);
        }
        mod etcd {
            use super::*;
            $crate::suite!(@alone $runtime, etcd:
                two_clients_exclude_each_other many_tasks_of_many_clients_take_turns dropped_at_any_time_nothing_is_left
                a_revoked_lease_is_a_loss a_deleted_key_is_a_loss a_silent_server_is_a_loss_in_time a_lock_of_its_own_ttl
                the_key_of_a_holder elections an_election_cancelled_at_every_await_point
                a_leader_resigns_when_its_work_has_ended logins_and_permissions servers_that_are_none
                another_member_takes_over);
            $crate::suite!(@shared $runtime, etcd);
        }
    };
    (@shared $runtime:ty, $server:ident) => {
        $crate::suite!(@on $runtime, $server:
            cancelled_at_every_await_point guards_move_between_tasks_and_threads dropped_outside_a_runtime
            dropped_during_a_shutdown what_became_of_a_release a_killed_server many_locks
            a_name_whose_first_address_is_dead);
        $crate::suite!(@runtime_faults $runtime, $server:
            a_guard_outlives_its_runtime a_client_on_two_runtimes a_driver_that_is_never_polled
            a_driver_that_is_polled_no_more a_blocked_driver a_suspended_machine);
    };
    (@alone $runtime:ty, $back_end:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::run($crate::$back_end::$name::<$runtime>);
        }
    )+};
    (@on $runtime:ty, $server:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::run(|kit| $crate::shared::$name::<$runtime>(kit, $crate::Server::$server()));
        }
    )+};
    (@runtime_faults $runtime:ty, $server:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::runtime_faults::$name::<$runtime>($crate::Server::$server());
        }
    )+};
}

/// Acquires a lock on this server.
pub async fn hold<R: Runtime>(kit: &Kit<R>, server: &Server) -> lock_proto::driver::Guard {
    kit.take(&kit.with(server.settings()), "a").await
}

/// Names of the threads of this process. Empty on systems other than Linux.
#[must_use]
pub fn thread_names() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok()).collect()
}
