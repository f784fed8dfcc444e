//! Rules applied to an answer: one judgement a prompt and rule, never a sum of them.

use serde::Serialize;

use crate::artifact::{Artifact, Prompt};
use crate::figures::{Count, PromptFigures, contained, count, prefill_pairs, same_first, step_pairs};
use crate::gate::{Agreement, Gate, Rules};
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

/// One rule applied to one prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// The prompt's name.
    pub prompt: String,
    /// The rule.
    pub rule: Rule,
    /// The judgement.
    pub outcome: Outcome,
    /// What was found and what was expected.
    pub reason: String,
}

/// Compares an answer with the artifact by a gate. Figures are of the prompts that could be compared.
pub fn judge(artifact: &Artifact, observed: &Observed, gate: &Gate) -> (Vec<PromptFigures>, Vec<Judgement>) {
    let (mut figures, mut judgements) = (Vec::new(), Vec::new());
    for (index, prompt) in artifact.prompts.iter().enumerate() {
        let answer = observed.prompts.get(index);
        match answer.ok_or_else(|| "no answer".to_owned()).and_then(|answer| same_shape(prompt, answer).map(|()| answer)) {
            Err(reason) => judgements.push(judgement(prompt, Rule::Complete, Outcome::Incomplete, reason)),
            Ok(answer) => {
                let counted = PromptFigures::new(prompt, answer);
                judge_prompt(prompt, answer, &counted, &gate.rules, &mut judgements);
                figures.push(counted);
            }
        }
    }
    if observed.prompts.len() > artifact.prompts.len() {
        let extra = observed.prompts.len() - artifact.prompts.len();
        judgements.push(Judgement {
            prompt: observed.prompts[artifact.prompts.len()].name.clone(),
            rule: Rule::Complete,
            outcome: Outcome::Incomplete,
            reason: format!("{extra} answers that the artifact has no prompt for"),
        });
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
    let positions = |places: &[crate::artifact::Position]| places.iter().map(|place| place.position).collect::<Vec<_>>();
    if positions(&observed.prefill) != positions(&prompt.prefill) {
        return Err(format!("other positions inside the prompt than the artifact's {}", prompt.prefill.len()));
    }
    Ok(())
}

fn judge_prompt(
    prompt: &Prompt,
    observed: &ObservedPrompt,
    figures: &PromptFigures,
    rules: &Rules,
    judgements: &mut Vec<Judgement>,
) {
    let mut agreement = |rule, limits: Agreement, count: Count| {
        // A prompt of one token has no position inside; that is no failure and nothing to pass either.
        if count.places > 0 {
            let (pass, reason) = within(limits, count);
            judgements.push(judgement(prompt, rule, outcome(pass), reason));
        }
    };
    let first = count(step_pairs(prompt, observed).take(1), rules.first_token, same_first);
    agreement(Rule::FirstToken, rules.first_token, first);
    let inside = count(prefill_pairs(prompt, observed), rules.prefill_argmax, same_first);
    agreement(Rule::PrefillArgmax, rules.prefill_argmax, inside);
    let forced = count(step_pairs(prompt, observed), rules.teacher_forced, same_first);
    agreement(Rule::TeacherForced, rules.teacher_forced, forced);
    let among = count(step_pairs(prompt, observed), rules.top_k_containment, contained);
    agreement(Rule::TopKContainment, rules.top_k_containment, among);

    let (limit, min, mean) = (rules.top_k_overlap, figures.overlap_min, figures.overlap_mean);
    let pass = min >= limit.min_each && mean >= limit.min_mean;
    let reason = format!("{min} at least, {mean:.2} on average; expected {} and {}", limit.min_each, limit.min_mean);
    judgements.push(judgement(prompt, Rule::TopKOverlap, outcome(pass), reason));

    let (limit, max, mean) = (rules.logprobs, figures.logprob_difference_max, figures.logprob_difference_mean);
    let pass = max <= limit.max_difference && mean <= limit.mean_difference;
    let reason = format!(
        "{max:.2e} at most, {mean:.2e} on average; expected {} and {}",
        limit.max_difference, limit.mean_difference
    );
    judgements.push(judgement(prompt, Rule::Logprobs, outcome(pass), reason));

    let reason = format!("{} of {} tokens", figures.exact_run, figures.steps);
    judgements.push(judgement(prompt, Rule::ExactRun, Outcome::Reported, reason));
}

/// Whether a count is within its rule, and why.
fn within(limits: Agreement, count: Count) -> (bool, String) {
    let share = (count.agree + count.excused) as f64 / count.places as f64;
    let excused = match count.excused {
        0 => String::new(),
        excused => format!(", {excused} excused (margin below {})", limits.excused_below_margin),
    };
    let reason = format!("{} of {} agree{excused}; expected {} %", count.agree, count.places, limits.min_share * 100.0);
    (share >= limits.min_share, reason)
}

fn outcome(pass: bool) -> Outcome {
    if pass { Outcome::Pass } else { Outcome::Fail }
}

fn judgement(prompt: &Prompt, rule: Rule, outcome: Outcome, reason: String) -> Judgement {
    Judgement { prompt: prompt.name.clone(), rule, outcome, reason }
}
