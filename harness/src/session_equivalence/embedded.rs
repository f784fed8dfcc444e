//! An engine in this process: complete F32 logits at every step.

use super::{Answered, Request, Row, Subject};
use crate::interrupt;
use anyhow::{Context, bail};
use assay_engine::Engine;
use assay_engine::device::Device;
use assay_engine::session::{Scope, Sessions, Store, StoreOptions, kept_bytes};
use assay_engine::trace::Selection;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

/// An engine with its sessions.
pub struct Embedded<'e, D: Device> {
    engine: &'e mut Engine<D>,
    sessions: Sessions,
    checkpoint_sha256: String,
}

impl<'e, D: Device> Embedded<'e, D> {
    /// Over an engine, whose sessions start empty.
    pub fn new(engine: &'e mut Engine<D>, checkpoint_sha256: &str) -> Self {
        let store = Arc::new(Store::new(StoreOptions::default()));
        let sessions = Sessions::new(engine, checkpoint_sha256, store);
        Self { engine, sessions, checkpoint_sha256: checkpoint_sha256.to_owned() }
    }

    fn logits(&mut self) -> anyhow::Result<Row> {
        let values = self.engine.last_logits()?.into_iter().map(f64::from).collect();
        Ok(Row { names: Vec::new(), values })
    }

    /// `count` tokens, the first of which prefill has chosen.
    fn answer(&mut self, first: u32, count: usize) -> anyhow::Result<Answered> {
        let mut answered = Answered { ids: vec![first], rows: vec![self.logits()?], ..Answered::default() };
        let mut token = first;
        while answered.ids.len() < count {
            interrupt::check()?;
            token = self.engine.decode(token)?;
            answered.ids.push(token);
            answered.rows.push(self.logits()?);
        }
        answered.tokens = answered.ids.iter().map(u32::to_string).collect();
        Ok(answered)
    }

    /// Prefills what is not there yet and answers, into a trace where the request has one.
    fn compute(&mut self, rest: &[u32], request: &Request<'_>) -> anyhow::Result<Answered> {
        let Some(path) = request.trace else {
            let first = self.engine.prefill(rest)?;
            return self.answer(first, request.answer);
        };
        let sink = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let sink = BufWriter::with_capacity(1 << 20, sink);
        self.engine.start_trace(Box::new(sink), Selection::default(), BTreeMap::new())?;
        let answered = self.engine.prefill(rest).map_err(anyhow::Error::from);
        let answered = answered.and_then(|first| self.answer(first, request.answer));
        self.engine.finish_trace()?;
        answered
    }

    fn in_pieces(&mut self, request: &Request<'_>, pieces: &[&[u32]]) -> anyhow::Result<Answered> {
        self.engine.reset();
        let Some((last, before)) = pieces.split_last() else { bail!("a request without a prompt") };
        for piece in before {
            interrupt::check()?;
            self.engine.prefill(piece)?;
        }
        let answered = self.compute(last, request)?;
        Ok(Answered { reused_tokens: Some(0), restored_bytes: Some(0), ..answered })
    }
}

fn scope(request: &Request<'_>) -> Scope {
    let tenant = if request.other_tenant { "another" } else { "one" };
    Scope { tenant: tenant.to_owned(), ..Scope::default() }
}

impl<D: Device> Subject for Embedded<'_, D> {
    fn ask(&mut self, request: &Request<'_>) -> anyhow::Result<Answered> {
        if !request.cache {
            return self.in_pieces(request, &[request.tokens]);
        }
        let turn = self.sessions.begin(self.engine, &scope(request), request.tokens, usize::MAX)?;
        let (reused, restored) = (turn.reused as u64, turn.restored_bytes);
        interrupt::check()?;
        let answered = self.compute(turn.rest(), request)?;
        let pending = self.sessions.finish(self.engine, turn)?;
        if request.deliver {
            pending.commit();
        }
        Ok(Answered { reused_tokens: Some(reused), restored_bytes: Some(restored), ..answered })
    }

    fn cancel(&mut self, request: &Request<'_>) -> anyhow::Result<()> {
        let turn = self.sessions.begin(self.engine, &scope(request), request.tokens, usize::MAX)?;
        let first = self.engine.prefill(turn.rest())?;
        self.answer(first, request.answer.div_ceil(2))?;
        Ok(())
    }

    fn in_two_pieces(&mut self, request: &Request<'_>, first: usize) -> anyhow::Result<Option<Answered>> {
        let (one, two) = request.tokens.split_at(first);
        self.in_pieces(request, &[one, two]).map(Some)
    }

    fn limit(&mut self, tokens: Option<usize>) -> bool {
        let default = StoreOptions::default();
        let limit_bytes = tokens.map_or(default.limit_bytes, |tokens| kept_bytes(tokens, self.engine.split_bytes()));
        let store = Arc::new(Store::new(StoreOptions { limit_bytes, ..default }));
        self.sessions = Sessions::new(self.engine, &self.checkpoint_sha256, store);
        true
    }

    fn keeps_all(&self) -> bool {
        false
    }
}
