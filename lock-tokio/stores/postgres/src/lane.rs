//! One connection that is kept.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_driver::register::RegisterError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OnceCell, Semaphore, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Error, Row};

use crate::error::{is_read_only, is_refusal, is_undone, text};
use crate::url::Server;

const BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// How often a statement is run that the server undoes again and again.
const MAX_ATTEMPTS: usize = 5;
/// Statements that wait for the answers of one connection.
const MAX_STATEMENTS: usize = 256;
/// Notifications that a waiter may be behind: with more it takes it that there was one for it.
const MAX_HEARD: usize = 256;

/// A parameter of a statement.
pub(crate) type Parameter = (Box<dyn ToSql + Send + Sync>, Type);

/// Keeps a connection: makes it, and makes another when it ends or does not answer.
#[derive(Debug)]
pub(crate) struct Lane {
    state: watch::Receiver<State>,
    heard: broadcast::Sender<Heard>,
    timeout: Duration,
    task: JoinHandle<()>,
}

#[derive(Debug)]
enum State {
    Connecting,
    Up(Arc<Backend>),
    /// The last attempt has failed; the next follows by itself.
    Down(RegisterError),
}

/// What waiters are told.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    Notified(Arc<str>),
    /// The connection has ended: what came after that is unknown.
    Ended,
}

/// A connection to the process that serves it.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) client: Client,
    /// Whether it hears notifications; a pooler swallows them.
    pub(crate) hears: OnceCell<bool>,
    statements: Arc<Semaphore>,
    /// Asks for another connection.
    replace: Notify,
}

impl Backend {
    /// Runs a statement, and again if the server has undone it because of another transaction. A
    /// server with strict transactions does so where others wait for a row, and a setting against
    /// it would be another client's behind a pooler.
    // RG4
    async fn run(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, Error> {
        for _ in 1..MAX_ATTEMPTS {
            let reply = self.client.query_typed(sql, parameters).await;
            if !reply.as_ref().is_err_and(is_undone) {
                return reply;
            }
        }
        self.client.query_typed(sql, parameters).await
    }
}

impl Lane {
    /// Starts to connect.
    pub(crate) fn start(servers: Arc<[Server]>, timeout: Duration) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let (heard, _) = broadcast::channel(MAX_HEARD);
        let task = tokio::spawn(keep(servers, timeout, sender, heard.clone()));
        Self { state, heard, timeout, task }
    }

    /// Returns what is heard from now on.
    pub(crate) fn heard(&self) -> broadcast::Receiver<Heard> {
        self.heard.subscribe()
    }

    /// Returns the connection, once there is one.
    pub(crate) async fn backend(&self) -> Result<Arc<Backend>, RegisterError> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                State::Up(backend) if !backend.client.is_closed() => return Ok(Arc::clone(backend)),
                State::Down(error) => return Err(error.clone()),
                State::Up(_) | State::Connecting => {}
            }
            state.changed().await.map_err(|_| RegisterError::not_sent("the runtime of the connection has ended"))?;
        }
    }

    /// Runs a statement in a transaction of its own. The inner result is the server's answer.
    ///
    /// A task waits for it longer than the caller does: what was sent occupies the connection until
    /// the answer comes.
    pub(crate) async fn run(
        &self,
        sql: &'static str,
        parameters: Vec<Parameter>,
    ) -> Result<Result<Vec<Row>, Error>, RegisterError> {
        let backend = self.backend().await?;
        let permit = timeout(self.timeout, Arc::clone(&backend.statements).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(RegisterError::not_sent(format!("the server does not answer {MAX_STATEMENTS} statements")));
        };
        let limit = self.timeout;
        let statement = tokio::spawn(async move {
            let mut borrowed: Vec<(&(dyn ToSql + Sync), Type)> = Vec::new();
            for (value, kind) in &parameters {
                borrowed.push((&**value, kind.clone()));
            }
            let mut reply = pin!(backend.run(sql, &borrowed));
            let reply = match timeout(limit, &mut reply).await {
                Ok(reply) => reply,
                Err(_) => {
                    backend.replace.notify_one();
                    reply.await
                }
            };
            if reply.as_ref().is_err_and(is_read_only) {
                backend.replace.notify_one();
            }
            drop(permit);
            reply
        });
        match timeout(limit, statement).await {
            Ok(reply) => reply.map_err(RegisterError::unknown),
            Err(_) => Err(RegisterError::unknown(format!("no answer within {limit:?}"))),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects again and again, until it is aborted.
async fn keep(servers: Arc<[Server]>, timeout: Duration, state: watch::Sender<State>, heard: broadcast::Sender<Heard>) {
    let mut backoff = BACKOFF;
    let mut replaced: Option<JoinHandle<()>> = None;
    loop {
        let started = Instant::now();
        match connect(&servers, timeout, &heard).await {
            Ok((backend, mut connection)) => {
                state.send_replace(State::Up(Arc::clone(&backend)));
                loop {
                    tokio::select! {
                        _ = &mut connection => break,
                        () = backend.replace.notified() => {}
                    }
                    // One that does not answer is kept until it does, and no more than one: a table
                    // that is locked would collect connections.
                    if replaced.as_ref().is_none_or(JoinHandle::is_finished) {
                        replaced = Some(connection);
                        break;
                    }
                }
                state.send_replace(State::Connecting);
                let _ = heard.send(Heard::Ended);
                if started.elapsed() > MAX_BACKOFF {
                    backoff = BACKOFF;
                    continue;
                }
            }
            Err(error) => drop(state.send_replace(State::Down(error))),
        }
        sleep(backoff).await;
        backoff = (2 * backoff).min(MAX_BACKOFF);
    }
}

/// Connects to the first server that answers and takes writes.
async fn connect(
    servers: &[Server],
    limit: Duration,
    heard: &broadcast::Sender<Heard>,
) -> Result<(Arc<Backend>, JoinHandle<()>), RegisterError> {
    let mut errors = Vec::new();
    for Server { name, config, trust } in servers {
        let connector = trust.connector().map_err(RegisterError::refused)?;
        let error = match timeout(limit, config.connect(connector)).await {
            Ok(Ok((client, connection))) => {
                let backend = Backend {
                    client,
                    hears: OnceCell::new(),
                    statements: Arc::new(Semaphore::new(MAX_STATEMENTS)),
                    replace: Notify::new(),
                };
                return Ok((Arc::new(backend), tokio::spawn(drive(connection, heard.clone()))));
            }
            Ok(Err(error)) => (text(&error), is_refusal(&error)),
            Err(_) => (format!("no answer within {limit:?}"), false),
        };
        // One server is named by the register.
        let text = if servers.len() > 1 { format!("{name}: {}", error.0) } else { error.0 };
        errors.push((text, error.1));
    }
    let is_refused = errors.iter().all(|(_, is_refused)| *is_refused);
    let text = errors.into_iter().map(|(text, _)| text).collect::<Vec<_>>().join("; ");
    Err(if is_refused { RegisterError::refused(text) } else { RegisterError::not_sent(text) })
}

/// Reads what the server sends, until the connection ends or nobody can ask for more.
async fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, heard: broadcast::Sender<Heard>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notification(notification) = message {
            let _ = heard.send(Heard::Notified(notification.payload().into()));
        }
    }
}
