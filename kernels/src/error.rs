//! What a kernel refuses.

/// Why a kernel did not run. Nothing has been written when one of these is returned, save where a kernel says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A slice has the wrong number of elements, or two widths disagree.
    #[error("{kernel}: {what} is {found}, expected {expected}")]
    Shape {
        /// Kernel family.
        kernel: &'static str,
        /// Which operand, with its shape.
        what: &'static str,
        /// The length that the other operands imply.
        expected: usize,
        /// The length found.
        found: usize,
    },
    /// An index is not below its limit.
    #[error("{kernel}: {what} {index} is out of range, expected less than {limit}")]
    Index {
        /// Kernel family.
        kernel: &'static str,
        /// What the index names.
        what: &'static str,
        /// The index found.
        index: usize,
        /// The first index that does not exist.
        limit: usize,
    },
    /// A size or width that no operand can have, such as an odd `head_dim`.
    #[error("{kernel}: {what} is {found}, expected {expected}")]
    Geometry {
        /// Kernel family.
        kernel: &'static str,
        /// Which parameter.
        what: &'static str,
        /// The rule.
        expected: &'static str,
        /// The value found.
        found: usize,
    },
    /// A parameter that means nothing, such as a negative temperature.
    #[error("{kernel}: {what} is {found}, expected {expected}")]
    Parameter {
        /// Kernel family.
        kernel: &'static str,
        /// Which parameter.
        what: &'static str,
        /// The rule.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// A size that overflows, or that a kernel cannot count.
    #[error("{kernel}: {what} is too large")]
    TooLarge {
        /// Kernel family.
        kernel: &'static str,
        /// Which operand.
        what: &'static str,
    },
    /// Tokens were routed to an expert whose weights are not there.
    #[error("{kernel}: expert {expert} has {slots} slots but no weights")]
    MissingExpert {
        /// Kernel family.
        kernel: &'static str,
        /// Index of the expert in its layer.
        expert: usize,
        /// Slots that were routed to it.
        slots: usize,
    },
    /// A NaN where a decision depends on it.
    #[error("{kernel}: {what} {index} is NaN")]
    NotANumber {
        /// Kernel family.
        kernel: &'static str,
        /// What was NaN.
        what: &'static str,
        /// Its index in the operand.
        index: usize,
    },
}

/// `Shape` unless `found == expected`.
pub(crate) fn expect_len(
    kernel: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), KernelError> {
    if found == expected {
        return Ok(());
    }
    Err(KernelError::Shape { kernel, what, expected, found })
}

/// Product of sizes, `TooLarge` where it overflows.
pub(crate) fn product(kernel: &'static str, what: &'static str, sizes: &[usize]) -> Result<usize, KernelError> {
    sizes.iter().try_fold(1usize, |total, &size| total.checked_mul(size)).ok_or(KernelError::TooLarge { kernel, what })
}

/// How many rows of `width` a slice of `len` elements holds; `Shape` where that is not a whole number.
pub(crate) fn rows_of(
    kernel: &'static str,
    what: &'static str,
    len: usize,
    width: usize,
) -> Result<usize, KernelError> {
    if width == 0 {
        return Err(KernelError::Geometry { kernel, what, expected: "a width of at least 1", found: 0 });
    }
    let rows = len / width;
    expect_len(kernel, what, len, rows * width)?;
    Ok(rows)
}
