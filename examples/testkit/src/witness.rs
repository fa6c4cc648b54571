//! Watches a critical section that several processes enter.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A server that processes tell when they enter and leave a critical section.
///
/// A process connects, sends its name and how often it will enter (`ours 100`), and then
/// `enter FENCE` and `leave` in turn. Each line is answered by `ok`. The end of a connection counts
/// as leaving: so a killed process leaves.
#[derive(Debug)]
pub struct Witness {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    stopped: bool,
    inside: Option<String>,
    turns: Vec<Turn>,
    complaints: Vec<String>,
}

/// One stay in the critical section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who entered.
    pub who: String,
    /// Its fencing token.
    pub fence: u64,
}

impl Witness {
    /// Starts a witness on loopback.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("the address of a listener");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if lock(&shared).stopped {
                    return;
                }
                let seen = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut who = None;
                    let _ = listen(stream, &seen, &mut who);
                    let mut seen = lock(&seen);
                    if seen.inside == who {
                        seen.inside = None;
                    }
                });
            }
        });
        Self { address, seen }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The turns so far, in the order in which they began.
    ///
    /// # Panics
    ///
    /// If two were inside at a time, or a fencing token did not grow.
    #[must_use]
    pub fn turns(&self) -> Vec<Turn> {
        let seen = lock(&self.seen);
        assert!(seen.complaints.is_empty(), "{}", seen.complaints.join("\n"));
        for pair in seen.turns.windows(2) {
            assert!(pair[0].fence < pair[1].fence, "{:?} after {:?}", pair[1], pair[0]);
        }
        seen.turns.clone()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        lock(&self.seen).stopped = true;
        let _ = TcpStream::connect(self.address);
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(mut stream: TcpStream, seen: &Mutex<Seen>, name: &mut Option<String>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let lines = BufReader::new(stream.try_clone()?).lines();
    for line in lines {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        {
            let mut seen = lock(seen);
            let inside = seen.inside.clone();
            match (&words[..], name.as_ref()) {
                ([who, _], None) => *name = Some((*who).to_owned()),
                (["enter", fence], Some(who)) => {
                    if let Some(inside) = inside {
                        seen.complaints.push(format!("{who} enters while {inside} is inside"));
                    }
                    seen.inside = Some(who.clone());
                    let fence = fence.parse().map_err(io::Error::other)?;
                    seen.turns.push(Turn { who: who.clone(), fence });
                }
                (["leave"], Some(who)) => {
                    if inside.as_ref() != Some(who) {
                        seen.complaints.push(format!("{who} leaves, but {inside:?} is inside"));
                    }
                    seen.inside = None;
                }
                _ => seen.complaints.push(format!("{name:?} says {line:?}")),
            }
        }
        stream.write_all(b"ok\n")?;
    }
    Ok(())
}
