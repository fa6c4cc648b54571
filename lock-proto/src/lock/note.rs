//! What a log or a metric wants to know of an acquisition besides its events: why.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::hash::{Hash, Hasher};
use core::time::Duration;

use super::answer::Answer;
use super::event::Blocked;
use crate::id::LockId;
use crate::time::Instant;

/// A remark for a log, about one acquisition. The call that queues an event also makes its note.
///
/// `answers` are the last replies of the servers, in the configured order. If a single server or
/// cluster has failed for another lock of this client only, its answer is that failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Note {
    /// It waits, for this reason. With [`Event::Blocked`](crate::Event::Blocked).
    Waiting {
        /// The acquisition.
        lock: LockId,
        /// The reason.
        why: Blocked,
        /// The replies to its attempts. Empty if another acquisition of this client precedes it.
        answers: Box<[Answer]>,
    },
    /// Its validity ends soon, and renewals are failing. With
    /// [`Event::AtRisk`](crate::Event::AtRisk).
    AtRisk {
        /// The acquisition.
        lock: LockId,
        /// When the lock will be lost.
        valid_until: Instant,
        /// The replies to the renewals.
        answers: Box<[Answer]>,
    },
    /// Its release was not confirmed. With [`Event::Released`](crate::Event::Released).
    NotReleased {
        /// The acquisition.
        lock: LockId,
        /// The replies to the release; empty if no failure is known.
        answers: Box<[Answer]>,
    },
}

/// Notes that the host has not drained. They are no state of the machine: clients that differ in
/// them are equal.
// N23
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    /// How many are kept. 0: none is made.
    most: usize,
    queue: VecDeque<Note>,
    /// The last failure of a request of any lock, of a store with one server or cluster, which does
    /// not say it of each lock.
    last_failure: Option<(Instant, Answer)>,
    /// For how long it explains anything.
    recent: Duration,
}

impl Notes {
    pub(super) fn keep(&mut self, most: usize, recent: Duration) {
        (self.most, self.recent) = (most, recent);
        self.queue.drain(..self.queue.len().saturating_sub(most));
    }

    #[inline]
    pub(super) const fn are_kept(&self) -> bool {
        self.most > 0
    }

    /// Adds a note, and drops the oldest one if there are too many.
    pub(super) fn push(&mut self, note: Note) {
        if self.queue.len() >= self.most {
            self.queue.pop_front();
        }
        self.queue.push_back(note);
    }

    pub(super) fn poll(&mut self) -> Option<Note> {
        crate::collections::burst::pop(&mut self.queue)
    }

    /// A request of any lock was answered.
    pub(super) fn answered(&mut self, now: Instant, answer: Answer) {
        if self.are_kept() && answer.is_failure() {
            self.last_failure = Some((now, answer));
        }
    }

    /// Returns these answers, or the last failure if they name none.
    pub(super) fn failures(&self, now: Instant, answers: Box<[Answer]>) -> Box<[Answer]> {
        let is_recent = |(at, _): &&(Instant, Answer)| now.since(*at) <= self.recent;
        match self.last_failure.as_ref().filter(is_recent) {
            Some((_, failure)) if !answers.iter().any(Answer::is_failure) => Box::new([failure.clone()]),
            Some(_) | None => answers,
        }
    }
}

impl PartialEq for Notes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Notes {}

impl Hash for Notes {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    const RECENT: Duration = Duration::from_secs(10);

    fn failure() -> Answer {
        Answer::Unreachable(Fault::Refused.into())
    }

    fn note(slot: u32) -> Note {
        Note::NotReleased { lock: LockId::new(slot, 0), answers: Box::default() }
    }

    #[test]
    fn no_note_is_kept_until_somebody_wants_them() {
        // N23
        let mut notes = Notes::default();
        notes.answered(Instant::ZERO, failure());
        assert!(!notes.are_kept() && notes.failures(Instant::ZERO, Box::default()).is_empty());
        notes.keep(2, RECENT);
        (0..3).for_each(|slot| notes.push(note(slot)));
        assert_eq!([notes.poll(), notes.poll(), notes.poll()], [Some(note(1)), Some(note(2)), None]);
        notes.push(note(4));
        notes.keep(0, RECENT);
        assert!(!notes.are_kept() && notes.poll().is_none());
    }

    #[test]
    fn notes_are_no_state() {
        // N23
        let mut notes = Notes::default();
        notes.keep(2, RECENT);
        notes.push(note(1));
        assert_eq!(notes, Notes::default());
    }

    #[test]
    fn last_failure_of_client_explains_what_names_none_for_a_while() {
        // N23
        let mut notes = Notes::default();
        notes.keep(2, RECENT);
        let at = Instant::from_millis(1_000);
        notes.answered(at, failure());
        notes.answered(at, Answer::Granted);
        let silent: Box<[Answer]> = Box::new([Answer::Silent]);
        assert_eq!(*notes.failures(at + RECENT, silent.clone()), [failure()]);
        assert_eq!(notes.failures(at + RECENT * 2, silent.clone()), silent);
        let own: Box<[Answer]> = Box::new([Answer::Granted, Answer::RecentlyRestarted]);
        assert_eq!(notes.failures(at, own.clone()), own);
    }
}
