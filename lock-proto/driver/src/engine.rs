//! The machine as the driver and its handles see it.

use core::any::Any;

use lock_proto::LockId;
use lock_proto::{Event, Machine, OperationEvent, OperationId};

/// A machine, and the work that it has queued for the driver.
///
/// The driver knows the type; to the handles it is a `dyn Engine`.
pub(super) trait Engine: Any + Send {
    fn machine(&self) -> &dyn Machine;

    fn machine_mut(&mut self) -> &mut dyn Machine;

    /// The next notification for a handle. Work for the driver that comes before it is queued.
    fn poll_notification(&mut self) -> Option<Notification>;

    /// Returns true if there is work that only the driver can do.
    fn needs_driver(&mut self) -> bool;
}

/// An event for a handle.
pub(super) enum Notification {
    Lock(LockId, Event),
    Operation(OperationId, OperationEvent),
}
