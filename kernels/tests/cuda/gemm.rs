//! Packing and dense products on tensor cores.

use assay_kernels::cuda::{DeviceImage, DeviceMatrix, DeviceSlice, GemmProduct, Instruction, image_bytes};
use assay_kernels::layout::MatrixFormat;
use assay_kernels::{Matrix, simd};
use libtest_mimic::Failed;

use super::Case;
use super::support::{Device, awkward, same_bits};
use super::tensor::{BF16_ROUNDING, Weights, instructions, panel_element, rounded, tensor_error, within};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (rows, cols) in [(1, 1), (8, 128), (17, 130), (127, 300), (1000, 768)] {
        cases.push((format!("gemm::pack::{rows}x{cols}"), Box::new(move |device: &Device| pack(device, rows, cols))));
    }
    for format in MatrixFormat::ALL {
        for tokens in [1, 17, 127, 1000] {
            for (rows, cols) in [(1, 1), (16, 128), (17, 130), (130, 1000), (272, 2048)] {
                let name = format!("gemm::{}::{tokens}x{rows}x{cols}", format.name());
                cases.push((name, Box::new(move |device: &Device| product(device, format, tokens, rows, cols))));
            }
        }
        for (rows, cols) in [(130, 300), (256, 2048)] {
            let name = format!("gemm::{}::chunks::{rows}x{cols}", format.name());
            cases.push((name, Box::new(move |device: &Device| chunks(device, format, rows, cols))));
        }
        for tokens in [3, 300] {
            let name = format!("gemm::{}::many::{tokens}", format.name());
            cases.push((name, Box::new(move |device: &Device| many(device, format, tokens))));
        }
    }
    cases
}

/// The image of `x` `[rows, cols]`, in poisoned memory.
fn image(device: &Device, x: &[f32], cols: usize) -> Result<(DeviceImage, DeviceSlice<u8>), Failed> {
    let bytes = device.poisoned(image_bytes(x.len() / cols, cols).unwrap());
    let image = DeviceImage::new(cols, bytes)?;
    device.cuda.pack_rows(device.stream, device.upload(x), image)?;
    Ok((image, bytes))
}

fn pack(device: &Device, rows: usize, cols: usize) -> Result<(), Failed> {
    let x = awkward(rows * cols, 1);
    let (_, bytes) = image(device, &x, cols)?;
    let (bytes, groups) = (device.download(bytes), cols.div_ceil(128));
    let (all_rows, all_cols) = (rows.next_multiple_of(8), groups * 128);
    let panel_bytes = 128 * all_cols * 2;
    let element = |at: usize| {
        let (row, col) = (at / all_cols, at % all_cols);
        panel_element(&bytes[row / 128 * panel_bytes..], 16, row % 128, col)
    };
    let found: Vec<f32> = (0..all_rows * all_cols).map(element).collect();
    let expected = |at: usize| {
        let (row, col) = (at / all_cols, at % all_cols);
        if row < rows && col < cols { rounded(x[row * cols + col]) } else { 0.0 }
    };
    same_bits("image", &found, &(0..found.len()).map(expected).collect::<Vec<_>>())
}

fn run(
    device: &Device,
    instruction: Instruction,
    x: &[f32],
    weights: &Weights,
    bias: Option<&[f32]>,
) -> Result<Vec<f32>, Failed> {
    let (image, _) = image(device, x, weights.cols)?;
    let w = DeviceMatrix::new(weights.format, weights.rows, weights.cols, device.upload(&weights.packed))?;
    let out = device.poisoned(x.len() / weights.cols * weights.rows);
    device.cuda.gemm(device.stream, instruction, image, w, bias.map(|bias| device.upload(bias)), out)?;
    Ok(device.download(out))
}

fn product(device: &Device, format: MatrixFormat, tokens: usize, rows: usize, cols: usize) -> Result<(), Failed> {
    let weights = Weights::new(format, rows, cols, 2);
    let (x, bias) = (awkward(tokens * cols, 4), awkward(rows, 5));
    let exact: Vec<f32> = x.iter().map(|&x| rounded(x)).collect();
    let mut twin_out = vec![0.0; tokens * rows];
    // The vectorised version has the twin's bits, sooner.
    simd::linear(&x, Matrix::new(format, rows, cols, &weights.packed)?, Some(&bias), &mut twin_out)?;
    for instruction in instructions(device) {
        let name = instruction.name();
        let found = run(device, instruction, &x, &weights, Some(&bias))?;
        // The bias is one more rounding of the result. Products below f32's normal range may be lost.
        let bounds = |x: &[f32], at: usize| {
            let (dot, size) = weights.dot(at % rows, &x[at / rows * cols..][..cols]);
            let sum = dot + f64::from(bias[at % rows]);
            (sum, size, tensor_error(cols) * size + 2f64.powi(-24) * sum.abs() + cols as f64 * 2f64.powi(-126))
        };
        within(&format!("{name} against f64 of the rounded activations"), &found, |at| {
            let (sum, _, bound) = bounds(&exact, at);
            (sum, bound)
        })?;
        // Against the twin, activations are rounded besides; its own chains of f32 are off by 2^-24 for each element.
        within(&format!("{name} against the twin"), &found, |at| {
            let (_, size, bound) = bounds(&x, at);
            let rounding = BF16_ROUNDING + (cols + 8) as f64 * 2f64.powi(-24);
            (f64::from(twin_out[at]), bound + rounding * size + 2f64.powi(-23) * f64::from(twin_out[at].abs()))
        })?;
    }
    Ok(())
}

/// A row has the same bits whatever chunk it comes in, for every width that blocks have.
fn chunks(device: &Device, format: MatrixFormat, rows: usize, cols: usize) -> Result<(), Failed> {
    let weights = Weights::new(format, rows, cols, 6);
    let x = awkward(1000 * cols, 7);
    for instruction in instructions(device) {
        let whole = run(device, instruction, &x, &weights, None)?;
        for chunk in [1, 16, 17, 64, 333] {
            // A chunk of one is enough for some of the rows.
            let end = if chunk == 1 { 20 } else { 1000 };
            let mut parts = Vec::with_capacity(whole.len());
            for x in x[..end * cols].chunks(chunk * cols) {
                parts.extend(run(device, instruction, x, &weights, None)?);
            }
            same_bits(&format!("{}, chunks of {chunk}", instruction.name()), &parts, &whole[..end * rows])?;
        }
    }
    Ok(())
}

/// Matrices of one launch have the bits of a launch each.
fn many(device: &Device, format: MatrixFormat, tokens: usize) -> Result<(), Failed> {
    let cols = 300;
    let x = awkward(tokens * cols, 8);
    let weights: Vec<Weights> =
        [272, 17, 128, 1].iter().zip(10..).map(|(&rows, seed)| Weights::new(format, rows, cols, seed)).collect();
    let bias = awkward(17, 9);
    let biases = [None, Some(&bias[..]), None, None];
    for instruction in instructions(device) {
        let (image, _) = image(device, &x, cols)?;
        let mut products = Vec::new();
        for (weights, bias) in weights.iter().zip(biases) {
            let w = DeviceMatrix::new(format, weights.rows, cols, device.upload(&weights.packed))?;
            let bias = bias.map(|bias| device.upload(bias));
            products.push(GemmProduct { w, bias, out: device.poisoned(tokens * weights.rows) });
        }
        for count in 1..=products.len() {
            device.cuda.gemm_many(device.stream, instruction, image, &products[..count])?;
            for (at, product) in products[..count].iter().enumerate() {
                let alone = run(device, instruction, &x, &weights[at], biases[at])?;
                let what = format!("{}, matrix {at} of {count}", instruction.name());
                same_bits(&what, &device.download(product.out), &alone)?;
            }
        }
    }
    Ok(())
}
