use super::Case;
use super::support::{Device, same};
use assay_kernels::cuda::{DeviceSlice, Fault};
use assay_kernels::{Choice, twin};
use libtest_mimic::Failed;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for n in [1, 17, 127, 513, 1000, 32_000, 151_936] {
        for kind in KINDS {
            cases.push((format!("sample::{kind:?} {n}"), Box::new(move |device| equals(device, kind, n))));
        }
        cases.push((format!("sample::seeds {n}"), Box::new(move |device| seeds(device, n))));
        cases.push((format!("sample::NaN {n}"), Box::new(move |device| nan(device, n))));
    }
    cases
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// As logits are.
    Bell,
    /// So close to each other that nearly everything is likely.
    Flat,
    /// A few values, each many times.
    Steps,
    AllEqual,
    /// Of both signs.
    Zeros,
    SomeImpossible,
    OneSurvivor,
    Infinite,
    AllImpossible,
}

const KINDS: [Kind; 9] = [
    Kind::Bell,
    Kind::Flat,
    Kind::Steps,
    Kind::AllEqual,
    Kind::Zeros,
    Kind::SomeImpossible,
    Kind::OneSurvivor,
    Kind::Infinite,
    Kind::AllImpossible,
];

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Bell-shaped, of standard deviation `spread`.
    fn bell(&mut self, spread: f32) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum();
        (sum - 2.0) * spread * 1.732
    }
}

fn logits(kind: Kind, n: usize, random: &mut Random) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..n)
        .map(|i| match kind {
            Kind::Bell | Kind::Infinite => random.bell(3.0),
            Kind::Flat => random.bell(0.01),
            Kind::Steps => random.bell(2.0).round(),
            Kind::AllEqual => 1.5,
            Kind::Zeros => [-0.0, 0.0][i % 2],
            Kind::SomeImpossible if i % 3 != 0 => random.bell(3.0),
            Kind::SomeImpossible | Kind::OneSurvivor | Kind::AllImpossible => f32::NEG_INFINITY,
        })
        .collect();
    match kind {
        Kind::OneSurvivor => logits[n / 2] = -2.0,
        Kind::Infinite => [n - 1, n / 3].iter().for_each(|&i| logits[i] = f32::INFINITY),
        _ => {}
    }
    logits
}

/// Every limit alone and together, at temperatures from next to nothing to so high that all are equal.
fn choices(n: usize, random: &mut Random) -> Vec<(String, Choice)> {
    let settings = [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 0.95, 0.0),
        (1.0, 0, 0.5, 0.0),
        (1.0, 0, 1e-9, 0.0),
        (1.0, 0, 0.0, 0.0),
        (1.5, 0, 0.999_999, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 40, 1.0, 0.0),
        (1.0, n, 1.0, 0.0),
        (1.0, n + 7, 0.9, 0.0),
        (1.0, n.div_ceil(2), 1.0, 0.0),
        (1.0, n.div_ceil(2), 0.9, 0.0),
        (1.0, 50, 0.9, 0.05),
        (1.0, 0, 1.0, 0.05),
        (1.0, 0, 1.0, 1.0),
        (1e-3, 0, 0.9, 0.0),
        (1e-3, 3, 1.0, 0.0),
        (1e-300, 0, 1.0, 0.0),
        (100.0, 0, 0.9, 0.0),
        (100.0, 1000, 0.3, 0.99),
        (1e300, 20, 0.5, 0.0),
    ];
    let mut choices = Vec::new();
    for (index, (temperature, top_k, top_p, min_p)) in settings.into_iter().enumerate() {
        let word = [random.next(), random.next(), 0, u64::MAX][index % 4];
        let what = format!("temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, word {word:#x}");
        choices.push((what, Choice::new(temperature, top_k, top_p, min_p, word).unwrap()));
    }
    choices
}

fn equals(device: &Device, kind: Kind, n: usize) -> Result<(), Failed> {
    let random = &mut Random(n as u64);
    let logits = logits(kind, n, random);
    let mut choices = choices(n, random);
    if n > 100_000 {
        // The twin sorts the vocabulary for each: a third of them for each kind, so that three kinds have all.
        choices = choices.into_iter().skip(kind as usize % 3).step_by(3).collect();
    }
    check(device, &logits, &choices)
}

/// Many draws: of the same few settings, each of its own random number.
fn seeds(device: &Device, n: usize) -> Result<(), Failed> {
    let random = &mut Random(1 + n as u64);
    let logits = logits(Kind::Bell, n, random);
    // The twin sorts the vocabulary for each.
    let count = if n > 10_000 { 24 } else { 400 };
    let settings = [(1.0, 0, 1.0, 0.0), (0.8, 0, 0.95, 0.0), (0.6, 20, 0.95, 0.0), (1.3, 0, 1.0, 0.02)];
    let choices: Vec<(String, Choice)> = (0..count)
        .map(|draw| {
            let ((temperature, top_k, top_p, min_p), word) = (settings[draw % settings.len()], random.next());
            (format!("draw {draw}, {word:#x}"), Choice::new(temperature, top_k, top_p, min_p, word).unwrap())
        })
        .collect();
    check(device, &logits, &choices)
}

/// Launches follow each other without a wait: what one leaves behind may not reach the next.
fn check(device: &Device, logits: &[f32], choices: &[(String, Choice)]) -> Result<(), Failed> {
    let (from, out) = (device.upload(logits), device.poisoned::<u32>(choices.len() + 1));
    for (index, (_, choice)) in choices.iter().enumerate() {
        device.cuda.sample(device.stream, from, choice, at(out, index))?;
    }
    let found = device.download(out);
    for ((what, choice), &found) in choices.iter().zip(&found) {
        same(what, &[found], &[twin::sample(logits, choice)?])?;
    }
    same("what follows the last choice", &found[choices.len()..], &[u32::MAX])?;
    same("fault", &[device.cuda.take_fault()], &[None])
}

fn at(out: DeviceSlice<u32>, index: usize) -> DeviceSlice<u32> {
    // SAFETY: an element of the same memory.
    unsafe { DeviceSlice::new(out.address() + (index * size_of::<u32>()) as u64, 1) }
}

fn nan(device: &Device, n: usize) -> Result<(), Failed> {
    let random = &mut Random(2 + n as u64);
    let whole = logits(Kind::Bell, n, random);
    let choice = Choice::new(1.0, 40, 0.9, 0.01, random.next()).unwrap();
    let places = [vec![0], vec![n - 1], vec![n - 1, n / 2], (0..n).collect()];
    for (index, places) in places.iter().enumerate() {
        let mut logits = whole.clone();
        for &place in places {
            logits[place] = if place % 2 == 0 { f32::NAN } else { -f32::NAN };
        }
        let (out, first) = (device.poisoned::<u32>(1), places.iter().min().copied().unwrap_or(0));
        device.cuda.sample(device.stream, device.upload(&logits), &choice, out)?;
        let found = device.download(out)[0];
        same(&format!("fault {index}"), &[device.cuda.take_fault()], &[Some(Fault::NotANumber(first as u32))])?;
        if found as usize >= n {
            return Err(format!("{found} is no id of {n}").into());
        }
    }
    // The next launch works.
    check(device, &whole, &[("after a NaN".to_owned(), choice)])
}
