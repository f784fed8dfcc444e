//! `assay identity`: what exactly would run, and in what two identities differ.

use crate::config::{ConfigArgs, ConfigFlags};
use crate::corpus::Corpus;
use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened};
use crate::suite::SpeedSuite;
use anyhow::Context;
use assay_ledgers::{Error, Identity, Ledger, Sha256, diff};
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  assay identity tiny-moe
  assay identity tiny-moe --vram 24MiB --output json
  assay identity diff tiny-moe tiny-moe-bf16";

const DIFF_EXAMPLES: &str = "\
Examples:
  assay identity diff tiny-moe tiny-moe-bf16
  assay identity diff 3f9a1c 88d0e2
  assay identity diff 3f9a1c tiny-moe --output json";

/// What exactly a benchmark of a config runs, and the digest over it.
///
/// The identity is canonical JSON over checkpoint, source, binary, precision,
/// heatmap, machine, budget, prompts and suite: two results compare only where
/// the fields that differ can be named. Clocks and load are no part of it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct IdentityCommand {
    #[command(subcommand)]
    action: Option<Action>,
    /// Short name of a config in suites/configs, or a path to a TOML file
    #[arg(value_name = "CONFIG", required = true)]
    config: Option<String>,
    #[command(flatten)]
    flags: ConfigFlags,
    /// Read every file, also those whose hashes are remembered
    #[arg(long)]
    rehash: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Name the fields in which two identities differ
    Diff(Diff),
}

/// Name the fields in which two identities differ.
///
/// Each is a config (its benchmark, as it would run now) or a record of the
/// local or the tracked ledger, by six or more digits of its hash. Exit code 1
/// where they differ.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
struct Diff {
    /// Config or record
    #[arg(value_name = "A")]
    a: String,
    /// Config or record
    #[arg(value_name = "B")]
    b: String,
}

impl IdentityCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        if let Some(Action::Diff(diff)) = self.action {
            return diff.run(&repository, format);
        }
        let config = ConfigArgs::new(self.config.context("no config was named")?, self.flags);
        let identity = of_config(&config, self.rehash, &repository)?;
        let hash = identity.hash()?;
        Answer::new(&serde_json::json!({ "hash": hash, "identity": identity }))?
            .line(hash.to_string())
            .table(Table::of_fields("identity", &identity)?)
            .print(format)?;
        Ok(Exit::DONE)
    }
}

/// The identity of a config's benchmark.
fn of_config(config: &ConfigArgs, rehash: bool, repository: &Repository) -> anyhow::Result<Identity> {
    let (suite, suite_sha256) = SpeedSuite::read(&repository.path("suites/speed/benchmark.toml"))?;
    of_benchmark(&Opened::hashed(config.load(repository)?, rehash)?, &suite, suite_sha256, repository)
}

/// The identity of a suite's run, before it runs.
pub(super) fn of_benchmark(
    opened: &Opened,
    suite: &SpeedSuite,
    suite_sha256: Sha256,
    repository: &Repository,
) -> anyhow::Result<Identity> {
    let corpus = Corpus::load(suite.prompt_set, repository)?;
    let inputs = IdentityInputs::speed(suite, suite_sha256, &corpus);
    opened.identity(repository, opened.heatmap()?.as_ref(), inputs)
}

impl Diff {
    fn run(self, repository: &Repository, format: Format) -> anyhow::Result<Exit> {
        let (a, b) = (find(&self.a, repository)?, find(&self.b, repository)?);
        let differences = diff(&a, &b)?;
        let mut table = Table::new("differences", &["field", &self.a, &self.b]);
        let text = |value: &Option<serde_json::Value>| match value {
            None => "–".to_owned(),
            Some(value) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        };
        for field in &differences {
            table.row([field.path.clone(), text(&field.a), text(&field.b)]);
        }
        let json = serde_json::json!({ "a": a.hash()?, "b": b.hash()?, "differences": differences });
        let mut answer = Answer::new(&json)?;
        // A reader is told in words, whoever reads CSV by a table without rows.
        answer = match differences.is_empty() && format != Format::Csv {
            true => answer.line("The identities are the same."),
            false => answer.table(table),
        };
        answer.print(format)?;
        Ok(if differences.is_empty() { Exit::DONE } else { assay_ledgers::Verdict::Fail.into() })
    }
}

/// The identity of a record whose hash starts so, or else of a config.
fn find(name: &str, repository: &Repository) -> anyhow::Result<Identity> {
    let is_hash = name.len() >= 6 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    for place in [LedgerPlace::Local, LedgerPlace::Tracked].into_iter().filter(|_| is_hash) {
        let folder = place.folder(repository);
        if !folder.exists() {
            continue;
        }
        match Ledger::find(&folder, name) {
            Ok(record) => {
                return record.identity.with_context(|| format!("record {} has no identity", record.hash.short()));
            }
            Err(Error::NoSuchRecord { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    of_config(&ConfigArgs::named(name), false, repository)
}
