#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use assay_engine::checkpoint::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::chat::Chats;
use super::*;
use crate::tools::{Grammar, Parser, ToolSchemas};
use crate::worker::{Cancel, End, Event};

fn tokenizer() -> Arc<Tokenizer> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/tiny-moe");
    Arc::new(Tokenizer::open(&dir).unwrap())
}

fn choice(tokenizer: &Arc<Tokenizer>, stops: &[&str], parser: Option<Parser>) -> Choice {
    Choice::new(options(tokenizer, stops, parser))
}

fn options(tokenizer: &Arc<Tokenizer>, stops: &[&str], parser: Option<Parser>) -> ChoiceOptions {
    ChoiceOptions {
        tokenizer: tokenizer.clone(),
        stops: stops.iter().map(|&stop| stop.to_owned()).collect(),
        parser,
        prompt: vec![1, 2, 3],
        beginning: Beginning::Opening(String::new()),
        logprobs: false,
        cancel: Cancel::default(),
    }
}

fn chats() -> Chats {
    let head = Head { id: "chatcmpl-1".to_owned(), created: 7, model: "m".to_owned() };
    Chats { head, logprobs: false, calls: 0, opened: false }
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<Event> {
    let ids = tokenizer.encode(text).unwrap();
    ids.into_iter().map(|id| Event::Token { id, logprobs: None }).collect()
}

const CALLS: &str = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Köln 世界\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

/// The chunks of a stream, and the deltas joined.
fn run(written: &str, end: End, stops: &[&str], tools: bool) -> (Vec<Value>, Delta, Finish) {
    let tokenizer = tokenizer();
    let parser = tools.then(|| Parser::new(Grammar::QwenJson, ToolSchemas::default()));
    let mut choice = choice(&tokenizer, stops, parser);
    let (mut chats, mut chunks) = (chats(), Vec::new());
    let mut whole = Delta::default();
    let mut finish = None;
    let mut events = vec![Event::Prompt { cached: 0, logprobs: Vec::new() }];
    events.extend(tokens(&tokenizer, written));
    events.push(Event::End(end));
    for event in events {
        let (delta, reason) = match choice.take(event).unwrap() {
            None => continue,
            Some(Step::More(delta)) => (delta, None),
            Some(Step::Done(delta, reason)) => (delta, Some(reason)),
        };
        finish = finish.or(reason);
        let copy =
            Delta { text: delta.text.clone(), reasoning: String::new(), calls: delta.calls.clone(), steps: Vec::new() };
        whole.join(copy);
        if !delta.is_empty() || reason.is_some() {
            chunks.push(serde_json::from_str(&chats.chunk(0, delta, reason, &tokenizer).unwrap()).unwrap());
        }
    }
    (chunks, whole, finish.unwrap())
}

#[test]
fn calls_are_streamed_whole_with_ids_of_their_own() {
    let (chunks, whole, finish) = run(CALLS, End::Token(2), &[], true);
    assert_eq!(finish, Finish::ToolCalls);
    assert_eq!(whole.text, "I look.");
    let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    let calls: Vec<&Value> = deltas.flat_map(|delta| delta["tool_calls"].as_array().into_iter().flatten()).collect();
    assert_eq!(calls.len(), 2);
    assert_eq!((&calls[0]["index"], &calls[1]["index"]), (&json!(0), &json!(1)));
    assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": "{\"city\": \"Köln 世界\"}"}));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    // The whole answer says the same.
    let tokenizer = tokenizer();
    let body: Value =
        serde_json::from_str(&chats().whole(whole, finish, Usage::default(), &tokenizer).unwrap()).unwrap();
    let message = &body["choices"][0]["message"];
    assert_eq!((&message["content"], message["tool_calls"].as_array().unwrap().len()), (&json!("I look."), 2));
    assert!(message["tool_calls"][0].get("index").is_none());
}

#[test]
fn an_answer_of_calls_alone_has_no_content() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let (_, whole, finish) = run(call, End::Token(2), &[], true);
    let body: Value =
        serde_json::from_str(&chats().whole(whole, finish, Usage::default(), &tokenizer()).unwrap()).unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], Value::Null);
}

#[test]
fn a_call_that_was_cut_off_stays_visible() {
    let cut = &CALLS[..CALLS.len() - 5];
    let (_, whole, finish) = run(cut, End::Length, &[], true);
    assert_eq!((finish, whole.calls.len()), (Finish::Length, 1));
    assert!(whole.text.contains("{\"name\": \"g\""), "{}", whole.text);
    // Without tools nothing is looked for.
    let (_, whole, finish) = run(CALLS, End::Token(2), &[], false);
    assert_eq!((whole.text.as_str(), finish), (CALLS, Finish::Stop));
}

#[test]
fn a_stop_text_may_begin_and_end_within_tokens() {
    let check = |written: &str, stops: &[&str], expected: &str, reason: Finish| {
        let (_, whole, finish) = run(written, End::Length, stops, false);
        assert_eq!((whole.text.as_str(), finish), (expected, reason), "{written:?} {stops:?}");
    };
    check("one two three", &["wo t"], "one t", Finish::Stop);
    check("one two three", &["thr", "wo"], "one t", Finish::Stop);
    check("one two three", &["xyz"], "one two three", Finish::Length);
    check("one two thr", &["three"], "one two thr", Finish::Length);
    check("Köln 世界!", &["界"], "Köln 世", Finish::Stop);
}

#[test]
fn a_call_that_was_begun_for_the_model_is_whole() {
    let tokenizer = tokenizer();
    let parser = Parser::new(Grammar::QwenJson, ToolSchemas::default());
    let opening = Grammar::QwenJson.opening("", Some("f"));
    let mut choice =
        Choice::new(ChoiceOptions { beginning: Beginning::Opening(opening), ..options(&tokenizer, &[], Some(parser)) });
    let mut events = vec![Event::Prompt { cached: 0, logprobs: Vec::new() }];
    events.extend(tokens(&tokenizer, " {\"city\": \"Köln\"}}\n</tool_call>"));
    events.push(Event::End(End::Token(2)));
    let (mut whole, mut finish) = (Delta::default(), None);
    for event in events {
        match choice.take(event).unwrap().unwrap() {
            Step::More(delta) => whole.join(delta),
            Step::Done(delta, reason) => {
                whole.join(delta);
                finish = Some(reason);
            }
        }
    }
    assert_eq!((whole.text.as_str(), finish), ("", Some(Finish::ToolCalls)));
    assert_eq!((whole.calls[0].name.as_str(), whole.calls[0].arguments.as_str()), ("f", "{\"city\": \"Köln\"}"));
}
