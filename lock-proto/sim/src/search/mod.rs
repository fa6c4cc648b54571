//! Exhaustive search: explores all executions of a small model breadth first, and finds the
//! shortest one that violates a guarantee.
//!
//! A [`Model`] defines the initial states, the possible actions, and what must always hold.
//! [`Search::run`] tries everything, so the first violation that it finds is a shortest one.
//! [`Counterexample`] describes it step by step. Machines that derive `Hash` need no extra code to
//! be compared: see [`Canon`].
// S6
//!
//! ```
//! use core::hash::Hash;
//! use lock_sim::search::{Canon, Model, Search};
//!
//! /// Two threads add one to a counter: read it, then write what was read and one more.
//! struct Adders;
//!
//! #[derive(Clone, Default, Hash)]
//! struct State {
//!     counter: u8,
//!     read: [Option<u8>; 2],
//!     done: [bool; 2],
//! }
//!
//! impl Model for Adders {
//!     type State = State;
//!     type Action = usize;
//!
//!     fn initial_states(&self) -> Vec<State> {
//!         vec![State::default()]
//!     }
//!
//!     fn actions(&self, state: &State, actions: &mut Vec<usize>) {
//!         actions.extend((0..2).filter(|thread| !state.done[*thread]));
//!     }
//!
//!     fn step(&self, state: &State, thread: &usize) -> State {
//!         let mut next = state.clone();
//!         match state.read[*thread] {
//!             None => next.read[*thread] = Some(state.counter),
//!             Some(read) => (next.counter, next.done[*thread]) = (read + 1, true),
//!         }
//!         next
//!     }
//!
//!     fn hash_state(&self, state: &State, canon: &mut Canon) {
//!         state.hash(canon);
//!     }
//!
//!     fn check(&self, state: &State) -> Result<(), String> {
//!         let wrong = state.done == [true; 2] && state.counter != 2;
//!         if wrong {
//!             return Err(format!("two have added, and the counter is {}", state.counter));
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let outcome = Search::new().run(&Adders);
//! let found = outcome.counterexample.unwrap();
//! // Both read, and then both write.
//! assert_eq!(found.actions.len(), 4);
//! assert_eq!(found.rule, "two have added, and the counter is 1");
//! ```

mod canon;

use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::mem;

pub use canon::Canon;

/// A small system to explore.
///
/// It must be deterministic: the same action in the same state leads to the same state.
pub trait Model {
    /// The complete state of the system.
    type State: Clone;
    /// A step that the system can take.
    type Action: Clone + fmt::Debug;

    /// Returns the initial states.
    fn initial_states(&self) -> Vec<Self::State>;

    /// Appends every action that is possible in `state`. A state without actions is final.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);

    /// Returns the state after `action`.
    fn step(&self, state: &Self::State, action: &Self::Action) -> Self::State;

    /// Creates the hasher for [`hash_state`](Self::hash_state), with the ranges of clocks and ids.
    fn canon(&self) -> Canon {
        Canon::new()
    }

    /// Hashes what distinguishes `state`. States with equal fingerprints count as the same state,
    /// and the search continues only from the first of them.
    ///
    /// So hash all that affects a later step or a later [`check`](Self::check). What only records
    /// that a rule is broken already need not be hashed: the search ends there.
    fn hash_state(&self, state: &Self::State, canon: &mut Canon);

    /// Checks the invariants, which must hold in every state. Called after every step, also if it
    /// leads to a state that was seen.
    ///
    /// # Errors
    ///
    /// Returns a description of the invariant that is violated.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// Names up to 64 conditions that some state should reach. If one is never reached, the search
    /// did not cover what it was meant to.
    fn sometimes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns a bit mask of the conditions of [`sometimes`](Self::sometimes) that `state` reaches.
    fn reached(&self, state: &Self::State) -> u64 {
        let _ = state;
        0
    }

    /// Describes a step in words: when, who, what.
    fn describe_step(&self, before: &Self::State, action: &Self::Action) -> String {
        let _ = before;
        format!("{action:?}")
    }
}

/// The limits of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a Search does nothing until it is run"]
pub struct Search {
    depth: usize,
    states: usize,
}

impl Default for Search {
    fn default() -> Self {
        Self::new()
    }
}

impl Search {
    /// Creates a search without limits.
    pub const fn new() -> Self {
        Self { depth: usize::MAX, states: u32::MAX as usize }
    }

    /// Limits the number of actions in a sequence.
    pub const fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Limits the number of distinct states.
    pub const fn states(mut self, states: usize) -> Self {
        self.states = states;
        self
    }

    /// Searches until a violation is found, no states are left, or a limit is reached.
    pub fn run<M: Model>(self, model: &M) -> SearchOutcome<M::Action> {
        let mut run = Run::new(model);
        let counterexample = run.search(self);
        SearchOutcome {
            states: run.predecessors.len(),
            transitions: run.transitions,
            depth: run.depth,
            exhausted: counterexample.is_none() && run.layer.is_empty() && !run.full,
            sometimes: model.sometimes().iter().copied().zip(run.reached).collect(),
            counterexample,
        }
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchOutcome<A> {
    /// Number of distinct states.
    pub states: usize,
    /// Number of transitions.
    pub transitions: u64,
    /// Number of actions in the longest sequence.
    pub depth: usize,
    /// No state was left to explore.
    pub exhausted: bool,
    /// For each condition of [`Model::sometimes`], the number of states that reach it.
    pub sometimes: Vec<(&'static str, u64)>,
    /// The shortest violation, if one was found.
    pub counterexample: Option<Counterexample<A>>,
}

impl<A> SearchOutcome<A> {
    /// Returns the conditions that were never reached.
    pub fn unreached(&self) -> impl Iterator<Item = &'static str> {
        self.sometimes.iter().filter(|(_, states)| *states == 0).map(|(what, _)| *what)
    }
}

impl<A> fmt::Display for SearchOutcome<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, .. } = self;
        write!(f, "{states} states, {transitions} transitions, depth {depth}")?;
        match &self.counterexample {
            None if self.exhausted => f.write_str(", nothing left, no rule broken"),
            None => f.write_str(", not exhausted, no rule broken so far"),
            Some(found) => write!(f, ", broken after {} steps: {}", found.actions.len(), found.rule),
        }
    }
}

/// A shortest sequence of actions that violates an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample<A> {
    /// The invariant.
    pub rule: String,
    /// The actions that lead to the violation.
    pub actions: Vec<A>,
    /// The same in words.
    pub trace: Vec<String>,
}

impl<A> fmt::Display for Counterexample<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, line) in self.trace.iter().enumerate() {
            let mut parts = line.lines();
            writeln!(f, "{:>3}  {}", n + 1, parts.next().unwrap_or_default())?;
            for part in parts {
                writeln!(f, "     {part}")?;
            }
        }
        write!(f, "  => {}", self.rule)
    }
}

/// Predecessor of an initial state.
const START: u32 = u32::MAX;

struct Run<'a, M: Model> {
    model: &'a M,
    canon: Canon,
    seen: BTreeMap<u64, u32>,
    /// The first way in which each state was reached: the predecessor and the action.
    predecessors: Vec<(u32, Option<M::Action>)>,
    initial_states: Vec<M::State>,
    layer: Vec<(u32, M::State)>,
    next: Vec<(u32, M::State)>,
    transitions: u64,
    depth: usize,
    reached: Vec<u64>,
    full: bool,
}

impl<'a, M: Model> Run<'a, M> {
    fn new(model: &'a M) -> Self {
        Self {
            model,
            canon: model.canon(),
            seen: BTreeMap::new(),
            predecessors: Vec::new(),
            initial_states: Vec::new(),
            layer: Vec::new(),
            next: Vec::new(),
            transitions: 0,
            depth: 0,
            reached: model.sometimes().iter().map(|_| 0).collect(),
            full: false,
        }
    }

    fn search(&mut self, limits: Search) -> Option<Counterexample<M::Action>> {
        for start in self.model.initial_states() {
            self.initial_states.push(start.clone());
            let place = self.initial_states.len() as u32 - 1;
            // A duplicate start keeps its own index, so that counterexamples start correctly.
            self.predecessors.push((START, None));
            let fingerprint = self.fingerprint(&start);
            self.seen.entry(fingerprint).or_insert(place);
            if let Err(rule) = self.model.check(&start) {
                return Some(self.counterexample(place, rule));
            }
            self.arrive(place, start);
        }
        let mut actions = Vec::new();
        while !self.next.is_empty() {
            self.layer = mem::take(&mut self.next);
            // Reversed and popped in FIFO order, so that each processed state is freed.
            self.layer.reverse();
            if self.depth >= limits.depth {
                return None;
            }
            self.depth += 1;
            while let Some((from, state)) = self.layer.pop() {
                actions.clear();
                self.model.actions(&state, &mut actions);
                for action in actions.drain(..) {
                    self.transitions += 1;
                    let next = self.model.step(&state, &action);
                    let place = self.predecessors.len() as u32;
                    // A step may break a rule and lead to a state that was seen.
                    if let Err(rule) = self.model.check(&next) {
                        self.predecessors.push((from, Some(action)));
                        return Some(self.counterexample(place, rule));
                    }
                    let fingerprint = self.fingerprint(&next);
                    if self.predecessors.len() >= limits.states {
                        self.full = true;
                        return None;
                    }
                    match self.seen.entry(fingerprint) {
                        Entry::Occupied(_) => continue,
                        Entry::Vacant(new) => new.insert(place),
                    };
                    self.predecessors.push((from, Some(action)));
                    self.arrive(place, next);
                }
            }
        }
        None
    }

    fn fingerprint(&mut self, state: &M::State) -> u64 {
        self.canon.clear();
        self.model.hash_state(state, &mut self.canon);
        self.canon.fingerprint()
    }

    fn arrive(&mut self, place: u32, state: M::State) {
        let reached = self.model.reached(&state);
        for (bit, count) in self.reached.iter_mut().enumerate() {
            *count += reached >> bit & 1;
        }
        self.next.push((place, state));
    }

    fn counterexample(&self, place: u32, rule: String) -> Counterexample<M::Action> {
        let (mut actions, mut at) = (Vec::new(), place);
        while let Some((from, Some(action))) = self.predecessors.get(at as usize) {
            actions.push(action.clone());
            at = *from;
        }
        actions.reverse();
        let mut trace = Vec::new();
        if let Some(mut state) = self.initial_states.get(at as usize).cloned() {
            for action in &actions {
                trace.push(self.model.describe_step(&state, action));
                state = self.model.step(&state, action);
            }
        }
        Counterexample { rule, actions, trace }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use core::hash::Hash as _;

    use super::*;

    /// Two steps lead from 0 to 1. The second of them breaks a rule, which is not hashed.
    struct TwoWays;

    impl Model for TwoWays {
        type State = (u8, bool);
        type Action = bool;

        fn initial_states(&self) -> Vec<(u8, bool)> {
            [(0, false)].into()
        }

        fn actions(&self, state: &(u8, bool), actions: &mut Vec<bool>) {
            if state.0 == 0 {
                actions.extend([false, true]);
            }
        }

        fn step(&self, _: &(u8, bool), breaks: &bool) -> (u8, bool) {
            (1, *breaks)
        }

        fn hash_state(&self, state: &(u8, bool), canon: &mut Canon) {
            state.0.hash(canon);
        }

        fn check(&self, state: &(u8, bool)) -> Result<(), String> {
            if state.1 { Err("a rule".into()) } else { Ok(()) }
        }
    }

    #[test]
    fn violation_on_way_to_seen_state_is_found() {
        // S6
        let found = Search::new().run(&TwoWays).counterexample.unwrap();
        assert_eq!((found.rule.as_str(), &found.actions[..]), ("a rule", &[true][..]));
    }
}
