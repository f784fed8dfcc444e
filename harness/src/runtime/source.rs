//! The source that the binary was built from: commit, and a hash of the difference from it.

use crate::repository::Repository;
use assay_ledgers::{Sha256, SourceIdentity};
use git2::{DiffFormat, DiffOptions};

/// What can change what a run does. Ledgers and reports are written by runs and stay out; so do texts for readers.
const INPUTS: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    "kernels",
    "engine",
    "ledgers/src",
    "witness/src",
    "harness",
    "suites",
];

/// Where there is no git repository to ask.
const UNKNOWN: &str = "unknown";

/// Commit and difference of the checkout; `unknown` outside a git repository (an unpacked archive).
///
/// # Errors
/// When there is a git repository and it cannot be read.
pub fn source(repository: &Repository) -> anyhow::Result<SourceIdentity> {
    let git = match git2::Repository::open(repository.root()) {
        Ok(git) => git,
        Err(error) if error.code() == git2::ErrorCode::NotFound => {
            return Ok(SourceIdentity { commit: UNKNOWN.to_owned(), dirty: None });
        }
        Err(error) => return Err(error.into()),
    };
    let head = match git.head() {
        Ok(head) => head.peel_to_commit()?,
        Err(error) if error.code() == git2::ErrorCode::UnbornBranch => {
            return Ok(SourceIdentity { commit: UNKNOWN.to_owned(), dirty: None });
        }
        Err(error) => return Err(error.into()),
    };
    let mut options = DiffOptions::new();
    options.include_untracked(true).recurse_untracked_dirs(true).show_untracked_content(true).show_binary(true);
    for path in INPUTS {
        options.pathspec(path);
    }
    let diff = git.diff_tree_to_workdir_with_index(Some(&head.tree()?), Some(&mut options))?;
    let mut text = Vec::new();
    diff.print(DiffFormat::Patch, |_, _, line| {
        text.push(line.origin() as u8);
        text.extend_from_slice(line.content());
        true
    })?;
    let dirty = (!text.is_empty()).then(|| Sha256::of(&text));
    Ok(SourceIdentity { commit: head.id().to_string(), dirty })
}
