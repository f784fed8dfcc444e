//! See ARCHITECTURE.md.

pub mod checkpoint;
pub mod model;
