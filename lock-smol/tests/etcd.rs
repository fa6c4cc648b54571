//! The client on smol, and with the feature on async-std, against a real etcd.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

// The same on every runtime.
#[path = "../../lock-tokio/tests/etcd_scenarios/mod.rs"]
mod etcd_scenarios;

use etcd_scenarios::Kit;
use lock_smol::{Client, Settings, Smol};

fn on_smol<F: Future<Output = ()>>(scenario: impl FnOnce(Kit<Smol>) -> F) {
    let connect = |settings: Settings| Client::with_config(settings).map(Client::into_inner);
    smol::block_on(scenario(Kit { host: Smol::new(), connect }));
}

mod smol_runtime {
    crate::etcd_scenarios::all!(crate::on_smol);
}

#[cfg(feature = "async-std")]
mod async_std_runtime {
    use super::*;
    use lock_smol::async_std::{AsyncStd, Client};

    fn on_async_std<F: Future<Output = ()>>(scenario: impl FnOnce(Kit<AsyncStd>) -> F) {
        let connect = |settings: Settings| Client::with_config(settings).map(Client::into_inner);
        async_std::task::block_on(scenario(Kit { host: AsyncStd::new(), connect }));
    }

    crate::etcd_scenarios::all!(on_async_std: two_clients_exclude_each_other, a_silent_server_is_a_loss_in_time, elections);
}
