use super::support::{Device, awkward, same};
use super::{Case, Run};
use assay_kernels::cuda::Fault;
use cudarc::driver::{result, sys};
use libtest_mimic::Failed;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (experts, slots, bytes) in [(4, 1, 64), (16, 8, 4096 + 64), (128, 8, 1 << 20), (40, 32, 320)] {
        for cold in [0, 1, 2, 3] {
            let run: Run = Box::new(move |device| fetch(device, experts, slots, bytes, cold));
            cases.push((format!("fetch::{slots} of {experts} x {bytes}, {cold} in 3 cold"), run));
        }
    }
    cases
}

/// Experts whose number is below `cold` modulo 3 are cold.
fn fetch(device: &Device, experts: usize, slots: usize, bytes: usize, cold: usize) -> Result<(), Failed> {
    const ABSENT: u64 = u64::MAX;
    let contents: Vec<f32> = awkward(experts * bytes / 4, 1);
    let contents: &[u8] = bytemuck::cast_slice(&contents);
    // SAFETY: freed below; filled before any kernel sees it.
    let (host, mapped) = unsafe {
        let host = result::malloc_host(contents.len(), sys::CU_MEMHOSTALLOC_DEVICEMAP)?;
        std::ptr::copy_nonoverlapping(contents.as_ptr(), host.cast::<u8>(), contents.len());
        let mut mapped = 0u64;
        sys::cuMemHostGetDevicePointer_v2(&raw mut mapped, host, 0).result()?;
        (host, mapped)
    };
    let home = device.upload(contents);
    let landing_memory = device.poisoned::<u8>(slots * bytes);
    let ids: Vec<u32> = (0..slots).map(|slot| ((slot * 7 + 3) % experts) as u32).collect();
    let is_cold = |expert: usize| expert % 3 < cold;
    let address = |expert: usize| home.address() + (expert * bytes) as u64;
    let resident: Vec<u64> = (0..experts).map(|e| if is_cold(e) { ABSENT } else { address(e) }).collect();
    let landing: Vec<u64> = (0..slots).map(|slot| landing_memory.address() + (slot * bytes) as u64).collect();
    let table = device.poisoned::<u64>(experts);
    let (ids_there, resident, landing_there) = (device.upload(&ids), device.upload(&resident), device.upload(&landing));
    // SAFETY: the mapped memory has every expert; landing addresses are this trial's.
    unsafe { device.cuda.fetch(device.stream, ids_there, resident, (mapped, bytes), landing_there, table)? };
    let table = device.download(table);
    let landed = device.download(landing_memory);
    // SAFETY: the kernel has been waited for.
    unsafe { result::free_host(host)? };
    let mut rank = 0;
    for (slot, &id) in ids.iter().enumerate() {
        let expert = id as usize;
        if !is_cold(expert) {
            same(&format!("table of slot {slot}"), &[table[expert]], &[address(expert)])?;
            continue;
        }
        same(&format!("table of slot {slot}"), &[table[expert]], &[landing[rank]])?;
        let found = &landed[rank * bytes..(rank + 1) * bytes];
        same(&format!("bytes of slot {slot}"), found, &contents[expert * bytes..(expert + 1) * bytes])?;
        rank += 1;
    }
    let untouched = landed[rank * bytes..].iter().all(|&byte| byte == 0xFF);
    same("landing slots that nothing lands in stay as they were", &[untouched], &[true])?;
    same("fault", &[device.cuda.take_fault()], &[None::<Fault>])
}
