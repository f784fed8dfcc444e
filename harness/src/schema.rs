//! JSON Schemas of the files that people write and of those that the harness keeps beside a ledger, generated from the types and kept
//! in `harness/schema/`. TOML files are described too: their values are those of JSON.

use crate::claims::Claim;
use crate::config::Config;
use crate::fidelity::BaselineHeader;
use crate::suite::SpeedSuite;
use assay_ledgers::Generate;
use schemars::schema_for;

/// File names in `harness/schema/`, each with what generates it.
pub const SCHEMAS: [(&str, Generate); 4] = [
    ("claim.schema.json", || schema_for!(Claim)),
    ("config.schema.json", || schema_for!(Config)),
    ("fidelity-baseline.v1.schema.json", || schema_for!(BaselineHeader)),
    ("speed-suite.v1.schema.json", || schema_for!(SpeedSuite)),
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use assay_ledgers::schema_text;
    use std::path::Path;

    #[test]
    fn schemas_are_current() {
        for (name, generate) in SCHEMAS {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(name);
            let current = schema_text(generate).unwrap();
            if std::env::var_os("ASSAY_UPDATE_SCHEMAS").is_some() {
                std::fs::write(&path, &current).unwrap();
            }
            let kept = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(kept == current, "{name} is not current: ASSAY_UPDATE_SCHEMAS=1 cargo test writes it");
        }
    }
}
