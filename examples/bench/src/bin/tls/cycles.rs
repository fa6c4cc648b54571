//! Measures cycles of acquire and release.

use std::fmt;
use std::time::{Duration, Instant};

use lock_bench::cost::cpu_time;
use lock_bench::median;
use lock_tokio::Lock;

/// Pause before each measurement. Hosts often throttle a virtual machine after it was busy on all
/// processors.
const REST: Duration = Duration::from_millis(100);
/// Excluded from the measurement.
const WARM_UP: Duration = Duration::from_millis(30);

/// A task that acquires and releases a lock of its own.
pub trait Cycle: Send + 'static {
    fn cycle(&mut self) -> impl Future<Output = ()> + Send;
}

impl Cycle for Lock {
    async fn cycle(&mut self) {
        let guard = self.acquire().await.expect("nobody else wants it");
        let _ = guard.release().await;
    }
}

/// All measurements of one client over one kind of connection.
#[derive(Debug)]
pub struct Series {
    /// The median time of a cycle in µs, of each round.
    medians: Vec<f64>,
    cycles: usize,
    /// Processor time of this process, and of the server.
    cpu: [Duration; 2],
}

impl Series {
    pub const NEW: Self = Self { medians: Vec::new(), cycles: 0, cpu: [Duration::ZERO; 2] };

    /// Runs all tasks at once for one round.
    pub async fn measure(&mut self, server: u32, span: Duration, tasks: impl Iterator<Item: Cycle>) {
        tokio::time::sleep(REST).await;
        let from = Instant::now() + WARM_UP;
        let until = from + span;
        let tasks: Vec<_> = tasks.map(|task| tokio::spawn(cycles(task, from, until))).collect();
        tokio::time::sleep_until(from.into()).await;
        let cpu = || [cpu_time("self"), cpu_time(&server.to_string())];
        let before = cpu();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.expect("a task panicked"));
        }
        for (sum, (after, before)) in self.cpu.iter_mut().zip(cpu().into_iter().zip(before)) {
            *sum += after - before;
        }
        self.cycles += times.len();
        self.medians.push(median(times));
    }
}

/// The times in µs of all cycles that began within the span.
async fn cycles(mut task: impl Cycle, from: Instant, until: Instant) -> Vec<f64> {
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        if start >= until {
            return times;
        }
        task.cycle().await;
        if start >= from {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [here, server] = self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / self.cycles as f64);
        f.pad(&format!("{:.0} ({here:.1} + {server:.1})", median(self.medians.clone())))
    }
}

/// Prints what the columns of [`print`] mean.
pub fn print_head(store: &str, tasks: usize, rounds: usize, span: Duration) {
    println!("{store}, {tasks} tasks with a name each over one connection, medians of {rounds} rounds of {span:?}:");
    println!("median µs of a cycle, with its µs of processor time (here + in the server)");
    println!("{:>16} {:>24} {:>24} {:>6}", "", "plain", "TLS", "ratio");
}

/// Prints the measurements of one client.
pub fn print(name: &str, [plain, tls]: &[Series; 2]) {
    let ratio = median(tls.medians.iter().zip(&plain.medians).map(|(tls, plain)| tls / plain).collect());
    println!("{name:>16} {plain:>24} {tls:>24} {ratio:>6.2}");
}
