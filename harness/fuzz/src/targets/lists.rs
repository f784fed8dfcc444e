//! Lists in JSON: references, token ids, and the heads that reports vouch for. Every input goes to every reader.

use std::path::Path;

use assay_harness::checkpoint_check::read_reference;
use assay_harness::ledger_place::read_anchors;
use assay_harness::perplexity::Documents;
use assay_harness::repository::Repository;
use serde_json::json;

use super::{Target, Verdict, as_text, promise, write};

pub(super) const TARGET: Target =
    Target { name: "lists", seeds, prepare, change: as_text, read, bytes_per_input_byte: 64, bytes: 1 << 20 };

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let prompt = json!({
        "input_token_ids": [1, 2], "argmax_per_position": [3, 4], "greedy_token_ids": [4, 5], "greedy_margin": [0.5, 0.25],
        "last_logits_f32": [0.5, -1.5], "logits_std": 1.0,
    });
    let head = json!({ "bytes": 1, "count": 1, "hash": "00".repeat(32), "writer": "0123456789abcdef" });
    let seeds = [json!({ "prompts": [prompt] }), json!({ "a": [1, 2, 3], "b": [4, 5] }), json!([head])];
    Ok(seeds.iter().map(|seed| seed.to_string().into_bytes()).collect())
}

fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder.join("reports"))?;
    std::fs::create_dir_all(folder.join("fixtures/corpus"))?;
    Ok(std::fs::write(folder.join("fixtures/corpus/manifest.toml"), "")?)
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let reference = folder.join("reference.json");
    write(&reference, input)?;
    write(&folder.join("reports/heads.json"), input)?;
    let repository = Repository::at(folder).ok_or("the fuzzer's repository is none")?;
    let mut refusals = Vec::new();
    match read_reference(folder) {
        Err(error) => refusals.push(format!("{error:#}")),
        Ok(reference) => {
            promise(reference.context_tokens() >= 2, "a prompt and an answer")?;
            for prompt in &reference.prompts {
                promise(
                    prompt.input_token_ids.len() == prompt.argmax_per_position.len(),
                    "an argmax for each position",
                )?;
            }
        }
    }
    match Documents::from_token_ids(&reference) {
        Err(error) => refusals.push(format!("{error:#}")),
        Ok(set) => {
            promise(set.documents.iter().all(|document| document.tokens.len() >= 2), "a target in each document")?
        }
    }
    refusals.extend(read_anchors(&repository).err().map(|error| format!("{error:#}")));
    Ok(if refusals.len() < 3 { Verdict::Accepted } else { Verdict::Refused(refusals.join("\n")) })
}
