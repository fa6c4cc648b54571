mod search;
mod world;
