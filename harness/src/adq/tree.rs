//! A repository in memory. Tools read and change it here, so no path, link or special file of the host can be reached.

use assay_engine::file;
use assay_ledgers::Sha256;
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// Most files of a repository, and most bytes of all of them: tasks are small, and a model's writes are bounded.
pub const MAX_FILES: usize = 1000;
/// As [`MAX_FILES`].
pub const MAX_BYTES: u64 = 4 << 20;

/// Files by their path, with `/`, relative to the repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

/// A tree that cannot be read or changed so.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A folder on disk cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Where.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file on disk cannot be read.
    #[error(transparent)]
    File(#[from] file::FileError),
    /// Something that is neither a file nor a folder.
    #[error("{0} is neither a file nor a folder: links and special files have no place in a task")]
    Special(String),
    /// A name that no path has.
    #[error("{0:?} is no relative path: expected names joined by /, without . and ..")]
    Path(String),
    /// More than a task may have.
    #[error("more than {MAX_FILES} files or {MAX_BYTES} bytes")]
    TooLarge,
}

impl Tree {
    /// Reads a folder. Byte code that Python left is no part of it.
    ///
    /// # Errors
    /// When it cannot be read, is too large, or holds links.
    pub fn read(folder: &Path) -> Result<Self, TreeError> {
        let mut tree = Self::default();
        tree.read_folder(folder, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<(), TreeError> {
        let io = |source| TreeError::Io { path: folder.display().to_string(), source };
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(io)?;
            let path = format!("{prefix}{name}");
            if name == "__pycache__" {
                continue;
            } else if kind.is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let content = file::read(&entry.path(), MAX_BYTES)?;
                self.write(&path, content)?;
            } else {
                return Err(TreeError::Special(entry.path().display().to_string()));
            }
        }
        Ok(())
    }

    /// A path as the tree has it: without `./` in front.
    ///
    /// # Errors
    /// [`TreeError::Path`] for one that is absolute, leads upwards or names nothing.
    pub fn clean(path: &str) -> Result<String, TreeError> {
        let wrong = || TreeError::Path(path.to_owned());
        let mut names = Vec::new();
        for part in Path::new(path).components() {
            match part {
                Component::Normal(name) => names.push(name.to_str().ok_or_else(wrong)?),
                Component::CurDir => {}
                _ => return Err(wrong()),
            }
        }
        if names.is_empty() || path.contains('\0') {
            return Err(wrong());
        }
        Ok(names.join("/"))
    }

    /// A file's content.
    pub fn get(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(Vec::as_slice)
    }

    /// All files, in order.
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`TreeError::Path`] where a file stands in the place of a folder, or the reverse; [`TreeError::TooLarge`].
    pub fn write(&mut self, path: &str, content: Vec<u8>) -> Result<(), TreeError> {
        let folder = format!("{path}/");
        let is_folder = self.files.range(folder.clone()..).next().is_some_and(|(name, _)| name.starts_with(&folder));
        let under_file = self.files.keys().any(|name| path.starts_with(&format!("{name}/")));
        if is_folder || under_file {
            return Err(TreeError::Path(path.to_owned()));
        }
        let others: u64 =
            self.files.iter().filter(|(name, _)| *name != path).map(|(_, bytes)| bytes.len() as u64).sum();
        if others + content.len() as u64 > MAX_BYTES || (self.files.len() >= MAX_FILES && self.get(path).is_none()) {
            return Err(TreeError::TooLarge);
        }
        self.files.insert(path.to_owned(), content);
        Ok(())
    }

    /// Every file of `other`, in place of its own.
    ///
    /// # Errors
    /// As [`Tree::write`].
    pub fn overlay(&mut self, other: &Tree) -> Result<(), TreeError> {
        other.files.iter().try_for_each(|(path, content)| self.write(path, content.clone()))
    }

    /// Every file of `other` under a folder.
    ///
    /// # Errors
    /// As [`Tree::write`].
    pub fn add_under(&mut self, folder: &str, other: &Tree) -> Result<(), TreeError> {
        other.files.iter().try_for_each(|(path, content)| self.write(&format!("{folder}/{path}"), content.clone()))
    }

    /// SHA-256 of every file, by path.
    pub fn hashes(&self) -> BTreeMap<String, Sha256> {
        self.files.iter().map(|(path, content)| (path.clone(), Sha256::of(content))).collect()
    }
}

/// Whether `path` is one of `places`, or in a folder that is.
pub fn is_within(path: &str, places: &[String]) -> bool {
    places
        .iter()
        .any(|place| path == place || path.strip_prefix(place.as_str()).is_some_and(|rest| rest.starts_with('/')))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_not_lead_out() {
        for (path, clean) in [("a/b.py", "a/b.py"), ("./a", "a"), ("a//b", "a/b"), ("a/./b", "a/b")] {
            assert_eq!(Tree::clean(path).unwrap(), clean);
        }
        for path in ["", ".", "/etc/passwd", "../a", "a/../../b", "a/..", "a\0b"] {
            assert!(Tree::clean(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_file_is_no_folder() {
        let mut tree = Tree::default();
        tree.write("a/b", vec![1]).unwrap();
        assert!(tree.write("a", vec![]).is_err() && tree.write("a/b/c", vec![]).is_err());
        tree.write("a.b", vec![]).unwrap();
        tree.write("a/b", vec![2]).unwrap();
        assert_eq!(tree.get("a/b"), Some(&[2][..]));
    }

    #[test]
    fn a_tree_is_bounded() {
        let mut tree = Tree::default();
        assert!(tree.write("big", vec![0; MAX_BYTES as usize + 1]).is_err());
        tree.write("big", vec![0; MAX_BYTES as usize]).unwrap();
        assert!(tree.write("more", vec![0]).is_err());
        tree.write("big", vec![1]).unwrap();
    }

    #[test]
    fn places_are_whole_names() {
        let places = ["tests".to_owned(), "a.py".to_owned()];
        assert!(is_within("tests/x", &places) && is_within("tests", &places) && is_within("a.py", &places));
        assert!(!is_within("tests2/x", &places) && !is_within("b/a.py", &places));
    }
}
