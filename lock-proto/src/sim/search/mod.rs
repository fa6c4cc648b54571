//! Exhaustive search: every way in which a small model can go, breadth first, and the shortest one that breaks a promise
//! (requirement S6).
//!
//! A [`Model`] says where it begins, what can happen next, and what must always hold. [`Search::run`] tries everything, so what
//! it finds first is as short as can be; it is told step by step ([`Counterexample`]). Models of machines that derive `Hash` need no
//! code to be compared: see [`Canon`].
//!
//! ```
//! use core::hash::Hash;
//! use lock_proto::sim::search::{Canon, Model, Search};
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
//!     fn starts(&self) -> Vec<State> {
//!         vec![State::default()]
//!     }
//!
//!     fn actions(&self, state: &State, actions: &mut Vec<usize>) {
//!         actions.extend((0..2).filter(|who| !state.done[*who]));
//!     }
//!
//!     fn step(&self, state: &State, who: &usize) -> State {
//!         let mut next = state.clone();
//!         match state.read[*who] {
//!             None => next.read[*who] = Some(state.counter),
//!             Some(read) => (next.counter, next.done[*who]) = (read + 1, true),
//!         }
//!         next
//!     }
//!
//!     fn describe(&self, state: &State, canon: &mut Canon) {
//!         state.hash(canon);
//!     }
//!
//!     fn check(&self, state: &State) -> Result<(), String> {
//!         let wrong = state.done == [true; 2] && state.counter != 2;
//!         if wrong { Err(format!("two have added, and the counter is {}", state.counter)) } else { Ok(()) }
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

/// Something small that can go in many ways.
///
/// It must be deterministic: the same action in the same state leads to the same state.
pub trait Model {
    /// All that there is.
    type State: Clone;
    /// Something that can happen.
    type Action: Clone + fmt::Debug;

    /// Where it begins.
    fn starts(&self) -> Vec<Self::State>;

    /// Everything that can happen next. None is an end.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);

    /// What `action` leads to.
    fn step(&self, state: &Self::State, action: &Self::Action) -> Self::State;

    /// An empty hasher for [`describe`](Self::describe), with the ranges of clocks and ids.
    fn canon(&self) -> Canon {
        Canon::new()
    }

    /// Hashes what tells `state` from others: two states of one fingerprint are taken for one.
    fn describe(&self, state: &Self::State, canon: &mut Canon);

    /// What must hold in every state.
    ///
    /// # Errors
    ///
    /// The promise that is broken.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// What should come about in some state, at most 64. A search in which it does not has not searched what was meant.
    fn sometimes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Which of [`sometimes`](Self::sometimes) have come about in `state`, a bit each.
    fn reached(&self, state: &Self::State) -> u64 {
        let _ = state;
        0
    }

    /// A step in words: when, who, what.
    fn tell(&self, before: &Self::State, action: &Self::Action) -> String {
        let _ = before;
        format!("{action:?}")
    }
}

/// How far to search.
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
    /// Everything.
    pub const fn new() -> Self {
        Self { depth: usize::MAX, states: u32::MAX as usize }
    }

    /// At most so many actions.
    pub const fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// At most so many different states.
    pub const fn states(mut self, states: usize) -> Self {
        self.states = states;
        self
    }

    /// Searches until a promise is broken, everything was seen, or a limit is reached.
    pub fn run<M: Model>(self, model: &M) -> Outcome<M::Action> {
        let mut run = Run::new(model);
        let counterexample = run.search(self);
        Outcome {
            states: run.came.len(),
            transitions: run.transitions,
            depth: run.depth,
            exhausted: counterexample.is_none() && run.layer.is_empty() && !run.full,
            sometimes: model.sometimes().iter().copied().zip(run.reached).collect(),
            counterexample,
        }
    }
}

/// What a search has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<A> {
    /// How many different states were met.
    pub states: usize,
    /// How many steps were taken.
    pub transitions: u64,
    /// How many actions the longest way had.
    pub depth: usize,
    /// Nothing was left to be searched.
    pub exhausted: bool,
    /// In how many states each of [`Model::sometimes`] had come about.
    pub sometimes: Vec<(&'static str, u64)>,
    /// The shortest way to break a promise, if one was found.
    pub counterexample: Option<Counterexample<A>>,
}

impl<A> Outcome<A> {
    /// What should have come about and did not.
    pub fn never(&self) -> impl Iterator<Item = &'static str> {
        self.sometimes.iter().filter(|(_, states)| *states == 0).map(|(what, _)| *what)
    }
}

impl<A> fmt::Display for Outcome<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, .. } = self;
        write!(f, "{states} states, {transitions} transitions, depth {depth}")?;
        f.write_str(if self.exhausted { ", nothing left" } else { "" })?;
        match &self.counterexample {
            None => f.write_str(", no promise broken"),
            Some(found) => write!(f, ", broken after {} steps: {}", found.actions.len(), found.rule),
        }
    }
}

/// A way to break a promise. None is shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample<A> {
    /// The promise.
    pub rule: String,
    /// What has to happen.
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

/// No state before this one: a start.
const START: u32 = u32::MAX;

struct Run<'a, M: Model> {
    model: &'a M,
    canon: Canon,
    seen: BTreeMap<u64, u32>,
    /// How each state was come to first: from which other, and by what.
    came: Vec<(u32, Option<M::Action>)>,
    starts: Vec<M::State>,
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
            came: Vec::new(),
            starts: Vec::new(),
            layer: Vec::new(),
            next: Vec::new(),
            transitions: 0,
            depth: 0,
            reached: model.sometimes().iter().map(|_| 0).collect(),
            full: false,
        }
    }

    fn search(&mut self, limits: Search) -> Option<Counterexample<M::Action>> {
        for start in self.model.starts() {
            self.starts.push(start.clone());
            let place = self.starts.len() as u32 - 1;
            // A start that equals another one keeps its place, so that the ways lead back to the right one.
            self.came.push((START, None));
            let print = self.fingerprint(&start);
            self.seen.entry(print).or_insert(place);
            if let Err(rule) = self.arrive(place, start) {
                return Some(self.tell(place, rule));
            }
        }
        let mut actions = Vec::new();
        while !self.next.is_empty() {
            self.layer = mem::take(&mut self.next);
            // Taken from the end, first come first served, so that what is done with is freed.
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
                    let print = self.fingerprint(&next);
                    if self.came.len() >= limits.states {
                        self.full = true;
                        return None;
                    }
                    let place = self.came.len() as u32;
                    match self.seen.entry(print) {
                        Entry::Occupied(_) => continue,
                        Entry::Vacant(new) => new.insert(place),
                    };
                    self.came.push((from, Some(action)));
                    if let Err(rule) = self.arrive(place, next) {
                        return Some(self.tell(place, rule));
                    }
                }
            }
        }
        None
    }

    fn fingerprint(&mut self, state: &M::State) -> u64 {
        self.canon.clear();
        self.model.describe(state, &mut self.canon);
        self.canon.fingerprint()
    }

    fn arrive(&mut self, place: u32, state: M::State) -> Result<(), String> {
        self.model.check(&state)?;
        let reached = self.model.reached(&state);
        for (bit, count) in self.reached.iter_mut().enumerate() {
            *count += reached >> bit & 1;
        }
        self.next.push((place, state));
        Ok(())
    }

    fn tell(&self, place: u32, rule: String) -> Counterexample<M::Action> {
        let (mut actions, mut at) = (Vec::new(), place);
        while let Some((from, Some(action))) = self.came.get(at as usize) {
            actions.push(action.clone());
            at = *from;
        }
        actions.reverse();
        let mut trace = Vec::new();
        if let Some(mut state) = self.starts.get(at as usize).cloned() {
            for action in &actions {
                trace.push(self.model.tell(&state, action));
                state = self.model.step(&state, action);
            }
        }
        Counterexample { rule, actions, trace }
    }
}
