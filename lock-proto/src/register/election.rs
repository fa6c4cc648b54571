//! Elections: the value of the leader is in the record, and its version is the revision.
// RG8

use bytes::Bytes;

use super::client::{Client, Locks};
use super::lock::Stake;
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::{Acquire, Elections, check_value};
use crate::time::Instant;

impl Locks {
    /// Stands for election with this value. Progress is reported as events for the returned id;
    /// `Granted` means elected.
    ///
    /// # Errors
    ///
    /// [`Misuse`] as for [`acquire`](Self::acquire), or if the value is too long.
    pub fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        let (key, stake) = self.terms_of(now, request)?;
        check_value(&value)?;
        Ok(self.begin(request, key, Stake { value, ..stake }))
    }

    /// Changes the value of the leader. `Proclaimed` or `ProclaimFailed` reports the result.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the candidate is not the leader, or the value is too long.
    pub fn proclaim(&mut self, now: Instant, id: LockId, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        self.verb(now, id, |lock, ctx| {
            lock.step(ctx, |lock, ctx| {
                lock.line.check_held(id)?;
                lock.store.proclaim(&mut ctx.env, value);
                Ok(())
            })
        })
    }
}

impl Elections for Client {
    fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.verb(now, |locks, now| locks.campaign(now, request, value))
    }

    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.proclaim(now, lock, value))
    }
}
