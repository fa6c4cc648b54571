//! From a connected stream to a verified session.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::path::Path;

use super::super::host::{Host, Reading};
use super::connector::{Connector, closed};
use super::stream::TlsStream;

/// The files of a connector, which are read again.
pub(in super::super) struct Reads {
    files: Vec<Reading>,
    contents: Vec<io::Result<Vec<u8>>>,
}

impl Reads {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(file) = self.files.get_mut(self.contents.len()) {
            self.contents.push(ready!(file.as_mut().poll(cx)));
        }
        Poll::Ready(())
    }

    /// Returns false if all files were read meanwhile. They may have changed since.
    fn is_pending(&mut self) -> bool {
        self.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }
}

/// One handshake.
pub(in super::super) enum Handshake<H: Host> {
    Reading(Reads, H::Stream),
    /// The server is being verified.
    Verifying(Box<TlsStream<H::Stream>>),
    Ended,
}

impl<H: Host> Handshake<H> {
    /// `earlier` are the reads of an attempt that was given up.
    pub(in super::super) fn new(host: &H, connector: &Connector, earlier: Option<Reads>, stream: H::Stream) -> Self {
        let read = || {
            let files: Vec<_> = connector.files().map(|path| host.read_file(Path::new(path))).collect();
            Reads { contents: Vec::with_capacity(files.len()), files }
        };
        Self::Reading(earlier.and_then(|mut reads| reads.is_pending().then_some(reads)).unwrap_or_else(read), stream)
    }

    /// Gives the handshake up. Returns the reads that have not finished.
    pub(in super::super) fn give_up(self) -> Option<Reads> {
        match self {
            Self::Reading(reads, _) => Some(reads),
            Self::Verifying(_) | Self::Ended => None,
        }
    }

    /// Resolves once the server is verified.
    // N3
    pub(in super::super) fn poll(
        &mut self,
        connector: &mut Connector,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Box<TlsStream<H::Stream>>>> {
        if let Self::Reading(reads, _) = self {
            ready!(reads.poll(cx));
        }
        let mut stream = match core::mem::replace(self, Self::Ended) {
            Self::Reading(reads, stream) => {
                connector.refresh(reads.contents);
                Box::new(TlsStream::new(stream, connector.session()?))
            }
            Self::Verifying(stream) => stream,
            Self::Ended => return Poll::Pending,
        };
        match stream.poll_handshake(cx) {
            Poll::Pending => {
                *self = Self::Verifying(stream);
                Poll::Pending
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(stream)),
            Poll::Ready(Err(error)) => {
                let cut = matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
                Poll::Ready(Err(if cut { closed().into() } else { error }))
            }
        }
    }
}
