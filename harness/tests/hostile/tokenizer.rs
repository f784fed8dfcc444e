//! A checkpoint's `tokenizer.json`, where text is read, and where it is exported.

use serde_json::{Value, json};

use crate::place::Place;
use crate::table::{Case, case, check_all};

const FILE: &str = "model/tokenizer.json";
const BENCHMARK: &[&str] = &["benchmark", "small"];
const EXPORT: &[&str] = &["export", "gguf", "model", "out.gguf"];

#[test]
fn tokenizers() {
    insta::assert_snapshot!(check_all(reading().into_iter().chain(exporting())));
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    case(name, BENCHMARK, FILE, damage)
}

fn model(place: &Place, edit: fn(&mut Value)) {
    place.edit_json(FILE, |tokenizer| edit(&mut tokenizer["model"]));
}

fn reading() -> Vec<Case> {
    vec![
        on("absent", |place| place.remove(FILE)),
        on("empty", |place| place.write(FILE, "")),
        on("a folder", |place| place.folder(FILE)),
        on("not JSON", |place| place.write(FILE, "tokens")),
        on("another JSON object", |place| place.write(FILE, "{}")),
        on("cut in half", |place| place.truncate(FILE, 120)),
        on("nested 100,000 deep", |place| place.write(FILE, "[".repeat(100_000))),
        on("no tokens", |place| model(place, |model| model["vocab"] = json!({}))),
        on("a token past the embedding", |place| model(place, |model| model["vocab"]["word"] = json!(301))),
        on("a token far past the embedding", |place| model(place, |model| model["vocab"]["word"] = json!(u32::MAX))),
        on("an unknown token that is not there", |place| model(place, |model| *model = json!({ "type": "WordLevel", "vocab": { "word": 1 }, "unk_token": "gone" }))),
        on("a kind that nobody knows", |place| model(place, |model| model["type"] = json!("Crystal"))),
        on("an expression that does not compile", |place| {
            place.edit_json(FILE, |tokenizer| {
                tokenizer["pre_tokenizer"] = json!({
                    "type": "Split", "pattern": { "Regex": "(((" }, "behavior": "Isolated", "invert": false
                });
            });
        }),
        on("a normalizer on which the crate panics", |place| {
            place.edit_json(FILE, |tokenizer| {
                let nothing = json!({ "type": "Prepend", "prepend": "" });
                tokenizer["normalizer"] = json!({ "type": "Sequence", "normalizers": [nothing, { "type": "Lowercase" }] });
            });
        }),
        on("a text that ends within an escape", |place| place.replace(FILE, "\"WordLevel\"", "\"\\ud800\"")),
        on("an expression that tries everything", |place| {
            place.edit_json(FILE, |tokenizer| {
                tokenizer["pre_tokenizer"] = json!({
                    "type": "Split", "pattern": { "Regex": "(?:(?:[a-z ]+)+)+#" }, "behavior": "Isolated", "invert": false
                });
            });
        })
        .names("packaged"),
    ]
}

fn exporting() -> Vec<Case> {
    /// A checkpoint of the one family that is exported, as far as the tokenizer is reached.
    fn exported(place: &Place, damage: fn(&Place)) {
        damage(place);
    }
    vec![
        case("a family that is not exported", EXPORT, "olmoe", |_| ()),
        case("the file to write is a folder", EXPORT, "out.gguf", |place| {
            exported(place, |place| place.folder("out.gguf"))
        }),
    ]
}
