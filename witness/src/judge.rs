//! Rules applied to an answer: one judgement a prompt and rule, never a sum of them.

use serde::Serialize;

use crate::artifact::{Artifact, Prompt};
use crate::figures::{Count, Pair, PromptFigures, contained, count, prefill_pairs, same_first, step_pairs};
use crate::gate::{Agreement, Gate, Rules, Scope};
use crate::observed::{Observed, ObservedPrompt};

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The answer has every place that the artifact has.
    Complete,
    /// The token after the prompt.
    FirstToken,
    /// The likeliest tokens inside the prompt.
    PrefillArgmax,
    /// The likeliest token at each greedy step.
    TeacherForced,
    /// The witness's token among the likeliest.
    TopKContainment,
    /// The likeliest tokens that are the witness's.
    TopKOverlap,
    /// Log-probabilities.
    Logprobs,
    /// Single places far from the witness's.
    Strays,
    /// The longest exact run, which is reported and never judged.
    ExactRun,
}

impl Rule {
    /// As a reader calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::FirstToken => "first token",
            Self::PrefillArgmax => "prefill argmax",
            Self::TeacherForced => "teacher-forced agreement",
            Self::TopKContainment => "top-k containment",
            Self::TopKOverlap => "top-k overlap",
            Self::Logprobs => "log-probabilities",
            Self::Strays => "stray places",
            Self::ExactRun => "exact run",
        }
    }
}

/// A judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Within the rule.
    Pass,
    /// Outside the rule.
    Fail,
    /// There is nothing to judge.
    Incomplete,
    /// Reported only.
    Reported,
}

/// One rule applied to one prompt, or to all of them together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// The prompt's name; absent where the rule is over all prompts.
    pub prompt: Option<String>,
    /// The rule.
    pub rule: Rule,
    /// The judgement.
    pub outcome: Outcome,
    /// What was found and what was expected.
    pub reason: String,
}

impl Judgement {
    /// What a reader calls the row.
    pub fn row(&self) -> String {
        format!("{}: {}", self.prompt.as_deref().unwrap_or("all prompts"), self.rule.name())
    }

    fn new(prompt: &Prompt, rule: Rule, outcome: Outcome, reason: String) -> Self {
        Self { prompt: Some(prompt.name.clone()), rule, outcome, reason }
    }
}

/// A prompt and the answer to it, of the same shape.
type Answered<'a> = (&'a Prompt, &'a ObservedPrompt);

/// Compares an answer with the artifact by a gate. Figures are of the prompts that could be compared.
pub fn judge(artifact: &Artifact, observed: &Observed, gate: &Gate) -> (Vec<PromptFigures>, Vec<Judgement>) {
    let mut judgements = Vec::new();
    let mut answered: Vec<Answered<'_>> = Vec::new();
    for (index, prompt) in artifact.prompts.iter().enumerate() {
        let answer = observed.prompts.get(index).ok_or_else(|| "no answer".to_owned());
        match answer.and_then(|answer| same_shape(prompt, answer).map(|()| answer)) {
            Ok(answer) => answered.push((prompt, answer)),
            Err(reason) => judgements.push(Judgement::new(prompt, Rule::Complete, Outcome::Incomplete, reason)),
        }
    }
    if let Some(extra) = observed.prompts.get(artifact.prompts.len()) {
        judgements.push(Judgement {
            prompt: Some(extra.name.clone()),
            rule: Rule::Complete,
            outcome: Outcome::Incomplete,
            reason: format!("the artifact has {} prompts, and this is an answer to another", artifact.prompts.len()),
        });
    }
    judgements.extend(agreements(&answered, &gate.rules));
    judgements.extend(strays(&answered, &gate.rules));
    let figures: Vec<PromptFigures> =
        answered.iter().map(|(prompt, answer)| PromptFigures::new(prompt, answer)).collect();
    for ((prompt, _), figures) in answered.iter().zip(&figures) {
        judgements.extend(distances(prompt, figures, &gate.rules));
    }
    (figures, judgements)
}

/// Whether every place of the artifact has an answer.
fn same_shape(prompt: &Prompt, observed: &ObservedPrompt) -> Result<(), String> {
    if observed.name != prompt.name {
        return Err(format!("the answer is to {:?}", observed.name));
    }
    let steps = prompt.greedy.len();
    if observed.teacher_forced.len() != steps || observed.greedy_token_ids.len() != steps {
        let (forced, greedy) = (observed.teacher_forced.len(), observed.greedy_token_ids.len());
        return Err(format!("{forced} teacher-forced steps and {greedy} greedy ones, expected {steps} of each"));
    }
    let positions =
        |places: &[crate::artifact::Position]| places.iter().map(|place| place.position).collect::<Vec<_>>();
    if positions(&observed.prefill) != positions(&prompt.prefill) {
        return Err(format!("other positions inside the prompt than the artifact's {}", prompt.prefill.len()));
    }
    Ok(())
}

/// The rules that count places, each over its scope.
fn agreements(answered: &[Answered<'_>], rules: &Rules) -> Vec<Judgement> {
    type Places = for<'a> fn(Answered<'a>) -> Vec<Pair<'a>>;
    type Agrees = fn(Pair<'_>) -> bool;
    let first: Places = |(prompt, answer)| step_pairs(prompt, answer).take(1).collect();
    let inside: Places = |(prompt, answer)| prefill_pairs(prompt, answer).collect();
    let steps: Places = |(prompt, answer)| step_pairs(prompt, answer).collect();
    let counted: [(Rule, Agreement, Places, Agrees); 4] = [
        (Rule::FirstToken, rules.first_token, first, same_first),
        (Rule::PrefillArgmax, rules.prefill_argmax, inside, same_first),
        (Rule::TeacherForced, rules.teacher_forced, steps, same_first),
        (Rule::TopKContainment, rules.top_k_containment, steps, contained),
    ];
    let mut judgements = Vec::new();
    for (rule, limits, places, agrees) in counted {
        let count = |answer: &Answered<'_>| count(places(*answer).into_iter(), limits, agrees);
        match limits.over {
            Scope::Prompt => {
                judgements.extend(answered.iter().filter_map(|answer| {
                    within(limits, count(answer))
                        .map(|(outcome, reason)| Judgement::new(answer.0, rule, outcome, reason))
                }));
            }
            Scope::Artifact => {
                let all = answered.iter().map(count).fold(Count::default(), Count::plus);
                let judged = within(limits, all);
                judgements.extend(judged.map(|(outcome, reason)| Judgement { prompt: None, rule, outcome, reason }));
            }
        }
    }
    judgements
}

/// How many places are strays, where some may be.
fn strays(answered: &[Answered<'_>], rules: &Rules) -> Option<Judgement> {
    let most = rules.max_stray_share?;
    let strays = |(witness, observed): Pair<'_>| {
        let apart = witness.logprob_differences(observed).fold(0.0, f64::max);
        witness.overlap(observed) < rules.top_k_overlap.min_each
            || rules.logprobs.max_difference.is_some_and(|limit| apart > limit)
    };
    let pairs =
        answered.iter().flat_map(|(prompt, answer)| prefill_pairs(prompt, answer).chain(step_pairs(prompt, answer)));
    let (places, found) = pairs.fold((0, 0), |(places, found), pair| (places + 1, found + usize::from(strays(pair))));
    let reason = format!("{found} of {places} places are strays; expected at most {} %", most * 100.0);
    let outcome = outcome(found as f64 <= most * f64::from(places));
    (places > 0).then_some(Judgement { prompt: None, rule: Rule::Strays, outcome, reason })
}

/// The rules about how far an answer is, and what is only reported.
fn distances(prompt: &Prompt, figures: &PromptFigures, rules: &Rules) -> [Judgement; 3] {
    let (limit, min, mean) = (rules.top_k_overlap, figures.overlap_min, figures.overlap_mean);
    // Where strays are counted over all prompts, a prompt is judged by its means alone.
    let each = rules.max_stray_share.is_none();
    let overlap = outcome((!each || min >= limit.min_each) && mean >= limit.min_mean);
    let at_least = if each { limit.min_each.to_string() } else { "any".to_owned() };
    let overlap_reason = format!("{min} at least, {mean:.2} on average; expected {at_least} and {}", limit.min_mean);

    let (limit, max, mean) = (rules.logprobs, figures.logprob_difference_max, figures.logprob_difference_mean);
    let largest = limit.max_difference.filter(|_| each);
    let close = largest.is_none_or(|limit| max <= limit);
    let logprobs = outcome(close && mean <= limit.mean_difference);
    let at_most = largest.map_or("any".to_owned(), |limit| limit.to_string());
    let logprobs_reason =
        format!("{max:.1e} at most, {mean:.1e} on average; expected {at_most} and {}", limit.mean_difference);

    let run = format!("{} of {} tokens", figures.exact_run, figures.steps);
    [
        Judgement::new(prompt, Rule::TopKOverlap, overlap, overlap_reason),
        Judgement::new(prompt, Rule::Logprobs, logprobs, logprobs_reason),
        Judgement::new(prompt, Rule::ExactRun, Outcome::Reported, run),
    ]
}

/// Whether a count is within its rule, and why. A prompt of one token has no place inside: nothing to fail and nothing to
/// pass.
fn within(limits: Agreement, count: Count) -> Option<(Outcome, String)> {
    if count.places == 0 {
        return None;
    }
    let share = (count.agree + count.excused) as f64 / count.places as f64;
    let excused = match count.excused {
        0 => String::new(),
        excused => format!(", {excused} excused (margin below {})", limits.excused_below_margin),
    };
    let reason = format!("{} of {} agree{excused}; expected {} %", count.agree, count.places, limits.min_share * 100.0);
    Some((outcome(share >= limits.min_share), reason))
}

fn outcome(pass: bool) -> Outcome {
    if pass { Outcome::Pass } else { Outcome::Fail }
}
