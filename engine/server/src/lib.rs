//! Assay's HTTP server: OpenAI's completions and chat completions over one engine.
//!
//! From the outside in:
//!
//! - [`serve`], [`ServerOptions`]: a server from start to shutdown
//! - `http`: connections, limits, routes, bodies
//! - `request`: what a client may ask, checked field by field; [`ApiError`]: how it is refused
//! - `reply`: from tokens to text, tool calls, chunks and whole answers
//! - [`template`]: the checkpoint's chat template; [`tools`]: the calls that a model writes
//! - [`ServedModel`]: what of a checkpoint is fixed while it is served
//! - [`worker`]: the queue, and the one thread that owns the engine; `delivery`: when its state may be reused
//! - `metrics`: counters for Prometheus
//!
//! Handlers never touch the engine: a request becomes a job in a queue of stated length, the worker sends its tokens back, and a
//! job that nobody waits for any more is dropped before the next token. What a request asks for and the server cannot do is
//! refused, never ignored.

mod delivery;
mod error;
mod http;
mod metrics;
mod model;
mod reply;
mod request;
mod serve;
pub mod template;
pub mod tools;
pub mod worker;

pub use delivery::Delivery;
pub use error::ApiError;
pub use http::{Endpoint, prompts};
pub use metrics::Metrics;
pub use model::{ModelError, ServedModel};
pub use serve::{ApiKeys, Limits, ServeError, ServerOptions, serve};
