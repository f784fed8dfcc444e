//! Witness artifacts, and answers to one.

use std::path::Path;

use assay_witness::{Artifact, Binding, Gate, Observed, ObservedPrompt, WitnessError, judge};
use serde_json::{Value, json};

use super::{Target, Verdict, as_text, promise, write};
use crate::run::root;

pub(super) const TARGET: Target =
    Target { name: "witness", seeds, prepare, change: as_text, read, bytes_per_input_byte: 64, bytes: 1 << 20 };

/// What only answers have.
const ANSWERS: &[u8] = b"artifact_sha256";

fn artifact() -> Value {
    let top = json!({ "ids": [5, 6], "logprobs": [-0.5, -1.5] });
    let hash = "ab".repeat(32);
    json!({
        "schema_version": 1,
        "model": { "name": "tiny", "weights_sha256": { "model.safetensors": hash }, "vocab_size": 16, "experts": "bf16" },
        "tokenizer": { "sha256": hash },
        "witness": { "runtime": "a", "package": "b", "arithmetic": "c", "file_sha256": hash, "threads": 1 },
        "top_k": 2,
        "prompts": [{
            "name": "one", "source": "nowhere", "input_token_ids": [1, 2, 3], "greedy": [{ "token_id": 5, "top": top }],
            "prefill": [{ "position": 0, "top": top }, { "position": 1, "top": top }],
        }],
    })
}

fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join("whole.json"), artifact().to_string())?;
    for gate in ["same", "int4"] {
        let name = format!("{gate}.toml");
        std::fs::copy(root().join("suites/gates").join(&name), folder.join(name))?;
    }
    Ok(())
}

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    prepare(folder.path())?;
    let (artifact, binding) = Artifact::read(&folder.path().join("whole.json"))?;
    Ok(vec![serde_json::to_vec(&artifact)?, serde_json::to_vec(&echo(&artifact, &binding))?])
}

/// The artifact's own answers.
fn echo(artifact: &Artifact, binding: &Binding) -> Observed {
    let prompts = artifact.prompts.iter().map(|prompt| ObservedPrompt {
        name: prompt.name.clone(),
        greedy_token_ids: prompt.greedy.iter().map(|step| step.token_id).collect(),
        teacher_forced: prompt.greedy.iter().map(|step| step.top.clone()).collect(),
        prefill: prompt.prefill.clone(),
    });
    Observed {
        schema_version: 1,
        artifact_sha256: binding.sha256.clone(),
        runtime: "echo".to_owned(),
        prompts: prompts.collect(),
    }
}

fn judged(folder: &Path, artifact: &Artifact, observed: &Observed) -> Result<(), WitnessError> {
    for gate in ["same.toml", "int4.toml"] {
        judge(artifact, observed, &Gate::read(&folder.join(gate))?);
    }
    Ok(())
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let path = folder.join("input.json");
    write(&path, input)?;
    let broken = |error: WitnessError| error.to_string();
    if input.windows(ANSWERS.len()).any(|window| window == ANSWERS) {
        let (artifact, binding) = Artifact::read(&folder.join("whole.json")).map_err(broken)?;
        let observed = match Observed::read(&path, &artifact, &binding) {
            Ok(observed) => observed,
            Err(error) => return Ok(Verdict::Refused(error.to_string())),
        };
        judged(folder, &artifact, &observed).map_err(broken)?;
        return Ok(Verdict::Accepted);
    }
    let (artifact, binding) = match Artifact::read(&path) {
        Ok(read) => read,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    judged(folder, &artifact, &echo(&artifact, &binding)).map_err(broken)?;
    promise(artifact.context_tokens() > 0, "at least one token")?;
    write(&path, serde_json::to_string(&artifact).map_err(|error| error.to_string())?.as_bytes())?;
    promise(Artifact::read(&path).is_ok_and(|(again, _)| again == artifact), "an artifact that reads back as itself")?;
    Ok(Verdict::Accepted)
}
