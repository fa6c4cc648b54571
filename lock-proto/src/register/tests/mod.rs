mod locks;
mod search;
mod world;
