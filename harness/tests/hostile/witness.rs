//! Witness artifacts and other programs' answers.

use serde_json::{Value, json};

use crate::place::{Place, hex};
use crate::table::{Case, case, check_all, invalid};

const FILE: &str = "artifact.json";
const ANSWERS: &str = "answers.json";
const TEST: &[&str] = &["reference-test", "small", "--artifact", FILE];
const JUDGE: &[&str] = &["reference-test", "small", "--artifact", FILE, "--observed", ANSWERS];

#[test]
fn artifacts() {
    insta::assert_snapshot!(check_all(files().into_iter().chain(contents()).chain(answers())));
}

/// Writes an artifact of one prompt for the checkpoint.
pub(crate) fn artifact(place: &Place) {
    let top = json!({ "ids": [5, 6], "logprobs": [-0.5, -1.5] });
    let artifact = json!({
        "schema_version": 1,
        "model": {
            "name": "model", "weights_sha256": { "model.safetensors": hex(&place.read("model/model.safetensors")) },
            "vocab_size": 301, "experts": "bf16",
        },
        "tokenizer": { "sha256": hex(&place.read("model/tokenizer.json")) },
        "witness": {
            "runtime": "none", "package": "none", "arithmetic": "none", "file_sha256": hex(b""), "threads": 1,
        },
        "top_k": 2,
        "prompts": [{
            "name": "one", "source": "nowhere", "input_token_ids": [1, 2, 3],
            "greedy": [{ "token_id": 5, "top": top }], "prefill": [{ "position": 1, "top": top }],
        }],
    });
    place.write_json(FILE, &artifact);
}

fn edited(place: &Place, edit: impl FnOnce(&mut Value)) {
    artifact(place);
    place.edit_json(FILE, edit);
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    case(name, TEST, FILE, damage)
}

fn files() -> Vec<Case> {
    vec![
        on("absent", |_| ()),
        on("empty", |place| place.write(FILE, "")),
        on("a folder", |place| place.folder(FILE)),
        on("not JSON", |place| place.write(FILE, "tokens")),
        on("not UTF-8", |place| place.write(FILE, b"{\"schema_version\":1,\"\xff\":1}")),
        on("cut in half", |place| {
            artifact(place);
            place.truncate(FILE, place.read(FILE).len() / 2);
        }),
        on("nested 100,000 deep", |place| {
            place.write(FILE, format!("{{\"schema_version\":1,\"a\":{}", "[".repeat(100_000)))
        }),
        on("65 MiB of it", |place| place.sparse(FILE, 65 << 20)),
        invalid("another schema", TEST, "schema version 2, expected 1", |place| {
            edited(place, |artifact| artifact["schema_version"] = json!(2));
        }),
        invalid("another checkpoint", TEST, FILE, |place| {
            edited(place, |artifact| artifact["model"]["weights_sha256"]["model.safetensors"] = json!(hex(b"other")));
        }),
        invalid("another tokenizer", TEST, FILE, |place| {
            edited(place, |artifact| artifact["tokenizer"]["sha256"] = json!(hex(b"other")));
        }),
        invalid("no tokenizer beside the checkpoint", TEST, FILE, |place| {
            artifact(place);
            place.remove("model/tokenizer.json");
        }),
        invalid("experts of another precision", TEST, FILE, |place| {
            edited(place, |artifact| artifact["model"]["experts"] = json!("int4-amax"));
        }),
    ]
}

fn contents() -> Vec<Case> {
    /// Changes the prompt.
    fn prompt(place: &Place, edit: impl FnOnce(&mut Value)) {
        edited(place, |artifact| edit(&mut artifact["prompts"][0]));
    }
    vec![
        on("an unknown field", |place| edited(place, |artifact| artifact["colour"] = json!(1))),
        on("no prompts", |place| edited(place, |artifact| artifact["prompts"] = json!([]))),
        on("no tokens", |place| prompt(place, |prompt| prompt["input_token_ids"] = json!([]))),
        on("a token past the vocabulary", |place| prompt(place, |prompt| prompt["input_token_ids"][1] = json!(301))),
        on("a token of 2^40", |place| prompt(place, |prompt| prompt["input_token_ids"][1] = json!(1u64 << 40))),
        on("the prompt's name twice", |place| {
            edited(place, |artifact| {
                let first = artifact["prompts"][0].clone();
                artifact["prompts"].as_array_mut().unwrap().push(first);
            });
        }),
        on("top_k of 10^9", |place| edited(place, |artifact| artifact["top_k"] = json!(1_000_000_000))),
        on("fewer tokens than top_k", |place| edited(place, |artifact| artifact["top_k"] = json!(3))),
        on("a position past the prompt", |place| prompt(place, |prompt| prompt["prefill"][0]["position"] = json!(2))),
        on("a position of 2^64 - 1", |place| {
            prompt(place, |prompt| prompt["prefill"][0]["position"] = json!(u64::MAX))
        }),
        on("a log-probability above 0", |place| {
            prompt(place, |prompt| prompt["greedy"][0]["top"]["logprobs"][0] = json!(0.5));
        }),
        on("a log-probability of -1e400", |place| {
            artifact(place);
            place.replace(FILE, "-1.5", "-1e400");
        }),
        on("another model's vocabulary", |place| edited(place, |artifact| artifact["model"]["vocab_size"] = json!(7)))
            .names("vocab"),
        on("a prompt longer than the context", |place| {
            prompt(place, |prompt| prompt["input_token_ids"] = json!(vec![1; 300]));
        })
        .names("context"),
    ]
}

fn answers() -> Vec<Case> {
    fn write(place: &Place, edit: impl FnOnce(&mut Value)) {
        artifact(place);
        let top = json!({ "ids": [5, 6], "logprobs": [-0.5, -1.5] });
        let mut answers = json!({
            "schema_version": 1, "artifact_sha256": hex(&place.read(FILE)), "runtime": "none",
            "prompts": [{
                "name": "one", "greedy_token_ids": [5], "teacher_forced": [top], "prefill": [{ "position": 1, "top": top }],
            }],
        });
        edit(&mut answers);
        place.write_json(ANSWERS, &answers);
    }
    let on = |name, damage| case(name, JUDGE, ANSWERS, damage);
    vec![
        on("answers: absent", artifact),
        on("answers: not JSON", |place| {
            artifact(place);
            place.write(ANSWERS, "");
        }),
        on("answers: a token past the vocabulary", |place| {
            write(place, |answers| answers["prompts"][0]["teacher_forced"][0]["ids"][1] = json!(301));
        }),
        on("answers: a greedy token past the vocabulary", |place| {
            write(place, |answers| answers["prompts"][0]["greedy_token_ids"][0] = json!(301));
        }),
        invalid("answers: to another artifact", JUDGE, ANSWERS, |place| {
            write(place, |answers| answers["artifact_sha256"] = json!(hex(b"other")));
        }),
        Case { code: 3, ..on("answers: none", |place| write(place, |answers| answers["prompts"] = json!([]))) }
            .names("one"),
    ]
}
