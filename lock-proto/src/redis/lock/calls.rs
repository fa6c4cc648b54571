//! The calls of one lock that are in flight, and what each is for.
// M12

use super::context::RedisEnv;
use crate::collections::Few;
use crate::id::{CallOwner, NodeId};
use crate::redis::request::Request;
use crate::redis::validity::Ttl;
use crate::time::Instant;

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RedisCall {
    pub(super) serial: u64,
    pub(super) node: NodeId,
    pub(super) emitted: Instant,
    pub(super) purpose: Purpose,
}

/// What a call is for. The reply is passed on by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// Writes a token: an attempt, or a top-up of a hold.
    Take(Take),
    /// Renews the token of a hold.
    Renew { number: u64, ttl: Ttl },
    /// The delete of the node's cleanup.
    Delete,
}

/// An attempt to write a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Take {
    pub(super) number: u64,
    pub(super) ttl: Ttl,
    /// Writes the token of a hold to a node that lacks it.
    pub(super) top_up: bool,
}

/// The calls of a lock in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RedisCalls(Few<RedisCall>);

impl RedisCalls {
    /// Emits a request on behalf of the lock that takes the step, and returns the serial of its call.
    pub(super) fn send(&mut self, env: &mut RedisEnv, node: NodeId, request: Request, purpose: Purpose) -> u64 {
        let serial = env.send(CallOwner::Lock(env.slot), node, request);
        self.0.push(RedisCall { serial, node, emitted: env.now, purpose });
        serial
    }

    /// Removes the call that is answered.
    pub(super) fn settle(&mut self, serial: u64) -> Option<RedisCall> {
        let place = self.0.iter().position(|call| call.serial == serial)?;
        self.0.remove(place)
    }

    /// Returns true if an attempt is in flight on any of the nodes that match.
    pub(super) fn any_take(&self, on: impl Fn(NodeId) -> bool) -> bool {
        self.0.iter().any(|call| matches!(call.purpose, Purpose::Take(_)) && on(call.node))
    }

    /// Returns the serial of the renewal or top-up in flight on a node.
    pub(super) fn renewal(&self, node: NodeId) -> Option<u64> {
        let renews = |call: &&RedisCall| match call.purpose {
            Purpose::Take(take) => take.top_up && call.node == node,
            Purpose::Renew { .. } => call.node == node,
            Purpose::Delete => false,
        };
        self.0.iter().rev().find(renews).map(|call| call.serial)
    }

    /// Returns the attempts in flight on a node.
    pub(super) const fn takes(&self, node: NodeId) -> Takes<'_> {
        Takes { calls: self, node }
    }
}

/// The attempts in flight on one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes<'a> {
    calls: &'a RedisCalls,
    node: NodeId,
}

impl Takes<'_> {
    fn numbers(self) -> impl Iterator<Item = u64> {
        self.calls.0.iter().filter(move |call| call.node == self.node).filter_map(|call| match call.purpose {
            Purpose::Take(take) => Some(take.number),
            Purpose::Renew { .. } | Purpose::Delete => None,
        })
    }

    pub(super) fn is_empty(self) -> bool {
        self.numbers().next().is_none()
    }

    pub(super) fn contains(self, number: u64) -> bool {
        self.numbers().any(|other| other == number)
    }

    /// Returns true if no attempt up to this number is in flight.
    pub(super) fn are_settled(self, covers: u64) -> bool {
        self.numbers().all(|number| number > covers)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use core::time::Duration;

    use super::*;
    use crate::lock::Renew;
    use crate::redis::Config;

    impl RedisCalls {
        /// With these attempts in flight on the first node.
        pub(in super::super) fn with_takes(numbers: &[u64], ttl: Ttl) -> Self {
            let mut calls = Self::default();
            for number in numbers {
                let purpose = Purpose::Take(Take { number: *number, ttl, top_up: false });
                let emitted = Instant::from_millis(0);
                calls.0.push(RedisCall { serial: *number, node: NodeId::new(0), emitted, purpose });
            }
            calls
        }
    }

    #[test]
    fn call_is_settled_once() {
        // M12
        let ttl = Ttl::new(Duration::from_secs(1), Renew::Auto, &Config::new([])).unwrap();
        let mut calls = RedisCalls::with_takes(&[4, 7], ttl);
        assert!(calls.takes(NodeId::new(0)).contains(4) && calls.settle(5).is_none());
        assert!(matches!(calls.settle(4).unwrap().purpose, Purpose::Take(take) if take.number == 4));
        assert!(calls.settle(4).is_none() && !calls.takes(NodeId::new(0)).contains(4));
        assert!(!calls.takes(NodeId::new(0)).are_settled(7) && calls.takes(NodeId::new(0)).are_settled(6));
        assert!(calls.takes(NodeId::new(1)).is_empty() && calls.any_take(|_| true));
    }
}
