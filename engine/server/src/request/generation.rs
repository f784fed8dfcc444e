//! What completions and chats share.

use std::collections::BTreeMap;

use assay_engine::sampling::Sampling;
use serde::Deserialize;
use serde_json::Value;

use super::Fields;
use crate::error::ApiError;

/// Most of the likeliest tokens that are reported.
pub(crate) const MAX_TOP_LOGPROBS: i64 = 20;
/// Most stop texts, and the longest, in bytes.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Fields that say who asks or how to account for it.
const WITHOUT_EFFECT: [&str; 6] =
    ["metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// Generation of one answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Generation {
    /// `None`: as far as the endpoint's default goes.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) sampling: Sampling,
    /// Texts that end the answer and are no part of it.
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    /// Whether a stream ends with the usage.
    pub(crate) include_usage: bool,
    /// Whether end tokens are tokens like any other.
    pub(crate) ignore_eos: bool,
    /// Whether it may begin from the state of earlier requests. It changes no bit of the answer.
    pub(crate) cache_prompt: bool,
    /// Whose request it is, as the client says: what one user's requests leave behind is not used for another's.
    pub(crate) user: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// Padding against eavesdroppers that OpenAI adds; it is never added here.
    include_obfuscation: Option<bool>,
}

impl Generation {
    /// Takes the shared fields; checks the model's name against `served`. `random_seed` is for a request without one.
    pub(crate) fn take(fields: &mut Fields, served: &str, random_seed: u64) -> Result<Self, ApiError> {
        let model: String = fields.require("model")?;
        if model != served {
            return Err(ApiError::model(&model, served));
        }
        fields.ignore(&WITHOUT_EFFECT);
        fields.only("n", &1u32, "n = 1")?;
        fields.only("best_of", &1u32, "best_of = 1")?;
        fields.only("frequency_penalty", &0.0, "0")?;
        fields.only("presence_penalty", &0.0, "0")?;
        fields.only("repetition_penalty", &1.0, "1")?;
        fields.only("logit_bias", &BTreeMap::<String, Value>::new(), "an empty object")?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let options = fields.take::<StreamOptions>("stream_options")?;
        if options.is_some() && !stream {
            return Err(ApiError::field("stream_options", "stream_options is for requests with stream = true"));
        }
        let options = options.unwrap_or(StreamOptions { include_usage: None, include_obfuscation: None });
        if options.include_obfuscation == Some(true) {
            let message = "stream_options.include_obfuscation: this server adds no padding";
            return Err(ApiError::unsupported("stream_options", message));
        }
        let max_tokens =
            fields.integer("max_tokens", 0, i64::from(u32::MAX))?.and_then(|tokens| usize::try_from(tokens).ok());
        Ok(Self {
            max_tokens,
            sampling: sampling(fields, random_seed)?,
            stop: stops(fields)?,
            stream,
            include_usage: options.include_usage.unwrap_or(false),
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            cache_prompt: fields.take("cache_prompt")?.unwrap_or(true),
            user: fields.take("user")?.unwrap_or_default(),
        })
    }
}

fn sampling(fields: &mut Fields, random_seed: u64) -> Result<Sampling, ApiError> {
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0);
    if top_p == 0.0 {
        return Err(ApiError::field("top_p", "top_p is 0, expected more"));
    }
    // -1 is how some clients say "all".
    let top_k = fields.integer("top_k", -1, i64::from(u32::MAX))?.unwrap_or(0);
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(0.0),
        top_k: usize::try_from(top_k).unwrap_or(0),
        top_p,
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(0.0),
        seed: fields.take::<i64>("seed")?.map_or(random_seed, i64::cast_unsigned),
    })
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take::<Stop>("stop") {
        Ok(None) => Vec::new(),
        Ok(Some(Stop::One(one))) => vec![one],
        Ok(Some(Stop::Several(several))) => several,
        Err(_) => return Err(ApiError::field("stop", "stop: expected a text or a list of texts")),
    };
    let usable = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
    if stops.len() > MAX_STOPS || !stops.iter().all(usable) {
        let message = format!("stop: expected at most {MAX_STOPS} texts of 1 to {MAX_STOP_BYTES} bytes");
        return Err(ApiError::field("stop", message));
    }
    Ok(stops)
}
