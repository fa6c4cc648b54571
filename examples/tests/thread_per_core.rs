//! A host of a runtime whose tasks stay on one thread. Nothing in it is `Send`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::cell::Cell;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::rc::Rc;
use std::{io, thread};

use futures_io::{AsyncRead, AsyncWrite};
use lock_driver::{Address, BootClock, Host, Settings, connect};
use lock_proto::Release;
use lock_testkit::{Etcd, Redis, TIMEOUT};
use smol::net::TcpStream;

type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

struct Local {
    clock: BootClock,
    /// Number of open connections.
    open: Rc<Cell<u32>>,
}

impl Host for Local {
    type Clock = BootClock;
    type Stream = Socket;
    type Resolve = LocalBoxFuture<io::Result<Vec<SocketAddr>>>;
    type Connect = LocalBoxFuture<io::Result<Socket>>;
    type Sleep = LocalBoxFuture<()>;

    fn clock(&self) -> BootClock {
        self.clock
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        let host = Rc::new(host.to_owned());
        Box::pin(async move { smol::net::resolve((host.as_str(), port)).await })
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let (address, open) = (address.clone(), Rc::clone(&self.open));
        Box::pin(async move {
            let Address::Tcp(address) = address else { return Err(io::ErrorKind::Unsupported.into()) };
            let stream = TcpStream::connect(address).await?;
            open.set(open.get() + 1);
            Ok(Socket { stream, open })
        })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        Box::pin(async move {
            smol::Timer::after(time).await;
        })
    }
}

struct Socket {
    stream: TcpStream,
    open: Rc<Cell<u32>>,
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

fn run_with(settings: Settings) {
    let executor = smol::LocalExecutor::new();
    let open = Rc::new(Cell::new(0));
    let (client, driver) = connect(Local { clock: BootClock::new(), open: Rc::clone(&open) }, settings).unwrap();
    let driver_task = executor.spawn(driver);
    let work = async {
        let guard = client.lock("a").acquire().await.unwrap();
        assert!(open.get() > 0);
        // Handles are `Send`, so another thread can release the lock.
        let releasing = thread::scope(|scope| {
            scope
                .spawn(|| {
                    assert!(guard.is_held());
                    guard.release()
                })
                .join()
                .unwrap()
        });
        assert_eq!(releasing.await, Release::Released);
        let waiting = client.lock("a").acquire();
        let held = client.lock("a").acquire().await.unwrap();
        drop(held);
        drop(waiting.await.unwrap());
        assert_eq!(client.shutdown(TIMEOUT).await.unreleased, 0);
        driver_task.await;
    };
    let late = async {
        smol::Timer::after(TIMEOUT).await;
        panic!("not in time");
    };
    smol::block_on(executor.run(smol::future::or(work, late)));
    assert_eq!(open.get(), 0);
}

#[test]
fn redis() {
    let server = Redis::start();
    run_with(Settings::parse([server.url()]).unwrap());
}

#[test]
fn etcd() {
    let server = Etcd::start();
    run_with(Settings::parse([server.url()]).unwrap());
}
