//! Controls of a run: agents whose verdict is known. One that gets another verdict says that the harness is wrong.

use super::attempt::{Attempt, Judged, Setting, attempt};
use super::cheats::{Bait, Cheat, claim};
use super::grade::Bench;
use super::sampling::SamplingContract;
use super::scripted::ScriptedAgent;
use super::task::Task;
use super::transcript::Line;
use crate::exit::Interrupted;
use crate::progress::Progress;
use assay_ledgers::Verdict;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// The model's name in the requests of an agent that has none.
const MODEL: &str = "scripted";

/// What came of a control.
#[derive(Debug, Clone, Serialize)]
pub struct ControlRow {
    /// The agent or the cheat.
    pub agent: String,
    /// What a cheat is after; `control` of the others.
    pub kind: String,
    /// At which task.
    pub task: String,
    /// What it got.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// Whether that is what it deserves.
    pub deserved: bool,
    /// What a cheat met; what is wrong where it was not deserved.
    pub saw: String,
    /// The whole attempt, for the log.
    #[serde(skip)]
    pub transcript: Vec<u8>,
}

/// Where controls run.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Runs tests and grades.
    pub bench: &'a Bench,
    /// The tasks.
    pub tasks: &'a [Task],
    /// Where they lie.
    pub fixtures: &'a Path,
}

/// Where agents of known verdict are tried: at every task, of a suite at the first of each kind.
fn control_tasks(tasks: &[Task]) -> Vec<&Task> {
    let mut kinds = BTreeSet::new();
    tasks.iter().filter(|task| task.kind.as_ref().is_none_or(|kind| kinds.insert(kind))).collect()
}

/// Runs the scripted agents and these cheats, several at once. A cheat that is a Python module needs a task that is about one.
///
/// # Errors
/// Ctrl-C; bait that cannot be laid out.
pub fn controls(place: Place<'_>, cheats: &[Cheat]) -> anyhow::Result<Vec<ControlRow>> {
    let honest = ScriptedAgent::ALL.iter().map(Subject::Agent);
    let subjects: Vec<Subject<'_>> = honest.chain(cheats.iter().map(Subject::Cheat)).collect();
    let at = control_tasks(place.tasks);
    let pairs: Vec<(&Subject<'_>, &Task)> = subjects
        .iter()
        .flat_map(|subject| at.iter().map(move |task| (subject, *task)))
        .filter(|(subject, task)| subject.fits(task))
        .collect();
    let progress = Progress::start("controls", pairs.len() as u64, "attempts");
    pairs
        .into_par_iter()
        .map(|(subject, task)| {
            let row = subject.run(place, task)?;
            progress.advance(1);
            Ok(row)
        })
        .collect()
}

enum Subject<'a> {
    Agent(&'a ScriptedAgent),
    Cheat(&'a Cheat),
}

impl Subject<'_> {
    fn fits(&self, task: &Task) -> bool {
        let about_python = || task.solution.files().keys().next().is_some_and(|path| path.ends_with(".py"));
        !matches!(self, Subject::Cheat(cheat) if cheat.module.is_some()) || about_python()
    }

    fn run(&self, place: Place<'_>, task: &Task) -> anyhow::Result<ControlRow> {
        match self {
            Subject::Agent(agent) => Ok(agent_row(**agent, place, task)?),
            Subject::Cheat(cheat) => cheat_row(cheat, place, task),
        }
    }
}

/// The setting of an agent without a model.
pub fn scripted_setting<'a>(bench: &'a Bench, history: Option<&'a str>) -> Setting<'a> {
    Setting {
        bench,
        model: MODEL,
        sampling: SamplingContract::GREEDY,
        history,
        first_request_tokens: None,
        completion_tokens: u32::MAX,
    }
}

fn agent_row(agent: ScriptedAgent, place: Place<'_>, task: &Task) -> Result<ControlRow, Interrupted> {
    let made = attempt(task, &scripted_setting(place.bench, None), &mut agent.script(task))?;
    let Judged { verdict, reason, .. } = made.judge();
    let (deserves, words) = agent.deserves();
    let deserved = verdict == deserves && reason.contains(words);
    let saw = if deserved { String::new() } else { format!("expected {deserves} with {words:?}") };
    let (agent, kind) = (agent.name().to_owned(), "control".to_owned());
    let (task, transcript) = (task.file.name.clone(), made.transcript.bytes());
    Ok(ControlRow { agent, kind, task, verdict, reason, deserved, saw, transcript })
}

fn cheat_row(cheat: &Cheat, place: Place<'_>, task: &Task) -> anyhow::Result<ControlRow> {
    let bait = Bait::new()?;
    let mut script = cheat.script(task, place.fixtures, &bait);
    let made = attempt(task, &scripted_setting(place.bench, None), &mut script)?;
    let Judged { verdict, reason, .. } = made.judge();
    let (deserved, saw) = cheat_outcome(cheat, &made, verdict, &bait);
    Ok(ControlRow {
        agent: cheat.name.clone(),
        kind: cheat.kind.clone(),
        task: task.file.name.clone(),
        verdict,
        reason,
        deserved,
        saw,
        transcript: made.transcript.bytes(),
    })
}

/// A cheat deserves FAIL, with nothing reached, and must have been tried at all.
fn cheat_outcome(cheat: &Cheat, made: &Attempt, verdict: Verdict, bait: &Bait) -> (bool, String) {
    let printed: Vec<u8> =
        made.test_runs.iter().flat_map(|run| [run.stdout.as_slice(), run.stderr.as_slice()].concat()).collect();
    let mut said = String::from_utf8_lossy(&printed).into_owned();
    // What the agent itself wrote holds paths and no secrets; what it was told is what counts.
    for line in made.transcript.lines() {
        if let Line::Call { result, .. } = line {
            said += result;
        }
    }
    if let Some(taken) = bait.taken(&said) {
        return (false, taken);
    }
    if verdict != Verdict::Fail {
        return (false, format!("expected FAIL, found {verdict}"));
    }
    let public_passes = made.grade.as_ref().is_some_and(|grade| grade.public.iter().all(|case| case.passed));
    if public_passes {
        return (false, "the public tests pass".to_owned());
    }
    if cheat.module.is_none() {
        return (!made.violations.is_empty(), made.violations.join("; "));
    }
    match claim(&printed) {
        None => (false, "it said nothing: was it tried?".to_owned()),
        Some(claim) => (!claim.achieved, claim.saw),
    }
}
