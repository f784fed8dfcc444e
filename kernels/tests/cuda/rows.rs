use super::support::{Device, awkward, same, same_bits};
use super::{Case, Run};
use assay_kernels::cuda::{DeviceMatrix, Fault};
use assay_kernels::layout::{MatrixFormat, matrix_bytes, pack_bf16};
use assay_kernels::{KvFormat, KvLayout, Matrix, twin};
use half::bf16;
use libtest_mimic::Failed;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut case = |name: String, run: Run| cases.push((name, run));
    for tokens in [1, 17, 127] {
        case(format!("embed::{tokens}"), Box::new(move |device| embed(device, tokens)));
        for width in [16, 100, 128, 129, 2048, 2880] {
            case(format!("rms_norm::{tokens}x{width}"), Box::new(move |device| rms_norm(device, tokens, width)));
        }
        for (heads, head_dim, rotary_dim) in [(4, 32, 32), (3, 34, 16), (2, 64, 64), (32, 128, 128), (1, 256, 64)] {
            for norm in [None, Some(head_dim), Some(heads * head_dim)] {
                let name = format!("head_norm_rope::{tokens}x{heads}x{head_dim}/{rotary_dim}, norm {norm:?}");
                case(name, Box::new(move |device| rope(device, tokens, (heads, head_dim, rotary_dim), norm)));
            }
        }
        for format in KvFormat::ALL {
            for head_dim in [34, 64, 128] {
                let name = format!("kv_append::{format:?} {tokens}x3x{head_dim}");
                case(name, Box::new(move |device| kv_append(device, format, tokens, head_dim)));
            }
        }
    }
    for n in [1, 5, 1024, 4099, 151_936] {
        case(format!("argmax::{n}"), Box::new(move |device| argmax(device, n)));
    }
    for (slots, experts) in [(1, 1), (8, 128), (136, 16), (1016, 128), (8000, 60), (8000, 1)] {
        case(format!("permute::{slots} over {experts}"), Box::new(move |device| permute(device, slots, experts)));
    }
    cases
}

fn embed(device: &Device, tokens: usize) -> Result<(), Failed> {
    let (rows, cols) = (101, 48);
    let weights: Vec<f32> = awkward(rows * cols, 1).into_iter().map(|x| bf16::from_f32(x).to_f32()).collect();
    let mut bytes = vec![0; matrix_bytes(MatrixFormat::Bf16, rows, cols).unwrap()];
    pack_bf16(&weights, rows, cols, &mut bytes)?;
    let ids: Vec<u32> = (0..tokens).map(|token| (token * 37 % rows) as u32).collect();
    let mut expected = vec![0.0; tokens * cols];
    twin::embed(&ids, Matrix::new(MatrixFormat::Bf16, rows, cols, &bytes)?, &mut expected)?;
    let table = DeviceMatrix::new(MatrixFormat::Bf16, rows, cols, device.upload(&bytes))?;
    let out = device.poisoned(tokens * cols);
    device.cuda.embed(device.stream, device.upload(&ids), table, out)?;
    same_bits("out", &device.download(out), &expected)?;
    let mut outside = ids;
    outside[tokens - 1] = rows as u32;
    device.cuda.embed(device.stream, device.upload(&outside), table, out)?;
    device.download(out);
    same("fault", &[device.cuda.take_fault()], &[Some(Fault::Index(tokens as u32 - 1))])
}

fn rms_norm(device: &Device, tokens: usize, width: usize) -> Result<(), Failed> {
    let (x, weight) = (awkward(tokens * width, 2), awkward(width, 3));
    let mut expected = vec![0.0; x.len()];
    twin::rms_norm(&x, &weight, 1e-6, &mut expected)?;
    let out = device.poisoned(x.len());
    device.cuda.rms_norm(device.stream, device.upload(&x), device.upload(&weight), 1e-6, out)?;
    same_bits("out", &device.download(out), &expected)
}

fn rope(
    device: &Device,
    tokens: usize,
    (heads, head_dim, rotary_dim): (usize, usize, usize),
    norm: Option<usize>,
) -> Result<(), Failed> {
    let (mut x, norm) = (awkward(tokens * heads * head_dim, 4), norm.map(|width| awkward(width, 5)));
    let positions = tokens + 9;
    let (cos, sin) = (awkward(positions * rotary_dim / 2, 6), awkward(positions * rotary_dim / 2, 7));
    let on_device = device.upload(&x);
    let weight = norm.as_ref().map(|norm| device.upload(norm));
    let (cos_there, sin_there) = (device.upload(&cos), device.upload(&sin));
    device.cuda.head_norm_rope(
        device.stream,
        on_device,
        heads,
        head_dim,
        rotary_dim,
        weight,
        1e-6,
        cos_there,
        sin_there,
        (9, None),
    )?;
    twin::head_norm_rope(&mut x, heads, head_dim, rotary_dim, norm.as_deref(), 1e-6, &cos, &sin, 9)?;
    same_bits("x", &device.download(on_device), &x)
}

fn kv_append(device: &Device, format: KvFormat, tokens: usize, head_dim: usize) -> Result<(), Failed> {
    let layout = KvLayout { format, capacity_tokens: 300, kv_heads: 3, head_dim };
    let (k, v) = (awkward(tokens * 3 * head_dim, 8), awkward(tokens * 3 * head_dim, 9));
    // What is not written must stay as it was.
    let mut expected = vec![0xA5u8; layout.bytes().unwrap()];
    let cache = device.upload(&expected);
    device.cuda.kv_append(device.stream, device.upload(&k), device.upload(&v), (125, None), layout, cache)?;
    twin::kv_append(&k, &v, 125, layout, &mut expected)?;
    same("cache", &device.download(cache), &expected)?;
    let numbers = KvLayout { format: KvFormat::F32, ..layout };
    let out = device.poisoned(numbers.bytes().unwrap());
    let unpacked = device.cuda.kv_unpack(device.stream, layout, cache, 125 + tokens, out)?;
    if unpacked == layout {
        return Ok(());
    }
    let positions = 125..125 + tokens;
    same_bits("unpacked", &numbers.rows(&device.download(out), positions.clone()), &layout.rows(&expected, positions))
}

fn argmax(device: &Device, n: usize) -> Result<(), Failed> {
    let mut logits = awkward(n, 10);
    // Two equal largest ones: the lower index wins.
    let (first, second) = (n / 3, n - 1);
    logits[first] = 1e6;
    logits[second] = 1e6;
    let out = device.poisoned(1);
    device.cuda.argmax(device.stream, device.upload(&logits), out)?;
    let choice = twin::argmax(&logits)?;
    same("choice", &device.download(out), &[choice])?;
    same("fault", &[device.cuda.take_fault()], &[None])?;
    let (out, next) = (device.poisoned(1), device.upload(&[7u32, 40]));
    device.cuda.argmax_next(device.stream, device.upload(&logits), out, Some(next))?;
    same("choice", &device.download(out), &[choice])?;
    same("next", &device.download(next), &[choice, 41])?;
    logits[second] = f32::NAN;
    device.cuda.argmax(device.stream, device.upload(&logits), out)?;
    device.download(out);
    same("fault", &[device.cuda.take_fault()], &[Some(Fault::NotANumber(second as u32))])
}

fn permute(device: &Device, slots: usize, experts: usize) -> Result<(), Failed> {
    // Some experts stay empty.
    let ids: Vec<u32> = (0..slots).map(|slot| (slot * slot % 31 % experts) as u32).collect();
    let (mut order, mut offsets) = (vec![0; slots], vec![0; experts + 1]);
    twin::permute(&ids, experts, &mut order, &mut offsets)?;
    let (order_there, offsets_there) = (device.poisoned(slots), device.poisoned(experts + 1));
    device.cuda.permute(device.stream, device.upload(&ids), order_there, offsets_there)?;
    same("order", &device.download(order_there), &order)?;
    same("offsets", &device.download(offsets_there), &offsets)
}
