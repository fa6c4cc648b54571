//! Worlds of own locks.

use super::client::OwnClient;
use super::lock::OwnLock;
use crate::world::Builder;
use crate::world::redis::RedisServers;

impl Builder<RedisServers> {
    /// Runs a lock of your own instead of [`redis::Client`](lock_proto::redis::Client). Each acquisition
    /// begins with a clone of `lock`.
    pub fn own_lock<L: OwnLock + 'static>(self, lock: L) -> Builder<RedisServers<OwnClient<L>>> {
        let builder = lock.scripts().iter().fold(self, |builder, (source, run)| builder.script(source, *run));
        builder.machine(move |_, config, id, seed| Ok(OwnClient::new(&config, id, seed, lock.clone())))
    }
}
