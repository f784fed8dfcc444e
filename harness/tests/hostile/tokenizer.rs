//! A checkpoint's `tokenizer.json`, where text is read, and where it is exported.

use serde_json::{Value, json};

use crate::place::Place;
use crate::table::{Case, case, check_all};

const FILE: &str = "model/tokenizer.json";
const BENCHMARK: &[&str] = &["benchmark", "small"];
const EXPORT: &[&str] = &["export", "gguf", "qwen", "out.gguf"];

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

/// Everything that is exported beside the weights. The checkpoint is of the family that can be.
fn exporting() -> Vec<Case> {
    const TOKENIZER: &str = "qwen/tokenizer.json";
    const CONFIG: &str = "qwen/tokenizer_config.json";
    /// Links the checkpoint, so that something of it can be replaced.
    fn qwen(place: &Place) {
        for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            place.link(&format!("fixtures/models/tiny-moe/{file}"), &format!("qwen/{file}"));
        }
    }
    fn edited(place: &Place, name: &str, edit: fn(&mut Value)) {
        qwen(place);
        place.edit_json(name, edit);
    }
    fn on(name: &'static str, file: &'static str, damage: fn(&Place)) -> Case {
        case(name, EXPORT, file, damage)
    }
    vec![
        case("exported: another family", &["export", "gguf", "model", "out.gguf"], "olmoe", |_| ()),
        on("exported: the tokenizer is not JSON", TOKENIZER, |place| {
            qwen(place);
            place.write(TOKENIZER, "tokens");
        }),
        on("exported: a token past the vocabulary", TOKENIZER, |place| {
            edited(place, TOKENIZER, |tokenizer| tokenizer["model"]["vocab"]["new"] = json!(u32::MAX));
        }),
        on("exported: no merges", TOKENIZER, |place| {
            edited(place, TOKENIZER, |tokenizer| drop(tokenizer["model"].as_object_mut().unwrap().remove("merges")));
        }),
        on("exported: another way of splitting", "splitting", |place| {
            edited(place, TOKENIZER, |tokenizer| tokenizer["pre_tokenizer"] = json!({ "type": "Whitespace" }));
        }),
        on("exported: the tokenizer's configuration is not JSON", CONFIG, |place| {
            qwen(place);
            place.write(CONFIG, "{\"chat_template\": \"{{ messages");
        }),
        on("exported: a number for a token", CONFIG, |place| {
            edited(place, CONFIG, |config| config["eos_token"] = json!(7))
        }),
        on("exported: 17 MiB of chat template", CONFIG, |place| {
            qwen(place);
            place.sparse(CONFIG, 17 << 20);
        }),
        on("exported: onto a folder", "out.gguf", |place| {
            qwen(place);
            place.folder("out.gguf");
        }),
        on("exported: onto a full disk", "out.gguf", qwen).limits("trap '' XFSZ; ulimit -f 200"),
    ]
}
