use crate::{KernelError, Matrix, check};

/// `out[t, :] = table[ids[t], :]`, exact in f32.
///
/// `table` is `[vocab, hidden]`, `out` is `[tokens, hidden]`.
///
/// # Errors
/// `Shape`; `Index` for an id that the table does not have.
pub fn embed(ids: &[u32], table: Matrix<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    check::embed(ids, &table, out)?;
    for (&id, row) in ids.iter().zip(out.chunks_exact_mut(table.cols())) {
        for (col, value) in row.iter_mut().enumerate() {
            *value = table.weight(id as usize, col);
        }
    }
    Ok(())
}
