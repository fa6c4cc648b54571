//! Elections of a store of the queue family: candidacies.

use bytes::Bytes;

use super::queued::{Bid, Queued};
use super::store::QueueStore;
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::client::{Client, Transport};
use crate::lock::election::Elections;
use crate::lock::hub::Locks;
use crate::lock::request::Acquire;
use crate::lock::tuning::check_value;
use crate::time::Instant;

impl<S: QueueStore> Locks<Queued<S>> {
    /// Stands for election with this value. Progress is reported as events for the returned id;
    /// `Granted` means elected.
    ///
    /// # Errors
    ///
    /// [`Misuse`] as for [`acquire`](Self::acquire), or if the value is too long.
    pub fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        let (queue, bid) = self.candidacy(now, request, value)?;
        Ok(self.begin(request, queue, bid))
    }

    /// Checks a candidacy, and returns its queue and its terms.
    fn candidacy(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<(S::Key, Bid), Misuse> {
        let (_, bid) = self.terms_of(now, request)?;
        let queue = S::election(&self.ctx.env.config, &request.name)?;
        check_value(&value)?;
        Ok((queue, Bid { value, candidate: true, ..bid }))
    }

    /// Changes the value of the leader. `Proclaimed` or `ProclaimFailed` reports the result.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the candidate is not the leader, or the value is too long.
    pub fn proclaim(&mut self, now: Instant, id: LockId, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        self.holder_verb(now, id, |queued, env| queued.proclaim(env, value))
    }
}

impl<S: QueueStore> Elections for Client<Queued<S>>
where
    Queued<S>: Transport,
{
    fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        let id = self.locks.candidacy(now, request, value).map(|(queue, bid)| {
            self.hurry(request.wait.limit());
            self.locks.begin(request, queue, bid)
        });
        Queued::route(self);
        id
    }

    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.proclaim(now, lock, value))
    }
}
