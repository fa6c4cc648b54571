//! Demonstration: one server with fencing tokens, then a quorum of five, with checks.

mod quorum;
mod resource;
mod single;

use std::process::ExitCode;

use crate::story::Story;

/// Error that ends the demonstration early.
type Broken = Box<dyn core::error::Error + Send + Sync>;

/// Runs both parts. Returns 0 if every check passed.
#[must_use]
pub fn main() -> ExitCode {
    let story = Story::new();
    let done = run(&story);
    if let Err(error) = done {
        story.broken(&format!("the demonstration stopped: {error}"));
    }
    if story.is_intact() {
        story.tell("result: everything as promised");
        ExitCode::SUCCESS
    } else {
        story.tell("result: BROKEN, see the lines marked with !!");
        ExitCode::FAILURE
    }
}

fn run(story: &Story) -> Result<(), Broken> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        single::run(story).await?;
        quorum::run(story).await
    })
}
