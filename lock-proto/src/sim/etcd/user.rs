//! Users, what they may do, and the tokens that they get for their passwords.
//!
//! A role of etcd is a list of key ranges to read, to write, or both (<https://etcd.io/docs/v3.4/op-guide/authentication/>). Here a
//! user has such a list at once.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::refusal::Refusal;
use super::span::{Span, Until, after_prefix};
use crate::etcd::message::{Op, RequestOp, TxnRequest};

/// A user of a simulated cluster. The first one that a cluster has turns authentication on.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "a User does nothing until it is given to a cluster"]
pub struct User {
    pub(super) name: String,
    password: String,
    root: bool,
    /// Sorted, and joined where they touch.
    read: Vec<(Vec<u8>, Until)>,
    write: Vec<(Vec<u8>, Until)>,
}

impl User {
    /// A user who may do nothing with any key.
    pub fn new(name: &str, password: &str) -> Self {
        Self { name: name.to_owned(), password: password.to_owned(), root: false, read: Vec::new(), write: Vec::new() }
    }

    /// May do everything, as one with the role `root`.
    pub const fn root(mut self) -> Self {
        self.root = true;
        self
    }

    /// May read and watch the keys that begin with `prefix`.
    pub fn read(mut self, prefix: impl AsRef<[u8]>) -> Self {
        add(&mut self.read, prefix.as_ref());
        self
    }

    /// May write and delete the keys that begin with `prefix`.
    pub fn write(mut self, prefix: impl AsRef<[u8]>) -> Self {
        add(&mut self.write, prefix.as_ref());
        self
    }

    /// May do both.
    pub fn read_write(self, prefix: impl AsRef<[u8]>) -> Self {
        self.read(prefix.as_ref()).write(prefix.as_ref())
    }

    pub(super) fn accepts(&self, password: &str) -> bool {
        self.password == password
    }

    fn may_read(&self, span: &Span) -> Result<(), Refusal> {
        permitted(self.root || covered(&self.read, span))
    }

    fn may_write(&self, span: &Span) -> Result<(), Refusal> {
        permitted(self.root || covered(&self.write, span))
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("password", &"…")
            .field("root", &self.root)
            .field("read", &self.read)
            .field("write", &self.write)
            .finish()
    }
}

const fn permitted(yes: bool) -> Result<(), Refusal> {
    if yes { Ok(()) } else { Err(Refusal::PERMISSION_DENIED) }
}

fn add(ranges: &mut Vec<(Vec<u8>, Until)>, prefix: &[u8]) {
    ranges.push((prefix.to_vec(), after_prefix(prefix)));
    ranges.sort();
    let mut joined: Vec<(Vec<u8>, Until)> = Vec::new();
    for (start, end) in ranges.drain(..) {
        match joined.last_mut() {
            Some((_, last)) if Until::Key(start.clone()) <= *last => *last = end.max(last.clone()),
            Some(_) | None => joined.push((start, end)),
        }
    }
    *ranges = joined;
}

fn covered(ranges: &[(Vec<u8>, Until)], span: &Span) -> bool {
    let end = match span {
        // Any end after the key itself, and not after the next one.
        Span::One(key) => Until::Key([key, &[0][..]].concat()),
        Span::Range(_, end) => Until::Key(end.to_vec()),
        Span::From(_) => Until::Last,
    };
    let first = span.start().to_vec();
    // Both ends must lie inside, also of a range without any key in it.
    ranges.iter().any(|(start, until)| {
        let start = Until::Key(start.clone());
        let key = Until::Key(first.clone());
        start <= key && key < *until && start < end && end <= *until
    })
}

/// Who asks, as far as permissions go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker<'a> {
    /// Authentication is off.
    Anybody,
    /// Authentication is on, and there was no token.
    Nobody,
    User(&'a User),
}

impl Asker<'_> {
    pub(super) fn may_read(self, span: &Span) -> Result<(), Refusal> {
        match self {
            Self::Anybody => Ok(()),
            Self::Nobody => Err(Refusal::USER_EMPTY),
            Self::User(user) => user.may_read(span),
        }
    }

    pub(super) fn may_write(self, span: &Span) -> Result<(), Refusal> {
        match self {
            Self::Anybody => Ok(()),
            Self::Nobody => Err(Refusal::USER_EMPTY),
            Self::User(user) => user.may_write(span),
        }
    }

    /// Both branches are checked, whichever will be taken. Inner transactions are not: so it is in etcd 3.4.
    pub(super) fn may_run(self, txn: &TxnRequest) -> Result<(), Refusal> {
        for compare in &txn.compare {
            self.may_read(&Span::new(&compare.key, &compare.range_end))?;
        }
        txn.success.iter().chain(&txn.failure).try_for_each(|op| self.may_do(op))
    }

    fn may_do(self, op: &RequestOp) -> Result<(), Refusal> {
        match &op.request {
            Some(Op::Range(range)) => self.may_read(&Span::new(&range.key, &range.range_end)),
            Some(Op::Put(put)) => self.may_write(&Span::One(put.key.clone())),
            Some(Op::Delete(delete)) => self.may_write(&Span::new(&delete.key, &delete.range_end)),
            Some(Op::Txn(_)) | None => Ok(()),
        }
    }
}
