//! Where the repository lies: suites, configs, fixtures and the ledger are read from it.

use std::path::{Path, PathBuf};

/// A file that every checkout has and no other project is likely to.
const MARKER: &str = "fixtures/corpus/manifest.toml";

/// The repository's root folder.
#[derive(Debug, Clone)]
pub struct Repository {
    root: PathBuf,
}

/// No repository was found.
#[derive(Debug, thiserror::Error)]
#[error(
    "no Assay repository at {current} or above it, nor where this binary was built ({built}): \
     run inside a checkout (looked for {MARKER})"
)]
pub struct NotFound {
    current: PathBuf,
    built: PathBuf,
}

impl Repository {
    /// Looks from the current folder upwards, then where this binary was built.
    ///
    /// # Errors
    /// When neither is a checkout.
    pub fn find() -> Result<Self, NotFound> {
        let current = std::env::current_dir().unwrap_or_default();
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        current
            .ancestors()
            .chain(std::iter::once(built.as_path()))
            .find_map(Self::at)
            .ok_or_else(|| NotFound { current: current.clone(), built: built.clone() })
    }

    /// The checkout whose root is exactly `root`, if it is one.
    pub fn at(root: &Path) -> Option<Self> {
        if !root.join(MARKER).is_file() {
            return None;
        }
        Some(Repository { root: root.canonicalize().ok()? })
    }

    /// The root itself, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `relative` under the root.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// `path` as the user would write it from the root, for records and messages; unchanged outside the repository.
    pub fn display<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}
