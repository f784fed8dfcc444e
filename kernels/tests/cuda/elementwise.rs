use super::Case;
use super::support::{Device, awkward, same_bits};
use assay_kernels::{Activation, twin};
use libtest_mimic::Failed;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for n in [1, 17, 127, 1000, 100_003] {
        let mut case = |name: &str, run: fn(&Device, usize) -> Result<(), Failed>| {
            cases.push((format!("elementwise::{name}::{n}"), Box::new(move |device: &Device| run(device, n))));
        };
        case("swiglu", |device, n| swiglu(device, n, Activation::SwiGlu));
        case("clamped_swiglu", |device, n| swiglu(device, n, Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 }));
        case("add_assign", add_assign);
        case("add_gated", add_gated);
        case("scale", scale);
    }
    cases
}

fn swiglu(device: &Device, n: usize, activation: Activation) -> Result<(), Failed> {
    let (mut gate, up) = (awkward(n, 1), awkward(n, 2));
    gate[0] = f32::NAN;
    let mut expected = vec![0.0; n];
    twin::swiglu(&gate, &up, activation, &mut expected)?;
    let out = device.poisoned(n);
    device.cuda.swiglu(device.stream, device.upload(&gate), device.upload(&up), activation, out)?;
    same_bits("out", &device.download(out), &expected)
}

fn add_assign(device: &Device, n: usize) -> Result<(), Failed> {
    let (mut x, y) = (awkward(n, 3), awkward(n, 4));
    let on_device = device.upload(&x);
    device.cuda.add_assign(device.stream, on_device, device.upload(&y), 0.22)?;
    twin::add_assign(&mut x, &y, 0.22)?;
    same_bits("x", &device.download(on_device), &x)
}

fn add_gated(device: &Device, n: usize) -> Result<(), Failed> {
    let width = 7;
    let (mut x, y, gates) = (awkward(n * width, 5), awkward(n * width, 6), awkward(n, 7));
    let on_device = device.upload(&x);
    device.cuda.add_gated(device.stream, on_device, device.upload(&y), device.upload(&gates))?;
    twin::add_gated(&mut x, &y, &gates)?;
    same_bits("x", &device.download(on_device), &x)
}

fn scale(device: &Device, n: usize) -> Result<(), Failed> {
    let mut x = awkward(n, 8);
    let on_device = device.upload(&x);
    device.cuda.scale(device.stream, on_device, 0.1)?;
    twin::scale(&mut x, 0.1)?;
    same_bits("x", &device.download(on_device), &x)
}
