//! Context tiers are literal counts of tokens: of the first request with template and tool schemas where an endpoint says how
//! it renders and counts, else of the history alone.

use super::attempt::{Setting, first_messages, request};
use super::history::{Counter, History, HistoryError, Remembering};
use super::http::HttpEndpoint;
use super::task::Task;

/// How often the history's length is corrected by what the whole request came to.
const MAX_CORRECTIONS: usize = 6;

/// Sizes by name; any other number is written as it is.
const TIERS: [(&str, usize); 6] =
    [("1K", 1024), ("4K", 4096), ("16K", 16_384), ("128K", 131_072), ("256K", 262_144), ("500K", 500_000)];

/// Tokens of a tier by its name, or of a plain number.
///
/// # Errors
/// When it is neither, in words.
pub fn parse(text: &str) -> Result<usize, String> {
    let named = TIERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, tokens)| tokens);
    let names: Vec<&str> = TIERS.iter().map(|&(name, _)| name).collect();
    named
        .or_else(|| text.parse().ok().filter(|&tokens| tokens > 0))
        .ok_or_else(|| format!("{text:?} is no tier, expected {} or a number of tokens", names.join(", ")))
}

/// What a task is given in front of its instruction.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The history, where the task has one.
    pub history: Option<History>,
    /// Exact tokens of the first request, where they could be measured before it was sent.
    pub first_request_tokens: Option<usize>,
}

/// For an agent without a model: a history of exactly `tokens`.
///
/// # Errors
/// When there is none of that length.
pub fn alone(task: &Task, counter: &dyn Counter, tokens: usize) -> Result<Fitted, HistoryError> {
    let counter = Remembering::new(counter);
    let history = task.history.as_ref().map(|spec| spec.write(&counter, tokens)).transpose()?;
    Ok(Fitted { history, first_request_tokens: None })
}

/// For an endpoint: a history such that the whole first request, rendered, has exactly `tokens`. A task without a history is
/// measured and stays as it is.
///
/// # Errors
/// When the endpoint does not render or count, or no history of that length was found.
pub fn fit(task: &Task, setting: &Setting<'_>, endpoint: &HttpEndpoint, tokens: usize) -> Result<Fitted, HistoryError> {
    let counter = Remembering::new(endpoint);
    let rendered = |history: Option<&str>| {
        let messages = first_messages(task, history);
        let request = request(task, setting, &messages, task.file.limits.completion_tokens);
        let prompt = endpoint.rendered(&request).map_err(HistoryError::Counter)?;
        counter.count(&prompt).map_err(HistoryError::Counter)
    };
    let bare = rendered(None)?;
    let Some(spec) = &task.history else {
        return Ok(Fitted { history: None, first_request_tokens: Some(bare) });
    };
    let short = || HistoryError::TooShort { wanted: tokens, found: bare };
    let mut length = tokens.checked_sub(bare + 2).ok_or_else(short)?;
    let mut found = 0;
    for _ in 0..MAX_CORRECTIONS {
        let history = spec.write(&counter, length)?;
        found = rendered(Some(&history.text))?;
        if found == tokens {
            return Ok(Fitted { history: Some(history), first_request_tokens: Some(tokens) });
        }
        length = (length + tokens).checked_sub(found).ok_or_else(short)?;
    }
    Err(HistoryError::NotExact { wanted: tokens, found })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_literal() {
        for (name, tokens) in [("128K", 131_072), ("256k", 262_144), ("500K", 500_000), ("4096", 4096)] {
            assert_eq!(parse(name).unwrap(), tokens);
        }
        assert!(parse("0").is_err() && parse("2K").is_err() && parse("much").is_err());
    }
}
