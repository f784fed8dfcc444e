//! Which launches one fused kernel does for several: the only place that knows.
//!
//! On tensor cores, products of one input are one launch. Decode is exact and has one token. Where a run of kernels has the form of one of [`assay_kernels::cuda::decode`], and that has a form for
//! their shapes and formats, it is launched instead, with the same bits. Else the first of them is launched alone.

use assay_kernels::cuda::decode::{AttendForm, HeadNorms, Projected, Rope, RoutedExperts};
use assay_kernels::cuda::{GemmProduct, MOST_MATRICES};

use super::super::kernel::KvSpan;
use super::super::{Arithmetic, DeviceError, Kernel, Span};
use super::execute::{Launcher, matrix, slice};

impl Launcher<'_> {
    /// Queues kernels in their order, as few launches as there are forms for.
    pub(super) fn launch_all(&self, kernels: &[Kernel], arithmetic: Arithmetic) -> Result<(), DeviceError> {
        let mut rest = kernels;
        while let [first, others @ ..] = rest {
            let fused = match arithmetic {
                Arithmetic::Exact => self.fused(rest)?,
                Arithmetic::Tensor => self.tensor_products(rest)?,
            };
            rest = match rest.get(fused..) {
                Some(after) if fused > 0 => after,
                _ => {
                    self.launch(first, arithmetic)?;
                    others
                }
            };
        }
        Ok(())
    }

    /// The first products that have their input and their format in common, as one launch on tensor cores; how many they are.
    fn tensor_products(&self, kernels: &[Kernel]) -> Result<usize, DeviceError> {
        let [Kernel::Linear { x: first, weight: like, .. }, ..] = kernels else { return Ok(0) };
        let products = kernels.iter().take(MOST_MATRICES).map_while(|kernel| match *kernel {
            Kernel::Linear { x, weight, bias, out } if same(x, *first) && weight.format == like.format => {
                Some(matrix(weight).map(|w| GemmProduct { w, bias: bias.map(slice), out: slice(out) }))
            }
            _ => None,
        });
        let products = products.collect::<Result<Vec<_>, _>>()?;
        self.tensor_linear(*first, like.cols, &products)?;
        Ok(products.len())
    }

    /// How many of the first kernels were launched as one.
    fn fused(&self, kernels: &[Kernel]) -> Result<usize, DeviceError> {
        let (fused, count) = match *kernels {
            [Kernel::RmsNorm { .. }, Kernel::Linear { .. }, Kernel::RouterTopK { .. }, ..] => (self.route(kernels)?, 3),
            [Kernel::RmsNorm { .. }, Kernel::Linear { .. }, ..] => return self.project(kernels),
            [
                Kernel::HeadNormRope { .. },
                Kernel::HeadNormRope { .. },
                Kernel::KvAppend { .. },
                Kernel::Attention { .. },
                ..,
            ] => (self.attend(kernels)?, 4),
            [Kernel::Linear { x, weight, bias, out }, Kernel::AddAssign { x: residual, y, factor }, ..]
                if same(out, y) =>
            {
                let (bias, weight) = (bias.map(slice), matrix(weight)?);
                let added = self.cuda.linear_add(self.stream, slice(x), weight, bias, factor, slice(residual))?;
                (added, 2)
            }
            [Kernel::GroupedGateUp { x, top_k, ids, table, expert, activation, out, .. }, ..] if ids.len() == top_k => {
                let experts = RoutedExperts { ids: slice(ids), table: slice(table), layout: expert };
                (self.cuda.token_gate_up(self.stream, slice(x), experts, activation, slice(out))?, 1)
            }
            [
                Kernel::GroupedDown { act, ids, table, expert, out, .. },
                Kernel::Combine { slots, weights, top_k, out: combined },
                Kernel::AddAssign { x, y, factor },
                ..,
            ] if ids.len() == top_k && same(out, slots) && same(combined, y) => {
                let experts = RoutedExperts { ids: slice(ids), table: slice(table), layout: expert };
                (self.cuda.token_down(self.stream, slice(act), experts, slice(weights), factor, slice(x))?, 3)
            }
            _ => (false, 0),
        };
        Ok(if fused { count } else { 0 })
    }

    /// A norm and the products that follow it.
    fn project(&self, kernels: &[Kernel]) -> Result<usize, DeviceError> {
        let [Kernel::RmsNorm { x, weight: norm, eps, out: normed }, linear @ ..] = kernels else { return Ok(0) };
        let outputs = linear.iter().map_while(|kernel| match *kernel {
            Kernel::Linear { x, weight, bias, out } if same(x, *normed) => {
                Some(matrix(weight).map(|weight| Projected { weight, bias: bias.map(slice), out: slice(out) }))
            }
            _ => None,
        });
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        let norm = (slice(*norm), *eps);
        let fused = self.cuda.norm_linear(self.stream, slice(*x), norm, slice(*normed), &outputs)?;
        Ok(if fused { 1 + outputs.len() } else { 0 })
    }

    /// A norm, the router and the choice.
    fn route(&self, kernels: &[Kernel]) -> Result<bool, DeviceError> {
        let [
            Kernel::RmsNorm { x, weight: norm, eps, out: normed },
            Kernel::Linear { x: input, weight, bias: router_bias, out },
            Kernel::RouterTopK { logits, bias, num_experts, top_k, routing, ids, weights },
            ..,
        ] = kernels
        else {
            return Ok(false);
        };
        if !same(*normed, *input) || !same(*out, *logits) || weight.rows != *num_experts || ids.len() != *top_k {
            return Ok(false);
        }
        let router = (matrix(*weight)?, router_bias.map(slice));
        let (bias, scratch, chosen) = (bias.map(slice), slice(self.scratch), (slice(*ids), slice(*weights)));
        let (norm, how) = ((slice(*norm), *eps), (*top_k, routing));
        Ok(self.cuda.norm_route(self.stream, slice(*x), norm, slice(*normed), router, bias, how, scratch, chosen)?)
    }

    /// Queries and keys normed and turned, the append, and attention.
    fn attend(&self, kernels: &[Kernel]) -> Result<bool, DeviceError> {
        let [
            Kernel::HeadNormRope { x: q, heads, head_dim, rotary_dim, norm: q_norm, eps, cos, sin, .. },
            Kernel::HeadNormRope { x: k, norm: k_norm, .. },
            Kernel::KvAppend { k: key, v, .. },
            Kernel::Attention { q: query, cache, first_position, position_at, scale, window, sinks, out, .. },
            ..,
        ] = kernels
        else {
            return Ok(false);
        };
        if q.len() != heads * head_dim || !same(*k, *key) || !same(*q, *query) {
            return Ok(false);
        }
        let KvSpan { layout, bytes } = *cache;
        let norms = HeadNorms { q: q_norm.map(slice), k: k_norm.map(slice), eps: *eps };
        let rope = Rope { rotary_dim: *rotary_dim, cos: slice(*cos), sin: slice(*sin) };
        let (position, scratch) = ((*first_position, position_at.map(slice)), slice(self.scratch));
        let form = AttendForm { scale: *scale, window: *window, sinks: sinks.map(slice) };
        let rows = [slice(*q), slice(*k), slice(*v)];
        Ok(self.cuda.attend(
            self.stream,
            rows,
            norms,
            rope,
            position,
            (layout, slice(bytes)),
            form,
            scratch,
            slice(*out),
        )?)
    }
}

fn same<T>(a: Span<T>, b: Span<T>) -> bool {
    (a.address(), a.len()) == (b.address(), b.len())
}
