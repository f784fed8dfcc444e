//! Endpoints that answer wrongly, or not at all.

use crate::place::{Place, row};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

/// A server that gives one answer to everything, until the test ends.
fn server(status: u16, answer: Value) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.to_string();
            std::thread::spawn(move || reply(stream.unwrap(), status, &answer));
        }
    });
    url
}

/// Answers one request; its body.
pub(crate) fn reply(stream: impl Read + Write, status: u16, answer: &str) -> String {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return String::new();
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let stream = reader.get_mut();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
    stream.write_all((head + answer).as_bytes()).unwrap();
    stream.flush().unwrap();
    String::from_utf8(body).unwrap()
}

pub(crate) fn says(text: &str) -> Value {
    json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
           "usage": {"prompt_tokens": 10, "completion_tokens": 3}})
}

fn run(url: &str) -> (i32, Value) {
    let place = Place::new();
    let tokenizer = place.path("fixtures/models/tiny-moe");
    let arguments = ["adq", "run", "--endpoint", url, "--model", "m", "--task", "ledger", "--controls", "none"];
    place.ask(&[&arguments[..], &["--tasks-only", "--tokenizer", tokenizer.to_str().unwrap()]].concat())
}

#[test]
fn a_model_that_only_talks_fails() {
    let (code, answer) = run(&server(200, says("I shall do it.")));
    let task = &answer["tasks"][0];
    assert_eq!((code, &task["verdict"]), (1, &"FAIL".into()));
    assert!(task["reason"].as_str().unwrap().starts_with("stopped without acting: \"I shall do it.\""), "{task}");
    let (verdict, reason) = row(&answer, "determinism");
    assert!(verdict == "INCOMPLETE" && reason.contains("fresh process"), "{reason}");
}

#[test]
fn another_sampling_than_the_contract_is_invalid() {
    let mut other = says("hello");
    other["generation_settings"] = json!({"temperature": 0.8});
    let (code, answer) = run(&server(200, other));
    assert_eq!((code, &answer["tasks"][0]["verdict"]), (4, &"INVALID".into()), "{answer}");
    assert_eq!(row(&answer, "productive_tasks").0, "INVALID");
}

#[test]
fn a_failing_endpoint_is_not_the_models_failure() {
    for url in [server(500, json!({"error": "broken"})), server(200, json!({})), "http://127.0.0.1:9".to_owned()] {
        let (code, answer) = run(&url);
        assert_eq!((code, &answer["tasks"][0]["verdict"]), (3, &"INCOMPLETE".into()), "{url}: {answer}");
    }
}

#[test]
fn a_server_that_is_killed_while_it_is_asked_leaves_an_incomplete_run() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "list_files", "arguments": "{}"}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let answer = json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                        "usage": {"prompt_tokens": 10, "completion_tokens": 3}});
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        // Gone once an agent is in the middle of its work.
        while !reply(listener.accept().unwrap().0, 200, &answer.to_string()).contains("\"role\":\"tool\"") {}
    });
    let (code, answer) = run(&url);
    let task = &answer["tasks"][0];
    assert_eq!((code, &task["verdict"]), (3, &"INCOMPLETE".into()), "{answer}");
    assert!(task["reason"].as_str().unwrap().contains("did not answer"), "{task}");
    assert_eq!(row(&answer, "productive_tasks").0, "INCOMPLETE");
}
