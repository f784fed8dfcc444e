//! Model families: from `config.json` to a [`spec::ModelSpec`].

pub mod spec;
