//! Takes a lock on the store: `cargo run --example lock`.

use std::error::Error;
use std::time::Duration;

use store_template::{Service, connect};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = connect(Service::default())?;
    let guard = client.lock("invoice:42").ttl(Duration::from_secs(5)).acquire().await?;
    println!("held, fencing token {:?}", guard.fence());
    println!("{:?}", guard.release().await);
    client.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
