//! The client on tokio against a real etcd.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod etcd_scenarios;

use etcd_scenarios::Kit;
use lock_tokio::{Client, Settings, Tokio};
use tokio::runtime::Builder;

fn kit() -> Kit<Tokio> {
    Kit { host: Tokio::new(), connect: |settings: Settings| Client::with_config(settings).map(Client::into_inner) }
}

fn on_one_thread<F: Future<Output = ()>>(scenario: impl FnOnce(Kit<Tokio>) -> F) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(scenario(kit()));
}

fn on_many_threads<F: Future<Output = ()>>(scenario: impl FnOnce(Kit<Tokio>) -> F) {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(scenario(kit()));
}

mod current_thread {
    crate::etcd_scenarios::all!(crate::on_one_thread);
}

mod multi_thread {
    crate::etcd_scenarios::all!(
        crate::on_many_threads: two_clients_exclude_each_other, dropped_at_any_time_nothing_is_left, elections
    );
}
