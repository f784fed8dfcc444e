//! Identities are stable and say where they differ.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use assay_ledgers::*;
use common::*;

/// A changed answer here means that every identity in every ledger gets another hash.
#[test]
fn known_answer() {
    let text = String::from_utf8(assay_ledgers::hash::canonical(&identity()).unwrap()).unwrap();
    insta::assert_snapshot!(text);
    insta::assert_snapshot!(identity().hash().unwrap().to_string());
    assert_eq!(identity().hash().unwrap(), Sha256::of(text.as_bytes()));
}

#[test]
fn the_order_of_keys_and_white_space_do_not_matter() {
    let value = serde_json::to_value(identity()).unwrap();
    fn reversed(value: &serde_json::Value) -> String {
        match value {
            serde_json::Value::Object(map) => {
                let fields: Vec<String> =
                    map.iter().rev().map(|(key, value)| format!("{key:?} :\n {}", reversed(value))).collect();
                format!("{{ {} }}", fields.join(" , "))
            }
            other => other.to_string(),
        }
    }
    let text = reversed(&value);
    assert_ne!(text, value.to_string());
    let read: Identity = serde_json::from_str(&text).unwrap();
    assert_eq!(read.hash().unwrap(), identity().hash().unwrap());
}

#[test]
fn unknown_fields_are_refused() {
    let mut value = serde_json::to_value(identity()).unwrap();
    value["memory"]["swap_bytes"] = 1.into();
    let error = serde_json::from_value::<Identity>(value).unwrap_err();
    assert!(error.to_string().contains("unknown field `swap_bytes`"), "{error}");
}

#[test]
fn differences_are_named_field_by_field() {
    let (a, mut b) = (identity(), identity());
    assert_eq!(diff(&a, &b).unwrap(), []);
    b.precision.experts = NumberFormat::Bf16;
    b.precision.expert_quantization = None;
    b.checkpoint.shards.insert("model-2.safetensors".to_owned(), Sha256::of(b"more"));
    b.memory.vram_bytes += 1;
    let differences = diff(&a, &b).unwrap();
    let paths: Vec<&str> = differences.iter().map(|difference| difference.path.as_str()).collect();
    let expected = [
        "checkpoint.shards[\"model-2.safetensors\"]",
        "memory.vram_bytes",
        "precision.expert_quantization",
        "precision.experts",
    ];
    assert_eq!(paths, expected);
    assert_eq!(differences[0].a, None);
    assert_eq!(differences[2].a, Some("amax".into()));
    assert_eq!(differences[2].b, None);
    assert_ne!(a.hash().unwrap(), b.hash().unwrap());
}

#[test]
fn neighbouring_integers_never_share_a_hash() {
    let mut large = identity();
    large.memory.vram_bytes = 1 << 53;
    assert!(large.hash().is_ok());
    large.memory.vram_bytes += 1;
    assert!(matches!(large.hash(), Err(Error::NotCanonical(_))));
    let seeded = |seed| {
        let mut identity = identity();
        identity.sampling = Sampling::Random(RandomSampling { temperature: 0.7, top_k: None, top_p: None, seed });
        identity.hash().unwrap()
    };
    assert_ne!(seeded(u64::MAX), seeded(u64::MAX - 1));
}

#[test]
fn schemas_are_current() {
    let rewrite = std::env::var_os("ASSAY_UPDATE_SCHEMAS").is_some();
    for (name, generate) in SCHEMAS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(name);
        let current = schema_text(generate).unwrap();
        if rewrite {
            std::fs::write(&path, &current).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == current, "{name} is stale: ASSAY_UPDATE_SCHEMAS=1 cargo test -p assay-ledgers writes it");
    }
}
