//! Records and enumerations that several messages share.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::archive::{FrameWriter, Reader};
use crate::fault::Breach;

/// What a server knows about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stat {
    /// The transaction that created it. Grows with every write to the cluster.
    pub czxid: i64,
    /// The transaction that last changed its data.
    pub mzxid: i64,
    /// When it was created, by the leader's clock, in milliseconds since 1970.
    pub ctime: i64,
    /// When its data last changed.
    pub mtime: i64,
    /// The number of changes of its data.
    pub version: i32,
    /// The number of changes of its children. Begins anew with a new node.
    pub cversion: i32,
    /// The number of changes of its ACL.
    pub aversion: i32,
    /// The session that it ends with; 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
    /// The length of its data.
    pub data_length: i32,
    /// The number of its children.
    pub num_children: i32,
    /// The transaction that last changed its children.
    pub pzxid: i64,
}

impl Stat {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Breach> {
        Ok(Self {
            czxid: from.long()?,
            mzxid: from.long()?,
            ctime: from.long()?,
            mtime: from.long()?,
            version: from.int()?,
            cversion: from.int()?,
            aversion: from.int()?,
            ephemeral_owner: from.long()?,
            data_length: from.int()?,
            num_children: from.int()?,
            pzxid: from.long()?,
        })
    }

    pub(super) fn write(&self, to: &mut FrameWriter<'_>) {
        to.long(self.czxid).long(self.mzxid).long(self.ctime).long(self.mtime);
        to.int(self.version).int(self.cversion).int(self.aversion).long(self.ephemeral_owner);
        to.int(self.data_length).int(self.num_children).long(self.pzxid);
    }
}

/// What an entry of an ACL permits, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permissions(pub i32);

impl Permissions {
    /// Read, write, create, delete and administer.
    pub const ALL: Self = Self(31);
}

/// An entry of a node's access control list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    /// What is permitted.
    pub permissions: Permissions,
    /// The kind of identity, such as `world`, `auth` or `digest`.
    pub scheme: Box<str>,
    /// The identity.
    pub id: Box<str>,
}

impl Acl {
    /// Anybody may do anything.
    #[must_use]
    pub fn open() -> Vec<Self> {
        vec![Self { permissions: Permissions::ALL, scheme: "world".into(), id: "anyone".into() }]
    }

    /// The users that the connection has authenticated may do anything, and others nothing.
    #[must_use]
    pub fn creator() -> Vec<Self> {
        vec![Self { permissions: Permissions::ALL, scheme: "auth".into(), id: "".into() }]
    }

    /// The least length of an encoded entry.
    const LEAST: usize = 12;

    pub(super) fn read_all(from: &mut Reader<'_>) -> Result<Vec<Self>, Breach> {
        from.vector(Self::LEAST, |from| {
            let permissions = Permissions(from.int()?);
            Ok(Self { permissions, scheme: from.string()?, id: from.string()? })
        })
    }

    pub(super) fn write_all(all: &[Self], to: &mut FrameWriter<'_>) {
        to.vector(all.iter(), |to, acl| {
            to.int(acl.permissions.0).string(&acl.scheme).string(&acl.id);
        });
    }
}

/// Declares an enumeration of the protocol with its numbers.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$case_doc])* $case,)*
        }

        impl $name {
            /// Returns the number in the protocol.
            pub const fn number(self) -> i32 {
                match self {
                    $(Self::$case => $number,)*
                }
            }

            /// Returns the value of a number; `None` if it has no meaning here.
            #[must_use]
            pub const fn of_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$case),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use numbered;

numbered! {
    /// How long a node lives, and whether its name is numbered.
    CreateMode {
        /// Until it is deleted.
        Persistent = 0,
        /// At most as long as the session.
        Ephemeral = 1,
        /// Persistent; the server appends ten digits, which count the changes of the parent.
        PersistentSequential = 2,
        /// Ephemeral, and numbered.
        EphemeralSequential = 3,
        /// Until some time after its last child is gone.
        Container = 4,
    }
}

numbered! {
    /// What a watch reports.
    EventType {
        /// The state of the connection changed.
        None = -1,
        /// The node was created.
        Created = 1,
        /// The node was deleted.
        Deleted = 2,
        /// Its data changed.
        DataChanged = 3,
        /// A child was created or deleted.
        ChildrenChanged = 4,
        /// The watch on its data was removed.
        DataWatchRemoved = 5,
        /// The watch on its children was removed.
        ChildWatchRemoved = 6,
    }
}

numbered! {
    /// The state of the connection, in a watch event.
    KeeperState {
        /// The connection has no session.
        Disconnected = 0,
        /// The usual one.
        SyncConnected = 3,
        /// The login failed.
        AuthFailed = 4,
        /// The server has no quorum.
        ConnectedReadOnly = 5,
        /// The session has expired.
        Expired = -112,
    }
}

numbered! {
    /// Which watches of a node to remove.
    WatchKind {
        /// Those of `getChildren`.
        Children = 1,
        /// Those of `getData` and `exists`.
        Data = 2,
        /// All.
        Any = 3,
    }
}

/// A watch was triggered. It is then gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatcherEvent {
    /// What happened.
    pub kind: EventType,
    /// The state of the connection.
    pub state: KeeperState,
    /// The node.
    pub path: Box<str>,
}

impl WatcherEvent {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Breach> {
        let kind = EventType::of_number(from.int()?).ok_or(Breach::Malformed)?;
        let state = KeeperState::of_number(from.int()?).ok_or(Breach::Malformed)?;
        Ok(Self { kind, state, path: from.string()? })
    }

    pub(super) fn write(&self, to: &mut FrameWriter<'_>) {
        to.int(self.kind.number()).int(self.state.number()).string(&self.path);
    }
}
