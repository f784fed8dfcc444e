//! See ARCHITECTURE.md.
pub mod layout;
