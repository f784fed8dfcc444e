//! A disk that is full: writes past a limit fail as they do there.

use crate::place::Place;
use crate::table::{Case, case, check_all};

const BUILD: &[&str] = &["cache", "build", "small"];
const RUN: &[&str] = &["perplexity", "small", "--token-ids", "ids.json"];
/// Files of at most 100 KiB (the shell counts in half KiB): the signal is ignored, so that writing fails instead.
const FULL: &str = "trap '' XFSZ; ulimit -f 200";

/// Files of at most 4 KiB: the chain has as many.
const FULLER: &str = "trap '' XFSZ; ulimit -f 8";

fn on(name: &'static str, command: &'static [&'static str], names: &'static str, damage: fn(&Place)) -> Case {
    Case { limits: FULL, ..case(name, command, names, damage) }
}

#[test]
fn a_full_disk() {
    insta::assert_snapshot!(check_all([
        on("building a cache", BUILD, ".experts.tmp", |_| ()),
        on("building a cache on the way to an answer", RUN, ".experts.tmp", |place| {
            place.write("ids.json", "{\"a\": [1, 2, 3]}");
        }),
        on("appending to a ledger", RUN, "ledgers/local", |place| {
            place.write("ids.json", "{\"a\": [1, 2, 3]}");
            // Records of more than half the limit: the next has no room.
            place.copy_prepared("cache");
            place.copy_prepared("ledgers");
        })
        .limits(FULLER),
    ]));
}
