//! Baselines of fidelity.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::place::Place;
use crate::table::{Case, case, check_all, invalid};

const FILE: &str = "base.logits";
const COMPARE: &[&str] = &["fidelity", "compare", "small", "--token-ids", "ids.json", "--baseline", "base.logits"];
/// Magic, length, hash.
const PREFIX: usize = 48;

#[test]
fn baselines() {
    insta::assert_snapshot!(without_lengths(&check_all(files().into_iter().chain(headers()).chain(rows()))));
}

/// The header holds the identity of what made it, machine included: its length is that machine's.
fn without_lengths(said: &str) -> String {
    let shown = |line: &str| {
        if !(line.contains("header of") && line.contains("in a file of") || line.contains("as its header says")) {
            return line.to_owned();
        }
        let word = |word: &str| {
            let digits = word.trim_end_matches(',');
            let is_length = digits.len() >= 3 && digits.bytes().all(|digit| digit.is_ascii_digit());
            if is_length { word.replace(digits, "LENGTH") } else { word.to_owned() }
        };
        line.split(' ').map(word).collect::<Vec<_>>().join(" ")
    };
    said.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

/// A baseline of the ten largest at three positions.
fn place(place: &Place) {
    place.write("ids.json", "{\"a\": [1, 2, 3]}");
    place.copy_prepared(FILE);
}

/// Changes header and rows and makes length and hash fit.
fn resealed(at: &Place, edit: impl FnOnce(&mut Value, &mut Vec<u8>)) {
    place(at);
    let bytes = at.read(FILE);
    let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[PREFIX..PREFIX + length]).unwrap();
    let mut rows = bytes[PREFIX + length..].to_vec();
    edit(&mut header, &mut rows);
    let text = serde_json::to_vec(&header).unwrap();
    let hash = Sha256::new().chain_update(&text).chain_update(&rows).finalize();
    at.write(FILE, [b"ASSAYLGT", &(text.len() as u64).to_le_bytes()[..], &hash, &text, &rows].concat());
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    invalid(name, COMPARE, FILE, damage)
}

fn files() -> Vec<Case> {
    vec![
        case("absent", COMPARE, FILE, |at| {
            place(at);
            at.remove(FILE);
        }),
        case("a folder", COMPARE, FILE, |at| {
            place(at);
            at.folder(FILE);
        }),
        on("empty", |at| {
            place(at);
            at.write(FILE, "");
        }),
        on("another kind of file", |at| {
            place(at);
            at.write(FILE, "no baseline, but long enough to have a prefix of 48 bytes");
        }),
        on("cut in half", |at| {
            place(at);
            at.truncate(FILE, at.read(FILE).len() / 2);
        }),
        on("a header of 2^60 bytes", |at| {
            place(at);
            let mut bytes = at.read(FILE);
            bytes[15] = 16;
            at.write(FILE, bytes);
        }),
        on("a terabyte of zeros behind it", |at| {
            place(at);
            let bytes = at.read(FILE);
            at.sparse(FILE, 1 << 40);
            at.overwrite(FILE, &bytes);
        }),
        on("a changed row", |at| {
            place(at);
            let mut bytes = at.read(FILE);
            let last = bytes.len() - 4;
            bytes[last] ^= 1;
            at.write(FILE, bytes);
        }),
    ]
}

fn headers() -> Vec<Case> {
    vec![
        on("a newer version", |at| resealed(at, |header, _| header["format_version"] = json!(2))),
        on("an unknown field", |at| resealed(at, |header, _| header["colour"] = json!(1))),
        on("a vocabulary of nobody", |at| resealed(at, |header, _| header["vocab_size"] = json!(0))),
        on("rows of more than all memory", |at| {
            resealed(at, |header, _| {
                header["vocab_size"] = json!(u32::MAX);
                header["logits"] = json!("full");
            });
        }),
        on("another vocabulary", |at| resealed(at, |header, _| header["vocab_size"] = json!(302))),
        on("nine of each", |at| resealed(at, |header, _| header["logits"] = json!({ "top_k": 9 }))),
        on("more than there are", |at| resealed(at, |header, _| header["logits"] = json!({ "top_k": 302 }))),
        on("no documents", |at| resealed(at, |header, _| header["documents"] = json!([]))),
        on("a document twice", |at| {
            resealed(at, |header, rows| {
                header["documents"] = json!([header["documents"][0], header["documents"][0]]);
                rows.extend(rows.clone());
            });
        }),
        on("a token beyond the vocabulary", |at| {
            resealed(at, |header, _| header["documents"][0]["tokens"][1] = json!(301));
        }),
        on("other tokens", |at| resealed(at, |header, _| header["documents"][0]["tokens"][1] = json!(1))),
        on("another tokenizer", |at| resealed(at, |header, _| header["tokenizer"] = json!("ab".repeat(32)))),
    ]
}

/// A row: the target, then ten pairs.
const ROW: usize = 8 + 80;

fn rows() -> Vec<Case> {
    vec![
        on("a target that is likelier than certain", |at| {
            resealed(at, |_, rows| rows[..8].copy_from_slice(&0.5f64.to_le_bytes()));
        }),
        on("a log-probability that is none", |at| {
            resealed(at, |_, rows| rows[ROW + 12..ROW + 16].copy_from_slice(&f32::NAN.to_le_bytes()));
        }),
        on("probabilities of more than 1", |at| {
            resealed(at, |_, rows| {
                for pair in 0..10 {
                    rows[12 + 8 * pair..16 + 8 * pair].copy_from_slice(&0f32.to_le_bytes());
                    rows[8 + 8 * pair..12 + 8 * pair].copy_from_slice(&(pair as u32).to_le_bytes());
                }
            });
        }),
        on("a token of no vocabulary", |at| {
            resealed(at, |_, rows| rows[8..12].copy_from_slice(&u32::MAX.to_le_bytes()));
        }),
        on("out of order", |at| {
            resealed(at, |_, rows| rows[12..16].copy_from_slice(&(-90f32).to_le_bytes()));
        }),
    ]
}
