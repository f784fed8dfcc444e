//! Two conversations in turns, with and without reuse: what continuing costs, and what keeping state costs.

use crate::evidence::RunLog;
use crate::interrupt;
use assay_engine::Engine;
use assay_engine::device::Device;
use assay_engine::session::{Scope, Sessions, Store, StoreOptions};
use assay_ledgers::{Run, TimingOff};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// One turn of one conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Turn {
    /// `off`, `on`, `off again`.
    pub phase: &'static str,
    /// Which conversation, from 0.
    pub conversation: usize,
    /// Which of its turns, from 0.
    pub turn: usize,
    /// Tokens of the request.
    pub prompt_tokens: usize,
    /// Of those, tokens that were not computed again.
    pub reused_tokens: usize,
    /// Bytes restored for that.
    pub restored_bytes: u64,
    /// Seconds of the restoration; part of the first token's.
    pub restore_s: f64,
    /// Bytes saved behind the answer.
    pub saved_bytes: u64,
    /// Seconds of saving and publishing; part of the whole.
    pub save_s: f64,
    /// Seconds from the request to its first token.
    pub first_token_s: f64,
    /// Seconds from the request until the next one may begin.
    pub whole_s: f64,
    /// The answer.
    pub answer: Vec<u32>,
}

/// What the conversations consist of.
#[derive(Debug, Clone)]
pub struct Script {
    /// Of each conversation: its first prompt.
    pub first: Vec<Vec<u32>>,
    /// Of each conversation: the messages that follow.
    pub messages: Vec<Vec<Vec<u32>>>,
    /// Tokens of each answer.
    pub answer: usize,
}

/// Runs the script with the cache on or off: first turns of all conversations, then second turns, and so on.
///
/// # Errors
/// When the engine fails, or the user interrupts.
pub fn run<D: Device>(
    _timing: &Run<TimingOff>,
    engine: &mut Engine<D>,
    checkpoint_sha256: &str,
    script: &Script,
    phase: &'static str,
    log: &mut RunLog,
    mut done: impl FnMut(),
) -> anyhow::Result<Vec<Turn>> {
    let cache = phase == "on";
    let store = Arc::new(Store::new(StoreOptions::default()));
    let mut sessions = Sessions::new(engine, checkpoint_sha256, store);
    let mut histories = script.first.clone();
    let mut turns = Vec::new();
    for index in 0..=script.messages.iter().map(Vec::len).min().unwrap_or(0) {
        for (conversation, history) in histories.iter_mut().enumerate() {
            if let Some(message) = index.checked_sub(1).and_then(|index| script.messages[conversation].get(index)) {
                history.extend(message);
            }
            interrupt::check()?;
            let turn = one(engine, &mut sessions, history, script.answer, cache)?;
            let turn = Turn { phase, conversation, turn: index, ..turn };
            log.line(&turn);
            history.extend(&turn.answer);
            turns.push(turn);
            done();
        }
    }
    Ok(turns)
}

fn one<D: Device>(
    engine: &mut Engine<D>,
    sessions: &mut Sessions,
    prompt: &[u32],
    answer: usize,
    cache: bool,
) -> anyhow::Result<Turn> {
    let most = if cache { usize::MAX } else { 0 };
    let started = Instant::now();
    let reserved = sessions.begin(engine, &Scope::default(), prompt, most)?;
    let mut tokens = vec![engine.prefill(reserved.rest())?];
    let first_token_s = started.elapsed().as_secs_f64();
    while tokens.len() < answer {
        tokens.push(engine.decode(tokens[tokens.len() - 1])?);
    }
    let (reused_tokens, restored_bytes, restore_s) = (reserved.reused, reserved.restored_bytes, reserved.restore_s);
    let (mut saved_bytes, mut save_s) = (0, 0.0);
    if cache {
        let saving = Instant::now();
        let pending = sessions.finish(engine, reserved)?;
        saved_bytes = pending.saved_bytes;
        pending.commit();
        save_s = saving.elapsed().as_secs_f64();
    }
    Ok(Turn {
        phase: "",
        conversation: 0,
        turn: 0,
        prompt_tokens: prompt.len(),
        reused_tokens,
        restored_bytes,
        restore_s,
        saved_bytes,
        save_s,
        first_token_s,
        whole_s: started.elapsed().as_secs_f64(),
        answer: tokens,
    })
}
