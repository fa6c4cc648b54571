//! Draws certificates that break for a while, and other failures of TLS handshakes.

use alloc::vec::Vec;
use core::time::Duration;

use super::often::Often;
use super::{Action, Setup, Step};
use crate::chance::Chance;
use crate::world::Handshake;
use lock_proto::TlsFault;

const BROKEN: [Handshake; 9] = [
    Handshake::Fails(TlsFault::Expired),
    Handshake::Fails(TlsFault::Closed),
    Handshake::FailsLater(TlsFault::CertificateRefused),
    Handshake::Silent,
    Handshake::Trips(4),
    Handshake::Fails(TlsFault::UnknownIssuer),
    Handshake::Fails(TlsFault::Handshake),
    Handshake::FailsLater(TlsFault::CertificateRequired),
    Handshake::Fails(TlsFault::WrongName),
];

/// Draws a failure from a time on for a while: of one client or all, at one server or all. Often the
/// connections are reset in between, because open ones do not notice.
pub(super) fn add_failure(chance: &mut Chance, setup: &Setup, steps: &mut Vec<Step>, (at, span): (Duration, Duration)) {
    let handshake = chance.pick(&BROKEN);
    let mut choose = |len: usize, one_in: u64| {
        let one = chance.index(len);
        if chance.one_in(one_in) { one..one + 1 } else { 0..len }
    };
    let (clients, nodes) = (choose(setup.clients.len(), 3), choose(setup.nodes.len(), 2));
    let end = at + span;
    let resets = !chance.one_in(3);
    let reset_at = at + span / 4;
    let repaired = Handshake::Trips(setup.tls.unwrap_or(1));
    for client in clients {
        for node in nodes.clone() {
            steps.push(Step { at, action: Action::Handshake { client, node, handshake } });
            if resets {
                steps.push(Step { at: reset_at, action: Action::Reset { client, node } });
            }
            steps.push(Step { at: end, action: Action::Handshake { client, node, handshake: repaired } });
        }
    }
}

/// Makes some of the runs of a scenario connect by TLS, with a few failures. Called last, so that
/// the rest of the run does not depend on it. All or none is decided before.
pub(super) fn sometimes(chance: &mut Chance, often: Often, setup: &mut Setup, steps: &mut Vec<Step>) {
    if matches!(often, Often::Always | Often::Never) || !often.draw(chance) {
        return;
    }
    setup.tls = Some(1 + u8::from(chance.one_in(2)));
    let end = steps.iter().map(|step| step.at).max().unwrap_or_default();
    for _ in 0..chance.below(4) {
        let when = (chance.duration(&(Duration::ZERO..end)), chance.millis(6_000));
        add_failure(chance, setup, steps, when);
    }
}
