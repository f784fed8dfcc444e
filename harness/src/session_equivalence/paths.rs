//! The ways to one answer.
//!
//! A conversation has a first prompt, the answer to it, and a next message. Its whole history, computed afresh, is the reference
//! of every case.

use super::{Answered, Comparison, Request, Subject};
use crate::trace_diff::{First, Tolerance, diff};
use assay_engine::trace::Selection;
use assay_ledgers::Verdict;
use serde::Serialize;
use std::path::PathBuf;

/// Full history, computed afresh: the reference.
pub const FRESH: &str = "fresh";
/// The same again.
pub const REPEAT: &str = "repeat";
/// Afresh, in the pieces of a continuation.
pub const CONTROL: &str = "control";
/// From the state on the device.
pub const ACTIVE: &str = "active";
/// From restored state.
pub const RESTORED: &str = "restored";
/// After a request that was cancelled in the middle of its answer.
pub const CANCELLED: &str = "after a cancelled request";
/// After another tenant has sent the same prompt.
pub const TENANT: &str = "after another tenant's request";
/// Another message after the same answer.
pub const BRANCH: &str = "branch";
/// The first message again after that.
pub const RETURN: &str = "return from a branch";
/// From restored state that had been evicted and computed again.
pub const EVICTED: &str = "restored after eviction";

/// What is asked.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The first prompt.
    pub first: Vec<u32>,
    /// What follows its answer.
    pub message: Vec<u32>,
    /// What follows it in a branch: it differs from its beginning on.
    pub branch: Vec<u32>,
    /// The first prompt of an unrelated conversation.
    pub other: Vec<u32>,
}

/// One way to the answer, judged.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// Which way.
    pub path: &'static str,
    /// Tokens of the first prompt.
    pub first_tokens: usize,
    /// Tokens of the whole request.
    pub prompt_tokens: usize,
    /// The judgement.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// Whether every token is the reference's.
    pub tokens_equal: bool,
    /// Whether every logit (or log-probability) has the reference's bits.
    pub logits_equal: bool,
    /// Tokens that were not computed again, where the subject says.
    pub reused_tokens: Option<u64>,
    /// Bytes that were restored, where the subject says.
    pub restored_bytes: Option<u64>,
    /// The comparison.
    pub comparison: Comparison,
    /// The first launch that read or wrote something else than the control's did; where the answers differ and the subject
    /// can be traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<First>,
}

/// What must have been reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Nothing,
    /// Nothing may have been: its state has been evicted.
    Evicted,
    Reused(usize),
    Restored(usize),
}

/// Which case is traced, and the control's trace.
struct Traced {
    path: &'static str,
    found: PathBuf,
    expected: PathBuf,
}

/// Goes every way of one conversation. `done` is told of each.
///
/// # Errors
/// When the subject fails, or the user interrupts.
pub fn run<S: Subject>(
    subject: &mut S,
    conversation: &Conversation,
    answer: usize,
    done: impl FnMut(&Case),
) -> anyhow::Result<Vec<Case>> {
    let mut cases = script(subject, conversation, answer, None, done)?;
    locate(subject, conversation, answer, &mut cases)?;
    Ok(cases)
}

fn script<S: Subject>(
    subject: &mut S,
    conversation: &Conversation,
    answer: usize,
    traced: Option<&Traced>,
    mut done: impl FnMut(&Case),
) -> anyhow::Result<Vec<Case>> {
    let Conversation { first, message, branch, other } = conversation;
    let n = first.len();
    let mut cases = Vec::new();
    let opening = subject.ask(&Request::fresh(first, answer))?;
    let whole = [&first[..], &opening.ids, message].concat();
    let branched = [&first[..], &opening.ids, branch].concat();
    let reference = subject.ask(&Request::fresh(&whole, answer))?;
    let mut judge = |path: &'static str, tokens: usize, (found, expected): (&Answered, &Answered), proof: Proof| {
        let case = judged(path, (n, tokens), found, expected, proof);
        done(&case);
        cases.push(case);
    };
    // A continuation that is not delivered leaves the first prompt as all that is kept: the next one starts from there too.
    let trace = |path: &'static str| match traced {
        Some(traced) if path == CONTROL => Some(traced.expected.as_path()),
        Some(traced) if path == traced.path => Some(traced.found.as_path()),
        _ => None,
    };
    let mut messages = 0;
    let mut next = |subject: &mut S, path: &'static str| {
        if subject.keeps_all() {
            messages += 1;
            let mut message = message.clone();
            let length = message.len();
            message.rotate_left(messages % length);
            let whole = [&first[..], &opening.ids, &message].concat();
            // Afresh only afterwards: that is kept as well.
            let found = subject.ask(&Request::new(&whole, answer))?;
            return Ok((found, subject.ask(&Request::fresh(&whole, answer))?));
        }
        let request = Request { deliver: false, trace: trace(path), ..Request::new(&whole, answer) };
        anyhow::Ok((subject.ask(&request)?, reference.clone()))
    };
    let size = whole.len();
    judge(FRESH, size, (&reference, &reference), Proof::Nothing);
    judge(REPEAT, size, (&subject.ask(&Request::fresh(&whole, answer))?, &reference), Proof::Nothing);
    let control = Request { trace: trace(CONTROL), ..Request::fresh(&whole, answer) };
    if let Some(control) = subject.in_two_pieces(&control, n)? {
        judge(CONTROL, size, (&control, &reference), Proof::Nothing);
    }
    subject.limit(None);
    judge("first prompt", n, (&subject.ask(&Request::new(first, answer))?, &opening), Proof::Nothing);
    let (found, expected) = next(subject, ACTIVE)?;
    judge(ACTIVE, size, (&found, &expected), Proof::Reused(n));
    subject.ask(&Request::new(other, answer))?;
    let (found, expected) = next(subject, RESTORED)?;
    judge(RESTORED, size, (&found, &expected), Proof::Restored(n));
    subject.cancel(&Request::new(&branched, answer))?;
    let (found, expected) = next(subject, CANCELLED)?;
    judge(CANCELLED, size, (&found, &expected), Proof::Reused(n));
    let theirs = subject.ask(&Request { other_tenant: true, ..Request::new(first, answer) })?;
    judge("another tenant's own", n, (&theirs, &opening), Proof::Nothing);
    let (found, expected) = next(subject, TENANT)?;
    judge(TENANT, size, (&found, &expected), Proof::Restored(n));
    let found = subject.ask(&Request::new(&branched, answer))?;
    let expected = subject.ask(&Request::fresh(&branched, answer))?;
    judge(BRANCH, branched.len(), (&found, &expected), Proof::Reused(n));
    let (found, expected) = next(subject, RETURN)?;
    judge(RETURN, size, (&found, &expected), Proof::Reused(n));
    // Room for one of the two conversations: the other's state goes, is computed again, and goes out once more.
    if subject.limit(Some(n.max(other.len()))) {
        for tokens in [first, other] {
            subject.ask(&Request::new(tokens, answer))?;
        }
        judge("evicted", n, (&subject.ask(&Request::new(first, answer))?, &opening), Proof::Evicted);
        subject.ask(&Request { other_tenant: true, deliver: false, ..Request::new(other, answer) })?;
        let (found, expected) = next(subject, EVICTED)?;
        judge(EVICTED, size, (&found, &expected), Proof::Restored(n));
        subject.limit(None);
    }
    Ok(cases)
}

fn judged(
    path: &'static str,
    (first_tokens, prompt_tokens): (usize, usize),
    found: &Answered,
    expected: &Answered,
    proof: Proof,
) -> Case {
    let comparison = Comparison::new(found, expected);
    let (reused, restored) = (found.reused_tokens, found.restored_bytes);
    let enough = |least: usize| reused.is_some_and(|reused| reused >= least as u64);
    let (verdict, reason) = match proof {
        _ if !comparison.tokens_equal() || !comparison.values_equal() => (Verdict::Fail, difference(&comparison)),
        Proof::Nothing => (Verdict::Pass, "the same tokens and bits".to_owned()),
        Proof::Evicted if reused != Some(0) => {
            (Verdict::Incomplete, "no proof of eviction: tokens were reused".to_owned())
        }
        Proof::Evicted => (Verdict::Pass, "the same tokens and bits, computed again".to_owned()),
        Proof::Reused(least) | Proof::Restored(least) if !enough(least) => {
            let found = reused.map_or("not said".to_owned(), |reused| reused.to_string());
            (Verdict::Incomplete, format!("no proof of reuse: tokens reused are {found}, expected at least {least}"))
        }
        Proof::Restored(_) if restored == Some(0) => {
            (Verdict::Incomplete, "no proof of restoration: no byte was copied".to_owned())
        }
        Proof::Reused(_) | Proof::Restored(_) => (
            Verdict::Pass,
            format!("the same tokens and bits; {} of {prompt_tokens} tokens reused", reused.unwrap_or(0)),
        ),
    };
    Case {
        path,
        first_tokens,
        prompt_tokens,
        verdict,
        reason,
        tokens_equal: comparison.tokens_equal(),
        logits_equal: comparison.values_equal(),
        reused_tokens: reused,
        restored_bytes: restored,
        comparison,
        first_difference: None,
    }
}

/// Names the first launch that differs, for the first case that failed: the script is gone through once more, and the
/// continuation of that case and of the control are traced.
///
/// # Errors
/// As [`run`]; traces that cannot be written or read.
fn locate<S: Subject>(
    subject: &mut S,
    conversation: &Conversation,
    answer: usize,
    cases: &mut [Case],
) -> anyhow::Result<()> {
    let Some(failed) = cases.iter_mut().find(|case| case.verdict == Verdict::Fail && case.path != CONTROL) else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let traced =
        Traced { path: failed.path, found: folder.path().join("found"), expected: folder.path().join("expected") };
    subject.limit(None);
    script(subject, conversation, answer, Some(&traced), |_| {})?;
    if traced.found.exists() && traced.expected.exists() {
        let comparison = diff(&traced.expected, &traced.found, Tolerance::Exact, &Selection::default())?;
        if let Some(first) = comparison.first_difference {
            failed.reason += &format!("; the first launch that differs from the control's is {}", first.at);
            failed.first_difference = Some(first);
        }
    }
    Ok(())
}

fn difference(comparison: &Comparison) -> String {
    let Some(first) = &comparison.first else { return String::new() };
    let tokens = match first.found_token == first.expected_token {
        true => format!("token {} all the same", first.found_token),
        false => format!("token {} for {}", first.found_token, first.expected_token),
    };
    let value = first.value.as_ref().map_or(String::new(), |value| {
        format!(
            ", {} values differ, most that of {}: {} for {}",
            value.differing, value.of, value.found, value.expected
        )
    });
    format!("differs from step {} on: {tokens}{value}", first.step)
}
