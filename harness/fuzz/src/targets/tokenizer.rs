//! `tokenizer.json`, read for text and for export.

use std::path::Path;

use assay_engine::checkpoint::Checkpoint;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_engine::expert_cache::Encoding;
use assay_engine::gguf::{ExportOptions, ExportSource, GgufType, export};
use assay_engine::model::load_spec;
use serde_json::{Value, json};

use super::{Target, Verdict, as_text, promise, tiny, write};

pub(super) const TARGET: Target = Target {
    name: "tokenizer",
    seeds,
    prepare: tiny::write,
    change: as_text,
    read,
    // The crate `tokenizers` builds tables and automata of the vocabulary.
    bytes_per_input_byte: 4096,
    bytes: 64 << 20,
};

const TEXTS: &[&str] = &["", "a b", "word word", "ab  \n\tb\u{1f600}é\0 [MASK]</s>"];
/// What `fixtures/models/tiny-moe` and Qwen split by.
const SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let added = json!([{
        "id": 9, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
    }]);
    let whole = |model: Value, pre: Value, decoder: Value, normalizer: Value| {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": null, "decoder": decoder, "model": model,
        })
    };
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let split = json!({ "type": "Split", "pattern": { "Regex": SPLIT }, "behavior": "Isolated", "invert": false });
    let vocab = json!({ "a": 0, "b": 1, "Ġ": 2, "ab": 3, "w": 4, "o": 5, "r": 6, "d": 7, "wo": 8 });
    let bpe = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [["a", "b"], "w o"],
    });
    let unigram = json!({
        "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -1.5], ["a", -2.0], ["▁word", -3.0]], "byte_fallback": false
    });
    let word_piece = json!({
        "type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": { "a": 0, "##b": 1, "word": 2 },
    });
    let word_level = json!({ "type": "WordLevel", "vocab": { "a": 0, "word": 1 }, "unk_token": "a" });
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let tokenizers = [
        whole(
            bpe,
            json!({ "type": "Sequence", "pretokenizers": [split, byte_level] }),
            json!({ "type": "ByteLevel" }),
            json!({ "type": "NFC" }),
        ),
        whole(
            unigram,
            metaspace.clone(),
            metaspace,
            json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }, { "type": "Lowercase" },
        ] }),
        ),
        whole(
            word_piece,
            json!({ "type": "BertPreTokenizer" }),
            json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
            json!({
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true
            }),
        ),
        whole(word_level, json!({ "type": "Whitespace" }), Value::Null, Value::Null),
    ];
    Ok(tokenizers.iter().map(|tokenizer| tokenizer.to_string().into_bytes()).collect())
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    write(&folder.join("tokenizer.json"), input)?;
    exported(folder)?;
    let tokenizer = match Tokenizer::open(folder) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    promise(
        tokenizer.check_vocab_size(tokenizer.largest_id() as usize + 1).is_ok(),
        "a largest id that is the largest",
    )?;
    let mut last = Verdict::Accepted;
    for text in TEXTS {
        let ids = match tokenizer.encode(text) {
            Ok(ids) => ids,
            Err(error) => {
                last = Verdict::Refused(error.to_string());
                continue;
            }
        };
        promise(ids.iter().all(|&id| id <= tokenizer.largest_id()), "ids up to the largest")?;
        let whole = tokenizer.decode(&ids);
        let mut stream = tokenizer.decode_stream();
        let pieces: Result<String, _> = ids.iter().map(|&id| stream.push(id)).collect();
        let pieces = pieces.and_then(|pieces| Ok(pieces + &stream.finish()?));
        match (whole, pieces) {
            (Ok(_), Ok(_)) => {}
            (Err(error), _) | (_, Err(error)) => last = Verdict::Refused(error.to_string()),
        }
        match tokenizer.encode_prefix(text, ids.len()) {
            Ok(prefix) => promise(prefix == ids, "a prefix of all is all")?,
            Err(error) => last = Verdict::Refused(error.to_string()),
        }
    }
    Ok(last)
}

/// The checkpoint with this tokenizer as GGUF.
fn exported(folder: &Path) -> Result<(), String> {
    let out = folder.join("out.gguf");
    let broken = |error: String| format!("the checkpoint itself: {error}");
    let checkpoint = Checkpoint::open(folder).map_err(|error| broken(error.to_string()))?;
    let spec =
        load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).map_err(|error| broken(error.to_string()))?;
    let (matrices, expert_matrices) = (GgufType::Bf16, GgufType::Bf16);
    let options = ExportOptions { matrices, expert_matrices, experts: Encoding::Bf16 };
    let source = ExportSource { checkpoint: &checkpoint, spec: &spec, experts: None };
    match export(source, options, "tiny", &out, &mut |_, _| true) {
        Err(_) => Ok(()),
        Ok(report) => {
            let length = std::fs::metadata(&out).map_err(|error| error.to_string())?.len();
            promise(length == report.bytes, "a file as long as it says")
        }
    }
}
