//! One token: routes are read back at each layer, cold experts are copied into landing slots, the policy runs behind.

use super::calibrate::ColdPath;
use super::layer::{Addresses, LayerPass};
use super::low_water::Phase;
use super::{Engine, Tokens};
use crate::device::kernel::EXPERT_ABSENT;
use crate::device::{Arithmetic, Device, DeviceError};
use crate::error::EngineError;
use crate::model::spec::{FfnSpec, MoeSpec};
use crate::residency::Recorded;
use crate::sampling::Sampling;
use crate::trace;
use crate::weights::{FfnWeights, MoeWeights};
use assay_kernels::Choice;

impl<D: Device> Engine<D> {
    /// Appends `token` and returns the greedy choice after it. Its complete logits are then [`Engine::last_logits`].
    ///
    /// # Errors
    /// A token out of the vocabulary, a full context, a logit that is not a number, device errors. After an error the
    /// sequence is as long as before.
    pub fn decode(&mut self, token: u32) -> Result<u32, EngineError> {
        self.decode_as(token, None, false)
    }

    /// [`Engine::decode`] with the choice that `sampling` makes at step `step`: [`Sampling::choose`] from the same logits, on the device.
    ///
    /// # Errors
    /// As [`Engine::decode`]; a parameter that means nothing.
    pub fn decode_sampled(&mut self, token: u32, sampling: &Sampling, step: u64) -> Result<u32, EngineError> {
        let choice = sampling.choice(step)?;
        self.decode_as(token, choice, false)
    }

    /// The choice that `sampling` makes at step `step` from [`Engine::last_logits`], on the device.
    ///
    /// # Errors
    /// An empty sequence, a logit that is not a number, a parameter that means nothing, device errors.
    pub fn sample(&mut self, sampling: &Sampling, step: u64) -> Result<u32, EngineError> {
        let choice = sampling.choice(step)?;
        let Some(last) = self.position.checked_sub(1) else { return Err(EngineError::EmptyPrompt) };
        self.restore_logits()?;
        self.choose(last, choice).inspect_err(|_| self.recover(Vec::new()))
    }

    pub(super) fn decode_as(&mut self, token: u32, choice: Option<Choice>, more: bool) -> Result<u32, EngineError> {
        self.check_tokens(&[token])?;
        self.finish_restoring()?;
        self.trace_step(trace::Phase::Decode, &[token])?;
        let decoded = match (self.cold_path, &self.tracer) {
            (ColdPath::Multiprocessors | ColdPath::WithHost, None) => self.decode_captured(token, choice, more),
            // A captured token has nothing to look at between its launches; the bits are the same.
            (ColdPath::CopyEngine, _) | (_, Some(_)) => self.decode_layers(token, choice),
        };
        let chosen = match decoded {
            Ok(chosen) => chosen,
            Err(error) => {
                self.recover(Vec::new());
                self.residency.drop_in_flight();
                self.drop_promotions();
                if matches!(error, EngineError::Device(DeviceError::HostSilent { .. })) {
                    self.do_without_host();
                }
                self.recorded.iter_mut().for_each(Recorded::failed);
                return Err(error);
            }
        };
        self.position += 1;
        self.sequence.append_decoded(token);
        self.note(Phase::Decode);
        Ok(chosen)
    }

    fn decode_layers(&mut self, token: u32, choice: Option<Choice>) -> Result<u32, EngineError> {
        self.discard_ahead()?;
        self.logits_replaced();
        self.settle_promotions(0)?;
        self.settle_counts();
        self.residency.begin_token();
        let (workspace, x) = (self.decode_workspace, self.decode_hidden);
        let (spec, tracer) = (self.spec.clone(), self.tracer.clone());
        let at = Tokens { first_position: self.position, count: 1 };
        self.embed(&[token], self.position, workspace.ids, x)?;
        let mut moe_layer = 0;
        for (index, layer) in spec.layers.iter().enumerate() {
            let pass = self.pass(index, (&spec, tracer.as_deref()), (&workspace, Arithmetic::Exact), x, self.position);
            pass.attention(&mut self.device)?;
            match (&layer.ffn, &pass.weights.ffn) {
                (FfnSpec::Moe(moe), FfnWeights::Moe(weights)) => {
                    pass.route(&mut self.device, moe, weights)?;
                    self.decode_experts(&pass, moe_layer, moe, weights)?;
                    moe_layer += 1;
                }
                (_, FfnWeights::Dense(mlp)) => pass.dense(&mut self.device, mlp)?,
                (FfnSpec::Dense(_), FfnWeights::Moe(_)) => {}
            }
        }
        self.head(x, at, &workspace)?;
        let chosen = self.choose(self.position, choice)?;
        self.recorded.iter_mut().for_each(Recorded::decoded);
        Ok(chosen)
    }

    /// Looks the chosen experts up, brings in what is cold, launches, and lets the policy promote.
    fn decode_experts(
        &mut self,
        pass: &LayerPass<'_>,
        moe_layer: usize,
        moe: &MoeSpec,
        weights: &MoeWeights,
    ) -> Result<(), EngineError> {
        let Some(bank) = self.plan.bank else { return Ok(()) };
        let mut routes = vec![0u32; moe.num_experts_per_tok];
        self.device.download(pass.routes(moe)?.as_bytes(), bytemuck::cast_slice_mut(&mut routes))?;
        self.count_routes(moe_layer, &routes);
        self.recorded.iter_mut().for_each(|recorded| recorded.routed(&routes));
        let slots = self.plan.landing_slots;
        let misses =
            self.residency.route(moe_layer, &routes).ok_or(EngineError::Landing { layer: moe_layer, slots })?;
        let mut table = self.residency.layer_addresses(moe_layer, EXPERT_ABSENT);
        for miss in &misses {
            table[miss.expert.index() % bank.num_experts] = miss.to.address();
        }
        self.copy_experts(&misses)?;
        pass.experts(&mut self.device, moe, weights, &bank, Addresses::Table(&table))?;
        self.residency.settle(moe_layer, &routes);
        Ok(())
    }
}
