//! Traces.

use crate::place::Place;
use crate::table::{Case, case, check_all, invalid};

const FILE: &str = "b.trace";
const DIFF: &[&str] = &["trace-diff", "a.trace", "b.trace"];
const CONTRACT: &str = r#"{"contract":{"format_version":1,"fields":{},"selection":"all","values":8}}"#;
const INPUT: &str = r#"{"input":{"step":0,"phase":"prefill","position":0,"tokens":[1,2]}}"#;
const END: &str = r#"{"end":{"events":3}}"#;

#[test]
fn traces() {
    insta::assert_snapshot!(check_all(files().into_iter().chain(lines())));
}

fn write(place: &Place, lines: &[&str]) {
    place.write("a.trace", format!("{CONTRACT}\n{INPUT}\n{END}\n"));
    place.write(FILE, lines.iter().map(|line| format!("{line}\n")).collect::<String>());
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    invalid(name, DIFF, FILE, damage)
}

fn files() -> Vec<Case> {
    vec![
        case("absent", DIFF, FILE, |at| {
            write(at, &[]);
            at.remove(FILE);
        }),
        case("a folder", DIFF, FILE, |at| {
            write(at, &[]);
            at.folder(FILE);
        }),
        on("empty", |at| write(at, &[])),
        on("a gibibyte of zeros", |at| {
            write(at, &[]);
            at.sparse(FILE, 1 << 30);
        }),
        on("nested 100,000 deep", |at| write(at, &[CONTRACT, &"[".repeat(100_000), END])),
        on("not UTF-8", |at| {
            write(at, &[]);
            at.write(FILE, [CONTRACT.as_bytes(), b"\n{\"input\xff\":1}\n"].concat());
        }),
    ]
}

fn lines() -> Vec<Case> {
    vec![
        on("no contract", |at| write(at, &[INPUT, END])),
        on("a newer version", |at| write(at, &[&CONTRACT.replace(":1,", ":2,"), INPUT, END])),
        on("an unknown field", |at| write(at, &[CONTRACT, &INPUT.replace("\"step\"", "\"colour\":1,\"step\""), END])),
        on("a field twice", |at| write(at, &[CONTRACT, &INPUT.replace("\"step\"", "\"step\":1,\"step\""), END])),
        on("an unknown event", |at| write(at, &[CONTRACT, "{\"dream\":{}}", END])),
        on("a second contract", |at| write(at, &[CONTRACT, CONTRACT, END])),
        on("an end that counts wrongly", |at| write(at, &[CONTRACT, INPUT, INPUT, END])),
        on("an event after the end", |at| write(at, &[CONTRACT, INPUT, END, INPUT])),
        on("a token that overflows", |at| write(at, &[CONTRACT, &INPUT.replace("[1,2]", "[4294967296]"), END])),
        on("a step that overflows", |at| write(at, &[CONTRACT, &INPUT.replace(":0,", ":18446744073709551616,"), END])),
    ]
}
