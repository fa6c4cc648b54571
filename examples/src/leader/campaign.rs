//! One candidate or one observer, until interrupted.

use core::fmt;
use core::future::poll_fn;
use core::task::Poll;

use lock_proto::driver::{LeadError, Leadership, OwnerKeyExt as _, OwnerNodeExt as _};
use lock_proto::{ElectionEvent, Fence, Loss, Release};
use lock_tokio::Client;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::{join, select};

use super::{log_error, report_failure};
use crate::cli::name::DisplayName;
use crate::cli::signals::is_ignored;
use crate::cli::{exit, print};

/// Campaigns, again after each loss. Returns the exit code.
pub(super) async fn campaign(client: &Client, name: &[u8], value: &[u8]) -> u8 {
    let Some(mut stop) = StopSignals::watch() else { return exit::NOT_EXECUTABLE };
    let election = client.election(name);
    let shown = DisplayName(name);
    loop {
        let report = {
            let name = name.to_vec();
            move |why| log_error(&format_args!("{}: waiting: {why}", DisplayName(&name)))
        };
        let waiting = election.campaign(value.to_vec()).on_blocked(report);
        let leadership = select! {
            elected = waiting => match elected {
                Ok(leadership) => leadership,
                Err(error) => return report_failure(&error),
            },
            // Dropping the campaign withdraws the candidate.
            () = stop.requested() => return 0,
        };
        print(&format_args!("elected {shown} {}", Ownership::of(&leadership)));
        let observer = leadership.observer();
        let report_loss = |loss| print(&format_args!("lost {shown} {}", exit::loss_name(loss)));
        // At once: the resignation may take a while.
        let lost = async { observer.lost().await.inspect(|&loss| report_loss(loss)) };
        // There is no work to wind down, so wait for the end.
        let (lost, end) = join!(lost, leadership.lead(|_| stop.requested()));
        match (end.output, end.release) {
            _ if lost.is_some() => {}
            (Err(LeadError::Lost(loss)), _) => report_loss(loss),
            // The leadership had already ended, as the release showed.
            (Ok(()), Release::Expired) => report_loss(Loss::Gone),
            (Ok(()), Release::Taken) => report_loss(Loss::Taken),
            (Ok(()) | Err(_), release) => {
                if release == Release::Unknown {
                    log_error(&format_args!(
                        "{shown}: the server did not confirm the resignation; the leadership ends with the session"
                    ));
                }
                print(&format_args!("resigned {shown}"));
                return 0;
            }
        }
        if end.output.is_ok() {
            return 0;
        }
    }
}

/// Observes the election. Returns the exit code.
pub(super) async fn observe(client: &Client, name: &[u8]) -> u8 {
    let Some(mut stop) = StopSignals::watch() else { return exit::NOT_EXECUTABLE };
    let shown = DisplayName(name);
    let election = client.election(name);
    let mut observation = match election.observe() {
        Ok(observation) => observation,
        Err(error) => return report_failure(&error),
    };
    loop {
        let event = select! {
            event = observation.next() => event,
            () = stop.requested() => return 0,
        };
        match event {
            Some(ElectionEvent::Leader(leader)) => print(&format_args!(
                "leader {shown} key={} rev={} value={}",
                DisplayName(&leader.key),
                leader.create_revision,
                DisplayName(&leader.value)
            )),
            Some(ElectionEvent::NoLeader) => print(&format_args!("nobody {shown}")),
            Some(ElectionEvent::Disconnected) => print(&format_args!("disconnected {shown}")),
            Some(ElectionEvent::Failed(failure)) => return report_failure(&election.error(failure)),
            // Later versions may add more.
            Some(_) => {}
            None => return exit::UNREACHABLE,
        }
    }
}

/// The key and revision of a leadership, as an observer sees them; `-` if it is already lost.
struct Ownership {
    /// The key on etcd, or the path on ZooKeeper, and the revision or transaction that created it.
    owner: Option<(Vec<u8>, i64)>,
    fence: Option<Fence>,
}

impl Ownership {
    fn of(leadership: &Leadership) -> Self {
        let on_etcd = leadership.owner_key().map(|owner| (owner.key.to_vec(), owner.create_revision));
        let on_zookeeper = || leadership.owner_node().map(|node| (node.path.as_bytes().to_vec(), node.czxid));
        Self { owner: on_etcd.or_else(on_zookeeper), fence: leadership.fence() }
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some((key, revision)) => write!(f, "key={} rev={revision}", DisplayName(key))?,
            None => f.write_str("key=- rev=-")?,
        }
        match &self.fence {
            Some(fence) => write!(f, " fence={fence}"),
            None => f.write_str(" fence=-"),
        }
    }
}

/// Signals that request the end, unless they are ignored.
struct StopSignals(Vec<Signal>);

impl StopSignals {
    /// Returns `None`, after an error message, if signals cannot be handled.
    fn watch() -> Option<Self> {
        let kinds = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()];
        let watched = kinds.into_iter().filter(|kind| !is_ignored(kind.as_raw_value())).map(signal);
        let signals: Result<_, std::io::Error> = watched.collect();
        signals.map(Self).map_err(|error| log_error(&format_args!("signals cannot be watched: {error}"))).ok()
    }

    async fn requested(&mut self) {
        poll_fn(|cx| {
            let raised = self.0.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if raised { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
