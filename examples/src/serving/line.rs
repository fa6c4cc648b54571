//! A proxy in front of a server: delays, cuts and resets connections.

use core::future::pending;
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// What happens to the bytes of a line in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LineState {
    cut: bool,
    delay: Duration,
    /// Grows with every reset.
    resets: u64,
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    ToClient,
}

/// The line between clients and one server.
#[derive(Debug)]
pub(super) struct Line {
    address: SocketAddr,
    directions: [watch::Sender<LineState>; 2],
}

/// Accepts a connection. Retries after an error: too many open files may pass.
pub(super) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

impl Line {
    /// Listens on a port of 127.0.0.1, and leads to `server`.
    pub(super) async fn open(port: u16, server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let directions = [watch::Sender::new(LineState::default()), watch::Sender::new(LineState::default())];
        let (up, down) = (directions[0].subscribe(), directions[1].subscribe());
        tokio::spawn(async move {
            loop {
                let client = accept(&listener).await;
                tokio::spawn(carry(client, server, up.clone(), down.clone()));
            }
        });
        Ok(Self { address, directions })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn cut(&self, direction: Option<Direction>, cut: bool) {
        self.change(direction, |state| state.cut = cut);
    }

    pub(super) fn delay(&self, direction: Option<Direction>, delay: Duration) {
        self.change(direction, |state| state.delay = delay);
    }

    /// Closes all connections. What is in flight is lost.
    pub(super) fn reset(&self) {
        self.change(None, |state| state.resets += 1);
    }

    fn change(&self, direction: Option<Direction>, change: impl Fn(&mut LineState)) {
        for (of, sender) in [Direction::ToServer, Direction::ToClient].into_iter().zip(&self.directions) {
            if direction.is_none_or(|direction| direction == of) {
                sender.send_modify(&change);
            }
        }
    }
}

async fn carry(
    client: TcpStream,
    address: SocketAddr,
    up: watch::Receiver<LineState>,
    down: watch::Receiver<LineState>,
) {
    let _ = client.set_nodelay(true);
    let Ok(server) = TcpStream::connect(address).await else { return };
    let _ = server.set_nodelay(true);
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    let resets = up.borrow().resets;
    let mut reset = up.clone();
    tokio::select! {
        // A client that has sent everything may still wait for replies. The server ends the line.
        () = async { copy(client_in, server_out, up).await; pending().await } => {}
        () = copy(server_in, client_out, down) => {}
        _ = reset.wait_for(|state| state.resets != resets) => {}
    }
}

/// Copies bytes: each portion arrives after the delay, and waits while the line is cut.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<LineState>) {
    let (sender, mut portions) = mpsc::channel::<(Instant, Vec<u8>)>(64);
    let delays = state.clone();
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + delays.borrow().delay;
            if sender.send((due, buffer[..n].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = portions.recv().await {
            sleep_until(due).await;
            if state.wait_for(|state| !state.cut).await.is_err() || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
