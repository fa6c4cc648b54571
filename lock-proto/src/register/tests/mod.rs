mod elections;
mod locks;
mod search;
mod world;
