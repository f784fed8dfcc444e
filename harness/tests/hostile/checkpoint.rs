//! Weight files and their index.

use serde_json::{Value, json};

use crate::place::Place;
use crate::table::{Case, case, check_all};
use crate::weights::Weights;

const FILE: &str = "model/model.safetensors";
const INDEX: &str = "model/model.safetensors.index.json";
const CHECK: &[&str] = &["checkpoint-check", "model"];
const NORM: &str = "model.norm.weight";
const EXPERT: &str = "model.layers.1.mlp.experts.3.up_proj.weight";

#[test]
fn weight_files() {
    insta::assert_snapshot!(check_all(files().into_iter().chain(tensors()).chain(values())));
}

#[test]
fn indexes() {
    insta::assert_snapshot!(check_all(index()));
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    case(name, CHECK, FILE, damage)
}

/// Replaces the file by a header of this length, its text and some bytes.
fn header(place: &Place, length: u64, json: &str) {
    place.write(FILE, [&length.to_le_bytes()[..], json.as_bytes(), &[0; 64]].concat());
}

fn files() -> Vec<Case> {
    vec![
        on("absent", |place| place.remove(FILE)).names("model: found neither"),
        on("empty", |place| place.write(FILE, "")),
        on("a folder", |place| place.folder(FILE)),
        on("shorter than a length", |place| place.truncate(FILE, 5)),
        on("cut in the header", |place| place.truncate(FILE, 500)),
        on("cut in the last tensor", |place| place.truncate(FILE, place.read(FILE).len() - 1)),
        on("a byte too many", |place| place.write(FILE, [place.read(FILE), vec![0]].concat())),
        on("a header of 2^63 bytes", |place| header(place, 1 << 63, "{}")),
        on("a header of 2^64 - 1 bytes", |place| header(place, u64::MAX, "{}")),
        on("a header of 99,999,999 bytes in a short file", |place| header(place, 99_999_999, "{}")),
        on("a header of 0 bytes", |place| header(place, 0, "{}")),
        on("a header that is not JSON", |place| header(place, 5, "hello")),
        on("a header that is a list", |place| header(place, 2, "[]")),
        on("a header nested 100,000 deep", |place| {
            let json = format!("{{\"__metadata__\":{}", "[".repeat(100_000));
            header(place, json.len() as u64, &json);
        }),
        on("the checkpoint's folder is a file", |place| {
            std::fs::remove_dir_all(place.path("model")).unwrap();
            place.write("model", "");
        })
        .names("model"),
    ]
}

fn tensors() -> Vec<Case> {
    /// Changes the entry of [`NORM`].
    fn norm(place: &Place, edit: fn(&mut Value)) {
        Weights::edit(place, |weights| edit(&mut weights.header[NORM]));
    }
    vec![
        on("offsets past the end", |place| norm(place, |norm| norm["data_offsets"] = json!([0, 1u64 << 60]))),
        on("offsets of 2^64 - 1", |place| norm(place, |norm| norm["data_offsets"] = json!([u64::MAX, u64::MAX]))),
        on("offsets above 2^64", |place| norm(place, |norm| norm["data_offsets"] = json!([0, 1e30]))),
        on("offsets that run backwards", |place| norm(place, |norm| norm["data_offsets"] = json!([192, 0]))),
        on("overlapping tensors", |place| {
            Weights::edit(place, |weights| {
                let other = weights.header["model.layers.0.input_layernorm.weight"]["data_offsets"].clone();
                weights.header[NORM]["data_offsets"] = other;
            });
        }),
        on("misaligned: one byte late", |place| {
            norm(place, |norm| {
                let start = norm["data_offsets"][0].as_u64().unwrap() + 1;
                norm["data_offsets"] = json!([start, start + 192]);
            });
        }),
        on("a gap between tensors", |place| {
            Weights::edit(place, |weights| drop(weights.header.as_object_mut().unwrap().remove(NORM)));
        }),
        on("a shape whose product overflows", |place| {
            norm(place, |norm| norm["shape"] = json!([1u64 << 40, 1u64 << 40]));
        }),
        on("a name that steers the terminal", |place| {
            Weights::edit(place, |weights| {
                let tensors = weights.header.as_object_mut().unwrap();
                let mut tensor = tensors.remove(NORM).unwrap();
                tensor["data_offsets"] = json!([0, 1]);
                tensors.insert("\u{1b}[2J".to_owned(), tensor);
            });
        }),
        on("another dtype of the same size", |place| norm(place, |norm| norm["dtype"] = json!("I16"))),
        on("a dtype that nobody knows", |place| norm(place, |norm| norm["dtype"] = json!("Q7"))),
        on("a matrix on its side", |place| {
            Weights::edit(place, |weights| weights.header[EXPERT]["shape"] = json!([96, 80]));
        }),
        on("a shape of more dimensions", |place| norm(place, |norm| norm["shape"] = json!([1, 96]))),
        on("a missing tensor", |place| Weights::edit(place, |weights| weights.remove(EXPERT))).names(EXPERT),
        on("one tensor twice", |place| {
            let weights = Weights::read(place);
            let json = weights.header.to_string();
            let entry = weights.header[NORM].to_string();
            let json = format!("{},\"{NORM}\":{entry}}}", &json[..json.len() - 1]);
            Weights::write_raw(place, &json, &weights.data);
        }),
    ]
}

fn values() -> Vec<Case> {
    const NAN: u16 = 0x7fc0;
    const INFINITY: u16 = 0xff80;
    vec![
        on("NaN in a norm", |place| Weights::edit(place, |weights| weights.set(NORM, 7, NAN))),
        on("NaN in attention", |place| {
            Weights::edit(place, |weights| weights.set("model.layers.2.self_attn.v_proj.weight", 100, NAN));
        }),
        on("NaN in the embedding", |place| {
            Weights::edit(place, |weights| weights.set("model.embed_tokens.weight", 28_000, NAN));
        }),
        on("NaN in the head", |place| Weights::edit(place, |weights| weights.set("lm_head.weight", 0, NAN))),
        on("NaN in a router", |place| {
            Weights::edit(place, |weights| weights.set("model.layers.0.mlp.gate.weight", 959, NAN));
        }),
        on("NaN in an expert", |place| Weights::edit(place, |weights| weights.set(EXPERT, 4000, NAN))),
        on("infinity in an expert", |place| Weights::edit(place, |weights| weights.set(EXPERT, 0, INFINITY))),
        case(
            "NaN in an INT4 expert",
            &["cache", "build", "small", "--experts", "int4", "--expert-quantization", "search"],
            FILE,
            |place| {
                Weights::edit(place, |weights| weights.set(EXPERT, 4000, NAN));
            },
        ),
    ]
}

fn index() -> Vec<Case> {
    /// Two shards: the norm and the rest. `edit` may change the index.
    fn split(place: &Place, edit: fn(&mut Value)) {
        let mut rest = Weights::read(place);
        let norm = rest.take(NORM);
        let names = rest.header.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
        let mut map: serde_json::Map<String, Value> =
            names.map(|name| (name.clone(), json!("b.safetensors"))).collect();
        map.insert(NORM.to_owned(), json!("a.safetensors"));
        rest.write(place, "model/b.safetensors");
        norm.write(place, "model/a.safetensors");
        place.remove(FILE);
        let mut index = json!({ "metadata": {}, "weight_map": map });
        edit(&mut index);
        place.write_json(INDEX, &index);
    }
    /// Says that the norm is in this file.
    fn norm_in(place: &Place, file: &'static str) {
        split(place, |_| ());
        place.edit_json(INDEX, |index| index["weight_map"][NORM] = json!(file));
    }
    let on = |name, damage| case(name, CHECK, INDEX, damage);
    vec![
        on("not JSON", |place| {
            split(place, |_| ());
            place.write(INDEX, "weights");
        }),
        on("without a map", |place| split(place, |index| *index = json!({}))),
        on("with an empty map", |place| split(place, |index| index["weight_map"] = json!({}))),
        on("with a number for a file", |place| split(place, |index| index["weight_map"][NORM] = json!(7))),
        on("a shard in the folder above", |place| norm_in(place, "../a.safetensors")),
        on("a shard by its absolute path", |place| norm_in(place, "/etc/passwd")),
        on("a shard without a name", |place| norm_in(place, "")),
        on("a shard that is the folder", |place| norm_in(place, "..")),
        on("a missing shard", |place| norm_in(place, "c.safetensors")).names("model/c.safetensors"),
        on("a tensor that is not in its shard", |place| norm_in(place, "b.safetensors")).names("model/b.safetensors"),
        on("a tensor that is nowhere", |place| {
            split(place, |index| index["weight_map"]["model.extra.weight"] = json!("b.safetensors"));
        })
        .names("model.extra.weight"),
        on("one tensor in two shards", |place| {
            split(place, |_| ());
            place.write("model/c.safetensors", place.read("model/a.safetensors"));
            place.edit_json(INDEX, |index| index["weight_map"]["another"] = json!("c.safetensors"));
        })
        .names(NORM),
        on("nested 100,000 deep", |place| {
            split(place, |_| ());
            place.write(INDEX, "[".repeat(100_000));
        }),
    ]
}
