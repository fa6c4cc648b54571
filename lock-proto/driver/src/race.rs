//! Opens a connection by racing the addresses of a name (RFC 8305, "happy eyeballs"), so that a
//! dead address costs a moment and not the whole attempt.
// P5

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use super::address::{Address, Lookup, Route};
use super::fault::OpenError;
use super::host::Host;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::TlsHandshake;
use crate::clock::Clock as _;
use lock_proto::Instant;

/// Delay before the next address is tried as well (RFC 8305, section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// How old a resolution may become: as long as glibc needs for two attempts at each of three name
/// servers (`resolv.conf(5)`). A later attempt to connect resolves anew, to follow a failover.
const RESOLUTION_AGE: Duration = Duration::from_secs(30);

/// The address that has accepted the connection, and its stream.
type Opened<S> = Result<(Address, S), OpenError>;

/// An attempt to connect to a server at any of its addresses. The first address that connects wins,
/// and the other attempts are dropped.
pub(super) struct Race<H: Host> {
    /// The resolution of the name, and when it began.
    resolving: Option<(Instant, H::Resolve)>,
    untried: VecDeque<Address>,
    attempts: Vec<(Address, H::Connect)>,
    /// When to try the next address.
    next: Instant,
    failure: Option<io::Error>,
    #[cfg(feature = "tls")]
    handshake: Option<(Address, TlsHandshake<H>)>,
}

impl<H: Host> Race<H> {
    /// Connects, after resolving the name if there is one.
    pub(super) fn new(host: &H, route: &mut Route<H::Resolve>) -> Self {
        let earlier = route.resolving.take();
        match route.find() {
            Lookup::Address(address) => Self::to(address),
            Lookup::Name { host: name, port } => {
                let now = host.clock().now();
                let resolving = earlier
                    .filter(|(begun, _)| now.since(*begun) < RESOLUTION_AGE)
                    .unwrap_or_else(|| (now, host.resolve(name, port)));
                Self { resolving: Some(resolving), ..Self::over(VecDeque::new()) }
            }
        }
    }

    /// Connects to this address.
    pub(super) fn to(address: Address) -> Self {
        Self::over([address].into())
    }

    const fn over(untried: VecDeque<Address>) -> Self {
        Self {
            resolving: None,
            untried,
            attempts: Vec::new(),
            next: Instant::ZERO,
            failure: None,
            #[cfg(feature = "tls")]
            handshake: None,
        }
    }

    /// Resolves to the connection and its address, or to an error once all addresses have failed. A
    /// server that is to speak TLS is then verified.
    pub(super) fn poll(
        &mut self,
        host: &H,
        route: &mut Route<H::Resolve>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Opened<Stream<H::Stream>>> {
        #[cfg(feature = "tls")]
        if self.handshake.is_some() {
            return self.poll_handshake(route, cx);
        }
        let (address, stream) = ready!(self.poll_connect(host, route, now, cx))?;
        #[cfg(feature = "tls")]
        if let Some(connector) = &route.connector {
            self.handshake = Some((address, TlsHandshake::new(host, connector, &mut route.reads, stream)));
            return self.poll_handshake(route, cx);
        }
        Poll::Ready(Ok((address, Stream::Plain(stream))))
    }

    #[cfg(feature = "tls")]
    fn poll_handshake(
        &mut self,
        route: &mut Route<H::Resolve>,
        cx: &mut Context<'_>,
    ) -> Poll<Opened<Stream<H::Stream>>> {
        let (Some((_, handshake)), Some(connector)) = (&mut self.handshake, &mut route.connector) else {
            return Poll::Pending;
        };
        let result = ready!(handshake.poll(connector, cx));
        let Some((address, _)) = self.handshake.take() else { return Poll::Pending };
        match result {
            Ok(stream) => Poll::Ready(Ok((address, Stream::Tls(stream)))),
            Err(error) => {
                route.put_last(address);
                Poll::Ready(Err(error.into()))
            }
        }
    }

    fn poll_connect(
        &mut self,
        host: &H,
        route: &mut Route<H::Resolve>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Opened<H::Stream>> {
        if let Some((_, resolving)) = &mut self.resolving {
            let found = ready!(Pin::new(resolving).poll(cx));
            self.resolving = None;
            self.untried = route.order(&found.map_err(OpenError::Resolve)?);
        }
        loop {
            let mut place = 0;
            while let Some((_, attempt)) = self.attempts.get_mut(place) {
                match Pin::new(attempt).poll(cx) {
                    Poll::Pending => place += 1,
                    Poll::Ready(Ok(stream)) => {
                        let (address, _) = self.attempts.remove(place);
                        self.give_up(route);
                        // Nothing else is due while a handshake lasts.
                        self.untried.clear();
                        return Poll::Ready(Ok((address, stream)));
                    }
                    Poll::Ready(Err(error)) => {
                        let (address, _) = self.attempts.remove(place);
                        tracing::debug!(%address, %error, "cannot connect to this address");
                        route.put_last(address);
                        self.failure = Some(error);
                        self.next = now;
                    }
                }
            }
            if self.next > now {
                break;
            }
            let Some(address) = self.untried.pop_front() else { break };
            let attempt = host.connect(&address);
            self.attempts.push((address, attempt));
            self.next = now + ATTEMPT_DELAY;
        }
        if self.attempts.is_empty() && self.untried.is_empty() {
            let none = || OpenError::Resolve(io::Error::other("the name has no address"));
            return Poll::Ready(Err(self.failure.take().map_or_else(none, OpenError::Connect)));
        }
        Poll::Pending
    }

    /// When to poll even if nothing wakes the driver.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (!self.untried.is_empty()).then_some(self.next)
    }

    /// Abandons the attempts under way. The next race begins with other addresses, and continues a
    /// resolution and reads of files.
    pub(super) fn give_up(&mut self, route: &mut Route<H::Resolve>) {
        if self.resolving.is_some() {
            route.resolving = self.resolving.take();
        }
        for (address, _) in self.attempts.drain(..) {
            route.put_last(address);
        }
        #[cfg(feature = "tls")]
        if let Some((address, handshake)) = self.handshake.take() {
            route.put_last(address);
            handshake.give_up(&mut route.reads);
        }
    }
}
