//! `assay serve`: a config behind an OpenAI-compatible HTTP server.

use crate::config::{ByteSize, ConfigArgs, Device};
use crate::exit::Exit;
use crate::interrupt;
use crate::output::Format;
use crate::repository::Repository;
use crate::runtime::Runtime;
use anyhow::Context;
use assay_engine::device::FaultPlan;
use assay_engine::session::StoreOptions;
use assay_server::{ApiKeys, Limits, ServedModel, ServerOptions, serve};
use clap::Args;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

const EXAMPLES: &str = "\
Examples:
  assay serve tiny-moe
  assay serve tiny-moe --port 9000 --api-key-file keys.txt
  curl http://127.0.0.1:8000/v1/completions \\
      -H 'Content-Type: application/json' \\
      -d '{\"model\": \"tiny-moe\", \"prompt\": \"Call me\"}'";

/// Serve a config over HTTP, as OpenAI's API
///
/// Completions and chats, streamed or whole; one request at a time, the others wait in a queue of stated length. What a request asks
/// for and the server cannot do is refused. Without --host it can be reached from this machine alone. Ctrl-C lets requests under way
/// end, then stops.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), help_heading = "Server")]
    host: IpAddr,
    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8000, help_heading = "Server")]
    port: u16,
    /// Requests that may wait; more are told to come back later
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Server")]
    queue: usize,
    /// File of keys, one a line: clients must show one
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,
    /// Host memory for the state of earlier requests, as 4GiB; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "4GiB", help_heading = "Server")]
    session_memory: ByteSize,
    /// Name of the model for clients, instead of the config's
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    served_name: Option<String>,
    /// Make the device fail in these ways, one for every second request, to see what becomes of the next ones
    #[arg(long, value_name = "KINDS", value_delimiter = ',', hide = true, value_parser = fault)]
    planted_faults: Vec<FaultPlan>,
}

/// A fault at the first chance that a request gives it.
fn fault(kind: &str) -> Result<FaultPlan, String> {
    let none = FaultPlan::default();
    match kind {
        "allocation" => Ok(FaultPlan { fail_allocation: Some(1), ..none }),
        "copy" => Ok(FaultPlan { fail_copy: Some(1), ..none }),
        "event" => Ok(FaultPlan { lose_event: Some(1), ..none }),
        _ => Err("expected allocation, copy or event".to_owned()),
    }
}

impl Serve {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let keys = self.api_key_file.as_deref().map(ApiKeys::read).transpose()?;
        // Before anything is loaded: a port that is taken is soon said.
        let address = SocketAddr::new(self.host, self.port);
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        let loaded = self.config.load(&repository)?;
        let name = self.served_name.unwrap_or_else(|| loaded.name.clone());
        let mut runtime = Runtime::start(loaded, &repository)?;
        let engine = &runtime.engine;
        let longest = engine.calibration().map_or(0, |calibration| calibration.max_prompt_tokens);
        let context = engine.options().context_tokens;
        let model = ServedModel::open(&runtime.opened.folder, name, (context, longest))?;
        let store = StoreOptions { limit_bytes: self.session_memory.0, ..StoreOptions::default() };
        let options = ServerOptions {
            queue_length: self.queue,
            keys,
            store,
            limits: Limits::default(),
            planted_faults: self.planted_faults,
        };
        summarise(&runtime, &model, &options, address, format);
        serve(listener, &mut runtime.engine, model, options, || interrupt::flag().load(Ordering::Relaxed))?;
        Ok(Exit::DONE)
    }
}

/// Says what is served and where: to readers on stderr, as one line of JSON on stdout.
fn summarise(runtime: &Runtime, model: &ServedModel, options: &ServerOptions, address: SocketAddr, format: Format) {
    let residents = runtime.engine.residents();
    let config = &runtime.opened.loaded.config;
    let grammar = model.grammar.map_or("unknown", |grammar| grammar.name());
    let cold_path = (config.device == Device::Cuda).then(|| runtime.engine.cold_path().name());
    let host_threads = runtime.engine.sharing().map(|sharing| sharing.threads);
    if format == Format::Json {
        let summary = json!({
            "model": model.id, "address": address.to_string(), "vram_bytes": config.memory.vram.0,
            "experts_resident": residents.resident, "experts_total": residents.total,
            "context_tokens": model.context_tokens, "max_prompt_tokens": model.max_prompt_tokens,
            "cold_path": cold_path, "host_threads": host_threads,
            "queue_length": options.queue_length, "chat_template": model.template.is_some(), "tool_calls": grammar,
        });
        println!("{summary}");
    }
    let chat = if model.template.is_some() { format!("tool calls: {grammar}") } else { "no chat template".to_owned() };
    eprintln!("model      {} ({chat})", model.id);
    eprintln!("budget     {}", config.memory.vram);
    eprintln!("experts    {} of {} resident", residents.resident, residents.total);
    if let Some(path) = cold_path.filter(|_| residents.resident < residents.total) {
        let team = host_threads.map(|threads| format!(", {threads} threads of the host busy while tokens are decoded"));
        eprintln!("cold       {path}{}", team.unwrap_or_default());
    }
    eprintln!("context    {} tokens, prompts up to {}", model.context_tokens, model.max_prompt_tokens);
    eprintln!("queue      {} requests", options.queue_length);
    eprintln!("address    http://{address}{}", if options.keys.is_some() { " (key required)" } else { "" });
}
