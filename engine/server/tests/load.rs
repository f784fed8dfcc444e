//! A short run of the load client; the long one is `examples/load.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use common::Server;
use common::load::{Load, run};

#[test]
fn nobody_is_lost_or_answered_with_anothers_text() {
    let server = Server::start();
    let load = Load { address: server.address, model: "tiny-moe".to_owned(), requests: 600, concurrency: 64 };
    let report = run(&load);
    assert!(report.wrong.is_empty(), "{}: {:?}", report.wrong.len(), report.wrong.first());
    assert_eq!(report.right + report.refused + report.left, 600);
    assert!(report.right > 300 && report.refused > 50 && report.left > 30, "{report:?}");
}
