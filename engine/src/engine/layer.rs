//! One decoder layer as kernel launches: the only place that knows the order of operations. Prefill and decode share it.

use crate::device::kernel::KvSpan;
use crate::device::{Arithmetic, Device, Kernel, Launch, Span};
use crate::error::EngineError;
use crate::memory::{BankMap, Workspace};
use crate::model::spec::{AttentionSpec, LayerSpec, MoeSpec};
use crate::trace::{self, Component, Place, Tracer};
use crate::weights::{AttentionWeights, DenseWeights, LayerWeights, Linear, MoeWeights, SharedWeights};

/// A layer's parts and the chunk that goes through it.
pub(super) struct LayerPass<'a> {
    pub(super) index: usize,
    pub(super) tracer: Option<&'a Tracer>,
    pub(super) spec: &'a LayerSpec,
    pub(super) weights: LayerWeights,
    pub(super) kv: KvSpan,
    pub(super) workspace: &'a Workspace,
    pub(super) hidden_size: usize,
    pub(super) eps: f32,
    /// Residual stream of the chunk, `[T, hidden_size]`.
    pub(super) x: Span<f32>,
    /// Of the linear layers, attention and experts; norms, the router and what follows it are exact.
    pub(super) arithmetic: Arithmetic,
    /// `T`
    pub(super) tokens: usize,
    /// Of the first token; the largest it may be where it is read from `position_at`.
    pub(super) first_position: usize,
    pub(super) position_at: Option<Span<u32>>,
}

/// Where the addresses of a layer's experts come from.
pub(super) enum Addresses<'a> {
    /// Looked up by the host: uploaded.
    Table(&'a [u64]),
    /// On the device already: the residents', or as [`Kernel::FetchExperts`] has left them.
    OnDevice(Span<u64>),
}

/// Gate, up, activation and down of a dense network, and of a shared expert.
const DENSE: [Component; 4] = [Component::GateProj, Component::UpProj, Component::ActFn, Component::DownProj];
const SHARED: [Component; 4] =
    [Component::SharedGateProj, Component::SharedUpProj, Component::SharedActFn, Component::SharedDownProj];

/// A kernel and what it is for.
type Step = (Component, Kernel);

impl LayerPass<'_> {
    /// Queues a kernel of this layer.
    pub(super) fn launch<D: Device>(
        &self,
        device: &mut D,
        component: Component,
        kernel: Kernel,
    ) -> Result<(), EngineError> {
        let how = Launch { arithmetic: self.arithmetic, scratch: self.workspace.scratch };
        trace::launch(self.tracer, device, self.place(component), kernel, how)
    }

    fn place(&self, component: Component) -> Place {
        Place { layer: Some(self.index), component, position: self.first_position, tokens: self.tokens }
    }

    /// Queues kernels of which nothing but the last's output is read later, and that of a norm.
    fn launch_all<D: Device>(&self, device: &mut D, steps: &[Step]) -> Result<(), EngineError> {
        let how = Launch { arithmetic: self.arithmetic, scratch: self.workspace.scratch };
        trace::launch_all(self.tracer, device, |component| self.place(component), steps, how)
    }

    fn linear(&self, component: Component, linear: &Linear, x: Span<f32>, out: Span<f32>) -> Result<Step, EngineError> {
        let x = x.first(self.tokens * linear.weight.cols)?;
        let out = out.first(self.tokens * linear.weight.rows)?;
        Ok((component, Kernel::Linear { x, weight: linear.weight, bias: linear.bias, out }))
    }

    /// Of the residual stream, into `normed`.
    fn norm(&self, component: Component, weight: Span<f32>) -> Result<Step, EngineError> {
        let out = self.hidden(self.workspace.normed)?;
        Ok((component, Kernel::RmsNorm { x: self.x, weight, eps: self.eps, out }))
    }

    fn hidden(&self, span: Span<f32>) -> Result<Span<f32>, EngineError> {
        Ok(span.first(self.tokens * self.hidden_size)?)
    }

    fn add_branch(&self, component: Component) -> Result<Step, EngineError> {
        let (y, factor) = (self.hidden(self.workspace.branch)?, self.spec.residual_multiplier);
        Ok((component, Kernel::AddAssign { x: self.x, y, factor }))
    }

    fn rope(
        &self,
        component: Component,
        x: Span<f32>,
        heads: usize,
        norm: Option<Span<f32>>,
    ) -> Result<Step, EngineError> {
        let AttentionSpec { head_dim, rotary_dim, .. } = self.spec.attention;
        let AttentionWeights { cos, sin, .. } = self.weights.attention;
        let x = x.first(self.tokens * heads * head_dim)?;
        let (first_position, position_at, eps) = (self.first_position, self.position_at, self.eps);
        let rope =
            Kernel::HeadNormRope { x, heads, head_dim, rotary_dim, norm, eps, cos, sin, first_position, position_at };
        Ok((component, rope))
    }

    /// Norm, projections, rope, KV append, attention, output projection, residual.
    pub(super) fn attention<D: Device>(&self, device: &mut D) -> Result<(), EngineError> {
        let (spec, weights, ws) = (&self.spec.attention, self.weights.attention, self.workspace);
        let (heads, kv_heads) = (spec.num_attention_heads, spec.num_key_value_heads);
        let q_len = self.tokens * heads * spec.head_dim;
        let kv_len = self.tokens * kv_heads * spec.head_dim;
        let (k, v) = (ws.k.first(kv_len)?, ws.v.first(kv_len)?);
        let (first_position, position_at) = (self.first_position, self.position_at);
        let project = [
            self.norm(Component::InputLayernorm, self.weights.input_layernorm)?,
            self.linear(Component::QProj, &weights.q_proj, ws.normed, ws.q)?,
            self.linear(Component::KProj, &weights.k_proj, ws.normed, ws.k)?,
            self.linear(Component::VProj, &weights.v_proj, ws.normed, ws.v)?,
        ];
        let attention = Kernel::Attention {
            q: ws.q.first(q_len)?,
            heads,
            cache: self.kv,
            first_position,
            position_at,
            scale: spec.scale,
            window: spec.sliding_window,
            sinks: weights.sinks,
            out: ws.attended.first(q_len)?,
        };
        let attend = [
            self.rope(Component::QNormRope, ws.q, heads, weights.q_norm)?,
            self.rope(Component::KNormRope, ws.k, kv_heads, weights.k_norm)?,
            (Component::KvAppend, Kernel::KvAppend { k, v, cache: self.kv, first_position, position_at }),
            (Component::Attention, attention),
        ];
        let output = [
            self.linear(Component::OProj, &weights.o_proj, ws.attended, ws.branch)?,
            self.add_branch(Component::AttentionResidual)?,
        ];
        self.launch_all(device, &project)?;
        self.launch_all(device, &attend)?;
        self.launch_all(device, &output)
    }

    /// Norm, a dense network, residual.
    pub(super) fn dense<D: Device>(&self, device: &mut D, mlp: &DenseWeights) -> Result<(), EngineError> {
        let [gate, up, act_fn, down] = self.mlp(&DENSE, mlp, self.workspace.branch)?;
        let norm = self.norm(Component::PostAttentionLayernorm, self.weights.post_attention_layernorm)?;
        self.launch_all(device, &[norm, gate, up])?;
        self.launch_all(device, &[act_fn])?;
        self.launch_all(device, &[down, self.add_branch(Component::FfnResidual)?])
    }

    /// Gate and up of the normed residual stream, activation, down.
    fn mlp(
        &self,
        &[gate, up, act_fn, down]: &[Component; 4],
        mlp: &DenseWeights,
        out: Span<f32>,
    ) -> Result<[Step; 4], EngineError> {
        let (ws, activation) = (self.workspace, mlp.activation);
        let len = self.tokens * mlp.gate_proj.weight.rows;
        let act = ws.act.first(len)?;
        let activate = Kernel::SwiGlu { gate: ws.gate.first(len)?, up: ws.up.first(len)?, activation, out: act };
        Ok([
            self.linear(gate, &mlp.gate_proj, ws.normed, ws.gate)?,
            self.linear(up, &mlp.up_proj, ws.normed, ws.up)?,
            (act_fn, activate),
            self.linear(down, &mlp.down_proj, act, out)?,
        ])
    }

    /// Adds a shared expert's output to that of the routed ones.
    fn shared<D: Device>(&self, device: &mut D, shared: &SharedWeights) -> Result<(), EngineError> {
        let ws = self.workspace;
        let (x, y) = (self.hidden(ws.branch)?, self.hidden(ws.shared_out)?);
        for step in self.mlp(&SHARED, &shared.mlp, ws.shared_out)? {
            self.launch_all(device, &[step])?;
        }
        let Some(gate) = &shared.gate else {
            return self.launch(device, Component::SharedExpertAdd, Kernel::AddAssign { x, y, factor: 1.0 });
        };
        let exact = LayerPass { arithmetic: Arithmetic::Exact, ..*self };
        exact.launch_all(device, &[exact.linear(Component::SharedExpertGate, gate, ws.normed, ws.shared_gate)?])?;
        let gates = ws.shared_gate.first(self.tokens)?;
        self.launch(device, Component::SharedExpertAdd, Kernel::AddGated { x, y, gates })
    }

    /// Norm and router: afterwards `normed`, `routes` and `route_weights` are set.
    pub(super) fn route<D: Device>(
        &self,
        device: &mut D,
        moe: &MoeSpec,
        weights: &MoeWeights,
    ) -> Result<(), EngineError> {
        let ws = self.workspace;
        let (num_experts, top_k) = (moe.num_experts(), moe.num_experts_per_tok);
        // A token's experts are a choice: its inputs are not rounded.
        let exact = LayerPass { arithmetic: Arithmetic::Exact, ..*self };
        let (ids, route_weights) = (self.routes(moe)?, ws.route_weights.first(self.tokens * top_k)?);
        let choice = Kernel::RouterTopK {
            logits: ws.router_logits.first(self.tokens * num_experts)?,
            bias: weights.correction_bias,
            num_experts,
            top_k,
            routing: moe.routing,
            ids,
            weights: route_weights,
        };
        let steps = [
            self.norm(Component::PostAttentionLayernorm, self.weights.post_attention_layernorm)?,
            self.linear(Component::Router, &weights.router, ws.normed, ws.router_logits)?,
            (Component::RouterTopK, choice),
        ];
        exact.launch_all(device, &steps)?;
        match self.tracer {
            None => Ok(()),
            Some(tracer) => tracer.routes(device, self.place(Component::Routes), ids, route_weights),
        }
    }

    /// The chosen experts, `[T * top_k]`.
    pub(super) fn routes(&self, moe: &MoeSpec) -> Result<Span<u32>, EngineError> {
        Ok(self.workspace.routes.first(self.tokens * moe.num_experts_per_tok)?)
    }

    /// The routed experts, whose addresses are known, the shared one, and the residual.
    pub(super) fn experts<D: Device>(
        &self,
        device: &mut D,
        moe: &MoeSpec,
        weights: &MoeWeights,
        bank: &BankMap,
        addresses: Addresses<'_>,
    ) -> Result<(), EngineError> {
        let ws = self.workspace;
        let top_k = moe.num_experts_per_tok;
        let slots = self.tokens * top_k;
        let (order, offsets) = (ws.order.first(slots)?, ws.offsets.first(bank.num_experts + 1)?);
        let table = match addresses {
            Addresses::OnDevice(table) => table,
            Addresses::Table(addresses) => {
                let table = ws.table.first(bank.num_experts)?;
                device.upload(bytemuck::cast_slice(addresses), table.as_bytes())?;
                table
            }
        };
        let (expert, x, ids) = (bank.expert, self.hidden(ws.normed)?, self.routes(moe)?);
        if device.sorts_slots(self.arithmetic) {
            self.launch(device, Component::Permute, Kernel::Permute { ids, order, offsets })?;
        }
        let act = ws.expert_act.first(slots * bank.expert.moe_intermediate_size)?;
        let out = ws.expert_out.first(slots * self.hidden_size)?;
        let activation = moe.activation();
        self.launch(
            device,
            Component::ExpertsGateUp,
            Kernel::GroupedGateUp { x, top_k, ids, order, offsets, table, expert, activation, out: act },
        )?;
        let route_weights = ws.route_weights.first(slots)?;
        let down = (Component::ExpertsDown, Kernel::GroupedDown { act, ids, order, offsets, table, expert, out });
        let combine = Kernel::Combine { slots: out, weights: route_weights, top_k, out: self.hidden(ws.branch)? };
        let combine = (Component::ExpertsCombine, combine);
        let add = self.add_branch(Component::FfnResidual)?;
        let Some(shared) = &weights.shared else { return self.launch_all(device, &[down, combine, add]) };
        self.launch_all(device, &[down, combine])?;
        self.shared(device, shared)?;
        self.launch_all(device, &[add])
    }
}
