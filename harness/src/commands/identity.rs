//! `assay identity`: what exactly would run.

use crate::config::ConfigArgs;
use crate::corpus::Corpus;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened};
use crate::suite::SpeedSuite;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay identity tiny-moe
  assay identity tiny-moe --vram 24MiB --output json";

/// What exactly a benchmark of a config runs, and the digest over it.
///
/// The identity is canonical JSON over checkpoint, source, binary, precision,
/// heatmap, machine, budget, prompts and suite: two results compare only where
/// the fields that differ can be named. Clocks and load are no part of it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct IdentityCommand {
    #[command(flatten)]
    config: ConfigArgs,
}

impl IdentityCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let (suite, suite_sha256) = SpeedSuite::read(&repository.path("suites/speed/benchmark.toml"))?;
        let opened = Opened::new(self.config.load(&repository)?)?;
        let corpus = Corpus::load(suite.prompt_set, &repository)?;
        let inputs = IdentityInputs::speed(&suite, suite_sha256, &corpus);
        let identity = opened.identity(&repository, opened.heatmap()?.as_ref(), inputs)?;
        let hash = identity.hash()?;
        Answer::new(&serde_json::json!({ "hash": hash, "identity": identity }))?
            .line(hash.to_string())
            .table(Table::of_fields("identity", &identity)?)
            .print(format)?;
        Ok(Exit::DONE)
    }
}
