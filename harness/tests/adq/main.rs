//! Development tasks through the command line: what agents get, what is kept, what a broken surrounding is called.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod endpoints;
mod https;
mod place;
mod runs;
mod suites;
