//! Model families: from `config.json` to a [`spec::ModelSpec`].
//!
//! - [`spec`]: what a model is, as data;
//! - [`registry`]: the known families and [`load_spec`];
//! - `families`: one file per family;
//! - `config`: checked reading of the fields of a `config.json`; `rope_config` of those about rope;
//! - `names`: tensor names that families share;
//! - [`rope`]: tables of cosines and sines.

mod config;
mod error;
mod families;
mod names;
pub mod registry;
pub mod rope;
mod rope_config;
pub mod spec;

#[cfg(test)]
mod tests;

pub use error::ModelError;
pub use registry::load_spec;
pub use rope::RopeTable;
