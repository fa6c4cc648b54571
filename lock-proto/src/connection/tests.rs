#![allow(clippy::unwrap_used, reason = "tests")]

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use crate::id::{NodeId, Role};
use crate::lock::{Backoff, Credentials, CredentialsRequest, ErrorClass, ServerError};
use crate::url::{Login, Target};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A protocol with two servers: a handshake of one reply, and requests that are numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fake {
    target: Target,
    server: u16,
    servers: u32,
    asks: Option<Login>,
    wanted: bool,
    reopens: bool,
    at_once: bool,
    handshake: bool,
    refuses: Option<Fault>,
    in_flight: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Out {
    Connect(ConnId),
    Credentials(ConnId, Box<CredentialsRequest>),
    Disconnect(ConnId, Option<Cause>),
    Down(Cause),
    Up(&'static str),
    Unknown(u8),
    NotSent(u8, Cause),
}

impl Protocol for Fake {
    type Handshake = &'static str;
    type Pending = u8;
    type Output = Out;

    fn policy(&self) -> Policy {
        Policy {
            node: NodeId::new(self.server),
            servers: self.servers,
            wanted: self.wanted,
            reopens: self.reopens,
            at_once: self.at_once,
            connect_timeout: SECOND,
            reconnect: Backoff::exponential(100 * MS, 10 * SECOND),
        }
    }

    fn target(&self) -> Option<&Target> {
        Some(&self.target)
    }

    fn asks(&self) -> Option<&Login> {
        self.asks.as_ref()
    }

    fn order(&self, order: Order) -> Option<Out> {
        Some(match order {
            Order::Connect(conn) => Out::Connect(conn),
            Order::Credentials(conn, request) => Out::Credentials(conn, request),
            Order::Disconnect(conn, why) => Out::Disconnect(conn, why),
            Order::Down(cause) => Out::Down(cause),
        })
    }

    fn begin(&mut self, _: u64, _: u64) {
        self.in_flight.clear();
    }

    fn shake_hands(&mut self, opening: &mut Opening<'_, Out>) -> Result<Option<&'static str>, Fault> {
        match self.refuses {
            Some(fault) => Err(fault),
            None => Ok((self.handshake && !opening.open).then_some("hello")),
        }
    }

    fn established(
        &mut self,
        _: Instant,
        handshake: Option<&'static str>,
        renewal: &mut Renewal,
        outputs: &mut VecDeque<Out>,
    ) -> bool {
        renewal.confirm();
        outputs.push_back(Out::Up(handshake.unwrap_or("at once")));
        true
    }

    fn queue(&mut self, _: Instant, pending: u8) {
        self.in_flight.push(pending);
    }

    fn silent_until(&self, heard: Instant) -> Option<Instant> {
        (!self.in_flight.is_empty()).then(|| heard + SECOND)
    }

    fn ended(&mut self, failed: &Failed<'_, &'static str>) -> Duration {
        self.server = (self.server + 1) % self.servers as u16;
        failed.lasted()
    }

    fn settle(&mut self, _: &Settlement<'_>, outputs: &mut VecDeque<Out>) {
        outputs.extend(self.in_flight.drain(..).map(Out::Unknown));
    }

    fn answer_unsent(&self, pending: u8, cause: &Cause) -> Option<Out> {
        Some(Out::NotSent(pending, cause.clone()))
    }
}

struct Rig {
    connection: Connection<Fake>,
    now: Instant,
}

impl Rig {
    fn new(servers: u32) -> Self {
        let state = Fake {
            target: Target::Tcp { host: "h".into(), port: 1 },
            server: 0,
            servers,
            asks: None,
            wanted: true,
            reopens: true,
            at_once: false,
            handshake: false,
            refuses: None,
            in_flight: Vec::new(),
        };
        let connection = Connection::with(state, Renewal::default(), conn(0, 0), 7);
        Self { connection, now: Instant::from_millis(1000) }
    }

    fn connecting(servers: u32) -> Self {
        let mut rig = Self::new(servers);
        rig.connection.clock(rig.now);
        rig.connection.connect_if_wanted();
        assert_eq!(rig.outputs(), [Out::Connect(conn(0, 1))]);
        rig
    }

    fn up() -> Self {
        let mut rig = Self::connecting(1);
        rig.connection.handle_connected(rig.now, conn(0, 1));
        assert_eq!(rig.outputs(), [Out::Up("at once")]);
        rig
    }

    fn outputs(&mut self) -> Vec<Out> {
        core::iter::from_fn(|| self.connection.pop_output()).collect()
    }

    fn submit(&mut self, number: u8) {
        self.connection.submit(number, self.now + 200 * MS);
    }

    fn pass(&mut self, by: Duration) -> Vec<Out> {
        self.now = self.now + by;
        self.connection.clock(self.now);
        self.connection.phase_timeout();
        self.outputs()
    }

    fn due(&self) -> Option<(Duration, &'static str)> {
        self.connection.phase_deadline().map(|(at, why)| (at.since(self.now), why))
    }

    /// Lets the pause pass, which is 75 to 100 % of `most`.
    fn pause(&mut self, most: Duration) -> Vec<Out> {
        let (pause, why) = self.due().unwrap();
        assert_eq!(why, "pause before the next connection");
        assert!(most * 3 / 4 <= pause && pause <= most, "{pause:?} of {most:?}");
        assert_eq!(self.pass(pause - MS), []);
        self.pass(MS)
    }
}

const fn conn(node: u16, generation: u64) -> ConnId {
    ConnId::new(NodeId::new(node), Role::Commands, generation)
}

fn because(fault: Fault) -> Cause {
    fault.into()
}

#[test]
fn closed_connection_opens_only_if_wanted_and_answers_at_once() {
    let mut rig = Rig::new(1);
    rig.connection.state.wanted = false;
    rig.connection.connect_if_wanted();
    rig.submit(1);
    assert_eq!(rig.outputs(), [Out::NotSent(1, because(Fault::NotNeeded))]);
    assert_eq!((rig.connection.current(), rig.due()), (None, None));
    assert!(rig.connection.is_closed());
}

#[test]
fn connecting_ends_after_its_timeout_and_requests_before() {
    let mut rig = Rig::connecting(1);
    rig.submit(1);
    assert_eq!(rig.due(), Some((200 * MS, "request that waits")));
    assert_eq!(rig.pass(200 * MS), [Out::NotSent(1, because(Fault::TimedOut))]);
    assert_eq!(rig.due(), Some((800 * MS, "connect timeout")));
    rig.connection.handle_connected(rig.now, conn(0, 9));
    assert!(!rig.connection.is_up(), "another connection");
    let timed_out = because(Fault::TimedOut);
    assert_eq!(
        rig.pass(800 * MS),
        [Out::Disconnect(conn(0, 1), Some(timed_out.clone())), Out::Down(timed_out.clone())]
    );
    assert_eq!(rig.connection.down_cause(), Some(&timed_out));
}

#[test]
fn credentials_come_before_the_handshake_and_again_on_the_open_connection() {
    // N19
    let mut rig = Rig::connecting(1);
    rig.connection.state.asks = Some(Login::default());
    rig.connection.handle_connected(rig.now, conn(0, 1));
    assert!(matches!(rig.outputs()[..], [Out::Credentials(..)]));
    assert_eq!(rig.due(), Some((SECOND, "credentials")));
    let valid = Credentials::new("pw").valid_for(10 * SECOND);
    rig.connection.handle_credentials(rig.now, conn(0, 2), Some(valid.clone()));
    assert_eq!(rig.outputs(), [], "of another connection");
    rig.connection.handle_credentials(rig.now, conn(0, 1), Some(valid));
    assert_eq!(rig.outputs(), [Out::Up("at once")]);
    assert_eq!(rig.due(), Some((8 * SECOND, "new credentials")));
    assert!(matches!(rig.pass(8 * SECOND)[..], [Out::Credentials(..)]));
    // Without an answer they are requested again; a refusal leaves the connection as it is.
    assert!(matches!(rig.pass(SECOND)[..], [Out::Credentials(..)]));
    rig.connection.handle_credentials(rig.now, conn(0, 1), None);
    assert_eq!((rig.outputs(), rig.connection.is_up()), (vec![], true));
}

#[test]
fn missing_or_unusable_credentials_fail_a_new_connection() {
    // N19
    for (refuses, fault) in [(None, Fault::NoCredentials), (Some(Fault::NoUser), Fault::NoUser)] {
        let mut rig = Rig::connecting(1);
        (rig.connection.state.asks, rig.connection.state.refuses) = (Some(Login::default()), refuses);
        rig.connection.handle_connected(rig.now, conn(0, 1));
        rig.outputs();
        let supplied = refuses.map(|_| Credentials::new("pw"));
        rig.connection.handle_credentials(rig.now, conn(0, 1), supplied);
        let outputs = rig.outputs();
        assert_eq!(outputs, [Out::Disconnect(conn(0, 1), Some(fault.into())), Out::Down(fault.into())]);
    }
}

#[test]
fn handshake_is_awaited_and_waiting_requests_follow_it() {
    let mut rig = Rig::connecting(1);
    rig.connection.state.handshake = true;
    rig.submit(1);
    rig.connection.handle_connected(rig.now, conn(0, 1));
    assert_eq!((rig.outputs(), rig.connection.is_up()), (vec![], false));
    let Phase::Handshake { handshake, .. } = rig.connection.phase.clone() else { panic!() };
    rig.connection.complete(Some(handshake));
    assert_eq!(rig.outputs(), [Out::Up("hello")]);
    assert_eq!(rig.connection.state.in_flight, [1]);

    let mut late = Rig::connecting(1);
    late.connection.state.handshake = true;
    late.connection.handle_connected(late.now, conn(0, 1));
    assert_eq!(late.due(), Some((SECOND, "login timeout")));
    let timed_out = because(Fault::TimedOut);
    assert_eq!(late.pass(SECOND), [Out::Disconnect(conn(0, 1), Some(timed_out.clone())), Out::Down(timed_out)]);
}

#[test]
fn open_connection_ends_after_silence_only_if_a_reply_is_expected() {
    // P6, M8
    let mut rig = Rig::up();
    assert_eq!(rig.due(), None);
    assert_eq!(rig.pass(60 * SECOND), []);
    rig.submit(1);
    rig.pass(SECOND / 2);
    rig.submit(2);
    assert_eq!(rig.due(), Some((SECOND / 2, "something in flight")), "counts from the first request");
    let timed_out = because(Fault::TimedOut);
    assert_eq!(
        rig.pass(SECOND / 2),
        [Out::Disconnect(conn(0, 1), Some(timed_out.clone())), Out::Down(timed_out), Out::Unknown(1), Out::Unknown(2)]
    );
}

#[test]
fn pauses_double_until_a_connection_has_lasted_and_a_request_may_shorten_one() {
    // P1
    let mut rig = Rig::connecting(1);
    for (round, most) in [(1, 100 * MS), (2, 200 * MS), (3, 400 * MS)] {
        rig.connection.handle_disconnected(rig.now, conn(0, round), Fault::Refused);
        rig.submit(5);
        let refused = because(Fault::Refused);
        assert_eq!(rig.outputs(), [Out::Down(refused.clone()), Out::NotSent(5, refused)]);
        assert_eq!(rig.pause(most), [Out::Connect(conn(0, round + 1))]);
    }
    rig.connection.handle_connected(rig.now, conn(0, 4));
    rig.pass(10 * SECOND);
    rig.connection.handle_disconnected(rig.now, conn(0, 4), Fault::Closed);
    rig.outputs();
    assert!(rig.due().unwrap().0 <= 100 * MS);
    rig.connection.hurry(rig.now + MS);
    assert_eq!(rig.pass(MS), [Out::Connect(conn(0, 5))]);
}

#[test]
fn request_that_cannot_wait_ends_pause_at_most_once_in_the_shortest() {
    // P9
    let mut rig = Rig::connecting(1);
    for generation in 1..6 {
        rig.connection.handle_disconnected(rig.now, conn(0, generation), Fault::Refused);
        rig.outputs();
        let (pause, _) = rig.due().unwrap();
        // One that can wait, and one that comes too early.
        assert!(!rig.connection.end_pause(rig.now, rig.now + pause));
        assert_eq!(rig.due().unwrap().0, pause);
        assert!(!rig.connection.end_pause(rig.now, rig.now));
        assert_eq!(rig.outputs(), []);
        let (earliest, _) = rig.due().unwrap();
        assert!(75 * MS <= earliest && earliest <= 100 * MS, "{earliest:?}");
        rig.now = rig.now + earliest;
        assert!(rig.connection.end_pause(rig.now, rig.now));
        rig.submit(1);
        assert_eq!(rig.outputs(), [Out::Connect(conn(0, generation + 1))], "the request waits for it");
        assert!(!rig.connection.end_pause(rig.now, rig.now), "it is being opened");
    }
}

#[test]
fn every_server_is_tried_before_the_next_pause_after_one_that_ended_early() {
    // P9
    let mut rig = Rig::connecting(3);
    for n in 0..3 {
        rig.connection.handle_disconnected(rig.now, conn(n, u64::from(n) + 1), Fault::Refused);
        rig.pass(Duration::ZERO);
    }
    rig.now = rig.now + 100 * MS;
    rig.connection.state.wanted = false;
    assert!(rig.connection.end_pause(rig.now, rig.now));
    assert!(rig.connection.is_closed(), "nothing needs it yet");
    rig.connection.state.wanted = true;
    rig.connection.connect_if_wanted();
    rig.submit(1);
    for n in 0..2 {
        assert_eq!(rig.outputs(), [Out::Connect(conn(n, u64::from(n) + 4))]);
        rig.connection.handle_disconnected(rig.now, conn(n, u64::from(n) + 4), Fault::Refused);
        assert_eq!(rig.outputs(), [Out::Down(because(Fault::Refused))]);
        rig.connection.phase_timeout();
    }
    assert_eq!(rig.outputs(), [Out::Connect(conn(2, 6))]);
    rig.connection.handle_disconnected(rig.now, conn(2, 6), Fault::Refused);
    let refused = because(Fault::Refused);
    assert_eq!(rig.outputs(), [Out::Down(refused.clone()), Out::NotSent(1, refused)]);
    rig.pause(800 * MS);
}

#[test]
fn next_server_is_tried_without_a_pause_and_keeps_what_waits() {
    for at_once in [false, true] {
        let mut rig = Rig::connecting(2);
        rig.connection.state.at_once = at_once;
        rig.submit(1);
        rig.connection.handle_disconnected(rig.now, conn(0, 1), Fault::Refused);
        let mut outputs = rig.outputs();
        assert_eq!(outputs.len(), if at_once { 2 } else { 1 });
        outputs.extend(rig.pass(Duration::ZERO));
        assert_eq!(outputs, [Out::Down(because(Fault::Refused)), Out::Connect(conn(1, 2))]);
        rig.connection.handle_disconnected(rig.now, conn(1, 2), Fault::Refused);
        let refused = because(Fault::Refused);
        assert_eq!(rig.outputs(), [Out::Down(refused.clone()), Out::NotSent(1, refused)], "both have failed");
        assert_eq!(rig.pause(100 * MS), [Out::Connect(conn(0, 3))]);
    }
}

#[test]
fn connection_that_nothing_needs_stays_closed_after_its_failure() {
    // P7
    for reopens in [false, true] {
        let mut rig = Rig::up();
        (rig.connection.state.wanted, rig.connection.state.reopens) = (false, reopens);
        rig.connection.handle_disconnected(rig.now, conn(0, 1), Fault::Reset);
        assert_eq!(rig.outputs(), [Out::Down(because(Fault::Reset))]);
        assert_eq!(rig.connection.is_closed(), !reopens);
        assert_eq!(rig.pass(SECOND), []);
        assert!(rig.connection.is_closed());
    }
}

#[test]
fn closing_and_replacing_end_the_connection_without_a_pause() {
    let mut rig = Rig::up();
    rig.submit(1);
    rig.connection.shut();
    assert_eq!(rig.outputs(), [Out::Disconnect(conn(0, 1), None), Out::Unknown(1)]);
    assert!(rig.connection.is_closed());

    let mut rig = Rig::connecting(1);
    rig.submit(1);
    let why = Cause::Server(ServerError { class: ErrorClass::Refused, text: "no".into() });
    rig.connection.replace(Some(why.clone()));
    assert_eq!(rig.outputs(), [Out::Disconnect(conn(0, 1), Some(why)), Out::Connect(conn(0, 2))]);
    rig.connection.handle_connected(rig.now, conn(0, 1));
    assert!(!rig.connection.is_up(), "input for the earlier connection is dropped");
    rig.connection.handle_connected(rig.now, conn(0, 2));
    assert_eq!(rig.connection.state.in_flight, [1]);
}
