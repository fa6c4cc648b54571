//! What is still to come.

use alloc::collections::BTreeMap;

use crate::time::Instant;

/// What happens by itself when its time comes; what comes at the same time comes in the order in which it was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agenda<T> {
    plans: BTreeMap<(Instant, u64), T>,
    serial: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { plans: BTreeMap::new(), serial: 0 }
    }
}

impl<T> Agenda<T> {
    pub(super) fn plan(&mut self, at: Instant, what: T) {
        self.serial += 1;
        self.plans.insert((at, self.serial), what);
    }

    /// When the next thing comes.
    pub(super) fn next(&self) -> Option<Instant> {
        self.plans.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next thing whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<T> {
        let plan = self.plans.first_entry().filter(|plan| plan.key().0 <= now)?;
        Some(plan.remove())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_at_the_same_time_comes_in_the_order_of_planning() {
        let (early, late) = (Instant::from_millis(1), Instant::from_millis(2));
        let mut agenda = Agenda::default();
        for (at, what) in [(late, 'c'), (early, 'b'), (early, 'a')] {
            agenda.plan(at, what);
        }
        assert_eq!((agenda.next(), agenda.due(Instant::ZERO)), (Some(early), None));
        assert_eq!([agenda.due(early), agenda.due(early), agenda.due(early)], [Some('b'), Some('a'), None]);
        assert_eq!(agenda.due(late), Some('c'));
        assert!(agenda.is_empty());
    }
}
