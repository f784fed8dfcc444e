use super::support::{Device, awkward, same, same_bits};
use super::{Case, Run};
use assay_kernels::cuda::Fault;
use assay_kernels::{Routing, Scoring, twin};
use libtest_mimic::Failed;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut case = |name: String, run: Run| cases.push((name, run));
    for scoring in [Scoring::Softmax, Scoring::SoftmaxOfChosen, Scoring::Sigmoid] {
        for (experts, top_k) in [(1, 1), (8, 2), (60, 4), (128, 8), (256, 8), (1024, 32)] {
            for (tokens, bias, norm) in [(1, false, true), (17, true, false), (1000, true, true)] {
                let routing = Routing { scoring, scaling_factor: 2.5, ..Routing::softmax(norm) };
                let name = format!("router_topk::{scoring:?} {tokens}x{experts} top {top_k}, bias {bias}");
                case(name, Box::new(move |device| router(device, tokens, (experts, top_k), routing, bias)));
            }
        }
        let grouped = Routing { scoring, n_group: 8, topk_group: 3, ..Routing::softmax(true) };
        let name = format!("router_topk::{scoring:?} 127x128 top 8, 3 of 8 groups");
        case(name, Box::new(move |device| router(device, 127, (128, 8), grouped, true)));
    }
    case("router_topk::equal scores".into(), Box::new(equal_scores));
    case("router_topk::a NaN is reported".into(), Box::new(nan));
    for (tokens, top_k, hidden) in [(1, 8, 2048), (17, 2, 100), (1000, 4, 96)] {
        case(
            format!("combine::{tokens}x{top_k}x{hidden}"),
            Box::new(move |device| combine(device, tokens, top_k, hidden)),
        );
    }
    cases
}

fn router(
    device: &Device,
    tokens: usize,
    (experts, top_k): (usize, usize),
    routing: Routing,
    with_bias: bool,
) -> Result<(), Failed> {
    // Within the range of a softmax, with ties among them.
    let logits: Vec<f32> =
        awkward(tokens * experts, 1).into_iter().map(|x| (x.clamp(-2.0, 2.0) * 64.0).round() / 16.0).collect();
    let bias = with_bias.then(|| awkward(experts, 2).into_iter().map(|x| x.clamp(-0.1, 0.1)).collect::<Vec<f32>>());
    check(device, &logits, bias.as_deref(), (experts, top_k), routing)
}

fn check(
    device: &Device,
    logits: &[f32],
    bias: Option<&[f32]>,
    (experts, top_k): (usize, usize),
    routing: Routing,
) -> Result<(), Failed> {
    let slots = logits.len() / experts * top_k;
    let (mut ids, mut weights) = (vec![0; slots], vec![0.0; slots]);
    twin::router_topk(logits, bias, experts, top_k, &routing, &mut ids, &mut weights)?;
    let (ids_there, weights_there) = (device.poisoned(slots), device.poisoned(slots));
    let bias = bias.map(|bias| device.upload(bias));
    let logits = device.upload(logits);
    device.cuda.router_topk(device.stream, logits, bias, experts, top_k, &routing, ids_there, weights_there)?;
    same("ids", &device.download(ids_there), &ids)?;
    same_bits("weights", &device.download(weights_there), &weights)?;
    same("fault", &[device.cuda.take_fault()], &[None])
}

/// Ties go to the lowest index; keys of −inf are taken last, lowest index first.
fn equal_scores(device: &Device) -> Result<(), Failed> {
    let mut logits = vec![0.5f32; 3 * 128];
    logits[128..256].fill(f32::NEG_INFINITY);
    logits[130] = 1.0;
    let routing = Routing { scoring: Scoring::Sigmoid, ..Routing::softmax(true) };
    check(device, &logits, None, (128, 8), routing)
}

fn nan(device: &Device) -> Result<(), Failed> {
    let mut logits = awkward(5 * 16, 3);
    logits[37] = f32::NAN;
    let (ids, weights) = (device.poisoned(10), device.poisoned(10));
    let routing = Routing { scoring: Scoring::Sigmoid, ..Routing::softmax(false) };
    device.cuda.router_topk(device.stream, device.upload(&logits), None, 16, 2, &routing, ids, weights)?;
    device.download(ids);
    same("fault", &[device.cuda.take_fault()], &[Some(Fault::NotANumber(37))])
}

fn combine(device: &Device, tokens: usize, top_k: usize, hidden: usize) -> Result<(), Failed> {
    let (slots, weights) = (awkward(tokens * top_k * hidden, 4), awkward(tokens * top_k, 5));
    let mut expected = vec![0.0; tokens * hidden];
    twin::combine(&slots, &weights, top_k, &mut expected)?;
    let out = device.poisoned(expected.len());
    device.cuda.combine(device.stream, device.upload(&slots), device.upload(&weights), top_k, out)?;
    same_bits("out", &device.download(out), &expected)
}
