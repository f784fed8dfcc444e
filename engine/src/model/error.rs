//! What can be wrong with a `config.json`.

use std::path::PathBuf;

/// Why a config does not describe a model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is not JSON, or no object.
    #[error("{path}: {found}, expected a JSON object with a model's configuration")]
    NotAnObject {
        /// The config file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// A field that decides what is computed is absent.
    #[error("{path}: {field} is missing, expected {expected}")]
    Missing {
        /// The config file.
        path: PathBuf,
        /// The field, or the names that it goes by.
        field: String,
        /// What it must be.
        expected: String,
    },
    /// A field has a value that makes no sense.
    #[error("{path}: {field} is {found}, expected {expected}")]
    Wrong {
        /// The config file.
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A field asks for something that is not implemented. It is never ignored, since the answers would be wrong.
    #[error("{path}: {field} is {found}, which is not supported; expected {expected}")]
    Unsupported {
        /// The config file.
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What is supported.
        expected: String,
    },
    /// A rope table of an impossible size was asked for.
    #[error(
        "rope table of {positions} positions for head_dim {head_dim}, expected an even head_dim above 0 and a table that can be addressed"
    )]
    RopeTable {
        /// Positions asked for.
        positions: usize,
        /// Width of a head.
        head_dim: usize,
    },
}
