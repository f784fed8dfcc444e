//! A run with timing instrumentation cannot be made a speed record.

use assay_ledgers::{Draft, Identity, Run, SpeedBody};

fn record(identity: Identity, body: SpeedBody) -> Draft {
    let run = Run::timing_off().instrument();
    Draft::speed(run, identity, body)
}

fn main() {
    let _ = record;
}
