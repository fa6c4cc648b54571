//! From a connected stream to a verified session.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::path::Path;

use super::super::host::Host;
use super::connector::{Connector, closed};
use super::stream::TlsStream;

type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>>;

/// The files of the connector are read again first, then the handshake begins.
pub(in super::super) struct Handshake<H: Host> {
    files: Vec<Reading>,
    contents: Vec<io::Result<Vec<u8>>>,
    /// Before the handshake.
    stream: Option<H::Stream>,
    tls: Option<Box<TlsStream<H::Stream>>>,
}

impl<H: Host> Handshake<H> {
    pub(in super::super) fn new(host: &H, connector: &Connector, stream: H::Stream) -> Self {
        let files: Vec<_> = connector.files().map(|path| host.read_file(Path::new(path))).collect();
        Self { contents: Vec::with_capacity(files.len()), files, stream: Some(stream), tls: None }
    }

    /// Resolves once the server is verified.
    // N3
    pub(in super::super) fn poll(
        &mut self,
        connector: &mut Connector,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Box<TlsStream<H::Stream>>>> {
        if self.stream.is_some() {
            while let Some(file) = self.files.get_mut(self.contents.len()) {
                self.contents.push(ready!(file.as_mut().poll(cx)));
            }
            self.files.clear();
            connector.refresh(core::mem::take(&mut self.contents));
            let session = connector.session()?;
            self.tls = self.stream.take().map(|stream| Box::new(TlsStream::new(stream, session)));
        }
        let Some(tls) = &mut self.tls else { return Poll::Pending };
        let verified = ready!(tls.poll_handshake(cx)).map_err(|error| {
            let cut = matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
            if cut { closed().into() } else { error }
        });
        Poll::Ready(verified.and_then(|()| self.tls.take().ok_or_else(|| closed().into())))
    }
}
