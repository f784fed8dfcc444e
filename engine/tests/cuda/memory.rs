//! Running out of memory, and other faults, on the GPU: a smaller chunk or a clear error, and the next request works.

use assay_engine::device::cuda::CudaDevice;
use assay_engine::device::{DeviceError, DeviceKind, FaultPlan};
use assay_engine::{Engine, EngineError, EngineOptions};
use assay_kernels::KvFormat;
use libtest_mimic::{Failed, Trial};

use super::common::{INT4, Model, fixture};
use super::support::{answer, least_arena, on_cuda, prompt, resident_arena, same};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("memory::each allocation and copy fails once", every_fault),
        Trial::test("memory::each allocation of startup fails once", startup_faults),
        Trial::test("memory::one byte less than the least budget is refused", least_budget),
        Trial::test("memory::low water", low_water),
    ]
}

fn every_fault() -> Result<(), Failed> {
    let dir = fixture("tiny-moe");
    let model = Model::open(&dir, INT4);
    let options = model.options(KvFormat::Bf16, 256);
    let prompt = prompt(&dir, 100);
    let (least, resident) = (least_arena(&model, &options), resident_arena(&model, &options));
    let mut engine = on_cuda(&model, &options, least + (resident - least) / 3)?;
    let expected = answer(&mut engine, &prompt, &[], 4)?;
    for n in 1..40 {
        let plans = [
            FaultPlan { fail_allocation: Some(n), ..FaultPlan::default() },
            FaultPlan { fail_copy: Some(n), ..FaultPlan::default() },
        ];
        for plan in plans {
            engine.device_mut().inject(plan);
            match answer(&mut engine, &prompt, &[], 4) {
                // A smaller chunk or a smaller cache: the answer is the same.
                Ok(found) => same(&found, &expected)?,
                Err(EngineError::Device(DeviceError::OutOfMemory { .. } | DeviceError::CopyFailed { .. })) => {}
                Err(error) => return Err(format!("{plan:?}: {error}").into()),
            }
            engine.device_mut().inject(FaultPlan::default());
            same(&answer(&mut engine, &prompt, &[], 4)?, &expected)
                .map_err(|error| Failed::from(format!("after {plan:?}: {}", error.message().unwrap_or_default())))?;
        }
    }
    Ok(())
}

/// A start that fails leaves the card to the next one.
fn startup_faults() -> Result<(), Failed> {
    let dir = fixture("tiny-moe");
    let model = Model::open(&dir, INT4);
    let options = EngineOptions { device: DeviceKind::Cuda, ..model.options(KvFormat::Bf16, 256) };
    let prompt = prompt(&dir, 100);
    let (least, resident) = (least_arena(&model, &options), resident_arena(&model, &options));
    let arena = least + (resident - least) / 3;
    let expected = answer(&mut on_cuda(&model, &options, arena)?, &prompt, &[], 4)?;
    let mut refused = 0;
    for n in 1..25 {
        let mut device = CudaDevice::with_arena(0, arena)?;
        device.inject(FaultPlan { fail_allocation: Some(n), ..FaultPlan::default() });
        let (folder, bank) = (&model.folder, model.bank.clone());
        match Engine::load(device, &folder.checkpoint, folder.spec.clone(), bank, None, options.clone()) {
            Ok(mut engine) => {
                engine.device_mut().inject(FaultPlan::default());
                same(&answer(&mut engine, &prompt, &[], 4)?, &expected)?;
            }
            Err(EngineError::Device(DeviceError::OutOfMemory { .. })) => refused += 1,
            Err(error) => return Err(format!("allocation {n}: {error}").into()),
        }
        same(&answer(&mut on_cuda(&model, &options, arena)?, &prompt, &[], 4)?, &expected)?;
    }
    println!("{refused} of 24 starts refused");
    if refused == 0 { Err("no start was refused: nothing was injected".into()) } else { Ok(()) }
}

fn least_budget() -> Result<(), Failed> {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = model.options(KvFormat::Bf16, 256);
    match on_cuda(&model, &options, least_arena(&model, &options) - 1).map(|_| ()) {
        Err(EngineError::BudgetTooSmall { .. }) => Ok(()),
        other => Err(format!("{other:?}, expected a refusal of the budget").into()),
    }
}

fn low_water() -> Result<(), Failed> {
    const MARGIN: u64 = 2 << 20;
    let dir = fixture("tiny-moe");
    let model = Model::open(&dir, INT4);
    let options = EngineOptions { margin_bytes: MARGIN, ..model.options(KvFormat::Bf16, 256) };
    let (least, resident) = (least_arena(&model, &options), resident_arena(&model, &options));
    let mut engine = on_cuda(&model, &options, least + (resident - least) / 2)?;
    answer(&mut engine, &prompt(&dir, 100), &[], 8)?;
    let marks = engine.low_water();
    for (phase, mark) in [("prefill", marks.prefill), ("decode", marks.decode), ("restore", marks.restore)] {
        let mark = mark.ok_or_else(|| Failed::from(format!("{phase} has no mark")))?;
        if mark < MARGIN {
            return Err(format!("{phase}: {mark} bytes free, expected at least {MARGIN}").into());
        }
    }
    Ok(())
}
