//! Keep-alive and watch streams.

use alloc::string::String;
use alloc::vec::Vec;

use super::connection::{CallKind, PeerStream};
use super::keep_alive::StreamKeepAlives;
use super::refusal::RefusalStatus;
use super::span::KeySpan;
use super::watch::{KeyWatches, refused};
use super::{Cluster, ClusterOutput};
use lock_proto::etcd::message::{ResponseHeader, WatchCreateRequest, WatchRequest, WatchRequestUnion, WatchResponse};
use lock_proto::etcd::{StreamKind, StreamReceived, StreamSend};

impl Cluster {
    pub(super) fn open(&mut self, conn: u64, stream: u64, kind: StreamKind, token: Option<String>) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let kind = match kind {
            StreamKind::KeepAlive => CallKind::KeepAlive(StreamKeepAlives::default()),
            StreamKind::Watch => CallKind::Watch(KeyWatches::default(), self.now + self.config.progress_interval),
        };
        let member = connection.member;
        connection.streams.insert(stream, PeerStream { token, kind });
        if self.has_noticed(member) {
            self.end(conn, stream, RefusalStatus::NO_LEADER);
        }
    }

    pub(super) fn close(&mut self, conn: u64, stream: u64) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.streams.remove(&stream);
        }
    }

    pub(super) fn end(&mut self, conn: u64, stream: u64, why: RefusalStatus) {
        self.close(conn, stream);
        self.emit(ClusterOutput::Ended { conn, stream, status: why.status() });
    }

    pub(super) fn receive(&mut self, conn: u64, stream: u64, message: StreamSend) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let member = connection.member;
        let Some(open) = connection.streams.get_mut(&stream) else { return };
        match (&mut open.kind, message) {
            (CallKind::KeepAlive(keep_alives), StreamSend::KeepAlive(request)) => {
                keep_alives.push(self.now + self.config.request_timeout, request.id);
                self.keep_alive(conn, stream);
            }
            (CallKind::Watch(watches, _), StreamSend::Watch(WatchRequest { request })) => match request {
                Some(WatchRequestUnion::Create(request)) => self.watch(conn, stream, &request),
                Some(WatchRequestUnion::Cancel(cancel)) => {
                    let response = watches.cancel(cancel.watch_id);
                    response.into_iter().for_each(|response| self.send_watch(member, conn, stream, response));
                }
                Some(WatchRequestUnion::Progress(_)) => {
                    self.send_watch(member, conn, stream, WatchResponse { watch_id: -1, ..WatchResponse::default() });
                }
                None => {}
            },
            // The host is broken; a real server could not even decode the message.
            (CallKind::KeepAlive(_), StreamSend::Watch(_)) | (CallKind::Watch(..), StreamSend::KeepAlive(_)) => {}
        }
    }

    fn watch(&mut self, conn: u64, stream: u64, request: &WatchCreateRequest) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let member = connection.member;
        let Some(token) = connection.streams.get(&stream).map(|stream| stream.token.clone()) else { return };
        self.refresh(member, token.as_deref());
        let span = match KeyWatches::span(request) {
            // etcd 3.4 checks only the first key of an open-ended watch.
            KeySpan::From(key) => KeySpan::One(key),
            span @ (KeySpan::One(_) | KeySpan::Range(..)) => span,
        };
        if let Err(refusal) = self.caller(member, token.as_deref()).and_then(|caller| caller.may_read(&span)) {
            self.send_watch(member, conn, stream, refused(refusal.reason()));
            return;
        }
        let applied = self.members[member].applied;
        let Some(PeerStream { kind: CallKind::Watch(watches, _), .. }) =
            self.connections.get_mut(&conn).and_then(|connection| connection.streams.get_mut(&stream))
        else {
            return;
        };
        let response = watches.create(request, applied);
        if watches.has_parked() && self.sync.is_none() {
            self.sync = Some(self.next_tick(self.config.sync_interval));
        }
        self.send_watch(member, conn, stream, response);
    }

    pub(super) fn header_of(&self, member: usize, revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader { member_id: self.members[member].id, revision })
    }

    /// Sends a watch message, after completing its header.
    fn send_watch(&mut self, member: usize, conn: u64, stream: u64, response: WatchResponse) {
        let revision = response.header.map_or(self.members[member].applied, |header| header.revision);
        let header = self.header_of(member, revision);
        let message = StreamReceived::Watch(WatchResponse { header, ..response });
        self.emit(ClusterOutput::Message { conn, stream, message });
    }

    /// Applies `act` to the watches of a member, and sends the resulting messages.
    pub(super) fn each_watch(
        &mut self,
        member: usize,
        mut act: impl FnMut(&mut KeyWatches, &super::store::KeySpace, &mut Vec<WatchResponse>),
    ) {
        let mut responses = Vec::new();
        for (conn, connection) in self.connections.iter_mut().filter(|(_, c)| c.member == member) {
            for (stream, open) in &mut connection.streams {
                let CallKind::Watch(watches, _) = &mut open.kind else { continue };
                let mut out = Vec::new();
                act(watches, &self.store, &mut out);
                responses.extend(out.into_iter().map(|response| (*conn, *stream, response)));
            }
        }
        for (conn, stream, response) in responses {
            self.send_watch(member, conn, stream, response);
        }
    }

    /// Applies the latest revisions on all connected members, and notifies their watches.
    pub(super) fn publish(&mut self) {
        for member in 0..self.members.len() {
            if self.has_leader(member) {
                self.catch_up(member);
            }
        }
    }

    pub(super) fn catch_up(&mut self, member: usize) {
        let (from, to) = (self.members[member].seen, self.store.revision());
        let backlog = core::mem::take(&mut self.members[member].backlog);
        self.members[member].applied = to;
        self.members[member].seen = to;
        if backlog.is_empty() && from == to {
            return;
        }
        let (max, loses) = (self.config.max_message, self.members[member].loses_events);
        self.each_watch(member, |watches, store, out| {
            let old = backlog.iter().map(|(revision, events)| (*revision, events));
            for (revision, events) in old.chain(store.history(from + 1, to)) {
                watches.notify(revision, events, store.compacted(), loses, max, out);
            }
        });
    }
}
