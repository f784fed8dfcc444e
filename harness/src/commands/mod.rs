//! One file a command.

mod adq;
mod benchmark;
mod cache;
mod checkpoint_check;
mod claims;
mod compare;
mod completions;
mod doctor;
mod export;
mod fidelity;
mod hcs_sim;
mod heatmap;
mod identity;
mod ledger;
mod peer;
mod perplexity;
mod reference_test;
mod report;
mod roofline;
mod serve;
mod session_cache_benchmark;
mod session_equivalence;
mod synth;
mod trace;
mod trace_diff;

use crate::exit::Exit;
use crate::output::Format;
use clap::Subcommand;

/// What `assay` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Time prefill and decode of a config on pinned texts
    Benchmark(benchmark::Benchmark),
    /// Time one fixed configuration, for regressions
    SpeedTest(benchmark::SpeedTest),
    /// Run two configs or builds in turns and compare their speed
    Compare(compare::Compare),
    /// Serve a config over HTTP, as OpenAI's API
    Serve(serve::Serve),
    /// How well a config predicts held-out text
    Perplexity(perplexity::Perplexity),
    /// How far a config's distributions are from a stored baseline's
    Fidelity(fidelity::FidelityCommand),
    /// Compare a checkpoint with the reference.json in its folder
    CheckpointCheck(checkpoint_check::CheckpointCheck),
    /// Compare a config's answers with those of an independent implementation
    ReferenceTest(reference_test::ReferenceTest),
    /// Whether continued conversations answer as fresh ones do, to the bit
    SessionEquivalence(session_equivalence::SessionEquivalence),
    /// What reuse of earlier state saves, and what keeping it costs
    SessionCacheBenchmark(session_cache_benchmark::SessionCacheBenchmark),
    /// How often each expert is routed to, as a prior for residency
    Heatmap(heatmap::HeatmapCommand),
    /// Replay recorded routes through residency policies, without a model
    HcsSim(hcs_sim::HcsSim),
    /// Routed experts, packed once: build, check, describe
    Cache(cache::Cache),
    /// Evidence of earlier runs: check it, read it, keep it
    Ledger(ledger::Ledger),
    /// Does a config still do useful work? Tasks, controls, evidence
    Adq(adq::Adq),
    /// A checkpoint in another program's format
    Export(export::Export),
    /// Made-up weights in the shape of a real model
    Synth(synth::Synth),
    /// Write down what every launch of a request reads and writes
    Trace(trace::Trace),
    /// Find the first launch in which two traces part
    TraceDiff(trace_diff::TraceDiff),
    /// What exactly a benchmark of a config runs, and the digest over it
    Identity(identity::IdentityCommand),
    /// The white paper's claims, and where we stand on each
    Claims(claims::Claims),
    /// Make the published figures out of the tracked ledger
    Report(report::Report),
    /// What the first NVIDIA GPU allows: memory, link, matrix product, launches
    Roofline(roofline::RooflineCommand),
    /// Time another program on the same weights, in turns with Assay
    Peer(peer::Peer),
    /// What this machine can run, what is missing, and how to get it
    Doctor(doctor::Doctor),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Whatever stops a command before it has a verdict: usage, input, Ctrl-C, broken evidence.
    pub fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self {
            Command::Benchmark(command) => command.run(format),
            Command::SpeedTest(command) => command.run(format),
            Command::Claims(command) => command.run(format),
            Command::Compare(command) => command.run(format),
            Command::Serve(command) => command.run(format),
            Command::Perplexity(command) => command.run(format),
            Command::Fidelity(command) => command.run(format),
            Command::CheckpointCheck(command) => command.run(format),
            Command::SessionEquivalence(command) => command.run(format),
            Command::SessionCacheBenchmark(command) => command.run(format),
            Command::Heatmap(command) => command.run(format),
            Command::HcsSim(command) => command.run(format),
            Command::Cache(command) => command.run(format),
            Command::Ledger(command) => command.run(format),
            Command::Adq(command) => command.run(format),
            Command::ReferenceTest(command) => command.run(format),
            Command::Export(command) => command.run(format),
            Command::Synth(command) => command.run(format),
            Command::Identity(command) => command.run(format),
            Command::Trace(command) => command.run(format),
            Command::TraceDiff(command) => command.run(format),
            Command::Report(command) => command.run(format),
            Command::Roofline(command) => command.run(format),
            Command::Peer(command) => command.run(format),
            Command::Doctor(command) => command.run(format),
            Command::Completions(command) => command.run(),
        }
    }
}
