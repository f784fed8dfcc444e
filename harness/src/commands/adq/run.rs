//! `assay adq run`

use super::answer::{answer, task_json};
use crate::adq::attempt::{Setting, attempt};
use crate::adq::behaviour::Cases;
use crate::adq::cheats::Cheat;
use crate::adq::controls::{ControlRow, Place, controls, scripted_setting};
use crate::adq::determinism::{Answered, Determinism, ask, lifecycle, requests};
use crate::adq::evidence::{KeptAttempt, Notebook, Plan, RecordedRun};
use crate::adq::grade::Bench;
use crate::adq::http::HttpEndpoint;
use crate::adq::own_server::OwnServer;
use crate::adq::resume::check_same;
use crate::adq::rows::{self, row};
use crate::adq::sampling::SamplingContract;
use crate::adq::subject::Subject;
use crate::adq::task::{FOLDER, Task};
use crate::adq::tier::{self, Fitted};
use crate::adq::{layers, operations, shares, suite};
use crate::config::{ConfigArgs, ConfigFlags};
use crate::exit::Exit;
use crate::output::Format;
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened};
use anyhow::{Context, ensure};
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_ledgers::{Identity, Sha256, TaskRow, Verdict, VerdictRow};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay adq run --agent oracle
  assay adq run --agent oracle --controls all
  assay adq run --config tiny-moe
  assay adq run --suite micro --config edit-model-bf16
  assay adq run --suite micro --config edit-model --kv int4 --attempts 3
  assay adq run --endpoint http://127.0.0.1:8080 --model smollm2
  assay adq run --endpoint https://models.example --model large --ca-file authority.pem";

/// The tokenizer that counts for agents without a model.
const OWN_TOKENIZER: &str = "fixtures/models/tiny-moe";

/// Qualify a config, an endpoint or a scripted agent
///
/// The model gets each task's instruction and tools and works until it says that it is done; its changes alone are graded in a fresh
/// sandbox. Before that: a probe of the sandbox, controls of determinism, agents whose verdict is known. Every row is judged by itself.
/// A key for an endpoint is taken from ASSAY_API_KEY. A run that was stopped goes on with --resume.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "assay adq run [OPTIONS] <--agent NAME|--config CONFIG|--endpoint URL>")]
pub(super) struct Run {
    #[command(flatten)]
    subject: SubjectArgs,
    /// A suite of small tasks, instead of the tasks that have a folder each
    #[arg(long, value_name = "SUITE")]
    suite: Option<String>,
    /// The model's name at the endpoint
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    model: Option<String>,
    /// Exact tokens of the first request of tasks with a history
    #[arg(long, value_parser = tier::parse, default_value = "4K", value_name = "TIER")]
    tier: usize,
    /// Attempts at each task
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "N")]
    attempts: u32,
    /// Most tokens of an answer, instead of the task's limit
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    completion_tokens: Option<u32>,
    /// A task, instead of all; may be repeated
    #[arg(long, value_name = "TASK")]
    task: Vec<String>,
    /// Which agents of known verdict run first
    #[arg(long, value_enum, default_value = "kinds", value_name = "WHICH")]
    controls: Controls,
    /// Checkpoint folder whose tokenizer counts, for an endpoint that has no /tokenize
    #[arg(long, value_name = "FOLDER", requires = "endpoint")]
    tokenizer: Option<PathBuf>,
    /// Another endpoint, for the frozen cases
    #[arg(long, value_name = "URL", requires = "reference_model", conflicts_with_all = ["agent", "tasks_only"])]
    reference: Option<String>,
    /// The model's name there
    #[arg(long, value_name = "NAME", requires = "reference")]
    reference_model: Option<String>,
    /// Certificates (PEM) that are trusted for endpoints with https://, instead of those that Mozilla trusts
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Leave out fidelity, frozen cases, memory and operations
    #[arg(long)]
    tasks_only: bool,
    /// Go on with a run that was stopped
    #[arg(long, value_name = "RUN")]
    resume: Option<String>,
    #[command(flatten)]
    flags: ConfigFlags,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SubjectArgs {
    /// A scripted agent or a cheat, such as oracle, no-op, plan-only
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// A config, through Assay's own server
    #[arg(long, value_name = "CONFIG")]
    config: Option<String>,
    /// An OpenAI-compatible server
    #[arg(long, value_name = "URL", requires = "model")]
    endpoint: Option<String>,
}

/// Which controls run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Controls {
    /// None: the harness is not shown to be right
    None,
    /// Every honest agent, and one cheat of each kind
    Kinds,
    /// Every honest agent and every cheat
    All,
}

/// Everything that a run rests on.
struct Ground {
    repository: Repository,
    fixtures: PathBuf,
    tasks: Vec<Task>,
    cheats: Vec<Cheat>,
    bench: Bench,
}

/// What a run has found so far.
#[derive(Default)]
struct Found {
    tasks: Vec<Value>,
    rows: Vec<TaskRow>,
    verdicts: Vec<(String, Verdict)>,
    controls: Vec<ControlRow>,
    details: BTreeMap<&'static str, Value>,
}

impl Run {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        ensure!(
            self.subject.config.is_some() || self.flags == ConfigFlags::default(),
            "flags that change a config, and no --config that they change"
        );
        let alone = [
            ("--model", self.model.is_some()),
            ("--tokenizer", self.tokenizer.is_some()),
            ("--ca-file", self.ca_file.is_some()),
        ];
        for (flag, given) in alone {
            ensure!(
                !given || self.subject.endpoint.is_some() || self.reference.is_some(),
                "{flag} is for an --endpoint"
            );
        }
        let fixtures = repository.path(FOLDER);
        let tasks = Task::read_all(&suite::folder(&fixtures, self.suite.as_deref())?, &self.task)?;
        let cheats = Cheat::read_all(&fixtures)?;
        // What is asked for must exist before anything is recorded.
        if let Some(agent) = &self.subject.agent {
            Subject::scripted(agent, &cheats)?;
        }
        if let Some(url) = &self.subject.endpoint {
            HttpEndpoint::trusting(url, self.ca_file.as_deref())?;
        }
        self.reference()?;
        let ground = Ground { bench: Bench::new()?, repository, fixtures, tasks, cheats };
        let earlier = self.resume.as_ref().map(|run| RecordedRun::read(&ground.repository, Some(run))).transpose()?;
        let identity = self.identity(&ground)?;
        let plan = self.plan(&ground, earlier.as_ref(), identity.as_ref())?;
        let notebook = Notebook::open(&ground.repository, identity, plan.subject.clone(), plan.run.clone())?;
        if earlier.is_none() {
            let not_yet = |name: &str| row(name, Verdict::Incomplete, "begun, not finished");
            notebook.plan(&plan, rows::ALL.into_iter().map(not_yet).collect())?;
        }
        eprintln!("run {}: {}, tier of {} tokens", plan.run, plan.subject, plan.tier);
        let advice = || format!("run {} goes on with --resume {}", plan.run, plan.run);
        self.work(&ground, &plan, earlier, &notebook, format).with_context(advice)
    }

    /// What is set out to do; of a resumed run, what was.
    fn plan(
        &self,
        ground: &Ground,
        earlier: Option<&RecordedRun>,
        identity: Option<&Identity>,
    ) -> anyhow::Result<Plan> {
        let subject = match (&self.subject.agent, &self.subject.config, &self.subject.endpoint) {
            (Some(agent), ..) => format!("agent {agent}"),
            (_, Some(_), _) => {
                let words: Vec<_> = self.config().iter().flat_map(ConfigArgs::to_args).collect();
                format!("config {}", words.join(" ".as_ref()).display())
            }
            (.., Some(endpoint)) => format!("endpoint {endpoint}, model {}", self.model.as_deref().unwrap_or_default()),
            _ => String::new(),
        };
        let seed = format!("{:?} {}", std::time::SystemTime::now(), std::process::id());
        let probe = ground.bench.sandbox.probe(&ground.bench.interpreter);
        let plan = Plan {
            run: Sha256::of(seed.as_bytes()).short(),
            subject,
            suite: self.suite.clone(),
            tier: self.tier as u64,
            attempts: self.attempts,
            completion_tokens: self.completion_tokens,
            tasks: ground.tasks.iter().map(|task| (task.file.name.clone(), task.digest)).collect(),
            python: ground.bench.interpreter.version.clone(),
            // A machine that cannot isolate is every row's reason: nothing runs there.
            probe: probe.map(|probe| probe.rows).unwrap_or_default(),
        };
        let Some(earlier) = earlier else { return Ok(plan) };
        let known = &earlier.plan;
        check_same((known, earlier.plan_record.identity.as_ref()), (&plan, identity))?;
        ensure!(earlier.whole.is_none(), "run {} is complete", known.run);
        Ok(known.clone())
    }

    /// The config that is qualified, if one of ours is.
    fn config(&self) -> Option<ConfigArgs> {
        Some(ConfigArgs::new(self.subject.config.as_ref()?, self.flags.clone()))
    }

    /// Of a config of ours; nothing is known of what else answers.
    fn identity(&self, ground: &Ground) -> anyhow::Result<Option<Identity>> {
        let Some(config) = self.config() else { return Ok(None) };
        let opened = Opened::new(config.load(&ground.repository)?)?;
        let heatmap = opened.heatmap()?;
        let inputs = IdentityInputs {
            suite: None,
            prompt_set: self.suite.as_ref().map_or("adq".to_owned(), |suite| format!("adq {suite}")),
            texts: BTreeMap::new(),
            tokenized: true,
            sampled: true,
        };
        let mut identity = opened.identity(&ground.repository, heatmap.as_ref(), inputs)?;
        identity.tasks = Some(ground.tasks.iter().map(|task| (task.file.name.clone(), task.digest)).collect());
        let template = opened.folder.checkpoint.dir().join("chat_template.jinja");
        if template.is_file() {
            identity.template = Some(Sha256::of_file(&template)?);
        }
        Ok(Some(identity))
    }

    fn subject(&self, ground: &Ground) -> anyhow::Result<Subject> {
        if let Some(agent) = &self.subject.agent {
            return Subject::scripted(agent, &ground.cheats);
        }
        if let Some(config) = self.config() {
            return Ok(Subject::Own(Box::new(OwnServer::start(&config.to_args())?)));
        }
        let url = self.subject.endpoint.as_deref().context("no endpoint")?;
        let endpoint = HttpEndpoint::trusting(url, self.ca_file.as_deref())?;
        Ok(Subject::Endpoint(endpoint, self.model.clone().unwrap_or_default()))
    }

    /// The other endpoint, if there is one.
    fn reference(&self) -> anyhow::Result<Option<HttpEndpoint>> {
        // The file is for endpoints that need it; two may differ in that.
        let trusted = |url: &str| self.ca_file.as_deref().filter(|_| url.starts_with("https://"));
        let reference = self.reference.as_deref().map(|url| HttpEndpoint::trusting(url, trusted(url)));
        reference.transpose().context("--reference")
    }

    fn work(
        &self,
        ground: &Ground,
        plan: &Plan,
        earlier: Option<RecordedRun>,
        notebook: &Notebook,
        format: Format,
    ) -> anyhow::Result<Exit> {
        let mut found = Found::default();
        let isolated = ground.bench.sandbox.probe(&ground.bench.interpreter);
        let mut verdicts = match isolated {
            Err(error) => rows::ALL.into_iter().map(|name| row(name, Verdict::Incomplete, error.to_string())).collect(),
            Ok(_) => {
                self.controls(ground, &mut found)?;
                let subject = self.subject(ground)?;
                let (subject, determinism) = self.determinism(ground, subject, &mut found)?;
                self.tasks(ground, plan, earlier, notebook, &subject, &mut found)?;
                let mut verdicts = vec![rows::tasks(&found.verdicts), determinism];
                verdicts.extend(self.layers(ground, subject, &mut found)?);
                verdicts
            }
        };
        verdicts.sort_by_key(|row| rows::ALL.iter().position(|name| *name == row.row));
        let shares = shares::all(&ground.tasks, &found.verdicts, self.attempts);
        let summary = json!({
            "run": plan.run, "subject": plan.subject, "suite": plan.suite, "tier_tokens": plan.tier, "attempts": plan.attempts,
            "tasks": found.tasks, "rows": verdicts, "shares": shares, "controls": found.controls, "details": found.details,
        });
        let log: Vec<u8> = found.controls.iter().flat_map(|control| control.transcript.iter().copied()).collect();
        let evidence = notebook.whole(found.rows, shares, verdicts.clone(), &summary, &log)?;
        answer(&summary, &verdicts, Some(evidence))?.print(format)?;
        Ok(Exit::worst(self.counted(&verdicts)))
    }

    /// An agent without a model is asked nothing of a model: those rows stay INCOMPLETE and do not decide how the command ends.
    fn counted(&self, verdicts: &[VerdictRow]) -> Vec<Verdict> {
        let asked = |row: &&VerdictRow| {
            self.subject.agent.is_none() || ![rows::FIDELITY, rows::BEHAVIOUR, rows::MEMORY].contains(&row.row.as_str())
        };
        verdicts.iter().filter(asked).map(|row| row.verdict).collect()
    }

    fn controls(&self, ground: &Ground, found: &mut Found) -> anyhow::Result<()> {
        let cheats: Vec<Cheat> = match self.controls {
            Controls::None => return Ok(()),
            Controls::All => ground.cheats.clone(),
            Controls::Kinds => {
                let mut kinds = BTreeSet::new();
                ground.cheats.iter().filter(|cheat| kinds.insert(cheat.kind.clone())).cloned().collect()
            }
        };
        let place = Place { bench: &ground.bench, tasks: &ground.tasks, fixtures: &ground.fixtures };
        found.controls = controls(place, &cheats)?;
        Ok(())
    }

    fn determinism(
        &self,
        ground: &Ground,
        subject: Subject,
        found: &mut Found,
    ) -> anyhow::Result<(Subject, VerdictRow)> {
        let setting = setting(&ground.bench, &subject, None);
        let Some((asked, between)) = requests(&ground.tasks, &setting) else {
            return Ok((subject, row(rows::DETERMINISM, Verdict::Incomplete, "there is no task")));
        };
        let (subject, runs, missing) = match subject {
            Subject::Own(server) => {
                let mut runs = lifecycle(&server.endpoint, &asked, &between, true);
                drop(server);
                let mut fresh = self.subject(ground)?;
                if let Subject::Own(server) = &mut fresh {
                    runs.push(ask(&mut server.endpoint, "fresh process", &asked));
                }
                (fresh, runs, None)
            }
            Subject::Endpoint(endpoint, model) => {
                let runs = lifecycle(&endpoint, &asked, &between, false);
                let missing = "not run: cold first and fresh process, since this run does not start the endpoint";
                (Subject::Endpoint(endpoint, model), runs, Some(missing))
            }
            scripted => {
                let runs = vec![twice(ground, &scripted, "first")?, twice(ground, &scripted, "replay")?];
                (scripted, runs, None)
            }
        };
        let judged = Determinism { request: asked.to_string(), runs };
        let verdict = rows::determinism(&judged, missing);
        found.details.insert("determinism", serde_json::to_value(&judged)?);
        Ok((subject, verdict))
    }

    fn tasks(
        &self,
        ground: &Ground,
        plan: &Plan,
        earlier: Option<RecordedRun>,
        notebook: &Notebook,
        subject: &Subject,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        for done in earlier.map(|run| run.attempts).unwrap_or_default() {
            let verdict = done.record.verdicts.first().map_or(Verdict::Incomplete, |row| row.verdict);
            if let assay_ledgers::Body::Task(body) = &done.record.body {
                found.rows.extend(body.tasks.iter().cloned());
            }
            found.verdicts.push((done.kept.task.clone(), verdict));
            found.tasks.push(task_json(&done.kept, &done.record));
        }
        let done: BTreeSet<(String, u64)> = found
            .tasks
            .iter()
            .filter_map(|task| Some((task["task"].as_str()?.to_owned(), task["attempt"].as_u64()?)))
            .collect();
        for task in &ground.tasks {
            let fitted = self.fitted(ground, subject, task);
            for number in 1..=self.attempts {
                if done.contains(&(task.file.name.clone(), u64::from(number))) {
                    continue;
                }
                crate::interrupt::check()?;
                eprintln!("{}, attempt {number}", task.file.name);
                self.one(ground, plan, notebook, subject, task, number, &fitted, found)?;
            }
        }
        Ok(())
    }

    /// A history of the tier's length; or why there is none.
    fn fitted(&self, ground: &Ground, subject: &Subject, task: &Task) -> Result<Fitted, String> {
        let own = |folder: PathBuf| {
            let tokenizer = Tokenizer::open(&folder).map_err(|error| error.to_string())?;
            tier::alone(task, &tokenizer, self.tier).map_err(|error| error.to_string())
        };
        match (subject.http(), &self.tokenizer) {
            (None, _) => own(ground.repository.path(OWN_TOKENIZER)),
            (Some(_), Some(folder)) => own(folder.clone()),
            (Some(endpoint), None) => {
                let setting = setting(&ground.bench, subject, None);
                tier::fit(task, &setting, endpoint, self.tier).map_err(|error| error.to_string())
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn one(
        &self,
        ground: &Ground,
        plan: &Plan,
        notebook: &Notebook,
        subject: &Subject,
        task: &Task,
        number: u32,
        fitted: &Result<Fitted, String>,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        let name = task.file.name.clone();
        let fitted = match fitted {
            Ok(fitted) => fitted,
            Err(reason) => {
                let reason = format!("not run: {reason}");
                found.verdicts.push((name.clone(), Verdict::Incomplete));
                found.tasks.push(json!({
                    "task": name, "attempt": number, "verdict": Verdict::Incomplete, "public": Verdict::Incomplete,
                    "hidden": Verdict::Incomplete, "reason": reason,
                }));
                return Ok(());
            }
        };
        let history = fitted.history.as_ref();
        let mut setting = setting(&ground.bench, subject, history.map(|history| history.text.as_str()));
        setting.first_request_tokens = fitted.first_request_tokens.map(|tokens| tokens as u64);
        setting.completion_tokens = self.completion_tokens(subject, setting.first_request_tokens);
        let mut endpoint = subject.endpoint(task, &ground.fixtures);
        let made = attempt(task, &setting, endpoint.as_mut())?;
        let judged = made.judge();
        let kept = KeptAttempt {
            task: name.clone(),
            kind: task.kind.clone(),
            attempt: number,
            ending: made.ending.clone(),
            diff: made.patch.diff(task),
            patch: made.patch.clone(),
            violations: made.violations.clone(),
            grade: made.grade.clone(),
            probe: made.probe.clone(),
            history_tokens: history.map(|history| history.tokens as u64),
            first_prompt_tokens: made.first_prompt_tokens,
        };
        let (record, row) = notebook.attempt(task.digest, plan.tier, &kept, &made, &judged)?;
        found.tasks.push(super::answer::attempt_json(&kept, &judged, record, made.tool_calls, made.completion_tokens));
        found.verdicts.push((name, judged.verdict));
        found.rows.push(row);
        Ok(())
    }

    /// What an answer may have: what the flag says, and half of what the context leaves beside the first request, so that there is
    /// room for the next one.
    fn completion_tokens(&self, subject: &Subject, first_request: Option<u64>) -> u32 {
        let asked = self.completion_tokens.unwrap_or(u32::MAX);
        let Subject::Own(server) = subject else { return asked };
        let left = server.about.context_tokens.saturating_sub(first_request.unwrap_or(0)) / 2;
        asked.min(u32::try_from(left.max(1)).unwrap_or(u32::MAX))
    }

    /// The rows beside tasks and determinism. Takes the subject, for its server must be gone before memory is looked at.
    fn layers(&self, ground: &Ground, subject: Subject, found: &mut Found) -> anyhow::Result<Vec<VerdictRow>> {
        let (mut verdict, mut reason) = rows::controls(&found.controls);
        let not = |name: &str, why: &str| row(name, Verdict::Incomplete, format!("not run: {why}"));
        let mut verdicts = Vec::new();
        match subject {
            Subject::Agent(_) | Subject::Cheat(..) => {
                let why = "an agent without a model";
                verdicts.extend([rows::FIDELITY, rows::BEHAVIOUR, rows::MEMORY].map(|name| not(name, why)));
            }
            _ if self.tasks_only => {
                verdicts.extend([rows::FIDELITY, rows::BEHAVIOUR, rows::MEMORY].map(|name| not(name, "--tasks-only")));
            }
            Subject::Endpoint(endpoint, model) => {
                let why = "of an endpoint that this run does not start, answers alone can be seen";
                verdicts.extend([rows::FIDELITY, rows::MEMORY].map(|name| not(name, why)));
                verdicts.push(self.behaviour(ground, (&endpoint, &model), self.tier, found)?);
            }
            Subject::Own(server) => {
                let longest = server.about.max_prompt_tokens as usize;
                verdicts.push(self.behaviour(ground, (&server.endpoint, &server.about.model), longest, found)?);
                let mut seen = operations::operations(&server.endpoint, &server.about);
                drop(server);
                let config = self.config().context("no config")?;
                seen.extend(operations::recovery(&config));
                let (other, words) = layers::operations(&seen);
                found.details.insert("operations", serde_json::to_value(&seen)?);
                if other != Verdict::Pass && verdict == Verdict::Pass {
                    verdict = other;
                }
                reason = format!("{reason}; {words}");
                let (fidelity, answer) = layers::fidelity(&config, &ground.repository)?;
                found.details.insert("fidelity", answer);
                let (memory, marks) = layers::memory(&config, &ground.repository, self.tier)?;
                found.details.insert("memory", marks);
                verdicts.extend([fidelity, memory]);
            }
        }
        verdicts.push(row(rows::INTEGRITY, verdict, reason));
        Ok(verdicts)
    }

    fn behaviour(
        &self,
        ground: &Ground,
        subject: (&HttpEndpoint, &str),
        longest: usize,
        found: &mut Found,
    ) -> anyhow::Result<VerdictRow> {
        let cases = Cases::read(&ground.fixtures)?;
        let other = self.reference()?;
        let reference = other.as_ref().zip(self.reference_model.as_deref());
        let (verdict, own, other) = layers::behaviour(&cases, subject, reference, longest);
        found.details.insert("behaviour", json!({"subject": own, "reference": other}));
        Ok(verdict)
    }
}

fn setting<'a>(bench: &'a Bench, subject: &'a Subject, history: Option<&'a str>) -> Setting<'a> {
    let model = subject.model();
    Setting {
        bench,
        model,
        sampling: SamplingContract::GREEDY,
        history,
        first_request_tokens: None,
        completion_tokens: u32::MAX,
    }
}

/// A scripted agent's first task, as an answer that can be compared.
fn twice(ground: &Ground, subject: &Subject, run: &str) -> anyhow::Result<Answered> {
    let task = ground.tasks.first().context("there is no task")?;
    let mut endpoint = subject.endpoint(task, &ground.fixtures);
    let made = attempt(task, &scripted_setting(&ground.bench, None), endpoint.as_mut())?;
    let essence = made.transcript.essence().join("\n") + &format!("{:?}", made.judge());
    Ok(Answered { run: run.to_owned(), answer: Ok(essence), response: String::new() })
}
