//! Spreading tasks over the rayon pool, and the writing of disjoint parts of one output by several of them.

use rayon::prelude::*;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Work that is worth handing to another thread: about 15 µs of a matrix product's inner loop, where waking a thread
/// costs 5. The unit of work is what that loop does in the time of one multiply-add, about 1/25 ns.
const PIECE: usize = 384 * 1024;

/// How many of `tasks` to give to a thread at a time: all of them where they are not worth sharing.
pub(super) fn pieces(tasks: usize, work: usize) -> usize {
    let piece = PIECE.div_ceil(work.max(1));
    if tasks < 2 * piece || rayon::current_num_threads() == 1 { tasks.max(1) } else { piece }
}

/// Calls `f` for every task `0..tasks`, on several threads where `work` a task makes that worth it.
pub(super) fn for_each(tasks: usize, work: usize, f: impl Fn(usize) + Send + Sync) {
    let piece = pieces(tasks, work);
    if piece >= tasks {
        (0..tasks).for_each(f);
    } else {
        (0..tasks).into_par_iter().with_min_len(piece).for_each(f);
    }
}

/// Calls `f(first_row, rows)` on pieces of `y`: whole rows of `width` elements, each of them `work`.
pub(super) fn for_each_rows(width: usize, work: usize, y: &mut [f32], f: impl Fn(usize, &mut [f32]) + Send + Sync) {
    let rows = y.len() / width;
    let piece = pieces(rows, work * width);
    if piece >= rows {
        f(0, y);
    } else {
        y.par_chunks_mut(width * piece).enumerate().for_each(|(index, rows)| f(index * piece, rows));
    }
}

/// A mutable slice that tasks write disjoint parts of.
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it only hands out parts through `part`, whose caller promises that they do not overlap.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// `len` elements that other threads write other parts of.
    ///
    /// # Safety
    /// They live as long as `'a`, and nobody else reads or writes the parts that are taken through this.
    pub(super) unsafe fn shared(start: NonNull<T>, len: usize) -> Self {
        Self { start: start.as_ptr(), len, owner: PhantomData }
    }

    /// `slice[first .. first + len]`.
    ///
    /// # Safety
    /// No other part that overlaps this one is alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(super) unsafe fn part(&self, first: usize, len: usize) -> &mut [T] {
        assert!(first <= self.len && len <= self.len - first, "part of a kernel's output out of range");
        // SAFETY: in range by the assertion, unaliased by the caller's promise; the slice is borrowed for 'a.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}
