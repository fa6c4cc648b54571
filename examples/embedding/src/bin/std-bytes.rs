//! A lock without any client and without async: `std-bytes URL NAME SECONDS`.
//!
//! One thread does everything. It carries bytes between the machine and sockets that do not block.
//! Between the steps of its work it runs the machine, which renews the lock.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use lock_driver::read_file;
use lock_driver::{BootClock, random_identity};
use lock_proto::redis::{Client, Config, Output};
use lock_proto::{
    Acquire, ByteClient as _, ConnId, Credentials, CredentialsRequest, Event, Fault, LockClient as _, LockId,
    Machine as _, Target,
};

/// How long connecting may take. Much less than the TTL, because it blocks.
const CONNECT: Duration = Duration::from_millis(500);
/// One step of the work.
const STEP: Duration = Duration::from_millis(100);
/// How often the sockets are read. With `poll` of the system, or the crate `mio`, wait for them
/// instead.
const POLL: Duration = Duration::from_millis(2);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(name), Some(seconds)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: std-bytes URL NAME SECONDS".into());
    };
    let seconds = Duration::from_secs(seconds.parse()?);
    let mut host = Host::new(&url)?;

    // Acquire. The lock is held once the grant has been claimed.
    let lock = host.client.acquire(host.clock.now(), &Acquire::new(&name).ttl(Duration::from_secs(3)))?;
    let grant = loop {
        match host.step() {
            Some((_, Event::Granted(grant))) => break grant,
            Some((_, Event::Failed(failure))) => return Err(failure.into()),
            Some((_, Event::Blocked(why))) => eprintln!("waiting: {why}"),
            Some(_) | None => {}
        }
    };
    host.client.claim(host.clock.now(), lock)?;
    println!("held, fencing token {:?}", grant.fence);

    // Work in steps, while the lock is held. Compare the clock before what must not happen twice.
    let end = host.clock.now() + seconds;
    while host.is_held(lock) && host.clock.now() < end {
        if let Some((_, event)) = host.step() {
            println!("{event:?}");
        }
    }
    let lost = !host.is_held(lock);

    // Release in both cases: it deletes the key if it is still there.
    host.client.release(host.clock.now(), lock)?;
    let released = loop {
        if let Some((_, Event::Released(released))) = host.step() {
            break released;
        }
    };
    println!("released: {released:?}");
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Host {
    client: Client,
    clock: BootClock,
    sockets: BTreeMap<ConnId, TcpStream>,
}

impl Host {
    fn new(url: &str) -> Result<Self, Box<dyn Error>> {
        let clock = BootClock::new();
        let (id, seed) = random_identity()?;
        let client = Client::new(clock.now(), Config::parse(url)?, id, seed)?;
        Ok(Self { client, clock, sockets: BTreeMap::new() })
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.client.valid_until(lock) > Some(self.clock.now())
    }

    /// Runs the machine until the next event, for [`STEP`] at most.
    fn step(&mut self) -> Option<(LockId, Event)> {
        let end = self.clock.now() + STEP;
        loop {
            while let Some(output) = self.client.poll_output() {
                match output {
                    Output::Connect { conn, target, .. } => match connect(&target) {
                        Ok(socket) => {
                            self.sockets.insert(conn, socket);
                            self.client.handle_connected(self.clock.now(), conn);
                        }
                        Err(why) => self.client.handle_disconnected(self.clock.now(), conn, why),
                    },
                    Output::Disconnect { conn, .. } => drop(self.sockets.remove(&conn)),
                    Output::Event { lock, event } => return Some((lock, event)),
                    Output::Credentials { conn, request } => {
                        let credentials = password(&request);
                        self.client.handle_credentials(self.clock.now(), conn, credentials);
                    }
                    // None of these was asked for.
                    Output::Operation { .. } | Output::Stopped { .. } => {}
                }
            }
            self.carry_bytes();
            let now = self.clock.now();
            if self.client.next_deadline().is_some_and(|due| due <= now) {
                self.client.handle_timeout(now);
            } else if now >= end {
                return None;
            } else {
                thread::sleep(POLL);
            }
        }
    }

    fn carry_bytes(&mut self) {
        let Self { client, clock, sockets } = self;
        sockets.retain(|conn, socket| {
            let Err(why) = carry(client, clock, *conn, socket) else { return true };
            client.handle_disconnected(clock.now(), *conn, why);
            false
        });
    }
}

/// Writes and reads what is possible without blocking.
fn carry(client: &mut Client, clock: &BootClock, conn: ConnId, socket: &mut TcpStream) -> Result<(), Fault> {
    while client.has_outgoing(conn) {
        match socket.write(client.outgoing(conn)) {
            Ok(count) => client.consume(conn, count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(fault(&error)),
        }
    }
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return Err(Fault::Closed),
            Ok(count) => client.handle_received(clock.now(), conn, &buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(fault(&error)),
        }
    }
}

fn connect(target: &Target) -> Result<TcpStream, Fault> {
    let Target::Tcp { host, port } = target else { return Err(Fault::Transport) };
    let mut why = Fault::Unresolved;
    for address in (&**host, *port).to_socket_addrs().map_err(|_| Fault::Unresolved)? {
        let open = || {
            let socket = TcpStream::connect_timeout(&address, CONNECT)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        match open() {
            Ok(socket) => return Ok(socket),
            Err(error) => why = fault(&error),
        }
    }
    Err(why)
}

/// The content of the URL's `password_file`, without one newline at its end.
fn password(request: &CredentialsRequest) -> Option<Credentials> {
    let text = String::from_utf8(read_file(&**request.login.password_file.as_ref()?).ok()?).ok()?;
    let password = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    (!password.is_empty()).then(|| Credentials::new(password))
}

fn fault(error: &io::Error) -> Fault {
    match error.kind() {
        ErrorKind::ConnectionRefused => Fault::Refused,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Fault::Reset,
        ErrorKind::TimedOut => Fault::TimedOut,
        _ => Fault::Transport,
    }
}
