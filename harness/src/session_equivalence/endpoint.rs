//! Any server with OpenAI's `/v1/completions`, asked by token ids: its tokens and their log-probabilities.
//!
//! Two forms of log-probabilities are understood: OpenAI's lists (`tokens`, `token_logprobs`, `top_logprobs`) and llama.cpp's
//! (`content`, with ids). Reuse is read from `usage.prompt_tokens_details.cached_tokens`, or llama.cpp's `timings.cache_n`.

use super::{Answered, Request, Row, Subject};
use crate::interrupt;
use anyhow::{Context, bail, ensure};
use assay_engine::checkpoint::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::time::Duration;

/// Likeliest tokens asked for at every step.
const LOGPROBS: usize = 5;
/// An answer's JSON may have this many bytes.
const MAX_ANSWER: u64 = 64 << 20;
/// The longest silence of a server.
const TIMEOUT: Duration = Duration::from_secs(600);

/// How a server is spoken to.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// Its address, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The model's name in requests.
    pub model: String,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// The field that, when false, keeps a request from reusing state.
    pub cache_field: String,
}

/// A server.
pub struct Endpoint<'t> {
    agent: ureq::Agent,
    options: EndpointOptions,
    tokenizer: &'t Tokenizer,
}

impl<'t> Endpoint<'t> {
    /// `tokenizer` makes ids of its answers, where it gives none.
    pub fn new(options: EndpointOptions, tokenizer: &'t Tokenizer) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build();
        Self { agent: config.into(), options, tokenizer }
    }

    fn body(&self, request: &Request<'_>, stream: bool) -> Value {
        let mut body = json!({
            "model": self.options.model, "prompt": request.tokens, "max_tokens": request.answer, "temperature": 0.0,
            "logprobs": LOGPROBS, "stream": stream,
            "user": if request.other_tenant { "another" } else { "one" },
        });
        if !request.cache {
            body[&self.options.cache_field] = Value::Bool(false);
        }
        body
    }

    fn post(&self, body: &Value) -> anyhow::Result<ureq::Body> {
        interrupt::check()?;
        let url = format!("{}/v1/completions", self.options.url.trim_end_matches('/'));
        let mut request = self.agent.post(&url);
        if let Some(key) = &self.options.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.send_json(body).with_context(|| format!("asking {url}"))?;
        let status = response.status();
        let mut answer = response.into_body();
        if !status.is_success() {
            let text = answer.with_config().limit(MAX_ANSWER).read_to_string().unwrap_or_default();
            bail!("{url} answered {status}: {text}");
        }
        Ok(answer)
    }
}

impl Subject for Endpoint<'_> {
    fn ask(&mut self, request: &Request<'_>) -> anyhow::Result<Answered> {
        let mut answer = self.post(&self.body(request, false))?;
        let text = answer.with_config().limit(MAX_ANSWER).read_to_string().context("reading an answer")?;
        let answer: Value = serde_json::from_str(&text).context("an answer is not JSON")?;
        answered(&answer, self.tokenizer)
    }

    fn cancel(&mut self, request: &Request<'_>) -> anyhow::Result<()> {
        let answer = self.post(&self.body(request, true))?;
        // One event's worth: the rest is never read, and the connection goes with the reader.
        let mut reader = answer.into_reader();
        let read = reader.read(&mut [0; 64]).context("reading the beginning of an answer")?;
        ensure!(read > 0, "the server ended a streamed answer before its beginning");
        Ok(())
    }

    fn in_two_pieces(&mut self, _: &Request<'_>, _: usize) -> anyhow::Result<Option<Answered>> {
        Ok(None)
    }

    fn limit(&mut self, _: Option<usize>) -> bool {
        false
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

fn answered(answer: &Value, tokenizer: &Tokenizer) -> anyhow::Result<Answered> {
    let choice = answer.pointer("/choices/0").context("an answer has no choice")?;
    let logprobs = choice.get("logprobs").filter(|logprobs| !logprobs.is_null());
    let logprobs = logprobs.context("an answer has no log-probabilities: nothing could be compared")?;
    let mut answered = match logprobs.get("content").and_then(Value::as_array) {
        Some(content) => by_content(content)?,
        None => by_lists(logprobs)?,
    };
    if answered.ids.len() != answered.tokens.len() {
        let text = choice.get("text").and_then(Value::as_str).context("an answer has no text")?;
        answered.ids = tokenizer.encode(text)?;
    }
    let reused = ["/usage/prompt_tokens_details/cached_tokens", "/timings/cache_n"];
    answered.reused_tokens = reused.iter().find_map(|path| answer.pointer(path)?.as_u64());
    Ok(answered)
}

/// OpenAI's form.
fn by_lists(logprobs: &Value) -> anyhow::Result<Answered> {
    let list = |name: &str| {
        let list = logprobs.get(name).and_then(Value::as_array);
        list.with_context(|| format!("an answer's log-probabilities have no list {name}"))
    };
    let (tokens, chosen, tops) = (list("tokens")?, list("token_logprobs")?, list("top_logprobs")?);
    ensure!(
        tokens.len() == chosen.len() && tokens.len() == tops.len(),
        "an answer's log-probabilities are lists of {}, {} and {}, expected equal lengths",
        tokens.len(),
        chosen.len(),
        tops.len()
    );
    let mut answered = Answered::default();
    for ((token, chosen), top) in tokens.iter().zip(chosen).zip(tops) {
        let token = token.as_str().context("a token is not a text")?.to_owned();
        let mut values = vec![(token.clone(), number(chosen)?)];
        for (name, value) in top.as_object().unwrap_or(&Map::new()) {
            values.push((name.clone(), number(value)?));
        }
        answered.push(token, values);
    }
    Ok(answered)
}

/// llama.cpp's form.
fn by_content(content: &[Value]) -> anyhow::Result<Answered> {
    let entry = |entry: &Value| {
        let text = entry.get("token").and_then(Value::as_str);
        let id = entry.get("id").and_then(Value::as_u64);
        let name = id.map(|id| id.to_string()).or(text.map(str::to_owned)).context("a token has no name")?;
        anyhow::Ok((name, number(entry.get("logprob").unwrap_or(&Value::Null))?))
    };
    let mut answered = Answered::default();
    for step in content {
        let chosen = entry(step)?;
        let mut values = vec![chosen.clone()];
        for top in step.get("top_logprobs").and_then(Value::as_array).unwrap_or(&Vec::new()) {
            values.push(entry(top)?);
        }
        answered.ids.extend(step.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()));
        answered.push(chosen.0, values);
    }
    Ok(answered)
}

impl Answered {
    fn push(&mut self, token: String, values: Vec<(String, f64)>) {
        let (names, values) = values.into_iter().unzip();
        self.tokens.push(token);
        self.rows.push(Row { names, values });
    }
}

fn number(value: &Value) -> anyhow::Result<f64> {
    value.as_f64().with_context(|| format!("a log-probability is {value}, expected a number"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_log_probabilities_are_read() {
        let lists = json!({
            "tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0], "top_logprobs": [{"a": -0.5, "c": -2.0}, {"b": -1.0}],
        });
        let answered = by_lists(&lists).unwrap();
        assert_eq!(answered.tokens, ["a", "b"]);
        assert_eq!(answered.rows[0].names, ["a", "a", "c"]);
        assert_eq!(answered.rows[0].values, [-0.5, -0.5, -2.0]);
        let content = json!([{"id": 7, "token": "a", "logprob": -0.5, "top_logprobs": [{"id": 9, "token": "c", "logprob": -2.0}]}]);
        let answered = by_content(content.as_array().unwrap()).unwrap();
        assert_eq!((answered.ids, answered.tokens), (vec![7], vec!["7".to_owned()]));
        assert_eq!(answered.rows[0].names, ["7", "9"]);
    }

    #[test]
    fn what_cannot_be_compared_is_an_error() {
        let short = json!({"tokens": ["a"], "token_logprobs": [], "top_logprobs": []});
        let error = by_lists(&short).unwrap_err().to_string();
        assert_eq!(error, "an answer's log-probabilities are lists of 1, 0 and 0, expected equal lengths");
        assert!(by_lists(&json!({"tokens": ["a"], "token_logprobs": [null], "top_logprobs": [{}]})).is_err());
    }
}
