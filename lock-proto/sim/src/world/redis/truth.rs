//! What the nodes themselves know of locks, to judge what holders are told.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::redis::MintedBlock;
use lock_proto::Instant;

/// The tokens that nodes have had, by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    keys: BTreeMap<Arc<[u8]>, BTreeMap<Vec<u8>, Kept>>,
    /// When each node last lost data.
    lost_data: BTreeMap<usize, Instant>,
    /// Tokens that a node has again from its earlier data: node, key and token.
    restored: BTreeSet<(usize, Arc<[u8]>, Vec<u8>)>,
}

/// What is known of a token.
#[derive(Clone, Debug)]
struct Kept {
    /// The node, when it got the token, and until when it keeps it, in true time.
    ends: Vec<(usize, Instant, Instant)>,
    /// A grant by this token was judged.
    granted: bool,
    /// The first and last fencing token of each block.
    minted: Vec<(u64, u64)>,
}

impl Truth {
    fn of(&mut self, key: &[u8], token: &[u8]) -> &mut Kept {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.into(), BTreeMap::new());
        }
        let tokens = self.keys.entry(key.into()).or_default();
        tokens.entry(token.to_vec()).or_insert_with(|| Kept { ends: vec![], granted: false, minted: vec![] })
    }

    fn get(&self, key: &[u8], token: &[u8]) -> Option<&Kept> {
        self.keys.get(key)?.get(token)
    }

    /// A node has this token until then. A later end that it had before still counts: only the
    /// client that was told of it may believe in it.
    pub(super) fn keeps(&mut self, now: Instant, node: usize, key: &[u8], token: &[u8], until: Instant) {
        let kept = self.of(key, token);
        match kept.ends.iter_mut().find(|(of, ..)| *of == node) {
            Some((_, _, end)) => *end = until.max(*end),
            None => kept.ends.push((node, now, until)),
        }
    }

    /// A client deleted the token, or learned that the node does not have it.
    pub(super) fn ended(&mut self, node: usize, key: &[u8], token: &[u8]) {
        if let Some(kept) = self.keys.get_mut(key).and_then(|tokens| tokens.get_mut(token)) {
            kept.ends.retain(|(of, ..)| *of != node);
        }
    }

    /// A node has restarted without some of its data.
    pub(super) fn lost_data(&mut self, now: Instant, node: usize) {
        self.lost_data.insert(node, now);
    }

    /// A node has this token again, which was deleted there.
    pub(super) fn restored(&mut self, node: usize, key: &Arc<[u8]>, token: &[u8]) {
        self.restored.insert((node, key.clone(), token.to_vec()));
    }

    /// Returns true if the node has this token only from earlier data. Its client need not know.
    pub(super) fn is_restored(&self, node: usize, key: &Arc<[u8]>, token: &[u8]) -> bool {
        !self.restored.is_empty() && self.restored.contains(&(node, key.clone(), token.to_vec()))
    }

    pub(super) fn minted(&mut self, block: &MintedBlock) {
        self.of(&block.key, &block.token).minted.push((block.first, block.last));
    }

    pub(super) fn is_minted(&self, key: &[u8], token: &[u8], fence: u64) -> bool {
        self.get(key, token)
            .is_some_and(|kept| kept.minted.iter().any(|(first, last)| (*first..=*last).contains(&fence)))
    }

    /// Returns until when a majority of these many nodes keeps a token; `ZERO` if none does. To
    /// `take` the lock, a node of a quorum does not count while another client may hold it by what
    /// the node has lost.
    // Q7
    pub(super) fn end(
        &mut self,
        now: Instant,
        nodes: usize,
        key: &[u8],
        token: &[u8],
        take: bool,
        quarantine: Duration,
    ) -> Instant {
        let lost_data = &self.lost_data;
        let Some(kept) = self.keys.get_mut(key).and_then(|tokens| tokens.get_mut(token)) else { return Instant::ZERO };
        let takes = take && !kept.granted && nodes > 1;
        kept.granted |= take;
        let is_young =
            |node: &usize, since: &Instant| lost_data.get(node).is_some_and(|at| at <= since && now < *at + quarantine);
        let counts = kept.ends.iter().filter(|(node, since, _)| !takes || !is_young(node, since));
        let mut ends: Vec<Instant> = counts.map(|(.., end)| *end).collect();
        ends.sort_unstable_by(|one, two| two.cmp(one));
        ends.get(nodes / 2).copied().unwrap_or(Instant::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majority_keeps_token_until_its_last_node_does_not() {
        // S3
        let (at, ms) = (Instant::from_millis, Duration::from_millis);
        let mut truth = Truth::default();
        let end = |truth: &mut Truth, now, take| truth.end(at(now), 3, b"a", b"1", take, ms(100));
        assert_eq!(end(&mut truth, 0, false), Instant::ZERO);
        truth.lost_data(at(1), 1);
        for (node, until) in [(0, 500), (1, 400), (2, 300)] {
            truth.keeps(at(10), node, b"a", b"1", at(until));
        }
        // A young node votes for nobody, but may keep what its holder adds.
        assert_eq!((end(&mut truth.clone(), 50, true), end(&mut truth.clone(), 101, true)), (at(300), at(400)));
        assert_eq!((end(&mut truth, 50, true), end(&mut truth, 50, true)), (at(300), at(400)));
        // A shorter end counts only after the client was told.
        truth.keeps(at(20), 0, b"a", b"1", at(100));
        assert_eq!(end(&mut truth, 60, false), at(400));
        truth.ended(0, b"a", b"1");
        assert_eq!(end(&mut truth, 60, false), at(300));
        truth.ended(1, b"a", b"1");
        assert_eq!(end(&mut truth, 60, false), Instant::ZERO);
        truth.minted(&MintedBlock { key: b"a".to_vec(), token: b"1".to_vec(), first: 7, last: 9 });
        assert_eq!([6, 7, 9, 10].map(|fence| truth.is_minted(b"a", b"1", fence)), [false, true, true, false]);
    }
}
