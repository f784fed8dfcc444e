#![allow(clippy::unwrap_used, clippy::expect_used)]

mod biased;
mod build;
mod damage;
mod support;
mod tiny_moe;
