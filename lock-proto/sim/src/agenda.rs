//! Queue of scheduled events.

use alloc::collections::VecDeque;

use lock_proto::Instant;

/// Events ordered by time, then by the order of scheduling. A sorted deque is faster than a tree
/// here: it stays short, and new events mostly go to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agenda<T> {
    plans: VecDeque<(Instant, T)>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Agenda<T> {
    pub(super) const fn new() -> Self {
        Self { plans: VecDeque::new() }
    }

    pub(super) fn plan(&mut self, at: Instant, what: T) {
        let place = self.plans.iter().rposition(|(earlier, _)| *earlier <= at).map_or(0, |before| before + 1);
        self.plans.insert(place, (at, what));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.plans.front().map(|(at, _)| *at)
    }

    /// Removes and returns the next event if it is due at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.plans.pop_front().map(|(_, what)| what)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.plans.iter().map(|(_, what)| what)
    }

    pub(super) fn extract(&mut self, which: impl Fn(&T) -> bool) -> impl Iterator<Item = T> {
        let plans = core::mem::take(&mut self.plans);
        let (out, stays): (VecDeque<_>, _) = plans.into_iter().partition(|(_, what)| which(what));
        self.plans = stays;
        out.into_iter().map(|(_, what)| what)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_entries_are_due_in_planned_order() {
        let (early, late) = (Instant::from_millis(1), Instant::from_millis(2));
        let mut agenda = Agenda::default();
        for (at, what) in [(late, 'c'), (early, 'b'), (early, 'a')] {
            agenda.plan(at, what);
        }
        assert_eq!((agenda.next(), agenda.due(Instant::ZERO)), (Some(early), None));
        assert!(agenda.iter().eq(&['b', 'a', 'c']));
        assert_eq!([agenda.due(early), agenda.due(early), agenda.due(early)], [Some('b'), Some('a'), None]);
        assert_eq!(agenda.due(late), Some('c'));
        assert!(agenda.is_empty());
    }

    #[test]
    fn extracted_entries_are_removed() {
        let mut agenda = Agenda::default();
        for what in 0..6 {
            agenda.plan(Instant::from_millis(10 - what), what);
        }
        assert!(agenda.extract(|what| what % 2 == 0).eq([4, 2, 0]));
        assert!(agenda.iter().eq(&[5, 3, 1]));
        assert_eq!(agenda.next(), Some(Instant::from_millis(5)));
    }
}
