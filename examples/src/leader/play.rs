//! A small election with three candidates and an observer: a resignation, a killed leader, and
//! checks.

use core::time::Duration;
use std::process;
use std::sync::Arc;
use std::time::Instant;

use lock_proto::driver::Observer;
use lock_proto::driver::etcd::{LeadershipEnd, Observation, ResignHandle};
use lock_proto::etcd::{Config, ElectionEvent, Endpoint};
use lock_proto::redis::{Fence, Release};
use lock_tokio::Client;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::{task, time};

use super::office::{Candidate, Desk, News, What};
use super::{explain, say};
use crate::cli::{GOODBYE, exit};
use crate::story::Story;

const CANDIDATES: [&str; 3] = ["alice", "bob", "carol"];
/// Longer than any step takes, including the expiry of a lease.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a leader works.
const IN_OFFICE: Duration = Duration::from_millis(500);

/// Error that ends the demonstration early.
pub(super) type Broken = Box<dyn core::error::Error + Send + Sync>;

/// Runs the demonstration and returns the exit code.
pub(super) async fn play(client: &Client, config: &Config) -> u8 {
    let name = format!("leader-example-{}", process::id());
    let members: Vec<String> = config.endpoints().iter().map(Endpoint::to_string).collect();
    let members = members.join(", ");
    match client.election(&name).leader().await {
        Ok(_) => {}
        Err(error) if error.is_unreachable() => {
            say(&format_args!("no answer from {members}: {error}"));
            say(
                &"an etcd is needed: start one, `etcd --data-dir $(mktemp -d)`, or name one, --backend etcd://host:port",
            );
            return exit::UNREACHABLE;
        }
        Err(error) => return explain(&error),
    }
    let story = Story::new();
    story.tell(&format!("etcd answers at {members}; the election is `{name}`"));
    if let Err(error) = run(&story, client, config, &name).await {
        story.broken(&format!("the play stopped: {error}"));
    }
    if story.is_intact() {
        story.tell("result: everything as promised");
        0
    } else {
        story.tell("result: BROKEN, see the lines marked with !!");
        1
    }
}

async fn run(story: &Story, client: &Client, config: &Config, name: &str) -> Result<(), Broken> {
    let election = client.election(name);
    let mut watching = Watching { story, observation: election.observe()? };
    watching.see(None).await?;

    story.title("Three candidates stand, each with a client and a session of its own");
    let desk = Arc::<Desk>::default();
    let (sender, news) = unbounded_channel();
    let mut candidates: Vec<_> = CANDIDATES
        .iter()
        .map(|who| (*who, Candidate::start(who, name, config.clone(), Arc::clone(&desk), sender.clone())))
        .collect();
    let mut take = |who: &str| {
        let place = candidates.iter().position(|(name, _)| *name == who);
        place.map(|place| candidates.swap_remove(place).1).ok_or("an unknown candidate was elected")
    };
    let mut stage = Stage { story, news, early: Vec::new() };

    let first = stage.next_term(&mut watching).await?;
    stage.resignation(&first).await?;
    leave(take(first.who)?).await?;

    story.title(
        "The next in the queue takes over, and is killed: it gives nothing back, and its session ends by itself",
    );
    let second = stage.next_term(&mut watching).await?;
    let victim = take(second.who)?;
    let left = second.observer.remaining();
    task::spawn_blocking(|| victim.kill()).await?;
    let killed = Instant::now();
    story.tell(&format!("{} is killed; it was in office for another {left:.1?} for certain", second.who));

    let third = stage.next_term(&mut watching).await?;
    let waited = killed.elapsed();
    story.check(waited >= left, &format!("nobody was elected while it could still have been at work ({waited:.1?})"));

    story.title("The last one resigns, and nobody is left");
    stage.resignation(&third).await?;
    leave(take(third.who)?).await?;
    watching.see(None).await?;
    story.check(election.leader().await?.is_none(), "nobody leads, and no candidate is left in the queue");

    story.title("What was promised");
    let fences = [first.fence, second.fence, third.fence];
    story.check(desk.most() == 1, "never were two leaders at work");
    story.check(fences.is_sorted_by(|a, b| a < b), "each had a greater fencing token than the one before");
    drop(watching);
    let end = client.shutdown(GOODBYE).await;
    story.check(end.unreleased == 0, "nothing is left in the store");
    Ok(())
}

/// One leader's term.
struct Term {
    who: &'static str,
    fence: Fence,
    resign_handle: ResignHandle,
    observer: Observer,
}

/// Reports of the candidates. Those of one candidate are in order.
struct Stage<'a> {
    story: &'a Story,
    news: UnboundedReceiver<News>,
    early: Vec<News>,
}

impl Stage<'_> {
    /// Waits for the next report of this candidate, or of any.
    async fn next(&mut self, from: Option<&str>) -> Result<News, Broken> {
        loop {
            if let Some(place) = self.early.iter().position(|news| from.is_none_or(|who| news.who == who)) {
                return Ok(self.early.remove(place));
            }
            let news = time::timeout(TIMEOUT, self.news.recv()).await?.ok_or("all candidates are gone")?;
            match news.what {
                What::Failed(error) => return Err(format!("{}: {error}", news.who).into()),
                What::Elected(_) | What::AtWork { .. } | What::Finished { .. } | What::Left(_) => self.early.push(news),
            }
        }
    }

    /// Waits until a candidate is elected and proclaims a value, and the observer sees it.
    async fn next_term(&mut self, watching: &mut Watching<'_>) -> Result<Term, Broken> {
        let News { who, what: What::Elected(fence) } = self.next(None).await? else {
            return Err("somebody told of an office without being elected".into());
        };
        self.story.tell(&format!("{who} is elected, with the fencing token {fence}"));
        let What::AtWork { value, resign_handle, observer } = self.next(Some(who)).await?.what else {
            return Err(format!("{who} was elected, and did not go to work").into());
        };
        self.story.tell(&format!("{who} proclaims \"{value}\""));
        watching.see(Some(&value)).await?;
        Ok(Term { who, fence, resign_handle, observer })
    }

    /// Asks the leader to resign: the work ends first, then the leadership.
    async fn resignation(&mut self, term: &Term) -> Result<(), Broken> {
        let who = term.who;
        time::sleep(IN_OFFICE).await;
        self.story.tell(&format!("{who} is asked to resign"));
        term.resign_handle.resign();
        let finished = self.next(Some(who)).await?.what;
        let in_office = matches!(finished, What::Finished { in_office: true });
        self.story.check(in_office, &format!("{who} finished the work, and was in office until then"));
        let left = self.next(Some(who)).await?.what;
        let in_order = matches!(left, What::Left(LeadershipEnd { output: Ok(()), release: Release::Released }));
        self.story.check(in_order, &format!("only then {who} gave up the office"));
        Ok(())
    }
}

async fn leave(candidate: Candidate) -> Result<(), Broken> {
    task::spawn_blocking(|| candidate.join()).await?;
    Ok(())
}

/// The observer.
struct Watching<'a> {
    story: &'a Story,
    observation: Observation,
}

impl Watching<'_> {
    /// Waits until the observer sees this value, or no leader for `None`.
    async fn see(&mut self, expected: Option<&str>) -> Result<(), Broken> {
        loop {
            let event = time::timeout(TIMEOUT, self.observation.next()).await?;
            let seen = match event.ok_or("the observation has ended")? {
                ElectionEvent::Leader(leader) => Some(leader.value),
                ElectionEvent::NoLeader => None,
                ElectionEvent::Disconnected => {
                    self.story.tell("the observer does not hear the server");
                    continue;
                }
                ElectionEvent::Failed(failure) => return Err(failure.into()),
                _ => continue,
            };
            match &seen {
                Some(value) => self.story.tell(&format!("the observer sees \"{}\"", value.escape_ascii())),
                None => self.story.tell("the observer sees that nobody leads"),
            }
            if seen.as_deref() == expected.map(str::as_bytes) {
                return Ok(());
            }
        }
    }
}
