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
    /// On the device already: looked up, and fetched, by [`Kernel::FetchExperts`].
    OnDevice,
}

/// Gate, up, activation and down of a dense network, and of a shared expert.
const DENSE: [Component; 4] = [Component::GateProj, Component::UpProj, Component::ActFn, Component::DownProj];
const SHARED: [Component; 4] =
    [Component::SharedGateProj, Component::SharedUpProj, Component::SharedActFn, Component::SharedDownProj];

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

    fn linear<D: Device>(
        &self,
        device: &mut D,
        component: Component,
        linear: &Linear,
        x: Span<f32>,
        out: Span<f32>,
    ) -> Result<(), EngineError> {
        let x = x.first(self.tokens * linear.weight.cols)?;
        let out = out.first(self.tokens * linear.weight.rows)?;
        self.launch(device, component, Kernel::Linear { x, weight: linear.weight, bias: linear.bias, out })
    }

    fn norm<D: Device>(
        &self,
        device: &mut D,
        component: Component,
        weight: Span<f32>,
    ) -> Result<Span<f32>, EngineError> {
        let out = self.hidden(self.workspace.normed)?;
        self.launch(device, component, Kernel::RmsNorm { x: self.x, weight, eps: self.eps, out })?;
        Ok(out)
    }

    fn hidden(&self, span: Span<f32>) -> Result<Span<f32>, EngineError> {
        Ok(span.first(self.tokens * self.hidden_size)?)
    }

    fn add_branch<D: Device>(&self, device: &mut D, component: Component) -> Result<(), EngineError> {
        let factor = self.spec.residual_multiplier;
        self.launch(device, component, Kernel::AddAssign { x: self.x, y: self.hidden(self.workspace.branch)?, factor })
    }

    fn rope<D: Device>(
        &self,
        device: &mut D,
        component: Component,
        x: Span<f32>,
        heads: usize,
        norm: Option<Span<f32>>,
    ) -> Result<(), EngineError> {
        let AttentionSpec { head_dim, rotary_dim, .. } = self.spec.attention;
        let AttentionWeights { cos, sin, .. } = self.weights.attention;
        let x = x.first(self.tokens * heads * head_dim)?;
        let (first_position, position_at, eps) = (self.first_position, self.position_at, self.eps);
        self.launch(
            device,
            component,
            Kernel::HeadNormRope { x, heads, head_dim, rotary_dim, norm, eps, cos, sin, first_position, position_at },
        )
    }

    /// Norm, projections, rope, KV append, attention, output projection, residual.
    pub(super) fn attention<D: Device>(&self, device: &mut D) -> Result<(), EngineError> {
        let (spec, weights, ws) = (&self.spec.attention, self.weights.attention, self.workspace);
        let (heads, kv_heads) = (spec.num_attention_heads, spec.num_key_value_heads);
        let q_len = self.tokens * heads * spec.head_dim;
        let kv_len = self.tokens * kv_heads * spec.head_dim;
        let normed = self.norm(device, Component::InputLayernorm, self.weights.input_layernorm)?;
        self.linear(device, Component::QProj, &weights.q_proj, normed, ws.q)?;
        self.linear(device, Component::KProj, &weights.k_proj, normed, ws.k)?;
        self.linear(device, Component::VProj, &weights.v_proj, normed, ws.v)?;
        self.rope(device, Component::QNormRope, ws.q, heads, weights.q_norm)?;
        self.rope(device, Component::KNormRope, ws.k, kv_heads, weights.k_norm)?;
        let (k, v) = (ws.k.first(kv_len)?, ws.v.first(kv_len)?);
        let (first_position, position_at) = (self.first_position, self.position_at);
        self.launch(
            device,
            Component::KvAppend,
            Kernel::KvAppend { k, v, cache: self.kv, first_position, position_at },
        )?;
        self.launch(
            device,
            Component::Attention,
            Kernel::Attention {
                q: ws.q.first(q_len)?,
                heads,
                cache: self.kv,
                first_position,
                position_at,
                scale: spec.scale,
                window: spec.sliding_window,
                sinks: weights.sinks,
                out: ws.attended.first(q_len)?,
            },
        )?;
        self.linear(device, Component::OProj, &weights.o_proj, ws.attended, ws.branch)?;
        self.add_branch(device, Component::AttentionResidual)
    }

    /// Norm, a dense network, residual.
    pub(super) fn dense<D: Device>(&self, device: &mut D, mlp: &DenseWeights) -> Result<(), EngineError> {
        self.norm(device, Component::PostAttentionLayernorm, self.weights.post_attention_layernorm)?;
        self.mlp(device, &DENSE, mlp, self.workspace.branch)?;
        self.add_branch(device, Component::FfnResidual)
    }

    /// Gate and up of the normed residual stream, activation, down.
    fn mlp<D: Device>(
        &self,
        device: &mut D,
        &[gate, up, act_fn, down]: &[Component; 4],
        mlp: &DenseWeights,
        out: Span<f32>,
    ) -> Result<(), EngineError> {
        let (ws, activation) = (self.workspace, mlp.activation);
        let len = self.tokens * mlp.gate_proj.weight.rows;
        self.linear(device, gate, &mlp.gate_proj, ws.normed, ws.gate)?;
        self.linear(device, up, &mlp.up_proj, ws.normed, ws.up)?;
        let act = ws.act.first(len)?;
        let (gate, up) = (ws.gate.first(len)?, ws.up.first(len)?);
        self.launch(device, act_fn, Kernel::SwiGlu { gate, up, activation, out: act })?;
        self.linear(device, down, &mlp.down_proj, act, out)
    }

    /// Adds a shared expert's output to that of the routed ones.
    fn shared<D: Device>(&self, device: &mut D, shared: &SharedWeights) -> Result<(), EngineError> {
        let ws = self.workspace;
        self.mlp(device, &SHARED, &shared.mlp, ws.shared_out)?;
        let (x, y) = (self.hidden(ws.branch)?, self.hidden(ws.shared_out)?);
        let Some(gate) = &shared.gate else {
            return self.launch(device, Component::SharedExpertAdd, Kernel::AddAssign { x, y, factor: 1.0 });
        };
        let exact = LayerPass { arithmetic: Arithmetic::Exact, ..*self };
        exact.linear(device, Component::SharedExpertGate, gate, ws.normed, ws.shared_gate)?;
        let gates = ws.shared_gate.first(self.tokens)?;
        self.launch(device, Component::SharedExpertAdd, Kernel::AddGated { x, y, gates })
    }

    /// Norm and router: afterwards `routes` and `route_weights` are set.
    pub(super) fn route<D: Device>(
        &self,
        device: &mut D,
        moe: &MoeSpec,
        weights: &MoeWeights,
    ) -> Result<(), EngineError> {
        let ws = self.workspace;
        let (num_experts, top_k) = (moe.num_experts(), moe.num_experts_per_tok);
        let component = Component::PostAttentionLayernorm;
        let normed = self.norm(device, component, self.weights.post_attention_layernorm)?;
        // A token's experts are a choice: its inputs are not rounded.
        let exact = LayerPass { arithmetic: Arithmetic::Exact, ..*self };
        exact.linear(device, Component::Router, &weights.router, normed, ws.router_logits)?;
        let (ids, route_weights) = (self.routes(moe)?, ws.route_weights.first(self.tokens * top_k)?);
        self.launch(
            device,
            Component::RouterTopK,
            Kernel::RouterTopK {
                logits: ws.router_logits.first(self.tokens * num_experts)?,
                bias: weights.correction_bias,
                num_experts,
                top_k,
                routing: moe.routing,
                ids,
                weights: route_weights,
            },
        )?;
        match self.tracer {
            None => Ok(()),
            Some(tracer) => tracer.routes(device, self.place(Component::Routes), ids, route_weights),
        }
    }

    /// The chosen experts, `[T * top_k]`.
    pub(super) fn routes(&self, moe: &MoeSpec) -> Result<Span<u32>, EngineError> {
        Ok(self.workspace.routes.first(self.tokens * moe.num_experts_per_tok)?)
    }

    /// The routed experts, whose addresses `table` gives, the shared one, and the residual.
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
        let on_device = ws.table.first(bank.num_experts)?;
        if let Addresses::Table(table) = addresses {
            device.upload(bytemuck::cast_slice(table), on_device.as_bytes())?;
        }
        if device.sorts_slots(self.arithmetic) {
            self.launch(device, Component::Permute, Kernel::Permute { ids: self.routes(moe)?, order, offsets })?;
        }
        let act = ws.expert_act.first(slots * bank.expert.moe_intermediate_size)?;
        let out = ws.expert_out.first(slots * self.hidden_size)?;
        let (table, expert, x, ids) = (on_device, bank.expert, self.hidden(ws.normed)?, self.routes(moe)?);
        let activation = moe.activation();
        self.launch(
            device,
            Component::ExpertsGateUp,
            Kernel::GroupedGateUp { x, top_k, ids, order, offsets, table, expert, activation, out: act },
        )?;
        let down = Kernel::GroupedDown { act, ids, order, offsets, table, expert, out };
        self.launch(device, Component::ExpertsDown, down)?;
        let route_weights = ws.route_weights.first(slots)?;
        self.launch(
            device,
            Component::ExpertsCombine,
            Kernel::Combine { slots: out, weights: route_weights, top_k, out: self.hidden(ws.branch)? },
        )?;
        if let Some(shared) = &weights.shared {
            self.shared(device, shared)?;
        }
        self.add_branch(device, Component::FfnResidual)
    }
}
