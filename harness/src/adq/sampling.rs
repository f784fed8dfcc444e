//! The sampling contract: what a request must ask for, and what an endpoint must not say that it did instead.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How tokens are to be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingContract {
    /// 0 is greedy.
    pub temperature: f64,
    /// Share of probability that is drawn from.
    pub top_p: f64,
    /// Of the draws.
    pub seed: u64,
}

impl SamplingContract {
    /// The largest logit, every time.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };

    fn fields(&self) -> [(&'static str, f64); 3] {
        [("temperature", self.temperature), ("top_p", self.top_p), ("seed", self.seed as f64)]
    }

    /// Puts the contract into a request.
    pub fn apply(&self, request: &mut serde_json::Map<String, Value>) {
        request.insert("temperature".to_owned(), self.temperature.into());
        request.insert("top_p".to_owned(), self.top_p.into());
        request.insert("seed".to_owned(), self.seed.into());
    }

    /// Reads the bytes that were sent; a label says nothing.
    ///
    /// # Errors
    /// The first field that is missing or another, in words.
    pub fn check_sent(&self, request: &str) -> Result<(), String> {
        let sent: Value = serde_json::from_str(request).map_err(|error| format!("the request is no JSON: {error}"))?;
        for (name, declared) in self.fields() {
            match sent.get(name).and_then(Value::as_f64) {
                Some(value) if value == declared => {}
                Some(value) => return Err(format!("the request has {name} {value}, the contract {declared}")),
                None => return Err(format!("the request has no {name}, the contract {declared}")),
            }
        }
        Ok(())
    }

    /// Reads what the endpoint says of the sampling that it did, where it says anything: `sampling`, or llama.cpp's
    /// `generation_settings`, of the response or of its `__verbose` part. Under temperature 0 nothing is drawn, so the
    /// temperature alone counts.
    ///
    /// # Errors
    /// The first field that is another one, in words.
    pub fn check_reported(&self, response: &str) -> Result<(), String> {
        let Ok(response) = serde_json::from_str::<Value>(response) else { return Ok(()) };
        let counted = if self.temperature == 0.0 { 1 } else { self.fields().len() };
        for place in ["/sampling", "/generation_settings", "/__verbose/generation_settings"] {
            let Some(reported) = response.pointer(place) else { continue };
            for (name, declared) in self.fields().into_iter().take(counted) {
                // Some servers keep them as f32.
                if let Some(value) = reported.get(name).and_then(Value::as_f64)
                    && (value - declared).abs() > 1e-6
                {
                    return Err(format!("the endpoint reports {name} {value}, the contract has {declared}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_and_what_was_done_must_be_the_contract() {
        let greedy = SamplingContract::GREEDY;
        let mut request = serde_json::Map::new();
        greedy.apply(&mut request);
        greedy.check_sent(&Value::from(request).to_string()).unwrap();
        for sent in ["{}", r#"{"temperature":0.7,"top_p":1,"seed":0}"#, r#"{"temperature":0,"top_p":1}"#, "no"] {
            assert!(greedy.check_sent(sent).is_err(), "{sent}");
        }
        for (reported, fine) in [
            (r#"{"choices":[]}"#, true),
            (r#"{"sampling":{"temperature":0}}"#, true),
            (r#"{"sampling":{"temperature":0.8}}"#, false),
            (r#"{"__verbose":{"generation_settings":{"temperature":0.800000011920929}}}"#, false),
            (r#"{"generation_settings":{"temperature":0,"top_p":0.95}}"#, true),
        ] {
            assert_eq!(greedy.check_reported(reported).is_ok(), fine, "{reported}");
        }
    }
}
