//! Demonstration: one server with fencing tokens, then a quorum of five, with checks.

mod quorum;
mod resource;
mod single;

use std::process::ExitCode;

use crate::transcript::Transcript;

/// Error that ends the demonstration early.
type Broken = Box<dyn core::error::Error + Send + Sync>;

/// Runs both parts. Returns 0 if every check passed.
#[must_use]
pub fn main() -> ExitCode {
    let transcript = Transcript::new();
    let done = run(&transcript);
    if let Err(error) = done {
        transcript.fail(&format!("the demonstration stopped: {error}"));
    }
    if transcript.passed() {
        transcript.log("result: everything as promised");
        ExitCode::SUCCESS
    } else {
        transcript.log("result: BROKEN, see the lines marked with !!");
        ExitCode::FAILURE
    }
}

fn run(transcript: &Transcript) -> Result<(), Broken> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        single::run(transcript).await?;
        quorum::run(transcript).await
    })
}
