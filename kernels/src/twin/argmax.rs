use crate::{KernelError, check};

/// Index of the largest logit, ties to the lowest index.
///
/// # Errors
/// `Geometry` without logits; `NotANumber` for the first NaN: a NaN never becomes a token.
pub fn argmax(logits: &[f32]) -> Result<u32, KernelError> {
    check::argmax(logits)?;
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return Err(KernelError::NotANumber { kernel: "argmax", what: "logit", index });
        }
        if logit > logits[best] {
            best = index;
        }
    }
    Ok(best as u32)
}
