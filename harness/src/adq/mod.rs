//! Agentic development qualification: does a model, in one exact configuration, still do useful work?
//!
//! Four layers of evidence about one identity, with separate verdicts and no aggregate: productive work (tasks), numerical
//! fidelity, behaviour across runtimes, operations. See the white paper, "Why we created ADQ".
//!
//! An attempt: a model is sent an instruction and tools; what it calls is done on a repository in memory; tests run in a
//! sandbox on a copy; at the end the changes alone go into a fresh sandbox and are graded by calls whose answers are compared
//! outside (`grade.rs`).
//!
//! Files: `task.rs`, `suite.rs`, `tree.rs`, `history.rs` what a task is; `check.rs` whether it is sound; `tools.rs`, `attempt.rs`,
//! `transcript.rs`, `patch.rs`, `grade.rs` one attempt; `endpoint.rs`, `sampling.rs` what is asked; `scripted.rs`, `cheats.rs` agents
//! without a model; `controls.rs` what these must get; `http.rs`, `own_server.rs`, `subject.rs` what is qualified; `tier.rs` exact lengths;
//! `determinism.rs`, `behaviour.rs`, `operations.rs`, `layers.rs` the other layers; `rows.rs` verdicts; `shares.rs` of tasks solved; `evidence.rs`, `regrade.rs`, `page.rs` what is kept
//! of a run, and how it is read again; `resume.rs` whether it may go on.

pub mod attempt;
pub mod behaviour;
pub mod cheats;
pub mod check;
pub mod controls;
pub mod determinism;
pub mod endpoint;
pub mod evidence;
pub mod grade;
pub mod history;
pub mod http;
pub mod layers;
pub mod operations;
pub mod own_server;
pub mod page;
pub mod patch;
pub mod regrade;
pub mod resume;
pub mod rows;
pub mod sampling;
pub mod scripted;
pub mod shares;
pub mod subject;
pub mod suite;
pub mod task;
pub mod tier;
pub mod tools;
pub mod transcript;
pub mod tree;
