//! Which ledgers there are, and where.

use crate::repository::Repository;
use std::path::PathBuf;
use std::str::FromStr;

/// A ledger's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerPlace {
    /// Where runs append on this machine; not tracked by git, so that a run never dirties the tree that it names.
    Local,
    /// Where chosen records are kept for everyone.
    Tracked,
    /// Anywhere else.
    Folder(PathBuf),
}

impl LedgerPlace {
    /// The folder.
    pub fn folder(&self, repository: &Repository) -> PathBuf {
        match self {
            LedgerPlace::Local => repository.path("ledgers/local"),
            LedgerPlace::Tracked => repository.path("ledgers/tracked"),
            LedgerPlace::Folder(folder) => folder.clone(),
        }
    }
}

impl FromStr for LedgerPlace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "local" => LedgerPlace::Local,
            "tracked" => LedgerPlace::Tracked,
            folder => LedgerPlace::Folder(folder.into()),
        })
    }
}
