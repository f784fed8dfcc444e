//! The server over the fixture model, through HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::{Duration, Instant};

use assay_server::ApiKeys;
use common::client::{Connection, Request};
use common::{Server, engine, options, served};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn completion(more: Value) -> Value {
    merged(json!({"model": "tiny-moe", "prompt": "It was the best of", "max_tokens": 12}), more)
}

fn chat(more: Value) -> Value {
    merged(json!({"model": "tiny-moe", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}), more)
}

fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

#[test]
fn a_completion_is_what_the_engine_says() {
    let server = Server::start();
    let (mut engine, model) = (engine(), served());
    let prompt = model.tokenizer.encode("It was the best of").unwrap();
    let mut tokens = vec![engine.prefill(&prompt).unwrap()];
    while tokens.len() < 12 {
        tokens.push(engine.decode(tokens[tokens.len() - 1]).unwrap());
    }
    let expected = model.tokenizer.decode(&tokens).unwrap();

    let answer = server.post(COMPLETIONS, &completion(json!({})));
    let body = answer.json();
    assert_eq!((answer.status, body["choices"][0]["text"].as_str()), (200, Some(expected.as_str())));
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": 12, "total_tokens": prompt.len() + 12,
        "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!(body["usage"], usage);
    // Token ids, a list of prompts, a stream: the same text.
    assert_eq!(server.post(COMPLETIONS, &completion(json!({"prompt": prompt}))).text(), expected);
    let both = server.post(COMPLETIONS, &completion(json!({"prompt": [prompt, prompt]}))).json();
    assert_eq!((&both["choices"][0]["text"], &both["choices"][1]["text"]), (&json!(expected), &json!(expected)));
    assert_eq!(both["choices"][1]["index"], 1);
    let streamed =
        server.post(COMPLETIONS, &completion(json!({"stream": true, "stream_options": {"include_usage": true}})));
    let (events, done) = streamed.events();
    assert!(done && streamed.text() == expected, "{}", streamed.body);
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 12);
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    assert!(events[..events.len() - 1].iter().all(|event| event.get("usage").is_none()));
    // Greedy ignores the seed, and so do top_k = 1 and temperature 0.
    assert_eq!(
        server.post(COMPLETIONS, &completion(json!({"seed": 5, "temperature": 1.5, "top_k": 1}))).text(),
        expected
    );
}

#[test]
fn sampling_is_a_function_of_the_seed() {
    let server = Server::start();
    let sample_with = |seed: i64, logprobs: Option<usize>| {
        let how =
            json!({"temperature": 1.0, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": seed, "logprobs": logprobs});
        server.post(COMPLETIONS, &completion(how)).text()
    };
    let sample = |seed: i64| sample_with(seed, None);
    // Whether anybody asks about the logits changes nothing.
    assert_eq!(sample(1), sample_with(1, Some(2)));
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
    assert_eq!(sample(-1), sample(-1));
    // Without a seed, each time another.
    let free = || server.post(COMPLETIONS, &completion(json!({"temperature": 1.5}))).text();
    assert_ne!(free(), free());
}

#[test]
fn stop_texts_end_an_answer_and_are_no_part_of_it() {
    let server = Server::start();
    let whole = server.post(COMPLETIONS, &completion(json!({}))).text();
    // From the middle of one token to the middle of a later one.
    let chars: Vec<char> = whole.chars().collect();
    let stop: String = chars[5..12].iter().collect();
    let place = whole.find(&stop).unwrap();
    for stream in [false, true] {
        let answer = server.post(COMPLETIONS, &completion(json!({"stop": ["never", stop], "stream": stream})));
        assert_eq!(answer.text(), whole[..place], "{stop:?}");
        let events = if stream { answer.events().0 } else { vec![answer.json()] };
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
    // Its state is kept as that of any other answer.
    let again = server.post(COMPLETIONS, &completion(json!({"stop": stop}))).json();
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{again}");
}

#[test]
fn log_probabilities_and_echo() {
    let server = Server::start();
    let prompt = [100u32, 200, 300];
    let body = server
        .post(COMPLETIONS, &completion(json!({"prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 3})))
        .json();
    let logprobs = &body["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    assert_eq!(
        [list("tokens").len(), list("token_logprobs").len(), list("top_logprobs").len(), list("text_offset").len()],
        [4; 4]
    );
    assert_eq!((&list("token_logprobs")[0], &list("top_logprobs")[0]), (&Value::Null, &Value::Null));
    // The engine's own.
    let mut engine = engine();
    let mut rows = Vec::new();
    engine
        .prefill_logits(&prompt, 0, &mut |_, row| {
            rows.push(row.to_vec());
            Ok(())
        })
        .unwrap();
    for (place, &id) in prompt.iter().enumerate().skip(1) {
        let row: Vec<f64> = rows[place - 1].iter().map(|&logit| f64::from(logit)).collect();
        let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
        let expected = row[id as usize] - sum.ln();
        let found = list("token_logprobs")[place].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        // The chosen token and the three likeliest.
        assert!((3..=4).contains(&list("top_logprobs")[place].as_object().unwrap().len()));
    }
    let text = body["choices"][0]["text"].as_str().unwrap();
    assert_eq!(list("tokens").iter().map(|token| token.as_str().unwrap()).collect::<String>(), text);
    // Scoring alone.
    let scored = server
        .post(COMPLETIONS, &completion(json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 0})))
        .json();
    assert_eq!(
        scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[1..],
        list("token_logprobs")[1..3]
    );
    // A chat's, whole and streamed.
    let whole = server.post(CHAT, &chat(json!({"logprobs": true, "top_logprobs": 2}))).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 8);
    assert!(
        content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2 && token["bytes"].is_array())
    );
    assert_eq!(content[0]["token"], content[0]["top_logprobs"][0]["token"], "greedy");
    let (events, _) = server.post(CHAT, &chat(json!({"logprobs": true, "top_logprobs": 2, "stream": true}))).events();
    let streamed = events
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    assert_eq!(streamed.collect::<Vec<_>>(), content);
}

#[test]
fn a_chat_goes_through_the_template() {
    let server = Server::start();
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let prompt =
        server.post("/apply-template", &json!({"messages": messages})).json()["prompt"].as_str().unwrap().to_owned();
    assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    let expected = server.post(COMPLETIONS, &completion(json!({"prompt": prompt, "max_tokens": 8}))).text();
    let whole = server.post(CHAT, &chat(json!({}))).json();
    assert_eq!(whole["choices"][0]["message"], json!({"role": "assistant", "content": expected}));
    assert_eq!(whole["object"], "chat.completion");
    let streamed = server.post(CHAT, &chat(json!({"stream": true})));
    assert_eq!(streamed.text(), expected);
    let (events, done) = streamed.events();
    assert!(done);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(events[1..].iter().all(|event| event["choices"][0]["delta"].get("role").is_none()));
    assert!(events.iter().all(|event| event["id"] == events[0]["id"] && event["object"] == "chat.completion.chunk"));
    // Tools are in the prompt, unless they are not to be used.
    let tools =
        json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]);
    let tokens = |more: Value| server.post(CHAT, &chat(more)).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let plain = tokens(json!({}));
    assert!(tokens(json!({"tools": tools})) > plain + 20);
    assert_eq!(tokens(json!({"tools": tools, "tool_choice": "none"})), plain);
    assert_eq!(tokens(json!({"tools": [], "tool_choice": "auto"})), plain);
}

#[test]
fn a_call_that_is_asked_for_is_begun() {
    let server = Server::start();
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tokens = |text: &str| served().tokenizer.encode(text).unwrap().len() as u64;
    let prompt_tokens = |body: &Value| body["usage"]["prompt_tokens"].as_u64().unwrap();
    let check = |tools: Value, choice: Value, opening: &str| {
        let auto = server.post(CHAT, &chat(json!({"tools": tools}))).json();
        let request = chat(json!({"tools": tools, "tool_choice": choice}));
        let answer = server.post(CHAT, &request);
        let body = answer.json();
        assert_eq!(prompt_tokens(&body), prompt_tokens(&auto) + tokens(opening));
        // This model was never taught to call: what it begins stays a text, all of it.
        let text = answer.text();
        assert!(text.starts_with(opening), "{text}");
        assert_eq!(
            (&body["choices"][0]["finish_reason"], &body["usage"]["completion_tokens"]),
            (&json!("length"), &json!(8))
        );
        assert_eq!(server.post(CHAT, &merged(request, json!({"stream": true}))).text(), text);
    };
    let (one, two) = (json!([tool("look")]), json!([tool("look"), tool("find")]));
    check(two.clone(), json!("required"), "<tool_call>\n{\"name\": \"");
    check(one, json!("required"), "<tool_call>\n{\"name\": \"look\", \"arguments\":");
    check(two, tool("find"), "<tool_call>\n{\"name\": \"find\", \"arguments\":");
}

#[test]
fn the_next_turn_reuses_what_was_delivered_and_says_the_same() {
    let server = Server::start();
    let mut connection = Connection::open(server.address).unwrap();
    for stream in [false, true] {
        let mut messages =
            vec![json!({"role": "user", "content": format!("{stream}: {}", "Call me Ishmael. ".repeat(20))})];
        for turn in 0..4 {
            let request = chat(
                json!({"messages": messages, "stream": stream, "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null }}),
            );
            connection.write(&Request::post(CHAT, &request).bytes).unwrap();
            let answer = connection.answer().unwrap();
            let fresh = server.post(CHAT, &merged(request, json!({"cache_prompt": false})));
            assert_eq!(answer.text(), fresh.text(), "turn {turn}");
            let events = if stream { answer.events().0 } else { vec![answer.json()] };
            let usage = &events.last().unwrap()["usage"];
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            // The beginning of every chat is the same few tokens.
            assert_eq!(cached > 100, turn > 0, "turn {turn}: {usage}");
            messages.push(json!({"role": "assistant", "content": answer.text()}));
            messages.push(json!({"role": "user", "content": "And then?"}));
        }
    }
    assert!(server.counter("assay_reused_prompt_tokens_total") > 1000);
    // Nothing of one user's is used for another's.
    let cached = |user: &str| {
        let body = server.post(COMPLETIONS, &completion(json!({"user": user}))).json();
        body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!((cached("a"), cached("b")), (0, 0));
    assert!(cached("a") > 0);
}

#[test]
fn tokens_and_text_go_both_ways() {
    let server = Server::start();
    let text = "Héllo <|im_end|> 世界";
    let tokens = server.post("/tokenize", &json!({"content": text})).json()["tokens"].clone();
    assert!(tokens.as_array().unwrap().contains(&json!(2)), "{tokens}");
    assert_eq!(server.post("/detokenize", &json!({"tokens": tokens})).json()["content"], text);
    let pieces = server.post("/tokenize", &json!({"content": text, "with_pieces": true})).json()["tokens"].clone();
    assert_eq!(pieces[0]["id"], tokens[0]);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [999_999]})).status, 400);
}

#[test]
fn what_would_change_an_answer_is_refused_and_named() {
    let server = Server::start();
    let check = |path: &str, body: Value, status: u16, param: Option<&str>, part: &str| {
        let answer = server.post(path, &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["param"].as_str()), (status, param), "{body} {error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        assert!(error["type"].is_string() && error.get("code").is_some(), "{error}");
    };
    let tool = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (more, param, part) in [
        (json!({"colour": 1}), "colour", "not supported"),
        (json!({"n": 2}), "n", "n = 1"),
        (json!({"best_of": 3}), "best_of", "best_of = 1"),
        (json!({"frequency_penalty": 0.5}), "frequency_penalty", "0 alone"),
        (json!({"logit_bias": {"5": 1}}), "logit_bias", "empty"),
        (json!({"temperature": 2.5}), "temperature", "expected 0 to 2"),
        (json!({"temperature": "hot"}), "temperature", "temperature: invalid type"),
        (json!({"top_p": 0}), "top_p", "expected more"),
        (json!({"top_k": -2}), "top_k", "expected -1"),
        (json!({"min_p": 1.5}), "min_p", "expected 0 to 1"),
        (json!({"seed": 0.5}), "seed", "seed: invalid type"),
        (json!({"stop": [""]}), "stop", "1 to 1024 bytes"),
        (json!({"stop": 5}), "stop", "a list of texts"),
        (json!({"max_tokens": -1}), "max_tokens", "expected 0"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", "stream = true"),
    ] {
        check(COMPLETIONS, completion(more.clone()), 400, Some(param), part);
        check(CHAT, chat(more), 400, Some(param), part);
    }
    for (more, param, part) in [
        (json!({"suffix": "x"}), "suffix", "no suffix"),
        (json!({"prompt": 5}), "prompt", "a list of token ids"),
        (json!({"prompt": ""}), "prompt", "at least one"),
        (json!({"prompt": []}), "prompt", "no token"),
        (json!({"prompt": [4096]}), "prompt", "token id 4096"),
        (json!({"logprobs": 21}), "logprobs", "expected 0 to 20"),
        (json!({"max_tokens": 0}), "max_tokens", "echo"),
        (json!({"max_tokens": 2999}), "prompt", "exceed the context of 3000"),
    ] {
        check(COMPLETIONS, completion(more), 400, Some(param), part);
    }
    for (more, param, part) in [
        (json!({"messages": []}), "messages", "at least one"),
        (json!({"messages": [{"content": "x"}]}), "messages", "messages[0]: expected"),
        (json!({"messages": [{"role": "critic", "content": "x"}]}), "messages", "the role critic is unknown"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "messages", "parts of type"),
        (json!({"response_format": {"type": "json_object"}}), "response_format", "\"text\" alone"),
        (json!({"top_logprobs": 2}), "top_logprobs", "logprobs = true"),
        (json!({"tools": tool("f"), "tool_choice": "perhaps"}), "tool_choice", "\"required\""),
        (json!({"tools": tool("f"), "tool_choice": {"type": "custom"}}), "tool_choice", "\"required\""),
        (json!({"tools": tool("f"), "tool_choice": named("g")}), "tool_choice", "\"g\" is none of the tools"),
        (json!({"tool_choice": named("f")}), "tool_choice", "there are no tools"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice", "there are no tools"),
        (json!({"tools": tool("f f")}), "tools", "tools[0]: expected"),
        (json!({"tools": tool("f"), "parallel_tool_calls": false}), "parallel_tool_calls", "true"),
        (json!({"reasoning_effort": "high"}), "reasoning_effort", "no such variable"),
        (json!({"chat_template_kwargs": {"enable_thinking": false}}), "enable_thinking", "no such variable"),
        (json!({"chat_template_kwargs": {"tools": []}}), "chat_template_kwargs", "of its own"),
        (json!({"documents": [{"text": "x"}]}), "documents", "knows none"),
    ] {
        check(CHAT, chat(more), 400, Some(param), part);
    }
    check(CHAT, chat(json!({"model": "gpt-5"})), 404, Some("model"), "\"gpt-5\" is not served");
    check("/v1/embeddings", json!({}), 404, None, "no such endpoint");
    // What changes nothing is taken.
    let neutral = json!({"user": "me", "n": 1, "logit_bias": {}, "presence_penalty": 0, "stop": null, "seed": null, "metadata": {"a": "b"}});
    assert_eq!(server.post(CHAT, &chat(neutral)).status, 200);
}

#[test]
fn what_is_no_request_is_refused() {
    let server = Server::start();
    let json_type = [("Content-Type", "application/json")];
    let check = |request: Request, status: u16| {
        let answer = request.send(server.address).unwrap();
        assert_eq!(answer.status, status, "{}", answer.body);
    };
    check(Request::new("POST", CHAT, &json_type, "{"), 400);
    check(Request::new("POST", CHAT, &json_type, "[]"), 400);
    check(Request::new("POST", CHAT, &json_type, "{\"model\": \"a\", \"model\": \"b\"}"), 400);
    check(Request::new("POST", CHAT, &[("Content-Type", "text/plain")], "{}"), 415);
    check(Request::new("POST", CHAT, &[], "{}"), 415);
    check(Request::new("GET", CHAT, &[], ""), 405);
    check(Request::get("/nowhere"), 404);
    let many: Vec<(String, String)> = (0..200).map(|index| (format!("X-{index}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    check(Request::new("GET", "/health", &many, ""), 431);
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], "tiny-moe");
    assert_eq!(server.get("/v1/models/tiny-moe").json()["object"], "model");
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert!(server.counter("assay_requests_total") > 8);
}

#[test]
fn bodies_have_limits() {
    let mut options = options();
    options.limits.body_bytes = 1000;
    options.limits.body_time = Duration::from_millis(300);
    let server = Server::with(options);
    let long = completion(json!({"prompt": "x".repeat(2000)}));
    assert_eq!(server.post(COMPLETIONS, &long).status, 413);
    // A body that never comes.
    let mut connection = Connection::open(server.address).unwrap();
    connection.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{").unwrap();
    assert_eq!(connection.answer().unwrap().status, 408);
}

#[test]
fn keys_are_asked_for_and_separate_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "first-key-0123456789\n\nsecond-key-0123456789\n").unwrap();
    let mut options = options();
    options.keys = Some(ApiKeys::read(&file).unwrap());
    let server = Server::with(options);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.post(CHAT, &chat(json!({}))).json()["error"]["code"], "invalid_api_key");
    let with = |key: &str| {
        let headers = [("Content-Type", "application/json"), ("Authorization", &format!("Bearer {key}"))];
        Request::new("POST", CHAT, &headers, &chat(json!({})).to_string()).send(server.address).unwrap()
    };
    assert_eq!(with("wrong-key-0123456789").status, 401);
    let cached = |key: &str| with(key).json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached("first-key-0123456789"), 0);
    assert!(cached("first-key-0123456789") > 0);
    assert_eq!(cached("second-key-0123456789"), 0, "another tenant's state was used");
    std::fs::write(&file, "short\n").unwrap();
    assert!(ApiKeys::read(&file).unwrap_err().to_string().contains("line 1 has 5 bytes"));
    std::fs::write(&file, "\n").unwrap();
    assert!(ApiKeys::read(&file).unwrap_err().to_string().contains("no key"));
}

/// A stream that never ends by itself, its first token read.
fn endless(server: &Server) -> Connection {
    let mut connection = Connection::open(server.address).unwrap();
    let body = completion(json!({"max_tokens": 2900, "ignore_eos": true, "stream": true}));
    connection.write(&Request::post(COMPLETIONS, &body).bytes).unwrap();
    assert_eq!(connection.head().unwrap().status, 200);
    assert!(connection.chunk().unwrap().starts_with("data: "));
    connection
}

#[test]
fn a_full_queue_says_so_and_a_client_that_leaves_frees_the_engine() {
    let mut options = options();
    options.queue_length = 1;
    let server = Server::with(options);
    let running = endless(&server);
    let mut waiting = Connection::open(server.address).unwrap();
    waiting.write(&Request::post(COMPLETIONS, &completion(json!({}))).bytes).unwrap();
    while server.counter("assay_waiting_requests") == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = server.post(COMPLETIONS, &completion(json!({})));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    // The client goes away: the one that waits is served next.
    let started = Instant::now();
    drop(running);
    assert_eq!(waiting.answer().unwrap().status, 200);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(server.counter("assay_cancelled_requests_total"), 1);
    // One that leaves while it waits gives its place back.
    let running = endless(&server);
    let mut gone = Connection::open(server.address).unwrap();
    gone.write(&Request::post(COMPLETIONS, &completion(json!({}))).bytes).unwrap();
    while server.counter("assay_waiting_requests") == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(gone);
    while server.counter("assay_cancelled_requests_total") < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut next = Connection::open(server.address).unwrap();
    next.write(&Request::post(COMPLETIONS, &completion(json!({}))).bytes).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(running);
    assert_eq!(next.answer().unwrap().status, 200);
}

#[test]
fn a_client_that_leaves_during_a_long_prompt_frees_the_engine() {
    let server = Server::start();
    let prompt: Vec<u32> = (0..2900).map(|place| 300 + place * 7 % 3000).collect();
    let mut leaving = Connection::open(server.address).unwrap();
    leaving.write(&Request::post(COMPLETIONS, &completion(json!({"prompt": prompt}))).bytes).unwrap();
    while server.counter("assay_running_requests") == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(leaving);
    let next = server.post(COMPLETIONS, &completion(json!({}))).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(server.counter("assay_prompt_tokens_total"), next, "the long prompt was processed to its end");
}

#[test]
fn a_server_that_stops_lets_answers_end() {
    let mut server = Server::start();
    let mut connection = Connection::open(server.address).unwrap();
    let body = completion(json!({"max_tokens": 200, "ignore_eos": true, "stream": true}));
    connection.write(&Request::post(COMPLETIONS, &body).bytes).unwrap();
    connection.head().unwrap();
    server.stop();
    let mut rest = String::new();
    loop {
        let chunk = connection.chunk().unwrap();
        if chunk.is_empty() {
            break;
        }
        rest += &chunk;
    }
    assert!(rest.ends_with("data: [DONE]\n\n"));
    server.join();
    assert!(Connection::open(server.address).is_err());
}

#[test]
fn a_server_that_stops_does_not_wait_for_ever() {
    let mut options = options();
    options.limits.shutdown_time = Duration::from_millis(200);
    let mut server = Server::with(options);
    let _running = endless(&server);
    let started = Instant::now();
    server.stop();
    server.join();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}
