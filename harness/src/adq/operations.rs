//! How a server admits, keeps apart and lets go of requests.

use super::endpoint::{Exchange, Reply};
use super::http::HttpEndpoint;
use super::own_server::{About, OwnServer};
use super::sampling::SamplingContract;
use crate::config::ConfigArgs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const SECONDS: f64 = 900.0;
/// Tokens of the answers that are compared.
const COMPLETION_TOKENS: u32 = 24;
/// Tokens that a request asks for which is let go of: more than it will get.
const LONG_COMPLETION: u32 = 512;
/// Bytes of a stream that are read before it is let go of.
const READ_BYTES: usize = 256;

/// One property.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Operation {
    /// What was tried.
    pub operation: String,
    /// Whether it went as it must.
    pub held: bool,
    /// What was seen.
    pub saw: String,
}

/// Tries them all, one after another.
pub fn operations(endpoint: &HttpEndpoint, about: &About) -> Vec<Operation> {
    let mut found = admission(endpoint, about);
    found.extend(conversations(endpoint, &about.model));
    found.push(cancellation(endpoint, about));
    found
}

/// Faults of the device that a server of ours is made to meet, and what becomes of the request that meets one, and of the next.
const FAULTS: [&str; 3] = ["allocation", "copy", "event"];

/// A server whose device fails for every second request, each time in another way: the request gets the right answer or an error, the
/// one after it the right answer. A device that has no such faults shows nothing, and says so.
pub fn recovery(config: &ConfigArgs) -> Vec<Operation> {
    let name = "recovery after a planted fault";
    let mut arguments = config.to_args();
    arguments.extend(["--planted-faults".to_owned(), FAULTS.join(",")].map(OsString::from));
    let found = (|| {
        let server = OwnServer::start(&arguments).map_err(|error| format!("{error:#}"))?;
        let request = chat(&server.about.model, &[("user", "Say something about storms.")], false, COMPLETION_TOKENS);
        let ask = || server.endpoint.post("/v1/chat/completions", &request.to_string(), SECONDS);
        let text = |exchange: &Exchange| Reply::read(&exchange.response).map(|reply| reply.content);
        let expected = text(&ask().map_err(|error| error.to_string())?)?;
        let mut seen = Vec::new();
        for kind in FAULTS {
            let (met, next) = (ask().map_err(|error| error.to_string())?, ask().map_err(|error| error.to_string())?);
            let (status, after) = (met.status, text(&next));
            let told = serde_json::from_str::<Value>(&met.response).unwrap_or_default()["error"]["type"].is_string();
            let right = if status == 200 { text(&met).as_ref() == Ok(&expected) } else { status == 500 && told };
            let saw = format!("status {status}, then status {} and {after:?}", next.status);
            seen.push(operation(&format!("{name}: {kind}"), right && after.as_ref() == Ok(&expected), saw));
        }
        let metrics = server.endpoint.get("/metrics")?;
        let struck = metrics.lines().find_map(|line| line.strip_prefix("assay_planted_faults_total "));
        Ok::<_, String>((seen, struck.unwrap_or("0").trim().to_owned()))
    })();
    match found {
        Err(reason) => vec![operation(name, false, reason)],
        Ok((mut seen, struck)) => {
            for one in &mut seen {
                one.saw = format!("{} ({struck} of {} faults were met)", one.saw, FAULTS.len());
            }
            seen
        }
    }
}

fn operation(name: &str, held: bool, saw: impl Into<String>) -> Operation {
    Operation { operation: name.to_owned(), held, saw: saw.into() }
}

/// Prompts of one token less than the limit, the limit, and one more, with an answer of one token.
fn admission(endpoint: &HttpEndpoint, about: &About) -> Vec<Operation> {
    let limit = about.max_prompt_tokens.min(about.context_tokens.saturating_sub(1));
    let case = |name: &str, tokens: u64, admitted: bool| {
        let prompt: Vec<u64> = (0..tokens).map(|place| 16 + place % 64).collect();
        let mut request = Map::new();
        request.insert("model".to_owned(), about.model.as_str().into());
        request.insert("prompt".to_owned(), prompt.into());
        request.insert("max_tokens".to_owned(), 1.into());
        SamplingContract::GREEDY.apply(&mut request);
        let exchange = match endpoint.post("/v1/completions", &Value::from(request).to_string(), SECONDS) {
            Ok(exchange) => exchange,
            Err(error) => return operation(name, false, error.to_string()),
        };
        let answer: Value = serde_json::from_str(&exchange.response).unwrap_or_default();
        let counted = answer.pointer("/usage/prompt_tokens").and_then(Value::as_u64);
        let code = answer.pointer("/error/code").and_then(Value::as_str).unwrap_or_default();
        let held = if admitted {
            exchange.status == 200 && counted == Some(tokens)
        } else {
            exchange.status == 400 && code == "context_length_exceeded"
        };
        operation(name, held, format!("{tokens} tokens: status {}, counted {counted:?} {code}", exchange.status))
    };
    vec![
        case("admission: limit - 1", limit.saturating_sub(1), true),
        case("admission: limit", limit, true),
        case("admission: limit + 1", limit + 1, false),
    ]
}

fn chat(model: &str, turns: &[(&str, &str)], stream: bool, tokens: u32) -> Value {
    let messages: Vec<Value> = turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    let mut request = Map::new();
    request.insert("model".to_owned(), model.into());
    request.insert("messages".to_owned(), messages.into());
    request.insert("max_tokens".to_owned(), tokens.into());
    request.insert("stream".to_owned(), stream.into());
    SamplingContract::GREEDY.apply(&mut request);
    request.into()
}

fn answer(endpoint: &HttpEndpoint, request: &Value) -> Result<String, String> {
    let exchange =
        endpoint.post("/v1/chat/completions", &request.to_string(), SECONDS).map_err(|error| error.to_string())?;
    if exchange.status != 200 {
        return Err(format!("status {}: {}", exchange.status, exchange.response.chars().take(200).collect::<String>()));
    }
    let reply = Reply::read(&exchange.response)?;
    Ok(format!("{:?} {} {:?}", reply.content, reply.finish_reason, reply.prompt_tokens))
}

/// Two conversations in turns give what each gives alone, and what it gave before.
fn conversations(endpoint: &HttpEndpoint, model: &str) -> Vec<Operation> {
    let first = [("user", "Say something about ships.")];
    let other = [("user", "Count the doors of the house.")];
    let longer = [first[0], ("assistant", "Ships are long."), ("user", "And about the sea?")];
    let ask = |turns: &[(&str, &str)]| answer(endpoint, &chat(model, turns, false, COMPLETION_TOKENS));
    let found = (|| {
        let alone = (ask(&first)?, ask(&longer)?);
        let between = ask(&other)?;
        let again = (ask(&first)?, ask(&other)?, ask(&longer)?);
        Ok::<_, String>((alone, between, again))
    })();
    match found {
        Err(reason) => vec![operation("conversations", false, reason)],
        Ok((alone, between, again)) => vec![
            operation("switching: the first conversation is as before", alone.0 == again.0, again.0),
            operation("isolation: the other one is as before", between == again.1, again.1),
            operation("restoring: the continued one is as before", alone.1 == again.2, again.2),
        ],
    }
}

/// A stream whose reader goes away: the next request must be answered, as ever.
fn cancellation(endpoint: &HttpEndpoint, about: &About) -> Operation {
    let name = "cancellation: a request after one that was let go of";
    let turns = [("user", "Tell a long story.")];
    let before = answer(endpoint, &chat(&about.model, &turns, false, COMPLETION_TOKENS));
    let reset = (|| -> std::io::Result<usize> {
        let body = chat(&about.model, &turns, true, LONG_COMPLETION).to_string();
        let mut stream = TcpStream::connect(&about.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            about.address,
            body.len()
        )?;
        let mut seen = vec![0; READ_BYTES];
        stream.read_exact(&mut seen)?;
        stream.shutdown(std::net::Shutdown::Both)?;
        Ok(seen.len())
    })();
    let after = answer(endpoint, &chat(&about.model, &turns, false, COMPLETION_TOKENS));
    let held = reset.is_ok() && before.is_ok() && before == after;
    let after = after.unwrap_or_else(|error| error);
    operation(name, held, format!("read {reset:?} bytes, then {after}"))
}
