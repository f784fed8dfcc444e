//! Assay's kernel families: the arithmetic contract, the weight and KV layouts, and each family on the host.
//!
//! [`twin`] is the definition: scalar loops whose roundings are written out. [`simd`] has the same functions, fast, and
//! equal to the twins bit for bit on every processor. Both check their operands and allocate no memory that a device
//! would have to account for.
//!
//! - `contract`: constants and scalar functions of the contract. `layout`, `matrix`, `kv`: how operands lie in memory.
//! - `forms`: what a family's arithmetic may vary in, as data.
//! - `check`: what each family demands of its operands. `error`: what it answers when they differ.

mod check;
pub mod contract;
pub mod cuda;
mod error;
mod forms;
mod kv;
pub mod layout;
mod matrix;
pub mod simd;
pub mod twin;

pub use error::KernelError;
pub use forms::{Activation, AttentionForm, Choice, GateUp, Projection, Routing, Scoring};
pub use kv::{KvFormat, KvLayout, kv_bytes};
pub use matrix::Matrix;
