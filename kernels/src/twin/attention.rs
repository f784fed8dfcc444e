use std::ops::Range;

use crate::contract::{self, SPLIT, group_part};
use crate::{AttentionForm, KernelError, KvLayout, check};

/// Writes keys and values of consecutive positions into a layer's cache, rounding as its format does.
///
/// `k` and `v` are `[tokens, kv_heads * head_dim]`; token t goes to position `first_position + t`.
///
/// # Errors
/// `Shape`, `Geometry`, `TooLarge`; `Index` for a position past the capacity.
pub fn kv_append(
    k: &[f32],
    v: &[f32],
    first_position: usize,
    layout: KvLayout,
    cache: &mut [u8],
) -> Result<(), KernelError> {
    let tokens = check::kv_append(k, v, first_position, &layout, cache)?;
    for token in 0..tokens {
        let position = first_position + token;
        for head in 0..layout.kv_heads {
            if let Some(codes) = layout.format.codes() {
                let row = (token * layout.kv_heads + head) * layout.head_dim..;
                let (k, v) = (&k[row.clone()][..layout.head_dim], &v[row][..layout.head_dim]);
                let block = &mut cache[(position / SPLIT * layout.kv_heads + head) * layout.block_bytes()..];
                layout.quantize(codes, block, position % SPLIT, k, v);
                continue;
            }
            for dim in 0..layout.head_dim {
                let from = (token * layout.kv_heads + head) * layout.head_dim + dim;
                layout.write(cache, layout.key_index(position, head, dim), k[from]);
                layout.write(cache, layout.value_index(position, head, dim), v[from]);
            }
        }
    }
    Ok(())
}

/// Causal attention over a layer's cache: query t, at position `p = first_position + t`, sees positions up to p, with a
/// window only those above `p - window`.
///
/// `q` and `out` are `[tokens, heads * head_dim]`; `heads / kv_heads` neighbouring heads share a key-value head. The
/// softmax is taken in splits of 128 positions, merged in ascending order with running maximum and sum (arXiv 2205.14135). A
/// head's sink (arXiv 2309.17453, learned) is where the merging starts: maximum the sink, sum 1, values 0.
///
/// # Errors
/// `Shape`, `Geometry`, `TooLarge`; `Index` for a position past the capacity.
pub fn attention(
    q: &[f32],
    heads: usize,
    first_position: usize,
    layout: KvLayout,
    cache: &[u8],
    form: AttentionForm<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let tokens = check::attention(q, heads, first_position, &layout, cache, &form, out)?;
    let dim = layout.head_dim;
    for token in 0..tokens {
        for head in 0..heads {
            let at = (token * heads + head) * dim;
            let position = first_position + token;
            let query = Query {
                q: &q[at..at + dim],
                kv_head: head / (heads / layout.kv_heads),
                positions: form.first_visible(position)..position + 1,
                scale: form.scale,
                sink: form.sinks.map(|sinks| sinks[head]),
            };
            query.attend(&layout, cache, &mut out[at..at + dim]);
        }
    }
    Ok(())
}

/// One query head of one token.
struct Query<'a> {
    q: &'a [f32],
    kv_head: usize,
    /// Positions that it sees.
    positions: Range<usize>,
    scale: f32,
    sink: Option<f32>,
}

impl Query<'_> {
    fn attend(&self, layout: &KvLayout, cache: &[u8], out: &mut [f32]) {
        let (mut max, mut sum) = self.sink.map_or((f32::NEG_INFINITY, 0.0f32), |sink| (sink, 1.0));
        out.fill(0.0);
        for first in (self.positions.start / SPLIT * SPLIT..self.positions.end).step_by(SPLIT) {
            // The places in the split that the query sees.
            let seen = self.positions.start.saturating_sub(first)..SPLIT.min(self.positions.end - first);
            let (p, m) = self.scores(layout, cache, first, seen.clone());
            let new_max = larger(max, m);
            let (a, b) = (contract::exp(max - new_max), contract::exp(m - new_max));
            let l = 0.0 + group_part(0..SPLIT, seen.clone(), |acc, j| acc + p[j]);
            sum = l.mul_add(b, sum * a);
            for (d, value) in out.iter_mut().enumerate() {
                let v = |j: usize| layout.value(cache, first + j, self.kv_head, d);
                let o = 0.0 + group_part(0..SPLIT, seen.clone(), |acc, j| p[j].mul_add(v(j), acc));
                *value = o.mul_add(b, *value * a);
            }
            max = new_max;
        }
        for value in out.iter_mut() {
            *value /= sum;
        }
    }

    /// `exp(s - m)` of one split, and `m`.
    fn scores(&self, layout: &KvLayout, cache: &[u8], first: usize, seen: Range<usize>) -> ([f32; SPLIT], f32) {
        let mut s = [0.0f32; SPLIT];
        let mut m = f32::NEG_INFINITY;
        for j in seen.clone() {
            let k = |d: usize| layout.key(cache, first + j, self.kv_head, d);
            let dot = contract::group_sum(layout.head_dim, |acc, d| self.q[d].mul_add(k(d), acc));
            s[j] = dot * self.scale;
            m = larger(m, s[j]);
        }
        for score in &mut s[seen] {
            *score = contract::exp(*score - m);
        }
        (s, m)
    }
}

/// The larger of two; a NaN in `b` is passed over, and reaches the result through its own score.
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}
