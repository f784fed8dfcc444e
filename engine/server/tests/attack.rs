//! What a stranger sends: the right answer, or OpenAI's error form, and the server goes on.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::{Duration, Instant};

use assay_engine::session::StoreOptions;
use common::client::{Connection, Request};
use common::{Server, options};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

/// Sends bytes as a JSON body.
fn send(server: &Server, path: &str, body: &[u8]) -> common::client::Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    Request { bytes: [head.as_bytes(), body].concat() }.send(server.address).unwrap()
}

#[track_caller]
fn refused(server: &Server, path: &str, body: &[u8], part: &str) {
    let answer = send(server, path, body);
    let error = answer.json()["error"].clone();
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    assert_eq!(answer.status, 400, "{shown}: {}", answer.body);
    assert_eq!(error["type"], "invalid_request_error", "{shown}: {error}");
    assert!(error["message"].as_str().unwrap().contains(part), "{shown}: {error}");
    assert!(error.get("param").is_some() && error.get("code").is_some(), "{error}");
}

#[test]
fn bodies_that_are_not_json_or_not_what_they_say() {
    let server = Server::start();
    let prompt = |more: &str| format!("{{\"model\": \"tiny-moe\", \"prompt\": \"a\", {more}}}").into_bytes();
    let messages = |more: &str| format!("{{\"model\": \"tiny-moe\", \"messages\": {more}}}").into_bytes();
    let raw = |text: &[u8]| [b"{\"model\": \"tiny-moe\", \"prompt\": \"", text, b"\"}"].concat();
    let deep =
        |open: &str, close: &str| prompt(&format!("\"metadata\": {}1{}", open.repeat(50_000), close.repeat(50_000)));
    let stops = json!((0..1000).map(|index| format!("stop {index}")).collect::<Vec<_>>());
    for (body, part) in [
        // Bytes.
        (raw(b"\xff\xfe"), "not JSON"),
        (raw(b"\xc3"), "not JSON"),
        (raw(b"\xed\xa0\x80"), "not JSON"),
        (raw(b"\0"), "control character"),
        (raw(b"\\ud83d"), "not JSON"),
        (raw(b"\\ud83d\\u0041"), "not JSON"),
        (raw(b"\\x41"), "invalid escape"),
        (b"\xef\xbb\xbf{}".to_vec(), "not JSON"),
        (b"".to_vec(), "not JSON"),
        (b"{} {}".to_vec(), "not JSON"),
        (vec![b'['; 100_000], "not JSON"),
        (deep("[", "]"), "not JSON"),
        (deep("{\"a\": ", "}"), "not JSON"),
        // Names twice, at every depth.
        (prompt("\"prompt\": \"b\""), "twice"),
        (prompt("\"stream_options\": {\"include_usage\": true, \"include_usage\": false}, \"stream\": true"), "twice"),
        // Numbers.
        (prompt("\"temperature\": NaN"), "not JSON"),
        (prompt("\"temperature\": -Infinity"), "not JSON"),
        (prompt("\"temperature\": 1e999"), "not JSON"),
        (prompt("\"temperature\": -0.1"), "expected 0 to 2"),
        (prompt("\"max_tokens\": -1"), "expected 0"),
        (prompt("\"max_tokens\": 1e3"), "max_tokens"),
        (prompt("\"max_tokens\": 18446744073709551616"), "max_tokens"),
        (prompt("\"max_tokens\": 4294967295"), "exceed the context"),
        (prompt("\"seed\": 9223372036854775808"), "seed"),
        (prompt("\"top_k\": 9e99"), "top_k"),
        (prompt(&format!("\"stop\": {stops}")), "stop"),
        (prompt(&format!("\"stop\": \"{}\"", "x".repeat(5000))), "1 to 1024 bytes"),
        (prompt(&format!("\"{}\": 1", "n".repeat(10_000))), "not supported"),
        (prompt("\"\\u0000\\u001b[31m\": 1"), "not supported"),
    ] {
        refused(&server, COMPLETIONS, &body, part);
    }
    for (ids, part) in [
        ("[-1]", "list of token ids"),
        ("[4294967296]", "list of token ids"),
        ("[1.5]", "list of token ids"),
        ("[[1], \"a\"]", "list of token ids"),
        ("[4294967295]", "token id 4294967295"),
    ] {
        let body = format!("{{\"model\": \"tiny-moe\", \"prompt\": {ids}}}");
        refused(&server, COMPLETIONS, body.as_bytes(), part);
    }
    for (body, part) in [
        (messages("[{\"role\": \"user\", \"role\": \"system\", \"content\": \"a\"}]"), "twice"),
        (messages("[{\"role\": \"user\", \"content\": \"\\udc00\"}]"), "not JSON"),
        (messages("{}"), "messages"),
        (messages("[null]"), "messages[0]"),
        (messages("[[]]"), "messages[0]"),
        (messages("[{\"role\": \"user\"}], \"max_completion_tokens\": -5"), "max_completion_tokens"),
        (messages(&format!("[{}1{}]", "[".repeat(50_000), "]".repeat(50_000))), "not JSON"),
    ] {
        refused(&server, CHAT, &body, part);
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_hundred_thousand_messages_are_refused_soon() {
    let server = Server::start();
    let one = json!({"role": "user", "content": "word ".repeat(8)});
    let body = json!({"model": "tiny-moe", "messages": vec![one; 100_000]}).to_string();
    let started = Instant::now();
    let answer = send(&server, CHAT, body.as_bytes());
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn every_escape_of_a_call_s_arguments_reaches_the_template() {
    let server = Server::start();
    let text = "\"\\/\u{8}\u{c}\n\r\t\u{0}\u{1f}\u{7f}é世\u{1f600}\u{2028}</tool_call><tool_call>";
    let arguments = json!({ "text": text }).to_string();
    // Once more as escapes alone.
    let escaped: String = arguments.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let call = |arguments: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": null, "tool_calls": [{{"id": "c", "type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}]}}]}}"#
        )
    };
    let plain = send(&server, "/apply-template", call(&json!(arguments).to_string()).as_bytes());
    assert_eq!(plain.status, 200, "{}", plain.body);
    let prompt = plain.json()["prompt"].as_str().unwrap().to_owned();
    let written = prompt.rsplit_once("\"arguments\": ").unwrap().1;
    let end = written.rfind("}\n</tool_call>").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written[..end]).unwrap(), json!({ "text": text }));
    let again = send(&server, "/apply-template", call(&format!("\"{escaped}\"")).as_bytes());
    assert_eq!(again.json(), plain.json());
}

#[test]
fn characters_of_several_tokens_are_streamed_whole() {
    let server = Server::start();
    let text = "\u{1f600}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} é e\u{301} 世界 \u{10ffff}";
    let body = |stream: bool| json!({"model": "tiny-moe", "prompt": text, "echo": true, "max_tokens": 24, "temperature": 2.0, "seed": 7, "logprobs": 0, "stream": stream});
    let (whole, streamed) = (server.post(COMPLETIONS, &body(false)), server.post(COMPLETIONS, &body(true)));
    assert!(whole.text().starts_with(text), "{}", whole.body);
    assert_eq!(streamed.text(), whole.text());
    // A body that comes byte by byte, its characters cut.
    let request = Request::post(COMPLETIONS, &body(true)).bytes;
    let mut connection = Connection::open(server.address).unwrap();
    request.iter().for_each(|byte| connection.write(&[*byte]).unwrap());
    assert_eq!(connection.answer().unwrap().text(), whole.text());
}

#[test]
fn slow_and_huge_requests_end_and_hold_nobody_up() {
    let mut options = options();
    options.limits.header_time = Duration::from_millis(400);
    options.limits.body_time = Duration::from_millis(400);
    options.limits.connections = 64;
    let server = Server::with(options);
    // Headers that never end, one byte at a time, on many connections.
    let mut slow: Vec<Connection> = (0..40).map(|_| Connection::open(server.address).unwrap()).collect();
    let started = Instant::now();
    for byte in b"GET /health HTTP/1.1\r\nX-Slow: " {
        slow.iter_mut().for_each(|connection| drop(connection.write(&[*byte])));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(server.get("/health").status, 200);
    }
    for mut connection in slow {
        // Told or not, they are closed.
        assert!(connection.answer().map_or(true, |answer| answer.status >= 400));
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    // Headers beyond the limit.
    let huge = "x".repeat(1 << 20);
    let answer = Request::new("GET", "/health", &[("X-Huge", &huge)], "").send(server.address);
    assert!(answer.map_or(true, |answer| answer.status == 431));
    let path = format!("/{}", "p".repeat(100_000));
    assert!(Request::get(&path).send(server.address).map_or(true, |answer| answer.status >= 400));
    // Two lengths, a length and chunks, lengths that are none.
    for head in [
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 2\r\nTransfer-Encoding: chunked",
        "Content-Length: -2",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: gzip",
    ] {
        let text = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}\r\n\r\n{{}}");
        let answer = Request { bytes: text.into_bytes() }.send(server.address);
        assert!(answer.as_ref().map_or(true, |answer| answer.status >= 400), "{head}: {answer:?}");
    }
    // Two requests at once on one connection are answered in their order.
    let mut connection = Connection::open(server.address).unwrap();
    connection.write(&[Request::get("/health").bytes, Request::new("POST", CHAT, &JSON, "{").bytes].concat()).unwrap();
    assert_eq!((connection.answer().unwrap().status, connection.answer().unwrap().status), (200, 400));
}

#[test]
fn two_conversations_that_evict_each_other_say_what_fresh_ones_say() {
    let mut options = options();
    // Room for one of the two.
    options.store = StoreOptions { limit_bytes: 600 << 10, reserve_bytes: 0 };
    let server = Server::with(options);
    let mut histories = ["Call me Ishmael. ", "It was the best of times. "].map(|words| words.repeat(40));
    let mut reused = 0;
    for turn in 0..4 {
        // Twice the one, twice the other: the second time begins from what the first left, the first from what an eviction left.
        for which in [0, 0, 1, 1] {
            let history = &mut histories[which];
            let body = |cache: bool| json!({"model": "tiny-moe", "prompt": history, "max_tokens": 16, "cache_prompt": cache, "logprobs": 3});
            let (answer, fresh) = (server.post(COMPLETIONS, &body(true)), server.post(COMPLETIONS, &body(false)));
            let (answer, fresh) = (answer.json(), fresh.json());
            assert_eq!(answer["choices"], fresh["choices"], "turn {turn}");
            reused += answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            *history += answer["choices"][0]["text"].as_str().unwrap();
            *history += " And then? ";
        }
    }
    assert!(reused > 0, "nothing was ever reused");
}
