//! `serve`: simulated Redis and etcd servers on loopback, for clients in any language. Faults come
//! from a plan or from a control port. docs/serving.md is the manual.
// S15

mod command;
mod line;
mod stage;

use core::net::Ipv4Addr;
use core::pin::pin;
use core::time::Duration;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Parser;
use lock_driver::start_or_error;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::cli::args::parse_or_exit;
use crate::cli::{exit, print};
use command::{Command, Timed};
use stage::Stage;

/// Serve simulated Redis and etcd servers on loopback, with faults.
#[derive(Debug, Parser)]
#[command(name = "serve", version)]
struct Args {
    /// How many Redis servers: redis0, redis1, …
    #[arg(long, default_value_t = 1)]
    redis: usize,
    /// How many members of an etcd cluster: etcd0, etcd1, …
    #[arg(long, default_value_t = 0)]
    etcd: usize,
    /// The port of redis0; the others follow. 0 for free ports.
    #[arg(long, default_value_t = 0)]
    redis_port: u16,
    /// The port of etcd0; the others follow. 0 for free ports.
    #[arg(long, default_value_t = 0)]
    etcd_port: u16,
    /// The port for commands. 0 for a free one.
    #[arg(long, default_value_t = 0)]
    control: u16,
    /// A file of commands, each after a time: `2s pause redis0`.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Stop after this time.
    #[arg(long, value_parser = command::time)]
    run_for: Option<Duration>,
}

/// Runs the program with these arguments, without its name. Returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Args = match parse_or_exit(args, exit::USAGE) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let plan = match args.plan.as_ref().map(|path| read_plan(path)).transpose() {
        Ok(plan) => plan.unwrap_or_default(),
        Err(error) => return fail(&error, exit::USAGE),
    };
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match start_or_error(build).and_then(|built| built) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("no tokio runtime: {error}"), 1),
    };
    match runtime.block_on(serve(&args, plan)) {
        Ok(()) => 0,
        Err(error) => fail(&error.to_string(), 1),
    }
}

fn fail(what: &str, code: u8) -> u8 {
    let _ = writeln!(io::stderr(), "serve: {what}");
    code
}

fn read_plan(path: &std::path::Path) -> Result<Vec<Timed>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|(number, line)| {
        Timed::parse(line).map_err(|error| format!("{}, line {number}: {error}", path.display()))
    });
    parsed.collect()
}

/// The result of a command.
type Done = Result<String, String>;

/// A command and where its result goes.
type Ordered = (Command, tokio::sync::oneshot::Sender<Done>);

async fn serve(args: &Args, plan: Vec<Timed>) -> io::Result<()> {
    let mut stage = Stage::start(args.redis, args.redis_port, args.etcd, args.etcd_port).await?;
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, args.control)).await;
    let control = control.map_err(|error| stage::named(format_args!("--control, port {}", args.control), &error))?;
    let (orders, mut ordered) = mpsc::channel::<Ordered>(16);
    print(&stage.list());
    print(&format!("control {}", control.local_addr()?));
    print(&"ready");
    tokio::spawn(follow(plan, orders.clone()));
    tokio::spawn(async move {
        loop {
            let stream = line::accept(&control).await;
            tokio::spawn(handle_commands(stream, orders.clone()));
        }
    });
    let mut end = pin!(tokio::time::sleep(args.run_for.unwrap_or(Duration::MAX)));
    // Made once: a signal during a command would reach no receiver.
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            order = ordered.recv() => {
                let Some((command, result)) = order else { return Ok(()) };
                if matches!(command, Command::Quit) {
                    return Ok(());
                }
                // Stopping a server waits for its threads.
                let done = tokio::task::block_in_place(|| stage.carry_out(&command));
                let _ = result.send(done);
            }
            () = &mut end => return Ok(()),
            _ = &mut interrupted => return Ok(()),
        }
    }
}

/// Carries out a plan, and prints each step.
async fn follow(plan: Vec<Timed>, orders: mpsc::Sender<Ordered>) {
    let start = tokio::time::Instant::now();
    for Timed { at, text, command } in plan {
        tokio::time::sleep_until(start + at).await;
        let report = |done: &Done| print(&format!("{} {text}: {}", humantime::format_duration(at), shown(done)));
        if matches!(command, Command::Quit) {
            // First, as the program ends with it.
            report(&Ok(String::new()));
            let _ = order(&orders, command).await;
            return;
        }
        report(&order(&orders, command).await);
    }
}

async fn order(orders: &mpsc::Sender<Ordered>, command: Command) -> Done {
    let (sender, result) = tokio::sync::oneshot::channel();
    if orders.send((command, sender)).await.is_err() {
        return Err("the servers have stopped".into());
    }
    result.await.unwrap_or_else(|_| Err("the servers have stopped".into()))
}

fn shown(done: &Done) -> String {
    match done {
        Ok(text) if text.is_empty() => "ok".into(),
        Ok(text) => format!("{text}\nok"),
        Err(error) => format!("error: {error}"),
    }
}

/// Reads commands from the control port, one a line. Each has a reply that ends with `ok` or is
/// an error.
async fn handle_commands(stream: TcpStream, orders: mpsc::Sender<Ordered>) {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let command = str::from_utf8(&line).map_err(|error| error.to_string()).and_then(Command::parse);
        if command == Ok(Command::Quit) {
            // The reply comes first, as the program ends with the command.
            let _ = output.write_all(b"ok\n").await;
            let _ = order(&orders, Command::Quit).await;
            return;
        }
        let done = match command {
            Ok(command) => order(&orders, command).await,
            Err(error) => Err(error),
        };
        if output.write_all(format!("{}\n", shown(&done)).as_bytes()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::parse;

    #[test]
    fn time_of_option_is_limited() {
        for (time, word) in [("2y", "365days"), ("18446744073709551615s1000000000ns", "is no time")] {
            match parse::<Args>(["--run-for", time].map(OsString::from)) {
                Err(error) => assert!(error.to_string().contains(word), "{error}"),
                Ok(line) => panic!("{line:?}"),
            }
        }
    }
}
