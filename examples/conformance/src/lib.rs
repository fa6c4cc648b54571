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
//! The scenarios need `redis-server`, `etcd` and ZooKeeper, and start their own servers.
//! `docs/conformance.md` of the repository is the guide.
// D4

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]
#![allow(missing_docs, reason = "the scenarios are named after what they show")]

mod addresses;
pub mod etcd;
mod kit;
pub mod queue;
pub mod redis;
pub mod runtime_faults;
mod server;
pub mod shared;
pub mod stores;
mod task;
pub mod zookeeper;

use core::time::Duration;
use std::io::{self, Write as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::{process, thread};

use lock_driver::{Client, ConnectError, Host, Settings};

pub use kit::Kit;
pub use lock_testkit::Server;
use server::ServerSettings as _;
pub use task::Task;

/// A runtime, and how clients are created on it. Only this differs between adapters.
///
/// Nothing of it has to be [`Send`]. A runtime that moves tasks between threads needs a
/// [`Host`](Self::Host) whose [`Task`] is `Send`; the compiler says so where it spawns.
pub trait Runtime: Sized + 'static {
    /// The host under test.
    type Host: Host;

    /// Starts a runtime. Dropping it drops the tasks that were spawned on it.
    fn new() -> Self;

    /// The host for a driver. Called inside [`block_on`](Self::block_on).
    fn host(&self) -> Self::Host;

    /// Runs a future to completion on this thread.
    fn block_on<F: Future>(&self, future: F) -> F::Output;

    /// Starts a task. Called inside [`block_on`](Self::block_on). The task need not make progress
    /// outside of it.
    fn spawn(&self, task: Task<Self::Host>);

    /// Creates a client as users of the adapter do, and runs its driver. Called inside
    /// [`block_on`](Self::block_on). The default spawns a driver with [`host`](Self::host).
    ///
    /// # Errors
    ///
    /// Those of the adapter.
    fn connect(&self, settings: Settings) -> Result<Client, ConnectError> {
        let (client, driver) = Task::client(task::TestHost::new(self.host()), settings)?;
        self.spawn(driver);
        Ok(client)
    }
}

/// How long a scenario may take, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// Runs a scenario on a new runtime.
pub fn run<R: Runtime, F: Future<Output = ()>>(scenario: impl FnOnce(Kit<R>) -> F) {
    let kit = Kit::<R>::new();
    let runtime = kit.runtime();
    runtime.block_on(scenario(kit));
}

/// Runs a scenario, and ends the process if it hangs: a thread that is blocked cannot be stopped in
/// any other way.
pub fn limited(scenario: impl FnOnce()) {
    let (ended, watch) = channel::<()>();
    let name = thread::current().name().unwrap_or("a scenario").to_owned();
    thread::spawn(move || {
        if watch.recv_timeout(TIME_LIMIT) == Err(RecvTimeoutError::Timeout) {
            // Not by `eprintln`, which the test runner captures.
            let _ = writeln!(
                io::stderr(),
                "\n{name} hangs: not over after {TIME_LIMIT:?}. docs/conformance.md says where to look."
            );
            process::abort();
        }
    });
    scenario();
    drop(ended);
}

/// Creates a test of every scenario for the given runtime.
#[macro_export]
macro_rules! suite {
    ($runtime:ty) => {
        mod redis {
            use super::*;
            $crate::suite!(@alone $runtime, redis:
                acquire_sets_key_and_release_deletes_it dropped_guard_releases_lock
                waiter_of_other_client_acquires_after_release try_reports_busy_and_wait_times_out
                cancelled_acquisitions_leave_nothing held_lock_is_renewed_past_ttl ended_connection_is_replaced_at_once
                protected_work_ends_with_lock paused_server_warns_holder_then_expires_hold
                restart_without_data_loses_lock_but_fence_grows
                shutdown_releases_locks_and_ends_waiters unix_sockets_and_logins_are_supported
                quorum_of_three_tolerates_one_dead_node_not_two contending_tasks_exclude_each_other
                replica_at_first_address_is_skipped host_name_is_resolved_by_system_resolver
                redis_has_no_elections host_reads_files);
            $crate::suite!(@shared $runtime, redis);
        }
        mod etcd {
            use super::*;
            $crate::suite!(@alone $runtime, etcd:
                owner_key_revision_matches_store_and_grows_on_hand_over
                wrong_login_and_missing_permission_are_refused client_fails_over_to_another_member);
            $crate::suite!(@queue $runtime, etcd);
            $crate::suite!(@shared $runtime, etcd);
        }
        mod zookeeper {
            use super::*;
            $crate::suite!(@alone $runtime, zookeeper:
                nodes_are_named_as_by_curator_and_fence_begins_with_czxid
                missing_permission_is_refused missing_chroot_is_created client_fails_over_to_another_member);
            $crate::suite!(@queue $runtime, zookeeper);
            $crate::suite!(@shared $runtime, zookeeper);
        }
        mod redis_over_tls {
            use super::*;
            $crate::suite!(@encrypted $runtime, redis_over_tls);
        }
        mod etcd_over_tls {
            use super::*;
            $crate::suite!(@encrypted $runtime, etcd_over_tls);
        }
        mod zookeeper_over_tls {
            use super::*;
            $crate::suite!(@encrypted $runtime, zookeeper_over_tls);
        }
    };
    (@queue $runtime:ty, $server:ident) => {
        $crate::suite!(@on $runtime, queue, $server:
                two_clients_exclude_each_other fences_grow_across_tasks_and_clients
                acquisition_dropped_at_any_time_leaves_nothing ended_session_is_reported_as_loss
                deleted_key_is_reported_as_loss lock_with_own_ttl_is_extended_manually_then_expires
                observer_sees_elected_leaders_and_proclamations
                election_cancelled_at_every_await_point_leaves_nothing
                other_servers_are_reported_as_protocol_faults);
        $crate::suite!(@killing $runtime, queue, $server:
                hold_expires_within_ttl_while_server_is_paused leader_resigns_after_work_ends_or_time_limit);
    };
    (@shared $runtime:ty, $server:ident) => {
        $crate::suite!(@on $runtime, shared, $server:
                dead_first_address_does_not_block_connect silent_first_address_is_tried_last);
        $crate::suite!(@encrypted $runtime, $server);
    };
    (@encrypted $runtime:ty, $server:ident) => {
        $crate::suite!(@on $runtime, shared, $server:
                cancellation_at_every_await_point_leaves_nothing
                guards_move_between_tasks_and_threads handles_dropped_outside_runtime_are_cleaned_up
                handles_dropped_during_shutdown_are_cleaned_up
                hundred_locks_are_renewed_past_ttl_and_released);
        $crate::suite!(@killing $runtime, shared, $server:
                release_reports_expired_taken_or_unknown
                killed_server_expires_hold_and_waiter_survives_outage);
        $crate::suite!(@runtime_faults $runtime, $server:
                guard_outliving_runtime_is_lost client_works_on_two_runtimes
                unpolled_driver_sends_nothing stalled_driver_ends_protected_work
                blocked_driver_loses_hold_then_recovers suspended_machine_loses_hold_on_resume);
    };
    (@alone $runtime:ty, $back_end:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::limited(|| $crate::run($crate::$back_end::$name::<$runtime>));
        }
    )+};
    (@on $runtime:ty, $module:ident, $server:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::limited(|| {
                $crate::run(|kit| $crate::$module::$name::<$runtime>(kit, $crate::Server::$server()));
            });
        }
    )+};
    (@killing $runtime:ty, $module:ident, $server:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::limited(|| {
                $crate::run(|kit| $crate::$module::$name::<$runtime>(kit, $crate::Server::$server().for_killing()));
            });
        }
    )+};
    (@runtime_faults $runtime:ty, $server:ident: $($name:ident)+) => {$(
        #[test]
        fn $name() {
            $crate::limited(|| $crate::runtime_faults::$name::<$runtime>($crate::Server::$server()));
        }
    )+};
}

/// Acquires a lock on this server.
pub async fn hold<R: Runtime>(kit: &Kit<R>, server: &Server) -> lock_driver::Guard {
    kit.take(&kit.with(server.settings()), "a").await
}

/// Names of the threads of this process. Empty on systems other than Linux.
#[must_use]
pub fn thread_names() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok()).collect()
}
