//! One open connection: its buffers, its command queue, and the scripts sent on it.

use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use bytes::{Buf as _, BytesMut};

use super::frame::{Decoded, Limits, Scan, Scanner};
use super::handshake::HandshakeStep;
use crate::collections::burst;
use crate::fault::{Breach, Fault};
use crate::id::CallId;
use crate::lock::{Cause, ServerError};
use crate::redis::batch::{self, Kind, Plain};
use crate::redis::key::Key;
use crate::redis::request::{Form, Identity, Request};
use crate::redis::script::{self, Script};
use crate::redis::url::{Endpoint, Protocol};
use crate::time::{Instant, millis_up, soonest};
use crate::url::Login;

/// Bytes read at once while a frame is incomplete. Small, as bytes beyond its end are rescanned.
const CHUNK: usize = 256;

/// How late an idle server ends a `BLPOP`: with the default `hz` of 10, it looks every 100 ms.
const BLOCK_SLACK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Job {
    Login(HandshakeStep),
    Call {
        call: CallId,
        request: Request,
        /// How often it was sent without success.
        tries: u8,
    },
    Block {
        keys: Vec<Key>,
        timeout: Duration,
    },
    Unblock {
        client: i64,
    },
    Ping,
}

/// A command that is not encoded yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingCommand {
    pub(super) job: Job,
    /// It expires if it has not been encoded by then.
    pub(super) send_by: Instant,
}

impl PendingCommand {
    /// Returns the request if it can share a command with others. A resent request cannot.
    fn plain(&self) -> Option<Plain<'_>> {
        if let Job::Call { request, tries: 0, .. } = &self.job { Plain::of(request) } else { None }
    }
}

/// An encoded command. `start` and `end` are byte offsets in the connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentFrame {
    pub(super) pending: PendingCommand,
    start: u64,
    end: u64,
    script: Option<ScriptCall>,
    /// Number of calls that share the command. They are adjacent in the flight.
    pub(super) calls: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ScriptCall {
    index: u8,
    source: bool,
}

impl ScriptCall {
    fn form(called: Option<Self>) -> Form {
        if called.is_some_and(|called| called.source) { Form::Source } else { Form::Sha1 }
    }
}

/// One open connection. Commands go from `ahead` or `queued` through `outbox` to `flight`. They
/// are encoded when the host takes bytes, so the client knows which were never sent.
// M8
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct RespWire {
    /// Encoded bytes that wait for the socket.
    outbox: BytesMut,
    /// Bytes encoded and bytes taken by the host since the connection was opened.
    encoded: u64,
    consumed: u64,
    /// Where the last command with credentials ends, and when the earliest expire of those that
    /// the socket has not taken.
    login_end: u64,
    login_until: Option<Instant>,
    inbox: Vec<u8>,
    scanner: Scanner,
    missing: usize,
    flight: VecDeque<SentFrame>,
    /// Commands that leave ahead of `queued`: renewals, and those to resend because the server had
    /// lost a script or refused a batch.
    ahead: VecDeque<PendingCommand>,
    queued: VecDeque<PendingCommand>,
    /// Requests being collected into one command, by kind, while they are encoded.
    batches: [Vec<PendingCommand>; batch::KINDS],
    /// Where the last `EVAL` of each script started.
    evals: [Option<u64>; script::ALL.len()],
    /// The server has refused a batch because of its size.
    batching_disabled: bool,
    pushes: u32,
}

impl RespWire {
    /// Queues a command. Behind a burst of attempts, a renewal would come too late. The only
    /// requests for its own lock that it can overtake are deletes of earlier tokens.
    // P4
    pub(super) fn queue(&mut self, pending: PendingCommand) {
        let renews = matches!(&pending.job, Job::Call { request: Request::Extend { .. }, .. });
        if renews { &mut self.ahead } else { &mut self.queued }.push_back(pending);
    }

    /// Returns true if the next reply belongs to a login.
    pub(super) fn awaits_login(&self) -> bool {
        self.first().is_some_and(|sent| matches!(sent.pending.job, Job::Login(_)))
    }

    pub(super) fn login(&mut self, step: HandshakeStep, at: &Endpoint, login: &Login) {
        let start = self.encoded;
        step.with_args(at, login, |args| encode(&mut self.outbox, args));
        self.note_sent(PendingCommand { job: Job::Login(step), send_by: Instant::MAX }, start, None, 1);
        if matches!(step, HandshakeStep::Hello | HandshakeStep::Auth) {
            self.login_end = self.encoded;
        }
    }

    /// Logs in anew on an open connection. `until`: when the credentials expire.
    pub(super) fn log_in_again(&mut self, at: &Endpoint, login: &Login, until: Option<Instant>) {
        self.login_until = soonest([self.unsent_login_until(), until]);
        self.login(HandshakeStep::Auth, at, login);
    }

    /// Returns when credentials expire that the host has not taken yet. Its TLS may take them before
    /// the socket does.
    // N19
    pub(super) fn unsent_login_until(&self) -> Option<Instant> {
        self.login_until.filter(|_| self.consumed < self.login_end)
    }

    /// Encodes queued commands, up to the limits. Passes commands that have expired to `expired`.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        identity: &Identity,
        limits: &Limits,
        mut expired: impl FnMut(Job),
    ) -> &[u8] {
        while self.outbox.len() < limits.outgoing && self.flight.len() + self.batched() < limits.in_flight {
            let queue = if self.ahead.is_empty() {
                self.send_batch(identity, batch::RENEWALS);
                &mut self.queued
            } else {
                &mut self.ahead
            };
            let Some(pending) = burst::pop(queue) else { break };
            if pending.send_by <= now {
                expired(pending.job);
                continue;
            }
            let kind = pending.plain().map(|plain| plain.kind).filter(|_| !self.batching_disabled);
            for index in 0..batch::KINDS {
                if self.must_follow(index, &pending, kind) {
                    self.send_batch(identity, index);
                }
            }
            let is_last = self.waiting() == 0;
            if let Some(kind) = kind
                && let Some(requests) = self.batches.get_mut(kind.index())
                && !(requests.is_empty() && is_last)
            {
                requests.push(pending);
                if requests.len() == batch::MAX_LOCKS {
                    self.send_batch(identity, kind.index());
                }
                continue;
            }
            let start = self.encoded;
            let called = self.encode_alone(identity, &pending);
            self.note_sent(pending, start, called, 1);
        }
        for index in 0..batch::KINDS {
            self.send_batch(identity, index);
        }
        &self.outbox
    }

    fn waiting(&self) -> usize {
        self.ahead.len() + self.queued.len()
    }

    fn batched(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// Returns true if a batch must be sent before this command: same lock, or other terms.
    #[inline]
    fn must_follow(&self, index: usize, pending: &PendingCommand, kind: Option<Kind>) -> bool {
        let Some(first) = self.batches.get(index).and_then(|requests| requests.first()) else { return false };
        let Job::Call { request, .. } = &pending.job else { return false };
        let other =
            kind.is_some_and(|kind| kind.index() == index && first.plain().is_none_or(|plain| plain.kind != kind));
        other
            || self.batches[index].iter().filter_map(PendingCommand::plain).any(|earlier| earlier.key == request.key())
    }

    /// Encodes a single command, and returns the script that it runs.
    #[inline]
    fn encode_alone(&mut self, identity: &Identity, pending: &PendingCommand) -> Option<ScriptCall> {
        let mut called = None;
        match &pending.job {
            Job::Login(_) => {}
            Job::Call { request, tries, .. } => {
                called = request.script().map(|script| self.call(script, *tries));
                request.with_args(identity, ScriptCall::form(called), |args| encode(&mut self.outbox, args));
            }
            Job::Block { keys, timeout } => {
                // 0 would block without limit. Fractions need Redis 6 or later.
                let ms = millis_up(*timeout).max(1);
                let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
                let mut args: Vec<&[u8]> = Vec::with_capacity(keys.len() + 2);
                args.push(b"BLPOP");
                args.extend(keys.iter().map(Key::signal));
                args.push(seconds.as_bytes());
                encode(&mut self.outbox, &args);
            }
            Job::Ping => encode(&mut self.outbox, &[b"PING"]),
            Job::Unblock { client } => {
                encode(&mut self.outbox, &[b"CLIENT", b"UNBLOCK", format!("{client}").as_bytes()]);
            }
        }
        called
    }

    #[inline]
    fn send_batch(&mut self, identity: &Identity, index: usize) {
        if self.batches.get(index).is_some_and(|batch| !batch.is_empty()) {
            self.encode_batch(identity, index);
        }
    }

    fn encode_batch(&mut self, identity: &Identity, index: usize) {
        let Some(batch) = self.batches.get_mut(index) else { return };
        let mut requests = core::mem::take(batch);
        let start = self.encoded;
        let called = match (&requests[..], requests.first().and_then(PendingCommand::plain)) {
            ([_, _, ..], Some(first)) => {
                let kind = first.kind;
                let called = Some(self.call(kind.script(), 0));
                let plain = requests.iter().filter_map(PendingCommand::plain);
                batch::with_args(kind, plain, identity, ScriptCall::form(called), |args| {
                    encode(&mut self.outbox, args)
                });
                called
            }
            ([pending, ..], _) => self.encode_alone(identity, pending),
            ([], _) => None,
        };
        // At most `batch::MAX_LOCKS`.
        let calls = requests.len() as u8;
        for pending in requests.drain(..) {
            self.note_sent(pending, start, called, calls);
        }
        // Reuse the allocation.
        if let Some(batch) = self.batches.get_mut(index) {
            *batch = requests;
        }
    }

    #[inline]
    fn call(&mut self, script: Script, tries: u8) -> ScriptCall {
        let eval = &mut self.evals[usize::from(script.index)];
        // If the server lost the script twice, send the source.
        let source = eval.is_none() || tries > 1;
        if source {
            *eval = Some(self.encoded);
        }
        ScriptCall { index: script.index, source }
    }

    #[inline]
    fn note_sent(&mut self, pending: PendingCommand, start: u64, script: Option<ScriptCall>, calls: u8) {
        let end = self.consumed + self.outbox.len() as u64;
        self.encoded = end;
        self.flight.push_back(SentFrame { pending, start, end, script, calls });
    }

    pub(super) fn has_outgoing(&self, limits: &Limits) -> bool {
        !self.outbox.is_empty() || (self.waiting() > 0 && self.flight.len() < limits.in_flight)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flight.is_empty() && self.waiting() == 0
    }

    /// Returns how long the server may block before it replies to the next command.
    pub(super) fn server_waits(&self) -> Duration {
        let queued = self.ahead.front().or_else(|| self.queued.front());
        match self.flight.front().map(|sent| &sent.pending).or(queued) {
            Some(PendingCommand { job: Job::Block { timeout, .. }, .. }) => *timeout + BLOCK_SLACK,
            Some(_) | None => Duration::ZERO,
        }
    }

    pub(super) fn consume(&mut self, n: usize) {
        let n = n.min(self.outbox.len());
        self.outbox.advance(n);
        self.consumed += n as u64;
    }

    pub(super) fn is_between_frames(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Takes the next complete frame off `bytes`, or buffers them if it is incomplete.
    pub(super) fn take_frame<'b>(
        &mut self,
        bytes: &mut &'b [u8],
        protocol: Protocol,
        limits: &Limits,
    ) -> Result<Option<Cow<'b, [u8]>>, Breach> {
        if self.inbox.is_empty() {
            if bytes.is_empty() {
                return Ok(None);
            }
            return match self.scanner.scan(bytes, protocol, limits)? {
                Scan::Complete(len) => {
                    let (frame, rest) = bytes.split_at(len);
                    *bytes = rest;
                    Ok(Some(Cow::Borrowed(frame)))
                }
                Scan::Missing(missing) => {
                    self.missing = missing;
                    self.inbox.extend_from_slice(bytes);
                    *bytes = &[];
                    Ok(None)
                }
            };
        }
        while !bytes.is_empty() {
            let had = self.inbox.len();
            let (part, rest) = bytes.split_at(bytes.len().min(self.missing.max(CHUNK)));
            self.inbox.extend_from_slice(part);
            match self.scanner.scan(&self.inbox, protocol, limits)? {
                Scan::Complete(len) => {
                    // The frame ends in this part, because it was incomplete before.
                    *bytes = &bytes[len.saturating_sub(had)..];
                    self.inbox.truncate(len);
                    return Ok(Some(Cow::Owned(core::mem::take(&mut self.inbox))));
                }
                Scan::Missing(missing) => {
                    self.missing = missing;
                    *bytes = rest;
                }
            }
        }
        Ok(None)
    }

    /// Reuses the buffer of a frame for the next one.
    pub(super) fn recycle(&mut self, frame: Cow<'_, [u8]>) {
        if let Cow::Owned(mut buffer) = frame {
            buffer.clear();
            self.inbox = buffer;
        }
    }

    /// Returns true if `answer` is the reply to the first command in flight. Push messages are not.
    pub(super) fn is_answered(&mut self, answer: &Decoded<'_>, limits: &Limits) -> Result<bool, Cause> {
        if *answer == Decoded::Push {
            self.pushes += 1;
            return if self.pushes > limits.pushes { Err(breach(Breach::TooManyPushes)) } else { Ok(false) };
        }
        self.pushes = 0;
        if self.flight.front().is_none_or(|sent| sent.end > self.consumed) {
            // A server may send an unsolicited error before it closes, such as too many clients.
            let unsolicited =
                if let Decoded::Error(text) = answer { Some(ServerError::classify(text).into()) } else { None };
            return Err(unsolicited.unwrap_or_else(|| breach(Breach::Unsolicited)));
        }
        Ok(true)
    }

    /// Returns the kind of the first command in flight, if it is a batch.
    pub(super) fn first_kind(&self) -> Option<Kind> {
        let sent = self.flight.front().filter(|sent| sent.calls > 1)?;
        sent.pending.plain().map(|plain| plain.kind)
    }

    pub(super) fn first(&self) -> Option<&SentFrame> {
        self.flight.front()
    }

    /// Removes the first command in flight, which was answered.
    pub(super) fn done(&mut self) {
        burst::pop(&mut self.flight);
    }

    /// Records that the server lacks the script of the first command in flight. Returns true if the
    /// command named it by hash.
    pub(super) fn script_is_missing(&mut self) -> bool {
        let Some(sent) = self.flight.front() else { return false };
        let Some(script) = sent.script.filter(|script| !script.source) else { return false };
        let eval = &mut self.evals[usize::from(script.index)];
        // An EVAL sent after this command loads the script again.
        *eval = eval.filter(|eval| *eval > sent.start);
        true
    }

    /// Stops batching: the server does not accept a command for several locks.
    pub(super) const fn disable_batching(&mut self) {
        self.batching_disabled = true;
    }

    /// Resends the first call in flight ahead of `queued`. Returns false if a later command for the
    /// same lock was already encoded, unless the order does not matter.
    // P1
    pub(super) fn resend_first(&mut self) -> bool {
        let Some(sent) = self.flight.front() else { return false };
        let Job::Call { request, .. } = &sent.pending.job else { return false };
        let is_later = |later: &SentFrame| {
            let Job::Call { request: other, .. } = &later.pending.job else { return false };
            later.start > sent.start && other.key() == request.key() && !request.may_follow(other)
        };
        if self.flight.iter().any(is_later) {
            return false;
        }
        if let Some(SentFrame { mut pending, .. }) = burst::pop(&mut self.flight) {
            if let Job::Call { tries, .. } = &mut pending.job {
                *tries = tries.saturating_add(1);
            }
            self.ahead.push_back(pending);
        }
        true
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Removes the next unanswered command. The flag is true if the host has seen its bytes: it may
    /// have sent them, even if it has not reported them as taken yet.
    pub(super) fn pop_unanswered(&mut self) -> Option<(Job, bool)> {
        if let Some(sent) = burst::pop(&mut self.flight) {
            return Some((sent.pending.job, true));
        }
        let pending = burst::pop(&mut self.ahead).or_else(|| burst::pop(&mut self.queued))?;
        Some((pending.job, false))
    }
}

/// Shows no bytes, because they may contain a login.
impl fmt::Debug for RespWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("queued", &self.waiting())
            .field("outgoing", &self.outbox.len())
            .field("in_flight", &self.flight.len())
            .field("incoming", &self.inbox.len())
            .finish_non_exhaustive()
    }
}

/// Encodes a command as an array of bulk strings. redis-protocol's encoder zeroes the buffer and
/// counts digits by a floating-point logarithm, which more than doubles the cost of a renewal. It
/// can also fail and leave a half-written command.
fn encode(out: &mut BytesMut, args: &[&[u8]]) {
    out.extend_from_slice(b"*");
    out.extend_from_slice(itoa::Buffer::new().format(args.len()).as_bytes());
    for arg in args {
        // Write the preceding CRLF with the length, which nearly always has one or two digits.
        match arg.len() {
            n @ 0..10 => out.extend_from_slice(&[b'\r', b'\n', b'$', digit(n), b'\r', b'\n']),
            n @ 10..100 => out.extend_from_slice(&[b'\r', b'\n', b'$', digit(n / 10), digit(n % 10), b'\r', b'\n']),
            n @ 100.. => {
                out.extend_from_slice(b"\r\n$");
                out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(arg);
    }
    out.extend_from_slice(b"\r\n");
}

const fn digit(n: usize) -> u8 {
    b'0' + n as u8
}

pub(super) fn breach(breach: Breach) -> Cause {
    Fault::Protocol(breach).into()
}
