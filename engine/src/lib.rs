//! See ARCHITECTURE.md.

pub mod checkpoint;
pub mod expert_cache;
pub mod model;
