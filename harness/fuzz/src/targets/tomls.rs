//! Everything in TOML: configs, suites, gates and the corpus manifest. Every input goes to every reader.

use std::path::Path;

use assay_engine::memory::MemoryPlan;
use assay_harness::config::ConfigArgs;
use assay_harness::corpus::Manifest;
use assay_harness::repository::Repository;
use assay_harness::runtime::engine_options;
use assay_harness::suite::SpeedSuite;
use assay_witness::Gate;
use serde::Serialize;

use super::{Target, Verdict, as_text, promise, tiny, write};
use crate::run::root;

pub(super) const TARGET: Target =
    Target { name: "toml", seeds, prepare, change: as_text, read, bytes_per_input_byte: 1024, bytes: 4 << 20 };

const MANIFEST: &str = "fixtures/corpus/manifest.toml";

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let files = [
        "suites/configs/tiny-moe.toml",
        "suites/configs/tiny-moe-long.toml",
        "suites/speed/benchmark.toml",
        "suites/speed/speed-test.toml",
        "suites/gates/same.toml",
        "suites/gates/int4.toml",
        MANIFEST,
    ];
    Ok(files.into_iter().map(|file| std::fs::read(root().join(file))).collect::<Result<_, _>>()?)
}

/// A repository, as far as configs need one.
fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder.join("fixtures/corpus"))?;
    Ok(std::fs::write(folder.join(MANIFEST), "")?)
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let path = folder.join("input.toml");
    write(&path, input)?;
    let answers = [config(folder, &path)?, suite(&path)?, gate(&path)?, manifest(input)];
    let refusals: Vec<String> = answers.into_iter().filter_map(Result::err).collect();
    // The reader that it was made for is the one that says most about values.
    Ok(if refusals.len() < 4 { Verdict::Accepted } else { Verdict::Refused(refusals.join("\n")) })
}

type Answer = Result<(), String>;

fn config(folder: &Path, path: &Path) -> Result<Answer, String> {
    let repository = Repository::at(folder).ok_or("the fuzzer's repository is none")?;
    let loaded = match ConfigArgs::named(path.to_string_lossy()).load(&repository) {
        Ok(loaded) => loaded,
        Err(error) => return Ok(Err(error.to_string())),
    };
    reads_back(&loaded.config)?;
    let options = engine_options(&loaded.config);
    let spec = tiny::spec(&tiny::config()).map_err(|error| error.to_string())?;
    let plan = MemoryPlan::new(&spec, &options);
    let budget = loaded.config.memory.vram.0;
    Ok(plan.and_then(|plan| plan.check_budget(budget, options.min_chunk)).map_err(|error| error.to_string()))
}

fn suite(path: &Path) -> Result<Answer, String> {
    let suite = match SpeedSuite::read(path) {
        Ok((suite, _)) => suite,
        Err(error) => return Ok(Err(error.to_string())),
    };
    promise(suite.repetitions.timed >= 6, "enough repetitions for an interval")?;
    reads_back(&suite)?;
    Ok(Ok(()))
}

fn gate(path: &Path) -> Result<Answer, String> {
    let gate = match Gate::read(path) {
        Ok(gate) => gate,
        Err(error) => return Ok(Err(error.to_string())),
    };
    promise((0.0..=1.0).contains(&gate.rules.first_token.min_share), "a share from 0 to 1")?;
    reads_back(&gate)?;
    Ok(Ok(()))
}

fn manifest(input: &[u8]) -> Answer {
    let text = std::str::from_utf8(input).map_err(|error| error.to_string())?;
    Manifest::parse(text).map(drop)
}

fn reads_back<T: Serialize + serde::de::DeserializeOwned + PartialEq>(value: &T) -> Result<(), String> {
    let text = toml::to_string(value).map_err(|error| format!("it cannot be written: {error}"))?;
    let again: T = toml::from_str(&text).map_err(|error| format!("it cannot be read back: {error}"))?;
    promise(again == *value, "it reads back as itself")
}
