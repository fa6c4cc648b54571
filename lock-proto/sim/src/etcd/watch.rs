//! The watches of one stream.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;
use prost::Message;

use super::span::KeySpan;
use super::store::KeySpace;
use lock_proto::etcd::message::{
    DELETED, NO_DELETE, NO_PUT, ResponseHeader, WatchCreateRequest, WatchEvent, WatchResponse,
};

/// Maximum number of revisions in one message to a parked watch.
const BATCH: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SpanWatch {
    span: KeySpan,
    /// The first revision that was not sent yet.
    next: i64,
    /// It started in the past and has not been synced.
    parked: bool,
    /// Its start was compacted. It receives nothing more, but its id stays in use.
    over: bool,
    fragment: bool,
    notify: bool,
    /// Puts, or deletions, are filtered out.
    no_put: bool,
    no_delete: bool,
    /// Events show the key as it was before.
    prev_kv: bool,
    /// No event was sent since the last progress interval.
    quiet: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KeyWatches {
    by_id: BTreeMap<i64, SpanWatch>,
    next_id: i64,
}

impl KeyWatches {
    pub(super) fn span(request: &WatchCreateRequest) -> KeySpan {
        // An empty key means the first possible key.
        let first = if request.key.is_empty() { Bytes::from_static(&[0]) } else { request.key.clone() };
        KeySpan::new(&first, &request.range_end)
    }

    /// Creates a watch on a member that has applied everything up to `applied`.
    pub(super) fn create(&mut self, request: &WatchCreateRequest, applied: i64) -> WatchResponse {
        let span = Self::span(request);
        if span.is_empty() {
            return refused("mvcc: watcher range is empty".into());
        }
        let id = if request.watch_id == 0 {
            while self.by_id.contains_key(&self.next_id) {
                self.next_id += 1;
            }
            self.next_id += 1;
            self.next_id - 1
        } else {
            request.watch_id
        };
        if self.by_id.contains_key(&id) {
            return refused("mvcc: duplicate watch ID provided on the WatchStream".into());
        }
        let next = if request.start_revision == 0 { applied + 1 } else { request.start_revision };
        let watch = SpanWatch {
            span,
            next,
            parked: next <= applied,
            over: false,
            fragment: request.fragment,
            notify: request.progress_notify,
            no_put: request.filters.contains(&NO_PUT),
            no_delete: request.filters.contains(&NO_DELETE),
            prev_kv: request.prev_kv,
            quiet: true,
        };
        self.by_id.insert(id, watch);
        WatchResponse { watch_id: id, created: true, ..WatchResponse::default() }
    }

    pub(super) fn cancel(&mut self, id: i64) -> Option<WatchResponse> {
        self.by_id.remove(&id)?;
        Some(WatchResponse { watch_id: id, canceled: true, ..WatchResponse::default() })
    }

    pub(super) fn cancel_all(&mut self) -> impl Iterator<Item = WatchResponse> {
        core::mem::take(&mut self.by_id).into_keys().map(|id| WatchResponse {
            watch_id: id,
            canceled: true,
            cancel_reason: "cancelled by the server".into(),
            ..WatchResponse::default()
        })
    }

    pub(super) fn has_parked(&self) -> bool {
        self.parked_count() > 0
    }

    pub(super) fn parked_count(&self) -> usize {
        self.by_id.values().filter(|watch| watch.parked).count()
    }

    pub(super) fn wants_progress(&self) -> bool {
        self.by_id.values().any(|watch| watch.notify && !watch.over)
    }

    /// Handles a new revision. If `loses` is set, the member fails to report it.
    pub(super) fn notify(
        &mut self,
        revision: i64,
        events: &[WatchEvent],
        compacted: i64,
        loses: bool,
        max: usize,
        out: &mut Vec<WatchResponse>,
    ) {
        for (id, watch) in &mut self.by_id {
            if watch.parked || watch.over || revision < watch.next {
                continue;
            }
            watch.next = revision + 1;
            if loses {
                continue;
            }
            let events = watch.matching(revision, events, compacted);
            watch.send(*id, revision, events, max, out);
        }
    }

    /// Syncs the parked watches, as etcd does periodically.
    pub(super) fn sync(&mut self, store: &KeySpace, applied: i64, max: usize, out: &mut Vec<WatchResponse>) {
        for (id, watch) in &mut self.by_id {
            if !watch.parked {
                continue;
            }
            if watch.next < store.compacted() {
                watch.parked = false;
                watch.over = true;
                // The header has no revision. `canceled` is false if the compacted revision is 0.
                let compact_revision = store.compacted();
                out.push(WatchResponse {
                    watch_id: *id,
                    canceled: compact_revision != 0,
                    compact_revision,
                    ..response(0)
                });
                continue;
            }
            let mut found = Vec::new();
            let mut revisions = 0;
            watch.parked = false;
            for (revision, events) in store.history(watch.next, applied) {
                let events = watch.matching(revision, events, store.compacted());
                if events.is_empty() {
                    continue;
                }
                if revisions == BATCH {
                    watch.parked = true;
                    watch.next = revision;
                    break;
                }
                revisions += 1;
                found.extend(events);
            }
            if !watch.parked {
                watch.next = applied + 1;
            }
            watch.send(*id, applied, found, max, out);
        }
    }

    /// Sends progress notifications to idle watches that requested them.
    pub(super) fn progress(&mut self, applied: i64, out: &mut Vec<WatchResponse>) {
        for (id, watch) in &mut self.by_id {
            if watch.notify && watch.quiet && !watch.parked && !watch.over {
                out.push(WatchResponse { watch_id: *id, ..response(applied) });
            }
            watch.quiet = true;
        }
    }
}

impl SpanWatch {
    /// Returns the events of a revision that it wants. The key as it was before is missing if that
    /// revision is compacted.
    fn matching(&self, revision: i64, events: &[WatchEvent], compacted: i64) -> Vec<WatchEvent> {
        let kind = |event: &&WatchEvent| if event.kind == DELETED { !self.no_delete } else { !self.no_put };
        let matches =
            |event: &&WatchEvent| kind(event) && event.kv.as_ref().is_some_and(|kv| self.span.contains(&kv.key));
        let shows = self.prev_kv && revision > compacted;
        let key = |event: &WatchEvent| event.kv.as_ref().map(|kv| kv.key.clone());
        let creates = |event: &WatchEvent| {
            event.kind != DELETED && event.kv.as_ref().is_some_and(|kv| kv.create_revision == kv.mod_revision)
        };
        // A revision may change a key twice. Both events show it as it was before the revision.
        let before = |event: &WatchEvent| events.iter().find(|first| key(first) == key(event))?.prev_kv.clone();
        let shown = |event: &WatchEvent| WatchEvent {
            kind: event.kind,
            kv: event.kv.clone(),
            prev_kv: if shows && !creates(event) { before(event) } else { None },
        };
        events.iter().filter(matches).map(shown).collect()
    }

    /// Sends events in one message, or in fragments of at most about `max` bytes.
    fn send(&mut self, id: i64, revision: i64, events: Vec<WatchEvent>, max: usize, out: &mut Vec<WatchResponse>) {
        if events.is_empty() {
            return;
        }
        self.quiet = false;
        let whole = WatchResponse { watch_id: id, events, ..response(revision) };
        if !self.fragment || whole.encoded_len() < max {
            out.push(whole);
            return;
        }
        let empty = WatchResponse { watch_id: id, fragment: true, ..response(revision) };
        let mut part = empty.clone();
        for event in whole.events {
            part.events.push(event);
            if part.events.len() > 1 && part.encoded_len() >= max {
                let over = part.events.pop();
                out.push(core::mem::replace(&mut part, empty.clone()));
                part.events.extend(over);
            }
        }
        part.fragment = false;
        out.push(part);
    }
}

/// A rejected watch has no id, so the client has to match the reply by order.
pub(super) fn refused(reason: String) -> WatchResponse {
    WatchResponse { watch_id: -1, created: true, canceled: true, cancel_reason: reason, ..WatchResponse::default() }
}

fn response(revision: i64) -> WatchResponse {
    WatchResponse { header: Some(ResponseHeader { member_id: 0, revision }), ..WatchResponse::default() }
}
