//! A small election with three candidates and an observer: a resignation, a killed leader, and
//! checks.

use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use lock_driver::{ElectionEvent, LeadershipEnd, Observation, Observer, ResignHandle, call_on_thread};
use lock_proto::{Fence, Release};
use lock_tokio::Client;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time;

use super::candidate::{Candidate, Progress, Report, Resource};
use super::report_failure;
use crate::cli::backend::Backend;
use crate::cli::stdio::print_error;
use crate::cli::{SHUTDOWN_TIMEOUT, exit, run_number};
use crate::transcript::Transcript;

const CANDIDATES: [&str; 3] = ["alice", "bob", "carol"];
/// Longer than any step takes, beside the expiry of a session.
const TIMEOUT: Duration = Duration::from_secs(30);
const TERM: Duration = Duration::from_millis(500);

/// Error that ends the demonstration early.
pub(super) type Broken = Box<dyn core::error::Error + Send + Sync>;

pub(super) async fn run_demo(client: &Client, backend: &Backend, ttl: Duration) -> u8 {
    let name = format!("leader-example-{:016x}", run_number());
    match client.election(&name).leader().await {
        Ok(_) => {}
        Err(error) if error.is_unreachable() => {
            print_error(&format_args!("no answer from {backend}: {error}"));
            if let Backend::Store(_) = backend {
                print_error(
                    &"an etcd or a ZooKeeper is needed: start one, `etcd --data-dir $(mktemp -d)`, or name one, \
                      --backend etcd://host:port or zk://host:port",
                );
            }
            return exit::UNREACHABLE;
        }
        Err(error) => return report_failure(&error),
    }
    let transcript = Transcript::new();
    transcript.log(&format!("the store answers at {backend}; the election is `{name}`"));
    if let Err(error) = run(&transcript, client, (backend, ttl), &name).await {
        transcript.fail(&format!("the demonstration stopped: {error}"));
    }
    if transcript.passed() {
        transcript.log("result: everything as promised");
        0
    } else {
        transcript.log("result: BROKEN, see the lines marked with !!");
        1
    }
}

async fn run(
    transcript: &Transcript,
    client: &Client,
    (backend, ttl): (&Backend, Duration),
    name: &str,
) -> Result<(), Broken> {
    let election = client.election(name);
    let mut watcher = Watcher { transcript, observation: election.observe()?, timeout: TIMEOUT };
    watcher.wait_for(None).await?;

    transcript.section("Three candidates campaign, each with its own client and session");
    let resource = Arc::<Resource>::default();
    let (sender, receiver) = unbounded_channel();
    let mut candidates: Vec<_> = CANDIDATES
        .iter()
        .map(|value| {
            let candidate =
                Candidate::start(value, name, (backend.clone(), ttl), Arc::clone(&resource), sender.clone())?;
            Ok((*value, candidate))
        })
        .collect::<io::Result<_>>()?;
    let mut take = |candidate: &str| {
        let index = candidates.iter().position(|(value, _)| *value == candidate);
        index.map(|index| candidates.swap_remove(index).1).ok_or("an unknown candidate was elected")
    };
    let mut reports = Reports { transcript, receiver, queued: Vec::new(), timeout: TIMEOUT };

    let first = reports.next_term(&mut watcher).await?;
    reports.await_resignation(&first).await?;
    join(take(first.candidate)?).await?;

    transcript.section("The next candidate takes over and is killed without resigning; its session ends");
    let second = reports.next_term(&mut watcher).await?;
    let victim = take(second.candidate)?;
    let remaining = second.observer.remaining();
    let timeout = TIMEOUT + 2 * remaining;
    (reports.timeout, watcher.timeout) = (timeout, timeout);
    let kill = || {
        victim.kill();
        Ok(())
    };
    call_on_thread(kill).await?;
    let killed = Instant::now();
    transcript.log(&format!("{} is killed; its leadership was valid for another {remaining:.1?}", second.candidate));

    let third = reports.next_term(&mut watcher).await?;
    let waited = killed.elapsed();
    transcript
        .check(waited >= remaining, &format!("nobody was elected while it could still be working ({waited:.1?})"));

    transcript.section("The last one resigns, and nobody is left");
    reports.await_resignation(&third).await?;
    join(take(third.candidate)?).await?;
    watcher.wait_for(None).await?;
    transcript.check(election.leader().await?.is_none(), "nobody leads, and no candidate is left in the queue");

    transcript.section("Checks");
    let fences = [first.fence, second.fence, third.fence];
    transcript.check(resource.max_users() == 1, "two leaders never worked at the same time");
    transcript.check(fences.is_sorted_by(|a, b| a < b), "each had a greater fencing token than the one before");
    drop(watcher);
    let end = client.shutdown(SHUTDOWN_TIMEOUT).await;
    transcript.check(end.unreleased == 0, "nothing is left in the store");
    Ok(())
}

struct Term {
    candidate: &'static str,
    fence: Fence,
    resign_handle: ResignHandle,
    observer: Observer,
}

/// Reports of the candidates. Those of one candidate are in order.
struct Reports<'a> {
    transcript: &'a Transcript,
    receiver: UnboundedReceiver<Report>,
    queued: Vec<Report>,
    timeout: Duration,
}

impl Reports<'_> {
    /// Waits for the next report of this candidate, or of any.
    async fn next(&mut self, from: Option<&str>) -> Result<Report, Broken> {
        loop {
            if let Some(index) = self.queued.iter().position(|report| from.is_none_or(|from| report.candidate == from))
            {
                return Ok(self.queued.remove(index));
            }
            let report = time::timeout(self.timeout, self.receiver.recv()).await?.ok_or("all candidates are gone")?;
            match report.progress {
                Progress::Failed(error) => return Err(format!("{}: {error}", report.candidate).into()),
                Progress::Elected(_) | Progress::Working { .. } | Progress::Finished { .. } | Progress::Resigned(_) => {
                    self.queued.push(report)
                }
            }
        }
    }

    /// Waits until a candidate is elected and proclaims a value, and the observer sees it.
    async fn next_term(&mut self, watcher: &mut Watcher<'_>) -> Result<Term, Broken> {
        let Report { candidate, progress: Progress::Elected(fence) } = self.next(None).await? else {
            return Err("a candidate reported progress before it was elected".into());
        };
        self.transcript.log(&format!("{candidate} is elected, with the fencing token {fence}"));
        let Progress::Working { value, resign_handle, observer } = self.next(Some(candidate)).await?.progress else {
            return Err(format!("{candidate} was elected, and did not go to work").into());
        };
        self.transcript.log(&format!("{candidate} proclaims \"{value}\""));
        watcher.wait_for(Some(&value)).await?;
        Ok(Term { candidate, fence, resign_handle, observer })
    }

    /// Asks the leader to resign: the work ends first, then the leadership.
    async fn await_resignation(&mut self, term: &Term) -> Result<(), Broken> {
        let candidate = term.candidate;
        time::sleep(TERM).await;
        self.transcript.log(&format!("{candidate} is asked to resign"));
        term.resign_handle.resign();
        let finished = self.next(Some(candidate)).await?.progress;
        let still_leading = matches!(finished, Progress::Finished { still_leading: true });
        self.transcript.check(still_leading, &format!("{candidate} finished the work while it was still the leader"));
        let resigned = self.next(Some(candidate)).await?.progress;
        let in_order =
            matches!(resigned, Progress::Resigned(LeadershipEnd { output: Ok(()), release: Release::Released }));
        self.transcript.check(in_order, &format!("{candidate} resigned only after that"));
        Ok(())
    }
}

async fn join(candidate: Candidate) -> Result<(), Broken> {
    let join = || {
        candidate.join();
        Ok(())
    };
    Ok(call_on_thread(join).await?)
}

struct Watcher<'a> {
    transcript: &'a Transcript,
    observation: Observation,
    timeout: Duration,
}

impl Watcher<'_> {
    /// Waits until the observer sees this value, or no leader for `None`.
    async fn wait_for(&mut self, expected: Option<&str>) -> Result<(), Broken> {
        loop {
            let event = time::timeout(self.timeout, self.observation.next()).await?;
            let seen = match event.ok_or("the observation has ended")? {
                ElectionEvent::Leader(leader) => Some(leader.value),
                ElectionEvent::NoLeader => None,
                ElectionEvent::Disconnected => {
                    self.transcript.log("the observer has lost the connection to the server");
                    continue;
                }
                ElectionEvent::Failed(failure) => return Err(failure.into()),
            };
            match &seen {
                Some(value) => self.transcript.log(&format!("the observer sees \"{}\"", value.escape_ascii())),
                None => self.transcript.log("the observer sees no leader"),
            }
            if seen.as_deref() == expected.map(str::as_bytes) {
                return Ok(());
            }
        }
    }
}
