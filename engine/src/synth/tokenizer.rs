//! A tokenizer for models that no text was ever tokenized for: one token a byte, and a name for each id that is left.
//!
//! It lets every command run that takes text. Text comes to some seventy ids, which is no even routing: speed is measured on
//! random ids.

use serde_json::{Value, json};

/// How text is split before bytes become tokens: the expression of Qwen's tokenizers, which llama.cpp knows by name.
const SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// `tokenizer.json` for a vocabulary of `vocab_size`, or of its first bytes where it is smaller than 256.
pub(super) fn tokenizer(vocab_size: usize) -> Value {
    let bytes = byte_characters();
    let named = (bytes.len()..vocab_size).map(|id| format!("<t{id}>"));
    let tokens = bytes.iter().map(char::to_string).chain(named).take(vocab_size);
    let vocab: serde_json::Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": SPLIT }, "behavior": "Isolated", "invert": false },
                byte_level,
            ],
        },
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": [],
        },
    })
}

/// The character that stands for each byte in byte-level BPE: itself where it is printable, else the next one from U+0100 on.
fn byte_characters() -> Vec<char> {
    let mut spare = '\u{100}'..;
    let character = |byte: u8| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(char::from(byte)),
        _ => spare.next(),
    };
    (0..=255u8).filter_map(character).collect()
}
