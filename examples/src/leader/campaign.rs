//! One candidate or one observer, until interrupted.

use core::fmt;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::Poll;
use core::time::Duration;

use lock_driver::{Election, ElectionEvent, LeadError, Leadership, OwnerKeyExt as _, OwnerNodeExt as _};
use lock_proto::{Fence, Loss, Release};
use lock_tokio::Client;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::{join, select};

use super::report_failure;
use crate::cli::name::{DisplayName, ShortName};
use crate::cli::signals::is_ignored;
use crate::cli::stdio::{on_stdout_failure, print_error, print_line, start_stderr, stdout_failure};
use crate::cli::{SHUTDOWN_TIMEOUT, exit};

/// Campaigns, again after each loss. Returns the exit code.
pub(super) async fn campaign(client: &Client, name: &[u8], ttl: Duration, value: &[u8]) -> u8 {
    let Some(mut stop) = Stop::watch() else { return exit::NOT_EXECUTABLE };
    let election = client.election(name).ttl(ttl);
    let shown = DisplayName(name);
    loop {
        let report = {
            let name = name.to_vec();
            move |why| print_error(&format_args!("{}: waiting: {why}", ShortName(&name)))
        };
        let waiting = election.campaign(value.to_vec()).on_blocked(report);
        let leadership = select! {
            elected = waiting => match elected {
                Ok(leadership) => leadership,
                Err(error) => return report_failure(&error),
            },
            // Dropping the campaign withdraws the candidate.
            code = stop.requested() => {
                end_campaign(client, name).await;
                return code;
            }
        };
        print_line(&format_args!("elected {shown} {}", Ownership::of(&election, &leadership).await));
        let observer = leadership.observer();
        let report_loss = |loss| print_line(&format_args!("lost {shown} {}", exit::loss_name(loss)));
        // At once: the resignation may take a while.
        let lost = async { observer.lost().await.inspect(|&loss| report_loss(loss)) };
        // There is no work to wind down, so wait for the end.
        let (lost, end) = join!(lost, leadership.lead(|_| stop.requested()));
        match (end.output, end.release) {
            _ if lost.is_some() => {}
            (Err(LeadError::Lost(loss)), _) => report_loss(loss),
            // The leadership had already ended, as the release showed.
            (Ok(_), Release::Expired) => report_loss(Loss::Gone),
            (Ok(_), Release::Taken) => report_loss(Loss::Taken),
            (Ok(_) | Err(_), release) => {
                if release == Release::Unknown {
                    print_error(&format_args!(
                        "{}: the server did not confirm the resignation; the leadership ends with the session",
                        ShortName(name)
                    ));
                }
                print_line(&format_args!("resigned {shown}"));
                return end.output.unwrap_or(exit::SUCCESS);
            }
        }
        if let Ok(code) = end.output {
            end_campaign(client, name).await;
            return code;
        }
    }
}

/// Shuts the client down, after a campaign that ended without a leadership.
async fn end_campaign(client: &Client, name: &[u8]) {
    if client.shutdown(SHUTDOWN_TIMEOUT).await.unreleased > 0 {
        print_error(&format_args!(
            "{}: the end of the campaign is unconfirmed; what it left on the server ends with its TTL",
            ShortName(name)
        ));
    }
}

/// Observes the election. Returns the exit code.
pub(super) async fn observe(client: &Client, name: &[u8]) -> u8 {
    let Some(mut stop) = Stop::watch() else { return exit::NOT_EXECUTABLE };
    let shown = DisplayName(name);
    let election = client.election(name);
    let mut observation = match election.observe() {
        Ok(observation) => observation,
        Err(error) => return report_failure(&error),
    };
    loop {
        let event = select! {
            event = observation.next() => event,
            code = stop.requested() => return code,
        };
        match event {
            Some(ElectionEvent::Leader(leader)) => print_line(&format_args!(
                "leader {shown} key={} rev={} value={}",
                DisplayName(&leader.key),
                leader.create_revision,
                DisplayName(&leader.value)
            )),
            Some(ElectionEvent::NoLeader) => print_line(&format_args!("nobody {shown}")),
            Some(ElectionEvent::Disconnected) => print_line(&format_args!("disconnected {shown}")),
            Some(ElectionEvent::Failed(failure)) => return report_failure(&election.error(failure)),
            None => return exit::UNREACHABLE,
        }
    }
}

/// The key and revision of a leadership, as an observer sees them; `-` if it is already lost.
struct Ownership {
    /// The key on etcd, or the path on ZooKeeper, and the revision or transaction that created it. In
    /// a folder, the name of the election and the number of the term.
    owner: Option<(Vec<u8>, i64)>,
    fence: Option<Fence>,
}

impl Ownership {
    async fn of(election: &Election, leadership: &Leadership) -> Self {
        let on_etcd = leadership.owner_key().map(|owner| (owner.key.to_vec(), owner.create_revision));
        let on_zookeeper = || leadership.owner_node().map(|node| (node.path.as_bytes().to_vec(), node.czxid));
        let owner = match on_etcd.or_else(on_zookeeper) {
            None if leadership.is_held() => {
                let leader = election.leader().await.ok().flatten().filter(|_| leadership.is_held());
                leader.map(|leader| (leader.key.to_vec(), leader.create_revision))
            }
            owner => owner,
        };
        Self { owner, fence: leadership.fence() }
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

/// Requests for the end: signals that are not ignored, and that stdout has failed.
struct Stop {
    signals: Vec<Signal>,
    not_written: oneshot::Receiver<()>,
    /// The exit code once there was a request.
    code: Option<u8>,
}

impl Stop {
    /// Returns `None`, after an error message, if signals or stdout cannot be watched.
    fn watch() -> Option<Self> {
        let kinds = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()];
        let watched = kinds.into_iter().filter(|kind| !is_ignored(kind.as_raw_value())).map(signal);
        let signals: Result<_, std::io::Error> = watched.collect();
        let (sender, not_written) = oneshot::channel();
        let report_failure = move || {
            let _ = sender.send(());
        };
        signals
            .and_then(|signals| start_stderr().and_then(|()| on_stdout_failure(report_failure)).map(|()| signals))
            .map(|signals| Self { signals, not_written, code: None })
            .map_err(|error| print_error(&format_args!("signals and stdout cannot be watched: {error}")))
            .ok()
    }

    /// Waits for a request. Returns the exit code.
    async fn requested(&mut self) -> u8 {
        poll_fn(|cx| {
            if self.code.is_none() && self.signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
                self.code = Some(exit::SUCCESS);
            }
            if self.code.is_none() && Pin::new(&mut self.not_written).poll(cx).is_ready() {
                if let Some(why) = stdout_failure() {
                    print_error(&why);
                }
                self.code = Some(exit::NOT_WRITTEN);
            }
            self.code.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
