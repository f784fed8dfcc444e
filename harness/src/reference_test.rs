//! Replaying a witness's artifact by token id.

use crate::interrupt;
use crate::progress::Progress;
use anyhow::{Context, ensure};
use assay_engine::Engine;
use assay_engine::device::Device;
use assay_witness::{Artifact, Binding, Observed, ObservedPrompt, Position, Prompt, SCHEMA_VERSION, TopK};

/// The engine's answers to every prompt of an artifact.
///
/// # Errors
/// When the engine refuses a prompt or gives a logit that is not a number, or the user interrupts.
pub fn observe<D: Device>(
    engine: &mut Engine<D>,
    artifact: &Artifact,
    binding: &Binding,
    runtime: String,
) -> anyhow::Result<Observed> {
    let (needed, context) = (artifact.context_tokens(), engine.options().context_tokens);
    ensure!(
        needed <= context,
        "{}: its longest prompt and answer have {needed} tokens, the config's context has {context}",
        binding.path.display()
    );
    let progress = Progress::start("replaying", artifact.prompts.len() as u64, "prompts");
    let mut prompts = Vec::with_capacity(artifact.prompts.len());
    for prompt in &artifact.prompts {
        interrupt::check()?;
        let answer = answer(engine, prompt, artifact.top_k);
        prompts.push(answer.with_context(|| format!("replaying prompt {:?}", prompt.name))?);
        progress.advance(1);
    }
    Ok(Observed { schema_version: SCHEMA_VERSION, artifact_sha256: binding.sha256.clone(), runtime, prompts })
}

/// Prefill once; then the witness's tokens one by one; then, from the end of the prompt again, the engine's own.
fn answer<D: Device>(engine: &mut Engine<D>, prompt: &Prompt, top_k: usize) -> anyhow::Result<ObservedPrompt> {
    let ids = &prompt.input_token_ids;
    let last = ids.len() - 1;
    let wanted: Vec<usize> = prompt.prefill.iter().map(|place| place.position).chain([last]).collect();
    let mut seen: Vec<Option<TopK>> = Vec::with_capacity(wanted.len());
    engine.reset();
    let first = engine.prefill_logits(ids, wanted[0], &mut |position, logits| {
        // Positions come in order, and those wanted rise.
        if wanted.get(seen.len()) == Some(&position) {
            seen.push(TopK::from_logits(logits, top_k));
        }
        Ok(())
    })?;
    let mut tops = seen.into_iter().collect::<Option<Vec<TopK>>>().context("a logit of the prompt is not a number")?;
    ensure!(tops.len() == wanted.len(), "logits of {} positions, expected {}", tops.len(), wanted.len());

    let mut teacher_forced: Vec<TopK> = tops.pop().into_iter().collect();
    // The last step's token is only compared, never fed.
    for step in &prompt.greedy[..prompt.greedy.len() - 1] {
        engine.decode(step.token_id)?;
        let top = TopK::from_logits(&engine.last_logits()?, top_k).context("a logit of a step is not a number")?;
        teacher_forced.push(top);
    }

    engine.truncate(ids.len());
    let mut greedy_token_ids = vec![first];
    let mut token = first;
    while greedy_token_ids.len() < prompt.greedy.len() {
        token = engine.decode(token)?;
        greedy_token_ids.push(token);
    }
    let prefill =
        prompt.prefill.iter().zip(tops).map(|(place, top)| Position { position: place.position, top }).collect();
    Ok(ObservedPrompt { name: prompt.name.clone(), greedy_token_ids, teacher_forced, prefill })
}
