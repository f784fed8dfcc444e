//! Bodies of completions and chats, checked, rendered and tokenized as the server does it. Every input goes to both endpoints.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use assay_engine::ModelFolder;
use assay_server::{ApiError, Endpoint, ServedModel, prompts};
use serde_json::json;

use super::{Target, Verdict, as_text, nothing, promise};
use crate::run::root;

pub(super) const TARGET: Target = Target {
    name: "requests",
    seeds,
    prepare: nothing,
    change: as_text,
    read,
    // A message is rendered by a template that may repeat it; a tool's schema becomes values, text and tokens.
    bytes_per_input_byte: 2048,
    bytes: 32 << 20,
};

/// Longest sequence of the model that is asked, and its longest prompt.
const LIMITS: (usize, usize) = (4096, 3000);

fn model() -> Result<Arc<ServedModel>, String> {
    static MODEL: OnceLock<Result<Arc<ServedModel>, String>> = OnceLock::new();
    let open = || {
        let folder = ModelFolder::open(&root().join("fixtures/models/tiny-moe"), &|_| {}).map_err(|e| e.to_string())?;
        ServedModel::open(&folder, "tiny-moe".to_owned(), LIMITS).map(Arc::new).map_err(|error| error.to_string())
    };
    MODEL.get_or_init(open).clone()
}

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    model().map_err(anyhow::Error::msg)?;
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
        "type": "object", "properties": {"place": {"type": "string"}, "times": {"type": "integer"}}, "required": ["place"]}}});
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"place\": \"\\u00e9\"}"}});
    let seeds = [
        json!({"model": "tiny-moe", "prompt": "It was the best of"}),
        json!({"model": "tiny-moe", "prompt": [5, 6, 7], "max_tokens": 0, "echo": true, "logprobs": 1}),
        json!({"model": "tiny-moe", "prompt": [[5, 6], [7]], "stream": true, "stream_options": {"include_usage": true}}),
        json!({"model": "tiny-moe", "prompt": ["a", "b"], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
            "seed": -3, "stop": ["x", "y"], "n": 1, "user": "u", "ignore_eos": true, "cache_prompt": false, "logit_bias": {}}),
        json!({"model": "tiny-moe", "messages": [{"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": "u\u{1f600}"}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"}], "tools": [tool], "tool_choice": "required", "logprobs": true,
            "top_logprobs": 3, "max_completion_tokens": 5, "response_format": {"type": "text"}, "parallel_tool_calls": true}),
        json!({"model": "tiny-moe", "messages": [{"role": "user", "content": "u"}], "tools": [tool],
            "tool_choice": {"type": "function", "function": {"name": "look"}}, "stream": true, "metadata": {"a": "b"}}),
    ];
    Ok(seeds.iter().map(|seed| seed.to_string().into_bytes()).collect())
}

fn read(_: &Path, input: &[u8]) -> Result<Verdict, String> {
    let model = model()?;
    let mut refusals = Vec::new();
    for endpoint in [Endpoint::Completions, Endpoint::Chat] {
        match prompts(model.clone(), endpoint, input) {
            Ok(prompts) => {
                promise(!prompts.is_empty(), "a prompt")?;
                let fits = |prompt: &Vec<u32>| (1..=LIMITS.1).contains(&prompt.len());
                promise(prompts.iter().all(fits), "prompts that the model can take")?;
                let known = |id: &u32| (*id as usize) < model.vocab_size;
                promise(prompts.iter().flatten().all(known), "tokens that the model has")?;
            }
            Err(error) => refusals.push(refusal(&error)?),
        }
    }
    Ok(if refusals.len() < 2 { Verdict::Accepted } else { Verdict::Refused(refusals.join("\n")) })
}

/// What a client reads; a request is never the server's failure.
fn refusal(error: &ApiError) -> Result<String, String> {
    promise(!error.message.is_empty(), "a message")?;
    promise(error.kind == "invalid_request_error" && error.status.is_client_error(), "the client's fault")?;
    Ok(error.message.clone())
}
