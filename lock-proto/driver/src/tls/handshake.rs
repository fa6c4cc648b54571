//! From a connected stream to a verified session.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::{Context, Poll, ready};
use std::io;

use super::super::host::{Host, Reading};
use super::super::reads::Reads;
use super::connector::{Connector, closed};
use super::stream::TlsStream;

/// One handshake.
pub(in super::super) enum TlsHandshake<H: Host> {
    /// The files of the connector are read again.
    Reading {
        files: Vec<(Box<str>, Reading)>,
        contents: Vec<io::Result<Vec<u8>>>,
        stream: H::Stream,
    },
    /// The server is being verified.
    Verifying(Box<TlsStream<H::Stream>>),
    Ended,
}

impl<H: Host> TlsHandshake<H> {
    pub(in super::super) fn new(host: &H, connector: &Connector, reads: &mut Reads, stream: H::Stream) -> Self {
        let files: Vec<_> = connector.files().map(|path| reads.read(host, path)).collect();
        Self::Reading { contents: Vec::with_capacity(files.len()), files, stream }
    }

    /// Gives the handshake up, and keeps the reads that have not finished.
    pub(in super::super) fn give_up(self, reads: &mut Reads) {
        if let Self::Reading { files, contents, .. } = self {
            reads.keep(files.into_iter().skip(contents.len()));
        }
    }

    /// Resolves once the server is verified.
    // N3
    pub(in super::super) fn poll(
        &mut self,
        connector: &mut Connector,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Box<TlsStream<H::Stream>>>> {
        if let Self::Reading { files, contents, .. } = self {
            while let Some((_, file)) = files.get_mut(contents.len()) {
                contents.push(ready!(file.as_mut().poll(cx)));
            }
        }
        let mut stream = match core::mem::replace(self, Self::Ended) {
            Self::Reading { contents, stream, .. } => {
                connector.refresh(contents);
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
