//! The workspace's crates depend on each other only as ARCHITECTURE.md's table of folders allows.
#![allow(clippy::unwrap_used)]

use cargo_metadata::MetadataCommand;
use std::collections::BTreeMap;
use std::path::Path;

/// Each crate and the crates of the workspace that it may use, in any kind of dependency.
const ALLOWED: [(&str, &[&str]); 9] = [
    ("assay-kernels", &[]),
    ("assay-engine", &["assay-kernels"]),
    ("assay-server", &["assay-engine"]),
    ("assay-witness", &[]),
    ("assay-ledgers", &[]),
    ("assay-reports", &["assay-ledgers"]),
    ("assay-sandbox", &[]),
    (
        "assay-harness",
        &[
            "assay-kernels",
            "assay-engine",
            "assay-server",
            "assay-witness",
            "assay-ledgers",
            "assay-reports",
            "assay-sandbox",
        ],
    ),
    (
        "assay-fuzz",
        &["assay-engine", "assay-harness", "assay-kernels", "assay-ledgers", "assay-server", "assay-witness"],
    ),
];

#[test]
fn crates_depend_only_as_the_table_allows() {
    let allowed = BTreeMap::from(ALLOWED);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let members: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    assert!(members.contains(&"assay-harness"), "{members:?}");
    for package in &metadata.packages {
        let may_use = allowed.get(package.name.as_str());
        let may_use = may_use.unwrap_or_else(|| panic!("{} is not in the table", package.name));
        for dependency in package.dependencies.iter().filter(|dependency| members.contains(&dependency.name.as_str())) {
            let arrow = format!("{} -> {}", package.name, dependency.name);
            assert!(may_use.contains(&dependency.name.as_str()), "the table does not allow {arrow}");
        }
    }
}
