//! What each precision does of a suite of tasks, beside its distance from the model as it was trained: does fidelity predict work?

use std::collections::BTreeMap;

use assay_ledgers::{
    Body, FidelityBody, Identity, Interval95, NumberFormat, PerplexityBody, Record, TaskBody, TaskOutcome,
};

use crate::figures::{interval, percent};
use crate::tables::{Table, configuration, format_name, machine, quantization_name, reference};

/// A share of tasks solved by an attempt, and by all of several, as a record names them.
const BY_ONE: &str = "pass@1";
const BY_ALL: &str = "pass^";

/// A whole run of tasks by a config, and what is known of the same weights in the same formats on the same device.
pub(crate) struct Work<'a> {
    pub(crate) record: &'a Record,
    pub(crate) identity: &'a Identity,
    body: &'a TaskBody,
    /// Of tasks, by an attempt.
    pub(crate) solved: Interval95,
    perplexity: Option<&'a PerplexityBody>,
    /// From the model as it was trained.
    pub(crate) fidelity: Option<&'a FidelityBody>,
}

/// Every whole run of tasks among `records` whose identity is known. Where a figure was taken twice, the later one counts.
pub(crate) fn works<'a>(records: &[&'a Record]) -> Vec<Work<'a>> {
    let alike = |one: &Identity, other: &Identity| {
        one.checkpoint == other.checkpoint && one.precision == other.precision && one.device.name == other.device.name
    };
    let work = |record: &'a Record| {
        let (Body::Task(body), Some(identity)) = (&record.body, &record.identity) else { return None };
        // Only the record of a whole run has shares.
        let solved = *body.shares.get(BY_ONE)?;
        let own =
            || records.iter().rev().filter(|other| other.identity.as_ref().is_some_and(|own| alike(own, identity)));
        let perplexity = own().find_map(|other| match &other.body {
            Body::Perplexity(body) => Some(body),
            _ => None,
        });
        let fidelity = own().find_map(|other| match &other.body {
            Body::Fidelity(body) => Some(body),
            _ => None,
        });
        Some(Work { record, identity, body, solved, perplexity, fidelity })
    };
    records.iter().filter_map(|record| work(record)).collect()
}

impl Work<'_> {
    /// Whether nothing is quantized, weights or keys and values.
    pub(crate) fn is_as_trained(&self) -> bool {
        let precision = &self.identity.precision;
        precision.experts == NumberFormat::Bf16 && precision.kv == NumberFormat::F32
    }

    /// `int4 search`, `KV int8`: how it differs from the model as it was trained.
    pub(crate) fn short(&self) -> String {
        let precision = &self.identity.precision;
        let experts = (precision.experts != NumberFormat::Bf16).then(|| {
            let method = precision.expert_quantization.map_or("", quantization_name);
            format!("{} {method}", format_name(precision.experts)).trim_end().to_owned()
        });
        let kv = (precision.kv != NumberFormat::F32).then(|| format!("KV {}", format_name(precision.kv)));
        let parts: Vec<String> = experts.into_iter().chain(kv).collect();
        if parts.is_empty() { "as trained".to_owned() } else { parts.join(", ") }
    }

    /// Whether the first attempt at each task solved it; tasks of which nothing is said are left out.
    fn first_attempts(&self) -> BTreeMap<&str, bool> {
        let judged = |outcome| outcome != TaskOutcome::Infrastructure;
        let first =
            self.body.tasks.iter().filter_map(|task| Some((task.task.as_str(), task.attempts.first()?.outcome)));
        // A run has a row an attempt: the earliest of a task is put last, and stays.
        first
            .rev()
            .filter(|&(_, outcome)| judged(outcome))
            .map(|(task, outcome)| (task, outcome == TaskOutcome::Solved))
            .collect()
    }

    /// The same tasks on the same device by the model as it was trained.
    fn reference<'a, 'b>(&self, works: &'b [Work<'a>]) -> Option<&'b Work<'a>> {
        let same = |other: &&Work<'_>| {
            other.is_as_trained()
                && other.identity.checkpoint == self.identity.checkpoint
                && other.identity.tasks == self.identity.tasks
                && other.identity.device.name == self.identity.device.name
        };
        works.iter().find(same).filter(|_| !self.is_as_trained())
    }
}

/// The runs of tasks among `records` (others are passed over), a row a run, each against the model as it was trained by McNemar's test over first
/// attempts, with the perplexity and the divergence of the same weights in the same formats. `mcnemar` gives the two-sided p of its two counts.
pub fn work_table_markdown<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    mcnemar: impl Fn(u64, u64) -> f64,
) -> String {
    let mut table = Table::new(&[
        "Configuration",
        "Machine",
        "Suite",
        "#Tasks",
        "#Solved",
        "#95 % interval",
        "#By every attempt",
        "#Trained kinds",
        "#Held-out kinds",
        "#Solved here alone",
        "#As trained alone",
        "#p (McNemar)",
        "#Perplexity",
        "#KL mean, nats",
        "#Likeliest differs",
        "Record",
    ]);
    let records: Vec<&Record> = records.into_iter().collect();
    let works = works(&records);
    for work in &works {
        let dash = || "–".to_owned();
        let share = |name: &str| work.body.shares.get(name).map_or_else(dash, |share| percent(share.value));
        let every = work.body.shares.keys().find(|name| name.starts_with(BY_ALL) && !name.contains(' '));
        let counts = work.reference(&works).map(|other| {
            let (own, theirs) = (work.first_attempts(), other.first_attempts());
            let only = |left: &BTreeMap<&str, bool>, right: &BTreeMap<&str, bool>| {
                left.iter().filter(|(task, solved)| **solved && right.get(*task) == Some(&false)).count() as u64
            };
            (only(&own, &theirs), only(&theirs, &own))
        });
        table.row(&[
            configuration(work.identity),
            machine(work.identity),
            work.identity.prompts.set.clone(),
            work.body.tasks.iter().map(|task| &task.task).collect::<std::collections::BTreeSet<_>>().len().to_string(),
            percent(work.solved.value),
            interval(work.solved.ci95, percent),
            every.map_or_else(dash, |name| format!("{} ({name})", share(name))),
            share("pass@1 of trained kinds"),
            share("pass@1 of held-out kinds"),
            counts.map_or_else(dash, |(own, _)| own.to_string()),
            counts.map_or_else(dash, |(_, theirs)| theirs.to_string()),
            counts.map_or_else(dash, |(own, theirs)| format!("{:.3}", mcnemar(own, theirs))),
            work.perplexity.map_or_else(dash, |body| format!("{:.4}", body.perplexity)),
            work.fidelity.map_or_else(dash, |body| format!("{:.2e}", body.kl.mean)),
            work.fidelity.map_or_else(dash, |body| format!("{} of {}", body.top1_flips.all, body.positions)),
            reference(work.record),
        ]);
    }
    table.finish()
}
