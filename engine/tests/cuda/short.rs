//! Little of everything, for tools that slow a kernel down a hundredfold: `compute-sanitizer --tool racecheck … short::`.

use std::path::Path;

use assay_engine::EngineOptions;
use assay_engine::engine::ColdPath;
use assay_kernels::KvFormat;
use libtest_mimic::{Failed, Trial};

use super::common::{INT4, Model};
use super::support::{answer, least_arena, models, on_cuda, prompt, resident_arena, same};

const CONTEXT: usize = 160;
/// Beyond one split of attention.
const PROMPT: usize = 130;
const ANSWER: usize = 2;

pub fn trials() -> Vec<Trial> {
    let trial = |(name, dir): (String, std::path::PathBuf)| {
        Trial::test(format!("short::{name}"), move || prefill_and_decode(&dir))
    };
    models().into_iter().map(trial).collect()
}

/// Half of the experts resident, all weights in four bits, either cold path.
fn prefill_and_decode(dir: &Path) -> Result<(), Failed> {
    let model = Model::open(dir, INT4);
    let mut options = model.options(KvFormat::Bf16, CONTEXT);
    options.precision.attention = INT4;
    options.precision.dense = INT4;
    options.precision.head = INT4;
    let prompt = prompt(dir, PROMPT);
    let expected = answer(&mut model.resident(options.clone()), &prompt, &[], ANSWER)?;
    let (least, resident) = (least_arena(&model, &options), resident_arena(&model, &options));
    for path in [ColdPath::CopyEngine, ColdPath::Multiprocessors, ColdPath::WithHost] {
        let options = EngineOptions { cold_path: Some(path), ..options.clone() };
        let mut engine = on_cuda(&model, &options, least + (resident - least) / 2)?;
        same(&answer(&mut engine, &prompt, &[], ANSWER)?, &expected)?;
    }
    Ok(())
}
