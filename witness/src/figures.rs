//! What is counted of one prompt, before any rule.

use serde::Serialize;

use crate::artifact::Prompt;
use crate::gate::Agreement;
use crate::observed::ObservedPrompt;
use crate::top_k::TopK;

/// How an answer compares with the witness's, over one prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptFigures {
    /// The prompt.
    pub prompt: String,
    /// Its tokens.
    pub input_tokens: usize,
    /// Greedy steps of the witness.
    pub steps: usize,
    /// Positions inside the prompt.
    pub prefill_positions: usize,
    /// Whether the first token is the witness's.
    pub first_token_equal: bool,
    /// The witness's margin there.
    pub first_token_margin: f64,
    /// Positions inside the prompt whose likeliest token is the witness's.
    pub prefill_argmax_equal: usize,
    /// Steps whose likeliest token, given the witness's tokens before, is the witness's.
    pub teacher_forced_equal: usize,
    /// Steps at which the witness's token is among the likeliest.
    pub contained: usize,
    /// Fewest of the likeliest tokens that are the witness's, over all places.
    pub overlap_min: usize,
    /// Mean of that.
    pub overlap_mean: f64,
    /// Largest difference of a log-probability.
    pub logprob_difference_max: f64,
    /// Mean difference of a log-probability.
    pub logprob_difference_mean: f64,
    /// Tokens of the answer's own greedy continuation that are the witness's, up to the first that is not.
    pub exact_run: usize,
}

/// Places that agree by a rule, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    pub(crate) agree: usize,
    pub(crate) excused: usize,
    pub(crate) places: usize,
}

impl Count {
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            agree: self.agree + other.agree,
            excused: self.excused + other.excused,
            places: self.places + other.places,
        }
    }
}

/// The witness's likeliest tokens and the answer's, at one place.
pub(crate) type Pair<'a> = (&'a TopK, &'a TopK);

/// Predictions inside the prompt.
pub(crate) fn prefill_pairs<'a>(
    prompt: &'a Prompt,
    observed: &'a ObservedPrompt,
) -> impl Iterator<Item = Pair<'a>> + Clone {
    prompt.prefill.iter().map(|place| &place.top).zip(observed.prefill.iter().map(|place| &place.top))
}

/// Predictions at the witness's greedy steps.
pub(crate) fn step_pairs<'a>(
    prompt: &'a Prompt,
    observed: &'a ObservedPrompt,
) -> impl Iterator<Item = Pair<'a>> + Clone {
    prompt.greedy.iter().map(|step| &step.top).zip(&observed.teacher_forced)
}

/// Counts the places at which `agrees`.
pub(crate) fn count<'a>(
    pairs: impl Iterator<Item = Pair<'a>>,
    rule: Agreement,
    agrees: impl Fn(Pair<'a>) -> bool,
) -> Count {
    let mut count = Count::default();
    for pair in pairs {
        count.places += 1;
        if agrees(pair) {
            count.agree += 1;
        } else if pair.0.margin() < rule.excused_below_margin {
            count.excused += 1;
        }
    }
    count
}

/// Whether the likeliest token is the witness's.
pub(crate) fn same_first((witness, observed): Pair<'_>) -> bool {
    witness.first() == observed.first()
}

/// Whether the witness's token is among the likeliest.
pub(crate) fn contained((witness, observed): Pair<'_>) -> bool {
    witness.first().is_some_and(|id| observed.contains(id))
}

impl PromptFigures {
    /// Counts one prompt. The two must be of the same shape.
    pub(crate) fn new(prompt: &Prompt, observed: &ObservedPrompt) -> Self {
        let all = || prefill_pairs(prompt, observed).chain(step_pairs(prompt, observed));
        let overlaps: Vec<usize> = all().map(|(witness, observed)| witness.overlap(observed)).collect();
        let differences: Vec<f64> =
            all().flat_map(|(witness, observed)| witness.logprob_differences(observed)).collect();
        let mean = |sum: f64, count: usize| if count == 0 { 0.0 } else { sum / count as f64 };
        let greedy = prompt.greedy.iter().map(|step| step.token_id);
        Self {
            prompt: prompt.name.clone(),
            input_tokens: prompt.input_token_ids.len(),
            steps: prompt.greedy.len(),
            prefill_positions: prompt.prefill.len(),
            first_token_equal: step_pairs(prompt, observed).next().is_some_and(same_first),
            first_token_margin: prompt.greedy.first().map_or(0.0, |step| step.top.margin()),
            prefill_argmax_equal: prefill_pairs(prompt, observed).filter(|&pair| same_first(pair)).count(),
            teacher_forced_equal: step_pairs(prompt, observed).filter(|&pair| same_first(pair)).count(),
            contained: step_pairs(prompt, observed).filter(|&pair| contained(pair)).count(),
            overlap_min: overlaps.iter().copied().min().unwrap_or(0),
            overlap_mean: mean(overlaps.iter().sum::<usize>() as f64, overlaps.len()),
            logprob_difference_max: differences.iter().copied().fold(0.0, f64::max),
            logprob_difference_mean: mean(differences.iter().sum(), differences.len()),
            exact_run: greedy.zip(&observed.greedy_token_ids).take_while(|&(a, &b)| a == b).count(),
        }
    }
}
