#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::OnceLock;

use assay_engine::ModelFolder;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::ServedModel;

fn model() -> &'static ServedModel {
    static MODEL: OnceLock<ServedModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/tiny-moe");
        let folder = ModelFolder::open(&dir, &|_| {}).unwrap();
        ServedModel::open(&folder, "tiny-moe".to_owned(), (4096, 4096)).unwrap()
    })
}

/// Bodies that are taken, with every field there is.
fn bodies() -> Vec<String> {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"é\"}"}});
    let completion = json!({"model": "tiny-moe", "prompt": ["a", "b"], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "seed": -3, "stop": ["x", "y"], "stream": true, "stream_options": {"include_usage": true}, "logprobs": 2,
        "echo": true, "n": 1, "user": "u", "ignore_eos": true, "cache_prompt": false, "logit_bias": {}, "suffix": null});
    let chat = json!({"model": "tiny-moe", "messages": [{"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "u\u{1f600}"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}], "tools": tools, "tool_choice": "auto", "logprobs": true,
        "top_logprobs": 3, "max_completion_tokens": 5, "response_format": {"type": "text"}, "parallel_tool_calls": true});
    vec![completion.to_string(), chat.to_string()]
}

#[test]
fn bodies_with_every_field_are_taken() {
    let bodies = bodies();
    let completion = CompletionRequest::parse(bodies[0].as_bytes(), "tiny-moe", 9).unwrap();
    assert_eq!((completion.prompts.len(), completion.max_tokens, completion.logprobs), (2, 3, Some(2)));
    assert_eq!(completion.generation.sampling.seed, (-3i64).cast_unsigned());
    let chat = ChatRequest::parse(bodies[1].as_bytes(), model(), 9).unwrap();
    assert_eq!((chat.generation.max_tokens, chat.logprobs, chat.generation.sampling.seed), (Some(5), Some(3), 9));
    let prompt = model().template.as_ref().unwrap().render(&chat.chat).unwrap();
    assert!(prompt.contains("{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}"), "{prompt}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// A body that was damaged anywhere is taken or refused; it never ends the thread that reads it.
    #[test]
    fn any_body_is_taken_or_refused(
        which in 0..2usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 1..4),
    ) {
        let mut body = bodies().swap_remove(which).into_bytes();
        for (place, kind, byte) in damage {
            let place = place.index(body.len().max(1));
            match kind {
                0 if place < body.len() => body[place] = byte,
                1 if place < body.len() => { body.remove(place); }
                2 => body.truncate(place),
                _ => body.insert(place, b"{}[]\",:-0e.ntf"[usize::from(byte) % 14]),
            }
        }
        let _completion = CompletionRequest::parse(&body, "tiny-moe", 0);
        if let Ok(chat) = ChatRequest::parse(&body, model(), 0) {
            let _prompt = model().template.as_ref().unwrap().render(&chat.chat);
        }
    }
}
