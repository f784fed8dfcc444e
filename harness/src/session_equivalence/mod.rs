//! Whether a continued conversation answers as one that is sent afresh, to the bit.
//!
//! - [`subject`]: what can be asked; [`embedded`]: this process's engine; [`endpoint`]: any OpenAI-compatible server
//! - [`paths`]: the ways to the same answer, in one script for all subjects
//! - [`compare`]: tokens and logits of two answers, and the first place where they differ
//!
//! Active state and restored state may agree with each other and both be wrong, so everything is compared with full history that
//! was computed afresh. Where something was to be reused, a case without proof of reuse is INCOMPLETE, however equal.

pub mod compare;
mod embedded;
mod endpoint;
pub mod paths;
mod subject;

pub use compare::{Comparison, Divergence};
pub use embedded::Embedded;
pub use endpoint::{Endpoint, EndpointOptions};
pub use paths::{Case, Conversation, run};
pub use subject::{Answered, Request, Row, Subject};
