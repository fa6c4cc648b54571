//! Requests from a seed.

use lock_proto::zookeeper::codec::{ANY_VERSION, Acl, CreateMode, MultiOp, Op, Permissions, WatchKind};
use lock_sim::Rng;

/// What a step does.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A request on the connection of a client.
    Request(Op),
    /// The session continues on another connection. `wrong` gives a password that is not its own.
    Reconnect { wrong: bool },
    /// The connection fails, without an end of the session, which then continues on another one.
    Cut,
}

/// The folder of all nodes: the root has others as well.
pub(crate) const ROOT: &str = "/t";
const MODES: [CreateMode; 5] = [
    CreateMode::Persistent,
    CreateMode::Ephemeral,
    CreateMode::PersistentSequential,
    CreateMode::EphemeralSequential,
    CreateMode::Container,
];
const NAMES: [&str; 4] = ["/t/a", "/t/b", "/t/a/x", "/t/q"];
const INVALID: [&str; 7] = ["t", "/t/", "/t//a", "/t/./a", "/t/..", "/t/\u{1}", "/t/\u{7f}b"];
const USERS: [&str; 2] = ["anna:sesame", "ben:open"];

pub(crate) struct Generator {
    rng: Rng,
    /// Nodes with numbers that were created, some of which are gone.
    pub(crate) created: Vec<String>,
}

impl Generator {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), created: Vec::new() }
    }

    pub(crate) fn client(&mut self, clients: usize) -> usize {
        usize::try_from(self.rng.below(clients as u64)).unwrap_or(0)
    }

    pub(crate) fn step(&mut self) -> Step {
        match self.rng.below(100) {
            0 => Step::Request(Op::CloseSession),
            1..3 => Step::Reconnect { wrong: self.rng.one_in(4) },
            3 => Step::Cut,
            4..7 => Step::Request(self.auth()),
            7..9 => Step::Request(Op::Sync { path: self.path().into() }),
            9..14 => {
                let kinds = [WatchKind::Children, WatchKind::Data, WatchKind::Any];
                let kind = self.rng.pick(&kinds).copied().unwrap_or(WatchKind::Any);
                Step::Request(Op::RemoveWatches { path: self.path().into(), kind })
            }
            14..44 => Step::Request(self.read()),
            44..56 => {
                let count = self.rng.below(5);
                Step::Request(Op::Multi((0..count).map(|_| self.write(true)).collect()))
            }
            _ => Step::Request(Op::Write(self.write(false))),
        }
    }

    fn path(&mut self) -> String {
        match self.rng.below(40) {
            0 => self.rng.pick(&INVALID).copied().unwrap_or_default().into(),
            1..4 => ROOT.into(),
            4..20 => self.rng.pick(&self.created).cloned().unwrap_or_else(|| ROOT.into()),
            _ => self.rng.pick(&NAMES).copied().unwrap_or_default().into(),
        }
    }

    fn version(&mut self) -> i32 {
        match self.rng.below(4) {
            0 => 0,
            1 => i32::try_from(self.rng.below(4)).unwrap_or(0),
            _ => ANY_VERSION,
        }
    }

    fn auth(&mut self) -> Op {
        let (scheme, auth) = match self.rng.below(8) {
            0 => ("nonsense", "x"),
            1 => ("digest", "nameless"),
            _ => ("digest", self.rng.pick(&USERS).copied().unwrap_or_default()),
        };
        Op::Auth { scheme: scheme.into(), auth: auth.as_bytes().to_vec().into() }
    }

    fn acl(&mut self) -> Vec<Acl> {
        let anyone = |permissions| Acl { permissions: Permissions(permissions), ..Acl::open().remove(0) };
        match self.rng.below(12) {
            0 => Acl::creator(),
            1 => vec![anyone(i32::try_from(self.rng.below(32)).unwrap_or(0))],
            2 => Vec::new(),
            3 => [Acl::creator(), vec![anyone(1)]].concat(),
            _ => Acl::open(),
        }
    }

    fn read(&mut self) -> Op {
        let (path, watch) = (self.path().into(), self.rng.one_in(2));
        match self.rng.below(3) {
            0 => Op::Exists { path, watch },
            1 => Op::GetData { path, watch },
            _ => Op::GetChildren { path, watch },
        }
    }

    fn write(&mut self, in_multi: bool) -> MultiOp {
        let path = self.path().into();
        match self.rng.below(10) {
            0..5 => {
                let mode = self.rng.pick(&MODES).copied().unwrap_or(CreateMode::Persistent);
                let numbered = matches!(mode, CreateMode::PersistentSequential | CreateMode::EphemeralSequential);
                let path = if numbered { format!("{}/n-", self.parent()).into() } else { path };
                MultiOp::Create { path, data: self.data().into(), acl: self.acl(), mode }
            }
            5..7 => MultiOp::Delete { path, version: self.version() },
            7 if in_multi => MultiOp::Check { path, version: self.version() },
            _ => MultiOp::SetData { path, data: self.data().into(), version: self.version() },
        }
    }

    fn parent(&mut self) -> &'static str {
        self.rng.pick(&[ROOT, "/t/q", "/t/a"]).copied().unwrap_or(ROOT)
    }

    fn data(&mut self) -> Vec<u8> {
        vec![b'x'; usize::try_from(self.rng.below(4)).unwrap_or(0)]
    }
}
