//! One candidate or one observer, until interrupted.

use core::fmt;
use lock_proto::driver::etcd::OwnerKeyExt as _;

use lock_proto::driver::etcd::LeadError;
use lock_proto::etcd::{ElectionEvent, OwnerKey};
use lock_proto::redis::{Fence, Loss, Release};
use lock_tokio::Client;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{explain, say};
use crate::cli::name::Shown;
use crate::cli::{exit, print};

/// Campaigns, again after each loss. Returns the exit code.
pub(super) async fn stand(client: &Client, name: &[u8], value: &[u8]) -> u8 {
    let Some(mut stop) = Stop::watch() else { return exit::NOT_EXECUTABLE };
    let election = client.election(name);
    let shown = Shown(name);
    loop {
        let report = {
            let name = name.to_vec();
            move |why| say(&format_args!("{}: waiting: {why}", Shown(&name)))
        };
        let waiting = election.campaign(value.to_vec()).on_blocked(report);
        let leadership = select! {
            elected = waiting => match elected {
                Ok(leadership) => leadership,
                Err(error) => return explain(&error),
            },
            // Dropping the campaign withdraws the candidate.
            () = stop.asked() => return 0,
        };
        print(&format_args!("elected {shown} {}", Office(leadership.owner(), leadership.fence())));
        // There is no work to wind down, so wait for the end.
        let led = leadership.lead(|_| stop.asked()).await;
        let lost = match (led.output, led.release) {
            (Err(LeadError::Lost(loss)), _) => loss,
            // The leadership had already ended, as the release showed.
            (Ok(()), Release::Expired) => Loss::Gone,
            (Ok(()), Release::Taken) => Loss::Taken,
            (Ok(()), Release::Unknown) => {
                say(&format_args!("{shown}: the server has not confirmed it; the office ends with the lease"));
                print(&format_args!("resigned {shown}"));
                return 0;
            }
            (Ok(()) | Err(_), _) => {
                print(&format_args!("resigned {shown}"));
                return 0;
            }
        };
        print(&format_args!("lost {shown} {}", exit::word(lost)));
        if led.output.is_ok() {
            return 0;
        }
    }
}

/// Observes the election. Returns the exit code.
pub(super) async fn observe(client: &Client, name: &[u8]) -> u8 {
    let Some(mut stop) = Stop::watch() else { return exit::NOT_EXECUTABLE };
    let shown = Shown(name);
    let mut observation = match client.election(name).observe() {
        Ok(observation) => observation,
        Err(error) => return explain(&error),
    };
    loop {
        let event = select! {
            event = observation.next() => event,
            () = stop.asked() => return 0,
        };
        match event {
            Some(ElectionEvent::Leader(leader)) => print(&format_args!(
                "leader {shown} key={} rev={} value={}",
                Shown(&leader.key),
                leader.mod_revision,
                Shown(&leader.value)
            )),
            Some(ElectionEvent::NoLeader) => print(&format_args!("nobody {shown}")),
            Some(ElectionEvent::Disconnected) => print(&format_args!("disconnected {shown}")),
            Some(ElectionEvent::Failed(failure)) => {
                say(&format_args!("{shown}: {failure}"));
                return exit::of_failure(&failure.into());
            }
            // Later versions may add more.
            Some(_) => {}
            None => return exit::UNREACHABLE,
        }
    }
}

/// The key and revision of a leadership; `-` if it is already lost.
struct Office(Option<OwnerKey>, Option<Fence>);

impl fmt::Display for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(owner) => write!(f, "key={} rev={}", Shown(&owner.key), owner.revision)?,
            None => f.write_str("key=- rev=-")?,
        }
        match &self.1 {
            Some(fence) => write!(f, " fence={fence}"),
            None => f.write_str(" fence=-"),
        }
    }
}

/// Signals that request the end.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// Returns `None`, after an error message, if signals cannot be handled.
    fn watch() -> Option<Self> {
        let watch =
            || Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? });
        watch().map_err(|error: std::io::Error| say(&format_args!("signals cannot be watched: {error}"))).ok()
    }

    async fn asked(&mut self) {
        select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
