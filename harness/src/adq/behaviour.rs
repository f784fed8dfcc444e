//! Frozen cases for any runtime: three records at 3, 50 and 95 % of a text of exact length, each with a decoy that is revoked, and
//! one exact answer. Afterwards the same question without the text: a conversation must not know another one's.

use super::endpoint::{Endpoint, Reply};
use super::history::{Counter, HistoryError, HistorySpec, Remembering};
use super::http::HttpEndpoint;
use super::sampling::SamplingContract;
use super::task::TaskError;
use assay_engine::file;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The file of cases, in the folder of tasks.
pub const FILE: &str = "behaviour.toml";
const MAX_BYTES: u64 = 1 << 20;
/// Tokens of an answer: it has four words.
const COMPLETION_TOKENS: u32 = 64;
/// Tokens that a question and a template may take beside the text.
const MAX_CORRECTIONS: usize = 6;

/// `behaviour.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    /// Texts, with their notes.
    pub text: HistorySpec,
    /// What is asked about each.
    pub question: String,
    /// What an answer must be, white space at its ends apart.
    pub answer: String,
    /// What an answer without the text must not have.
    pub secret: Vec<String>,
    /// Lengths of whole requests, in tokens.
    pub lengths: Vec<usize>,
}

/// What one endpoint answered at one length.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answered {
    /// Tokens of the whole request.
    pub tokens: usize,
    /// The answer; or why there is none.
    pub answer: Result<String, String>,
    /// Whether it is the expected one.
    pub right: bool,
    /// Whether the question without the text was answered without the text's secrets.
    pub isolated: bool,
    /// Requests and responses, whole.
    pub exchanges: Vec<(String, String)>,
}

impl Cases {
    /// Reads the cases of a folder of tasks.
    ///
    /// # Errors
    /// When the file is none.
    pub fn read(folder: &Path) -> Result<Self, TaskError> {
        let path = folder.join(FILE);
        let text = file::read_text(&path, MAX_BYTES)?;
        toml::from_str(&text).map_err(|error| TaskError::Invalid { path, reason: error.to_string() })
    }

    fn request(&self, model: &str, text: Option<&str>) -> Value {
        let question = self.question.trim();
        let content = text.map_or(question.to_owned(), |text| format!("{text}\n\n{question}"));
        let mut request = Map::new();
        request.insert("model".to_owned(), model.into());
        request.insert("messages".to_owned(), json!([{"role": "user", "content": content}]));
        request.insert("max_tokens".to_owned(), COMPLETION_TOKENS.into());
        request.insert("stream".to_owned(), false.into());
        SamplingContract::GREEDY.apply(&mut request);
        request.into()
    }

    /// The request of exactly `tokens`, rendered.
    fn fitted(&self, endpoint: &HttpEndpoint, model: &str, tokens: usize) -> Result<Value, HistoryError> {
        let counter = Remembering::new(endpoint);
        let count = |text: Option<&str>| {
            let request = self.request(model, text);
            let prompt = endpoint.rendered(&json!({"messages": request["messages"], "tools": []}));
            counter.count(&prompt.map_err(HistoryError::Counter)?).map_err(HistoryError::Counter)
        };
        let bare = count(None)?;
        let short = || HistoryError::TooShort { wanted: tokens, found: bare };
        let mut length = tokens.checked_sub(bare + 2).ok_or_else(short)?;
        let mut found = 0;
        for _ in 0..MAX_CORRECTIONS {
            let text = self.text.write(&counter, length)?.text;
            found = count(Some(&text))?;
            if found == tokens {
                return Ok(self.request(model, Some(&text)));
            }
            length = (length + tokens).checked_sub(found).ok_or_else(short)?;
        }
        Err(HistoryError::NotExact { wanted: tokens, found })
    }

    /// Asks an endpoint at one length.
    pub fn ask(&self, endpoint: &HttpEndpoint, model: &str, tokens: usize, seconds: f64) -> Answered {
        let mut answered =
            Answered { tokens, answer: Err(String::new()), right: false, isolated: false, exchanges: Vec::new() };
        let request = match self.fitted(endpoint, model, tokens) {
            Ok(request) => request,
            Err(error) => {
                answered.answer = Err(error.to_string());
                return answered;
            }
        };
        answered.answer = complete(endpoint, &request, seconds, Some(tokens as u64), &mut answered.exchanges);
        answered.right = answered.answer.as_ref().is_ok_and(|answer| answer.trim() == self.answer.trim());
        let alone = complete(endpoint, &self.request(model, None), seconds, None, &mut answered.exchanges);
        answered.isolated = alone.is_ok_and(|answer| !self.secret.iter().any(|secret| answer.contains(secret)));
        answered
    }
}

fn complete(
    endpoint: &HttpEndpoint,
    request: &Value,
    seconds: f64,
    tokens: Option<u64>,
    exchanges: &mut Vec<(String, String)>,
) -> Result<String, String> {
    let exchange = endpoint.clone().complete(request, seconds).map_err(|error| error.to_string())?;
    exchanges.push((exchange.request.clone(), exchange.response.clone()));
    if exchange.status != 200 {
        return Err(format!("status {}: {}", exchange.status, exchange.response.chars().take(200).collect::<String>()));
    }
    SamplingContract::GREEDY.check_sent(&exchange.request)?;
    SamplingContract::GREEDY.check_reported(&exchange.response)?;
    let reply = Reply::read(&exchange.response)?;
    match (tokens, reply.prompt_tokens) {
        (Some(wanted), found) if found != Some(wanted) => {
            Err(format!("the endpoint counts {found:?} tokens, the request has {wanted}"))
        }
        _ => Ok(reply.content),
    }
}
