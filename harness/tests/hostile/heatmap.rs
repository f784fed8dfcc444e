//! Heatmaps.

use serde_json::{Value, json};

use crate::place::{Place, hex};
use crate::table::{Case, case, check_all};

const FILE: &str = "heat.json";
const PERPLEXITY: &[&str] = &["perplexity", "small", "--token-ids", "ids.json"];
const VERIFY: &[&str] = &["heatmap", "verify", "small"];

#[test]
fn heatmaps() {
    insta::assert_snapshot!(check_all(files().into_iter().chain(contents())));
}

/// A config that names the heatmap, which is built.
fn place(place: &Place) {
    place.write("ids.json", "{\"a\": [1, 2, 3]}");
    place.replace("suites/configs/small.toml", "policy", "heatmap = \"heat.json\"\npolicy");
    place.copy_prepared("heat.json");
}

/// Changes a heatmap and gives it the checksum of what it says now.
fn resealed(built: &Place, edit: impl FnOnce(&mut Value)) {
    place(built);
    let mut heatmap: Value = built.json(FILE);
    edit(&mut heatmap);
    heatmap["sha256"] = json!("");
    // Fields in the order in which they are written.
    let fields = ["format_version", "identity", "texts", "tokens", "counts", "sha256"];
    let ordered: Vec<String> =
        fields.iter().map(|field| format!("\"{field}\":{}", in_order(field, &heatmap))).collect();
    let json = format!("{{{}}}", ordered.join(","));
    let sealed = json.replace("\"sha256\":\"\"}", &format!("\"sha256\":\"{}\"}}", hex(json.as_bytes())));
    built.write(FILE, sealed);
}

fn in_order(field: &str, heatmap: &Value) -> String {
    let object = |value: &Value, fields: &[&str]| {
        let fields: Vec<String> = fields.iter().map(|field| format!("\"{field}\":{}", value[field])).collect();
        format!("{{{}}}", fields.join(","))
    };
    match field {
        "identity" => object(&heatmap[field], &["checkpoint_sha256", "experts", "attention", "dense", "kv"]),
        "texts" => {
            let texts = heatmap[field].as_array().unwrap().iter();
            let texts: Vec<String> =
                texts.map(|text| object(text, &["name", "text_sha256", "from_byte", "to_byte"])).collect();
            format!("[{}]", texts.join(","))
        }
        _ => heatmap[field].to_string(),
    }
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    case(name, PERPLEXITY, FILE, damage)
}

fn files() -> Vec<Case> {
    vec![
        on("absent", |at| {
            place(at);
            at.remove(FILE);
        }),
        on("empty", |at| {
            place(at);
            at.write(FILE, "");
        }),
        on("a folder", |at| {
            place(at);
            at.folder(FILE);
        }),
        on("cut in half", |at| {
            place(at);
            at.truncate(FILE, at.read(FILE).len() / 2);
        }),
        on("a digit changed", |at| {
            place(at);
            at.edit_json(FILE, |heatmap| heatmap["counts"][0][0] = json!(7));
        }),
        on("65 MiB of it", |at| {
            place(at);
            at.sparse(FILE, 65 << 20);
        }),
        on("nested 100,000 deep", |at| {
            place(at);
            at.write(FILE, "[".repeat(100_000));
        }),
        on("of another precision", |at| {
            place(at);
            at.replace("suites/configs/small.toml", "kv = \"f32\"", "kv = \"bf16\"");
        }),
        on("of another checkpoint", |at| {
            place(at);
            at.write("model/tokenizer.json", at.text("model/tokenizer.json") + " ");
        }),
    ]
}

fn contents() -> Vec<Case> {
    vec![
        on("a newer version", |at| resealed(at, |heatmap| heatmap["format_version"] = json!(2))),
        on("an unknown field", |at| {
            place(at);
            at.edit_json(FILE, |heatmap| heatmap["colour"] = json!(1));
        }),
        on("a layer too few", |at| resealed(at, |heatmap| drop(heatmap["counts"].as_array_mut().unwrap().pop()))),
        on("an expert too many", |at| {
            resealed(at, |heatmap| heatmap["counts"][1].as_array_mut().unwrap().push(json!(1)));
        }),
        on("counts whose sum overflows", |at| {
            resealed(at, |heatmap| heatmap["counts"][0] = json!(vec![u64::MAX; 10]));
        }),
        case("counts whose sum overflows, verified", VERIFY, FILE, |at| {
            resealed(at, |heatmap| heatmap["counts"][0] = json!(vec![u64::MAX; 10]));
        }),
        on("counts that are not the tokens'", |at| resealed(at, |heatmap| heatmap["counts"][2][3] = json!(1_000_000))),
        on("tokens that overflow", |at| resealed(at, |heatmap| heatmap["tokens"] = json!(u64::MAX))),
        case("a text that ends before it starts", VERIFY, FILE, |at| {
            resealed(at, |heatmap| heatmap["texts"][0]["to_byte"] = json!(1));
        }),
        case("a text that prompts are cut from", VERIFY, FILE, |at| {
            resealed(at, |heatmap| heatmap["texts"][0]["from_byte"] = json!(0));
        }),
        case("a text of no book", VERIFY, FILE, |at| {
            resealed(at, |heatmap| heatmap["texts"][0]["text_sha256"] = json!(hex(b"other")));
        }),
    ]
}
