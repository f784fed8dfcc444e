//! Where a prompt set's files lie: in the folder that the user names, else where cargo keeps the package.

use super::book::CorpusError;
use super::manifest::{MANIFEST, PackagePin, PromptSet, SetPins};
use crate::repository::Repository;
use cargo_metadata::MetadataCommand;
use std::path::{Path, PathBuf};

/// Names a folder with the books of one or both sets.
pub const CORPUS_DIR_VARIABLE: &str = "ASSAY_CORPUS_DIR";

/// The folder of the set's files. One that the user named serves a set where it holds all of its files, and is passed
/// over where it holds none.
pub(super) fn folder(set: PromptSet, pins: &SetPins, repository: &Repository) -> Result<PathBuf, CorpusError> {
    if let Some(folder) = std::env::var_os(CORPUS_DIR_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
        && serves(&folder, set, pins)?
    {
        return Ok(folder);
    }
    match &pins.package {
        Some(package) => package_folder(package, repository),
        None => Err(CorpusError::NotFound(how_to_get(set, pins))),
    }
}

/// Whether `folder` holds the set.
fn serves(folder: &Path, set: PromptSet, pins: &SetPins) -> Result<bool, CorpusError> {
    if !folder.is_dir() {
        let message = format!("{CORPUS_DIR_VARIABLE} is {}, which is no folder", folder.display());
        return Err(CorpusError::NotFound(message));
    }
    let missing: Vec<&str> =
        pins.books.iter().map(|book| book.file.as_str()).filter(|file| !folder.join(file).is_file()).collect();
    if missing.is_empty() || missing.len() == pins.books.len() {
        return Ok(missing.is_empty());
    }
    Err(CorpusError::NotFound(format!(
        "{} ({CORPUS_DIR_VARIABLE}) lacks {} of prompt set {}",
        folder.display(),
        missing.join(", "),
        set.name()
    )))
}

fn how_to_get(set: PromptSet, pins: &SetPins) -> String {
    let mut message = format!(
        "prompt set {} ({}) is not found. Put these files, as Project Gutenberg served them when they were pinned, into a \
         folder and set {CORPUS_DIR_VARIABLE} to it:",
        set.name(),
        pins.title
    );
    for book in &pins.books {
        message += &format!("\n  {}  ({}, {})", book.file, book.title, book.url());
    }
    message += &format!("\nTheir SHA-256 are in {MANIFEST}. Prompt set packaged needs no files.");
    message
}

/// Where cargo keeps the package's source. Asked offline first, so that it works without a network once fetched.
fn package_folder(package: &PackagePin, repository: &Repository) -> Result<PathBuf, CorpusError> {
    let manifest = repository.path(MANIFEST).with_file_name(&package.manifest);
    let ask = |offline: &[&str]| {
        MetadataCommand::new()
            .manifest_path(&manifest)
            .current_dir(repository.root())
            .other_options(
                [&["--locked".to_owned()][..], &offline.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>()]
                    .concat(),
            )
            .exec()
    };
    let metadata = ask(&["--offline"]).or_else(|_| ask(&[])).map_err(|error| not_fetched(package, &error))?;
    let source = metadata
        .packages
        .iter()
        .find(|found| found.name.as_str() == package.name && found.version.to_string() == package.version)
        .and_then(|found| found.manifest_path.parent())
        .ok_or_else(|| {
            let (name, version) = (&package.name, &package.version);
            CorpusError::NotFound(format!("{} does not lead to {name} {version}", manifest.display()))
        })?;
    Ok(source.join(&package.folder).into_std_path_buf())
}

fn not_fetched(package: &PackagePin, error: &cargo_metadata::Error) -> CorpusError {
    let reason = match error {
        cargo_metadata::Error::CargoMetadata { stderr } => stderr.trim().to_owned(),
        cargo_metadata::Error::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "cargo is not installed, or not on PATH".to_owned()
        }
        other => other.to_string(),
    };
    CorpusError::NotFound(format!(
        "the prompts come with the Rust crate {} {}, and cargo could not fetch it: {reason}\nWith a network, try again; \
         without one, copy its books into a folder and set {CORPUS_DIR_VARIABLE} to it",
        package.name, package.version
    ))
}
