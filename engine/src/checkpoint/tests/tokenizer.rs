//! Text to ids and back, with tiny-moe's tokenizer.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::fixture;
use crate::checkpoint::tokenizer::{Tokenizer, TokenizerError, safe_cut};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open(&fixture("tiny-moe")).unwrap());

/// Two stretches of English books, some 30,000 bytes each.
static BOOKS: LazyLock<Vec<(Vec<u32>, String)>> = LazyLock::new(|| {
    let json = std::fs::read(fixture("tiny-moe").join("perplexity_token_ids.json")).unwrap();
    let documents: std::collections::BTreeMap<String, Vec<u32>> = serde_json::from_slice(&json).unwrap();
    documents.into_values().map(|ids| (ids.clone(), TOKENIZER.decode(&ids).unwrap())).collect()
});

#[test]
fn books_survive_the_round_trip() {
    for (ids, text) in BOOKS.iter() {
        assert_eq!(TOKENIZER.encode(text).unwrap(), *ids);
        assert_eq!(TOKENIZER.decode(ids).unwrap(), *text);
    }
}

#[test]
fn special_tokens_are_read_and_none_is_added() {
    assert_eq!(TOKENIZER.encode("").unwrap(), [0; 0]);
    assert_eq!(TOKENIZER.encode("<|im_start|><|im_end|>").unwrap(), [1, 2]);
    assert_eq!(TOKENIZER.decode(&[1, 2]).unwrap(), "<|im_start|><|im_end|>");
    assert_eq!((TOKENIZER.token_id("<think>"), TOKENIZER.token_id("no such")), (Some(7), None));
    assert_eq!(TOKENIZER.largest_id(), 4095);
}

#[test]
fn ids_and_vocabularies_have_bounds() {
    TOKENIZER.check_vocab_size(4096).unwrap();
    TOKENIZER.check_vocab_size(5000).unwrap();
    let path = fixture("tiny-moe").join("tokenizer.json").display().to_string();
    assert_eq!(
        TOKENIZER.check_vocab_size(4095).unwrap_err().to_string(),
        format!("{path}: the vocabulary reaches id 4095, expected ids below vocab_size, 4095, of config.json")
    );
    let expected =
        "token id 4096 at position 1 has no token, expected ids of the tokenizer's vocabulary (largest 4095)";
    assert_eq!(TOKENIZER.decode(&[5, 4096]).unwrap_err().to_string(), expected);
    let mut stream = TOKENIZER.decode_stream();
    stream.push(5).unwrap();
    assert_eq!(stream.push(4096).unwrap_err().to_string(), expected);
}

#[test]
fn bad_files_are_refused() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("tokenizer.json");
    let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot open {}", path.display())), "{error}");
    for content in ["", "{}", "[", r#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}"#] {
        std::fs::write(&path, content).unwrap();
        let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: not a tokenizer that can be used: ", path.display())), "{error}");
    }
}

#[test]
fn prefix_of_a_book_is_that_of_its_encoding() {
    let text: String = BOOKS.iter().map(|(_, text)| text.as_str()).collect();
    let all = TOKENIZER.encode(&text).unwrap();
    for tokens in [0, 1, 2, 3, 100, 1023, 1024, 1025, 7777, all.len() - 1, all.len()] {
        assert_eq!(TOKENIZER.encode_prefix(&text, tokens).unwrap(), all[..tokens], "{tokens} tokens");
    }
}

/// Without the longer cut that confirms it, the first would give two tokens of which the second is half of the true one.
#[test]
fn tokens_of_several_words_are_noticed() {
    let folder = tempfile::TempDir::new().unwrap();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, " ": 3, "ab": 4, "ab ": 5, "ab c": 6},
            "merges": [["a", "b"], ["ab", " "], ["ab ", "c"]]
        }
    });
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    let text = "ab c".repeat(1000);
    assert!(tokenizer.encode(&text).unwrap() == [6; 1000]);
    assert_eq!(safe_cut(&text, 5), 6);
    assert_eq!(tokenizer.encode(&text[..6]).unwrap(), [6, 4]);
    assert_eq!(tokenizer.encode_prefix_from(&text, 2, 5).unwrap(), [6, 6]);
}

#[test]
fn a_text_that_is_too_short_says_how_long_it_is() {
    let (ids, text) = &BOOKS[0];
    let needed = ids.len() + 1;
    let error = TOKENIZER.encode_prefix(text, needed).unwrap_err();
    assert_eq!(error.to_string(), format!("the text has {} tokens, expected at least {needed}", ids.len()));
    let error = TOKENIZER.encode_prefix(text, usize::MAX).unwrap_err();
    assert!(matches!(error, TokenizerError::TooShort { found, .. } if found == ids.len()), "{error}");
    assert!(matches!(TOKENIZER.encode_prefix("", 1).unwrap_err(), TokenizerError::TooShort { found: 0, needed: 1 }));
}

/// Pieces that decide where a text is split, in any order and number.
fn awkward_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-z]{1,6} [a-z]{1,3}",
        2 => "[ \n\r\t]{1,9}",
        2 => prop_oneof![Just("'s"), Just("'ll "), Just("<|im_end|>"), Just("<think"), Just("...\n\n"), Just("ﬁ é ñ"), Just("漢字 かな"), Just("क्षि ")]
            .prop_map(str::to_owned),
        1 => "[0-9]{1,5}",
        1 => "\\PC{0,4}",
        1 => (1usize..60).prop_map(|count| " ".repeat(count)),
        1 => (1usize..60).prop_map(|count| "\n ".repeat(count)),
        1 => (1usize..60).prop_map(|count| "ab".repeat(count)),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// What the prefix rests on: the ids in front of a safe cut do not depend on what follows it.
    #[test]
    fn a_safe_cut_changes_no_token(text in awkward_text(), place in any::<prop::sample::Index>()) {
        let cut = safe_cut(&text, place.index(text.len() + 1));
        let ids = TOKENIZER.encode(&text[..cut]).unwrap();
        let all = TOKENIZER.encode(&text).unwrap();
        prop_assert!(all.starts_with(&ids), "cut at {} of {}", cut, text.len());
    }

    #[test]
    fn prefix_of_any_text_is_that_of_its_encoding(text in awkward_text(), fraction in 0.0f64..=1.0, first in 0usize..400) {
        let all = TOKENIZER.encode(&text).unwrap();
        let tokens = (all.len() as f64 * fraction) as usize;
        prop_assert_eq!(TOKENIZER.encode_prefix(&text, tokens).unwrap(), &all[..tokens]);
        prop_assert_eq!(TOKENIZER.encode_prefix_from(&text, tokens, first).unwrap(), &all[..tokens]);
    }

    /// The pieces of a stream are the text, whatever the ids: halves of characters and invalid bytes too.
    #[test]
    fn stream_gives_the_text_of_the_whole(ids in prop::collection::vec(prop_oneof![0u32..4096, 0u32..300], 0..60)) {
        let mut stream = TOKENIZER.decode_stream();
        let mut text = String::new();
        for &id in &ids {
            text.push_str(&stream.push(id).unwrap());
        }
        text.push_str(&stream.finish().unwrap());
        prop_assert_eq!(text, TOKENIZER.decode(&ids).unwrap());
    }

    #[test]
    fn stream_gives_every_character_once_it_is_complete(text in "\\PC{0,40}") {
        let mut stream = TOKENIZER.decode_stream();
        let mut found = String::new();
        for id in TOKENIZER.encode(&text).unwrap() {
            found.push_str(&stream.push(id).unwrap());
        }
        // A replacement character that the text itself ends with is held back.
        prop_assert_eq!(&found, text.trim_end_matches('\u{fffd}'));
        prop_assert_eq!(found + &stream.finish().unwrap(), text);
    }
}

/// A tokenizer of two words with this normalizer, as JSON text.
fn with_normalizer(normalizer: &str) -> Result<Tokenizer, TokenizerError> {
    let folder = tempfile::tempdir().unwrap();
    let model = r#"{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}"#;
    let json = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{normalizer},
            "pre_tokenizer":null,"post_processor":null,"decoder":null,"model":{model}}}"#
    );
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    Tokenizer::open(folder.path())
}

#[test]
fn what_the_crate_panics_on_is_an_error() {
    let nothing = r#"{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":""},{"type":"Lowercase"}]}"#;
    let tokenizer = with_normalizer(nothing).unwrap();
    assert_eq!(tokenizer.encode("").unwrap(), [0; 0]);
    let error = tokenizer.encode("b").unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: cannot encode: the crate tokenizers gave up"), "{error}");
    // Found before the crate sees it.
    let error = with_normalizer(r#"{"type":"Prepend","prepend":"\ud800"}"#).unwrap_err().to_string();
    assert!(error.contains("unexpected end of hex escape"), "{error}");
    let error = with_normalizer(r#"{"type":"Prepend","prepend":"x","prepend":"y"}"#).unwrap_err().to_string();
    assert!(error.contains("\"prepend\" stands twice"), "{error}");
}
