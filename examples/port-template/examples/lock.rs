//! Takes a lock and releases it: `cargo run --example lock -- redis://127.0.0.1:6379`.

use lock_driver::Settings;
use port_template::MyRuntime;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: lock URL")?;
    let runtime = MyRuntime::default();
    runtime.block_on(async {
        let client = runtime.connect(Settings::parse([url])?)?;
        let guard = client.lock("invoice:42").acquire().await?;
        println!("held, fencing token {:?}", guard.fence());
        println!("{:?}", guard.release().await);
        Ok(())
    })
}
