//! The lock driven by plain threads, see [`crate::blocking`].

use core::time::Duration;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use lock_proto::redis::{Acquire, Event, Wait};
use lock_proto::{ByteClient, Misuse};

use super::args::Args;
use super::event::{Held, LockHandle, MainEvent};
use crate::blocking::{Client, Lock};
use crate::cli::failed::Failed;
use crate::cli::name::DisplayName;
use crate::cli::{SHUTDOWN_TIMEOUT, exit};

struct ThreadHandle<M: ByteClient + Send + 'static> {
    client: Client<M>,
    phase: Arc<Mutex<Phase<M>>>,
    events: Sender<MainEvent>,
}

enum Phase<M: ByteClient + Send + 'static> {
    Waiting(Arc<Lock<M>>),
    Held(Arc<Lock<M>>),
    Stopped,
}

/// Requests the lock, and forwards its events.
///
/// # Errors
///
/// Returns a value that is invalid.
pub(super) fn start<M: ByteClient + Send + 'static>(
    client: Client<M>,
    args: &Args,
    events: Sender<MainEvent>,
) -> Result<Box<dyn LockHandle>, Failed> {
    let request = Request { acquire: Acquire::new(&args.name).ttl(args.ttl), wait: args.wait, since: Instant::now() };
    let lock = Arc::new(request.send(&client).map_err(Failed::usage)?);
    let phase = Arc::new(Mutex::new(Phase::Waiting(Arc::clone(&lock))));
    let forwarder = Forwarder { client: client.clone(), phase: Arc::clone(&phase), events: events.clone(), request };
    thread::spawn(move || forwarder.run(lock));
    Ok(Box::new(ThreadHandle { client, phase, events }))
}

impl<M: ByteClient + Send + 'static> LockHandle for ThreadHandle<M> {
    fn stop(&self) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        match core::mem::replace(&mut *phase, Phase::Stopped) {
            Phase::Waiting(lock) => lock.abandon(),
            // The reply to the release arrives as an event.
            Phase::Held(lock) if lock.release().is_ok() => return,
            Phase::Held(_) | Phase::Stopped => {}
        }
        let (client, events) = (self.client.clone(), self.events.clone());
        thread::spawn(move || {
            client.shutdown(SHUTDOWN_TIMEOUT);
            let _ = events.send(MainEvent::Stopped(None));
        });
    }
}

/// The request, repeated if an offer expired before this process ran.
struct Request {
    acquire: Acquire,
    wait: Wait,
    since: Instant,
}

impl Request {
    fn send<M: ByteClient + Send + 'static>(&self, client: &Client<M>) -> Result<Lock<M>, Misuse> {
        let wait = match self.wait {
            Wait::For(limit) => Wait::For(limit.saturating_sub(self.since.elapsed()).max(Duration::from_millis(1))),
            other @ (Wait::Try | Wait::Forever | _) => other,
        };
        client.request(self.acquire.clone().wait(wait))
    }
}

/// Forwards the events of the lock to the main thread.
struct Forwarder<M: ByteClient + Send + 'static> {
    client: Client<M>,
    phase: Arc<Mutex<Phase<M>>>,
    events: Sender<MainEvent>,
    request: Request,
}

impl<M: ByteClient + Send + 'static> Forwarder<M> {
    fn run(self, mut lock: Arc<Lock<M>>) {
        while let Some(event) = lock.next_event(None) {
            let main_event = match event {
                Event::Blocked(why) => MainEvent::Blocked(why),
                Event::Granted(grant) => {
                    let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
                    if matches!(*phase, Phase::Stopped) {
                        return;
                    }
                    if lock.claim().is_err() {
                        // Withdrawn meanwhile; the next event says so.
                        continue;
                    }
                    *phase = Phase::Held(Arc::clone(&lock));
                    let observed = Arc::clone(&lock);
                    let remaining = Box::new(move || observed.remaining());
                    let (token, fence, ttl) = (grant.token.to_string(), grant.fence, grant.ttl);
                    MainEvent::Held(Held { token, fence, owner: None, ttl, remaining })
                }
                // This process was stopped for a third of the TTL while it waited. Request the lock
                // again.
                Event::Withdrawn => {
                    let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
                    if matches!(*phase, Phase::Stopped) {
                        return;
                    }
                    match self.request.send(&self.client) {
                        Ok(again) => {
                            lock = Arc::new(again);
                            *phase = Phase::Waiting(Arc::clone(&lock));
                            continue;
                        }
                        Err(error) => MainEvent::Failed(Failed::usage(error)),
                    }
                }
                Event::Lost(loss) => MainEvent::Lost(loss),
                Event::Failed(failure) => {
                    self.client.shutdown(SHUTDOWN_TIMEOUT);
                    let why = format!("lock {}: {failure}", DisplayName(&self.request.acquire.name));
                    MainEvent::Failed(Failed { code: exit::of_failure(&failure.into()), why })
                }
                Event::Released(release) => {
                    self.client.shutdown(SHUTDOWN_TIMEOUT);
                    MainEvent::Stopped(Some(release))
                }
                Event::Renewed { .. } | Event::ExtendFailed(_) | Event::AtRisk { .. } | _ => continue,
            };
            if self.events.send(main_event).is_err() {
                return;
            }
        }
    }
}
