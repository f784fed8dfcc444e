//! The source that the binary was built from: commit, and a hash of the difference from it.

use crate::repository::Repository;
use anyhow::Context;
use assay_ledgers::{Sha256, SourceIdentity};
use git2::{DiffFormat, DiffOptions};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// What can change what a run does. Ledgers and reports are written by runs and stay out; so do texts for readers.
const INPUTS: [&str; 11] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    "kernels",
    "engine",
    "ledgers/Cargo.toml",
    "ledgers/src",
    "witness/src",
    "harness",
    "suites",
];

/// Where there is no git repository to ask.
const UNKNOWN: &str = "unknown";

/// Names that are no input wherever they lie: what tools leave behind.
const LEFTOVERS: [&str; 2] = ["target", "__pycache__"];

/// Commit and difference of the checkout, and the digest of its inputs. Outside a git repository (an unpacked archive, a
/// copied folder) the commit is `unknown`, which is said on stderr once, and the digest alone names the source.
///
/// # Errors
/// When the sources, or a git repository that is there, cannot be read.
pub fn source(repository: &Repository) -> anyhow::Result<SourceIdentity> {
    static SAID: Once = Once::new();
    let inputs = Some(inputs_digest(repository.root())?);
    let source = commit(repository)?;
    if source.commit == UNKNOWN {
        SAID.call_once(|| {
            eprintln!(
                "warning: {} is in no git repository with a commit: the identity names the source by its digest alone",
                repository.root().display()
            );
        });
    }
    Ok(SourceIdentity { inputs, ..source })
}

/// SHA-256 over the name, length and content of every file among the inputs, in the order of the names.
fn inputs_digest(root: &Path) -> anyhow::Result<Sha256> {
    let mut files = Vec::new();
    for input in INPUTS {
        let path = root.join(input);
        if path.exists() {
            list(&path, &mut files)?;
        }
    }
    files.sort();
    let mut list = String::new();
    for path in files {
        let content = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        list += &format!("{} {} {name}\n", Sha256::of(&content), content.len());
    }
    Ok(Sha256::of(list.as_bytes()))
}

/// Every ordinary file at or below `path`, without hidden ones and what tools leave behind.
fn list(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let reading = || format!("reading {}", path.display());
    let kind = std::fs::symlink_metadata(path).with_context(reading)?;
    if kind.is_file() {
        files.push(path.to_path_buf());
    } else if kind.is_dir() {
        for entry in std::fs::read_dir(path).with_context(reading)? {
            let entry = entry.with_context(reading)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with('.') && !LEFTOVERS.contains(&&*name) {
                list(&entry.path(), files)?;
            }
        }
    }
    Ok(())
}

fn commit(repository: &Repository) -> anyhow::Result<SourceIdentity> {
    let git = match git2::Repository::open(repository.root()) {
        Ok(git) => git,
        Err(error) if error.code() == git2::ErrorCode::NotFound => {
            return Ok(SourceIdentity { commit: UNKNOWN.to_owned(), dirty: None, inputs: None });
        }
        Err(error) => return Err(error.into()),
    };
    let head = match git.head() {
        Ok(head) => head.peel_to_commit()?,
        Err(error) if error.code() == git2::ErrorCode::UnbornBranch => {
            return Ok(SourceIdentity { commit: UNKNOWN.to_owned(), dirty: None, inputs: None });
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
    Ok(SourceIdentity { commit: head.id().to_string(), dirty, inputs: None })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_inputs_alone() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let digest = || inputs_digest(folder.path()).unwrap();
        write("engine/src/lib.rs", "one");
        let before = digest();
        for name in ["README.md", "ledgers/local/x.jsonl", "engine/target/lib.rs", "engine/.lib.rs.swp"] {
            write(name, "no input");
        }
        assert_eq!(digest(), before);
        write("engine/src/lib.rs", "two");
        assert_ne!(digest(), before);
        write("engine/src/lib.rs", "one");
        assert_eq!(digest(), before);
        write("suites/new.toml", "");
        assert_ne!(digest(), before);
    }
}
