//! Every vectorised family against its twin, bit for bit, on every level that this processor has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::too_many_arguments, missing_docs)]

mod attention;
mod common;
mod experts;
mod linear;
mod rows;
mod sample;
