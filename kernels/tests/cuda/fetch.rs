use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::support::{Device, awkward, same, same_bits};
use super::{Case, Run};
use assay_kernels::cuda::{Fault, FetchTeam, TeamAnswer, TeamRequest};
use cudarc::driver::{result, sys};
use libtest_mimic::Failed;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (experts, slots, bytes) in [(4, 1, 64), (16, 8, 4096 + 64), (128, 8, 1 << 20), (40, 32, 320)] {
        for cold in [0, 1, 2, 3] {
            let run: Run = Box::new(move |device| fetch(device, experts, slots, bytes, cold));
            cases.push((format!("fetch::{slots} of {experts} x {bytes}, {cold} in 3 cold"), run));
            for share in [0, 1, 2] {
                let run: Run = Box::new(move |device| with_host(device, (experts, slots, bytes), cold, share));
                let name = format!("fetch::{slots} of {experts} x {bytes}, {cold} in 3 cold, {share} in 2 by the host");
                cases.push((name, run));
            }
        }
    }
    cases
}

/// Mapped host memory.
struct Mapped {
    host: *mut u8,
    device: u64,
}

impl Mapped {
    fn new(contents: &[u8]) -> Result<Self, Failed> {
        // SAFETY: freed when dropped; filled before any kernel sees it.
        unsafe {
            let host = result::malloc_host(contents.len(), sys::CU_MEMHOSTALLOC_DEVICEMAP)?;
            std::ptr::copy_nonoverlapping(contents.as_ptr(), host.cast::<u8>(), contents.len());
            let mut device = 0u64;
            sys::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0).result()?;
            Ok(Self { host: host.cast(), device })
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; whoever drops it has waited for the kernels.
        let _ = unsafe { result::free_host(self.host.cast()) };
    }
}

/// The host computes `share` halves of a token's cold experts, rounded down; twice, as in two layers.
fn with_host(
    device: &Device,
    (experts, slots, bytes): (usize, usize, usize),
    cold: usize,
    share: usize,
) -> Result<(), Failed> {
    const HIDDEN: usize = 132;
    const BEHIND: usize = 256 + 1024;
    let contents: Vec<f32> = awkward(experts * bytes / 4, 1);
    let contents: &[u8] = bytemuck::cast_slice(&contents);
    let bank = Mapped::new(contents)?;
    let common = Mapped::new(&vec![0; BEHIND + 256 + slots * HIDDEN * 4])?;
    let ids: Vec<u32> = (0..slots).map(|slot| ((slot * 7 + 3) % experts) as u32).collect();
    let is_cold = |expert: usize| expert % 3 < cold;
    let resident: Vec<u64> = (0..experts).map(|e| if is_cold(e) { u64::MAX } else { 64 * (1 + e as u64) }).collect();
    let landing_memory = device.poisoned::<u8>(slots * bytes);
    let landing: Vec<u64> = (0..slots).map(|slot| landing_memory.address() + (slot * bytes) as u64).collect();
    let colds: Vec<u32> = ids.iter().copied().filter(|&id| is_cold(id as usize)).collect();
    let fetched = colds.len() - colds.len() * share / 2;
    let by_host: Vec<u32> = (0..=slots).map(|misses| (misses * share / 2) as u32).collect();
    let x = awkward(HIDDEN, 2);
    let team = FetchTeam {
        request: common.device,
        answer: common.device + BEHIND as u64,
        sequence: device.upload(&[41]),
        by_host: device.upload(&by_host),
        x: device.upload(&x),
        out: device.poisoned(slots * HIDDEN),
        layer: 5,
    };
    let (ids_there, resident, landing_there) = (device.upload(&ids), device.upload(&resident), device.upload(&landing));
    for turn in 0..2 {
        let table = device.poisoned::<u64>(experts);
        let (stream, from) = (device.stream, (bank.device, bytes));
        // SAFETY: the mapped memory has every expert and the team's request and answer; landing addresses are this trial's.
        unsafe { device.cuda.fetch(stream, ids_there, resident, from, landing_there, table, Some(team))? };
        let asked = &colds[fetched..];
        let answers = awkward(asked.len() * HIDDEN, 3 + turn);
        if !asked.is_empty() {
            // SAFETY: the request is there when its number is, and the kernel waits for the answer's.
            unsafe {
                let request = &*common.host.cast::<TeamRequest>();
                let start = Instant::now();
                while request.sequence.load(Ordering::Acquire) != 42 + turn as u32 {
                    if start.elapsed() > Duration::from_secs(10) {
                        return Err("no request came".into());
                    }
                }
                same("layer and count", &[request.layer, request.count], &[5, asked.len() as u32])?;
                same("experts", &request.ids[..asked.len()], asked)?;
                let input = std::slice::from_raw_parts(common.host.add(256).cast::<f32>(), HIDDEN);
                same_bits("input", input, &x)?;
                let answer = common.host.add(BEHIND);
                let out = answer.add(256).cast::<f32>();
                std::ptr::copy_nonoverlapping(answers.as_ptr(), out, answers.len());
                (*answer.cast::<TeamAnswer>()).sequence.store(42 + turn as u32, Ordering::Release);
            }
        }
        let (table, landed, out) = (device.download(table), device.download(landing_memory), device.download(team.out));
        same_bits("what the host gives", &out[..answers.len()], &answers)?;
        for (rank, &id) in colds.iter().enumerate() {
            let id = id as usize;
            if rank < fetched {
                same("landing address", &[table[id]], &[landing[rank]])?;
                let found = &landed[rank * bytes..(rank + 1) * bytes];
                same("bytes", found, &contents[id * bytes..(id + 1) * bytes])?;
            } else {
                let at = team.out.address() + ((rank - fetched) * HIDDEN * 4) as u64;
                same("address of an answer", &[table[id]], &[at + 1])?;
            }
        }
        let hot = ids.iter().filter(|&&id| !is_cold(id as usize));
        hot.into_iter().try_for_each(|&id| same("resident", &[table[id as usize]], &[64 * (1 + u64::from(id))]))?;
    }
    same("fault", &[device.cuda.take_fault()], &[None::<Fault>])
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
    unsafe { device.cuda.fetch(device.stream, ids_there, resident, (mapped, bytes), landing_there, table, None)? };
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
