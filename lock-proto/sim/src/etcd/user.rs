//! Users, permissions and tokens.
//!
//! An etcd role is a list of key ranges with permissions
//! (<https://etcd.io/docs/v3.4/op-guide/authentication/>). Here a user has them directly.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::refusal::RefusalStatus;
use super::span::{KeySpan, Until, after_prefix};
use lock_proto::etcd::message::{Op, RequestOp, TxnRequest};

/// A user of a simulated cluster. The first user of a cluster enables authentication.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "a User does nothing until it is given to a cluster"]
pub struct User {
    pub(super) name: String,
    passwords: BTreeSet<String>,
    root: bool,
    /// Sorted, with adjacent ranges merged.
    read: Vec<(Vec<u8>, Until)>,
    write: Vec<(Vec<u8>, Until)>,
}

impl User {
    /// Creates a user without permissions.
    pub fn new(name: &str, password: &str) -> Self {
        let passwords = [password.to_owned()].into();
        Self { name: name.to_owned(), passwords, root: false, read: Vec::new(), write: Vec::new() }
    }

    /// Permits everything, like the role `root`.
    pub const fn root(mut self) -> Self {
        self.root = true;
        self
    }

    /// Permits reading and watching keys that start with `prefix`.
    pub fn read(mut self, prefix: impl AsRef<[u8]>) -> Self {
        add(&mut self.read, prefix.as_ref());
        self
    }

    /// Permits writing and deleting keys that start with `prefix`.
    pub fn write(mut self, prefix: impl AsRef<[u8]>) -> Self {
        add(&mut self.write, prefix.as_ref());
        self
    }

    /// Permits reading and writing keys that start with `prefix`.
    pub fn read_write(self, prefix: impl AsRef<[u8]>) -> Self {
        self.read(prefix.as_ref()).write(prefix.as_ref())
    }

    pub(super) fn accepts(&self, password: &str) -> bool {
        self.passwords.contains(password)
    }

    pub(super) fn set_password(&mut self, password: &str, on: bool) {
        if on {
            self.passwords.insert(password.to_owned());
        } else {
            self.passwords.remove(password);
        }
    }

    fn may_read(&self, span: &KeySpan) -> Result<(), RefusalStatus> {
        permitted(self.root || covered(&self.read, span))
    }

    fn may_write(&self, span: &KeySpan) -> Result<(), RefusalStatus> {
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

const fn permitted(yes: bool) -> Result<(), RefusalStatus> {
    if yes { Ok(()) } else { Err(RefusalStatus::PERMISSION_DENIED) }
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

fn covered(ranges: &[(Vec<u8>, Until)], span: &KeySpan) -> bool {
    let end = match span {
        // Any end after the key itself and not after the next possible key.
        KeySpan::One(key) => Until::Key([key, &[0][..]].concat()),
        KeySpan::Range(_, end) => Until::Key(end.to_vec()),
        KeySpan::From(_) => Until::Last,
    };
    let first = span.start().to_vec();
    // Both ends must be inside, even for an empty range.
    ranges.iter().any(|(start, until)| {
        let start = Until::Key(start.clone());
        let key = Until::Key(first.clone());
        start <= key && key < *until && start < end && end <= *until
    })
}

/// The sender of a request, for permission checks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Caller<'a> {
    /// Authentication is off.
    Anybody,
    /// Authentication is on, but there was no token.
    Nobody,
    User(&'a User),
}

impl Caller<'_> {
    pub(super) fn may_read(self, span: &KeySpan) -> Result<(), RefusalStatus> {
        match self {
            Self::Anybody => Ok(()),
            Self::Nobody => Err(RefusalStatus::USER_EMPTY),
            Self::User(user) => user.may_read(span),
        }
    }

    pub(super) fn may_write(self, span: &KeySpan) -> Result<(), RefusalStatus> {
        match self {
            Self::Anybody => Ok(()),
            Self::Nobody => Err(RefusalStatus::USER_EMPTY),
            Self::User(user) => user.may_write(span),
        }
    }

    /// Checks both branches. Like etcd 3.4, does not check inner transactions.
    pub(super) fn may_run(self, txn: &TxnRequest) -> Result<(), RefusalStatus> {
        for compare in &txn.compare {
            self.may_read(&KeySpan::new(&compare.key, &compare.range_end))?;
        }
        txn.success.iter().chain(&txn.failure).try_for_each(|op| self.may_do(op))
    }

    fn may_do(self, op: &RequestOp) -> Result<(), RefusalStatus> {
        match &op.request {
            Some(Op::Range(range)) => self.may_read(&KeySpan::new(&range.key, &range.range_end)),
            Some(Op::Put(put)) => self.may_write(&KeySpan::One(put.key.clone())),
            Some(Op::Delete(delete)) => {
                let span = KeySpan::new(&delete.key, &delete.range_end);
                if delete.prev_kv {
                    self.may_read(&span)?;
                }
                self.may_write(&span)
            }
            Some(Op::Txn(_)) | None => Ok(()),
        }
    }
}
