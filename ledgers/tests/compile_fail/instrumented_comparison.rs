//! Nor can one be made a comparison of speeds.

use assay_ledgers::{ComparisonBody, Draft, Identity, Run};

fn record(identity: Identity, body: ComparisonBody) -> Draft {
    Draft::comparison(Run::timing_on(), identity, body)
}

fn main() {
    let _ = record;
}
