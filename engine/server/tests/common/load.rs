//! Many clients at once, some of them bad: every good one must get its own answer, whole, and the one it would get alone.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Answer, Connection, Request};

/// Tokens of each answer.
const ANSWER: usize = 6;
/// Prompts of each kind.
const PROMPTS: usize = 12;
const SUBJECTS: [&str; PROMPTS] = [
    "whale",
    "island",
    "prison",
    "captain",
    "treasure",
    "Paris",
    "sermon",
    "storm",
    "letter",
    "garden",
    "king",
    "letter home",
];
/// A slow reader takes this many bytes at a time, this far apart.
const SLOW_CHUNKS: usize = 3;
const SLOW_PAUSE: Duration = Duration::from_millis(20);

/// What is run.
#[derive(Debug, Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub model: String,
    pub requests: usize,
    pub concurrency: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Answered as they would be alone.
    pub right: usize,
    /// Refused as they should be.
    pub refused: usize,
    /// Left by their client.
    pub left: usize,
    /// Told to come back, which they did.
    pub busy: usize,
    /// Answered otherwise, or not at all.
    pub wrong: Vec<String>,
    pub seconds: f64,
}

/// A good request and its answer when nobody else asks.
struct Good {
    request: Request,
    expected: String,
}

/// What one client did.
enum Outcome {
    Right,
    Refused,
    Left,
}

/// Every kind of good request, for every prompt.
fn good(load: &Load) -> Vec<(Request, bool)> {
    let mut requests = Vec::new();
    let model = &load.model;
    for (index, subject) in SUBJECTS.iter().enumerate() {
        let prompt = format!("Chapter {index}. Of the {subject} there was much to say, for");
        let completion = |more: Value| with(json!({"model": model, "prompt": prompt, "max_tokens": ANSWER}), more);
        let messages = json!([{"role": "user", "content": prompt}, {"role": "assistant", "content": "Indeed."}, {"role": "user", "content": subject}]);
        let chat = |more: Value| with(json!({"model": model, "messages": messages, "max_tokens": ANSWER}), more);
        let ids: Vec<u32> = (0..20).map(|place| 300 + (place * 37 + index as u32 * 211) % 3000).collect();
        let post = |path: &str, body: Value| (Request::post(path, &body), true);
        requests.push(post("/v1/completions", completion(json!({}))));
        requests.push(post("/v1/completions", completion(json!({"stream": true}))));
        requests.push(post("/v1/completions", completion(json!({"temperature": 1.0, "top_p": 0.9, "seed": index}))));
        requests.push(post(
            "/v1/completions",
            completion(json!({"prompt": ids, "echo": true, "logprobs": 2, "max_tokens": 1})),
        ));
        requests.push(post("/v1/completions", completion(json!({"prompt": [ids, ids[..9]], "cache_prompt": false}))));
        requests.push(post("/v1/completions", completion(json!({"stop": ["e", "a"]}))));
        requests.push(post("/v1/chat/completions", chat(json!({}))));
        requests.push(post(
            "/v1/chat/completions",
            chat(json!({"stream": true, "stream_options": {"include_usage": true}})),
        ));
        requests.push(post(
            "/v1/chat/completions",
            chat(json!({"logprobs": true, "top_logprobs": 1, "temperature": 0.7, "seed": 1})),
        ));
        requests.push(post("/tokenize", json!({"content": prompt})));
    }
    requests
}

fn with(mut base: Value, more: Value) -> Value {
    if let (Some(base), Some(more)) = (base.as_object_mut(), more.as_object()) {
        base.extend(more.clone());
    }
    base
}

/// What of an answer must not depend on who else asks: all but ids, times and what was reused.
fn essence(answer: &Answer) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for name in ["id", "created", "prompt_tokens_details"] {
                    fields.remove(name);
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    // How a stream was cut into events may differ; its text and its end may not.
    if answer.header("content-type") == Some("text/event-stream") {
        let (events, done) = answer.events();
        let finish: Vec<String> = events
            .iter()
            .filter_map(|event| event["choices"][0]["finish_reason"].as_str())
            .map(str::to_owned)
            .collect();
        return format!("{} {done} {finish:?} {}", answer.status, answer.text());
    }
    let mut json = answer.json();
    strip(&mut json);
    format!("{} {json}", answer.status)
}

pub fn run(load: &Load) -> Report {
    let mut goods = Vec::new();
    for (request, _) in good(load) {
        let answer = request.send(load.address).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        goods.push(Good { request, expected: essence(&answer) });
    }
    let texts: std::collections::BTreeSet<&str> = goods.iter().map(|good| good.expected.as_str()).collect();
    // Otherwise a mix-up could not be seen.
    assert!(texts.len() * 10 > goods.len() * 8, "{} of {} answers are different", texts.len(), goods.len());
    let (next, report, started) = (AtomicUsize::new(0), Mutex::new(Report::default()), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..load.concurrency {
            scope.spawn(|| {
                let mut kept = None;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= load.requests {
                        break;
                    }
                    let (outcome, busy) = client(load, &goods, index, &mut kept);
                    let mut report = report.lock().unwrap();
                    report.busy += busy;
                    match outcome {
                        Ok(Outcome::Right) => report.right += 1,
                        Ok(Outcome::Refused) => report.refused += 1,
                        Ok(Outcome::Left) => report.left += 1,
                        Err(wrong) => report.wrong.push(format!("request {index}: {wrong}")),
                    }
                }
            });
        }
    });
    Report { seconds: started.elapsed().as_secs_f64(), ..report.into_inner().unwrap() }
}

/// SplitMix64: which client does what is the same in every run.
fn random(index: usize) -> u64 {
    let mut word = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One client: what it did, and how often it was told to come back.
fn client(
    load: &Load,
    goods: &[Good],
    index: usize,
    kept: &mut Option<Connection>,
) -> (Result<Outcome, String>, usize) {
    let word = random(index);
    let good = &goods[(word >> 8) as usize % goods.len()];
    let io = |error: std::io::Error| format!("lost: {error}");
    let mut busy = 0;
    let outcome = match word % 20 {
        // Bad ones.
        0 => leave_early(load, good, word).map_err(io),
        1 => leave_stream(load).map_err(io),
        2 => refused(load, Request::new("POST", "/v1/completions", &JSON, "{\"model\": \"x\", \"prompt"), 400),
        3 => refused(
            load,
            Request::post("/v1/chat/completions", &json!({"model": load.model, "messages": [], "x": word})),
            400,
        ),
        4 => refused(load, Request::new("POST", "/v1/completions", &[], "{}"), 415),
        5 => slow(load, good),
        // Good ones: half of them on a connection that they keep.
        _ => loop {
            let answer = if word & 128 == 0 { good.request.send(load.address) } else { keep(load, good, kept) };
            match answer {
                Ok(answer) if answer.status == 429 => {
                    busy += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(answer) => break compare(&answer, good),
                Err(error) => break Err(io(error)),
            }
        },
    };
    (outcome, busy)
}

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

fn compare(answer: &Answer, good: &Good) -> Result<Outcome, String> {
    let found = essence(answer);
    if found == good.expected { Ok(Outcome::Right) } else { Err(format!("expected {}\nfound {found}", good.expected)) }
}

fn keep(load: &Load, good: &Good, kept: &mut Option<Connection>) -> std::io::Result<Answer> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => Connection::open(load.address)?,
    };
    connection.write(&good.request.bytes)?;
    let answer = connection.answer()?;
    *kept = Some(connection);
    Ok(answer)
}

fn refused(load: &Load, request: Request, status: u16) -> Result<Outcome, String> {
    let answer = request.send(load.address).map_err(|error| format!("lost: {error}"))?;
    if answer.status == status { Ok(Outcome::Refused) } else { Err(format!("expected {status}: {answer:?}")) }
}

/// Sends some or all of a request and goes.
fn leave_early(load: &Load, good: &Good, word: u64) -> std::io::Result<Outcome> {
    let bytes = &good.request.bytes;
    let sent = if word & 64 == 0 { bytes.len() } else { (word >> 20) as usize % bytes.len() };
    let mut connection = Connection::open(load.address)?;
    connection.write(&bytes[..sent])?;
    Ok(Outcome::Left)
}

/// Reads the beginning of a long stream and goes.
fn leave_stream(load: &Load) -> std::io::Result<Outcome> {
    let body =
        json!({"model": load.model, "prompt": "For ever and", "max_tokens": 1500, "ignore_eos": true, "stream": true});
    let mut connection = Connection::open(load.address)?;
    connection.write(&Request::post("/v1/completions", &body).bytes)?;
    if connection.head()?.status == 200 {
        connection.chunk()?;
    }
    Ok(Outcome::Left)
}

/// Takes its time to read.
fn slow(load: &Load, good: &Good) -> Result<Outcome, String> {
    let io = |error: std::io::Error| format!("lost: {error}");
    let mut connection = Connection::open(load.address).map_err(io)?;
    connection.write(&good.request.bytes).map_err(io)?;
    let mut answer = connection.head().map_err(io)?;
    if answer.status == 429 {
        return Ok(Outcome::Left);
    }
    for _ in 0..SLOW_CHUNKS {
        std::thread::sleep(SLOW_PAUSE);
    }
    connection.body(&mut answer).map_err(io)?;
    compare(&answer, good)
}
