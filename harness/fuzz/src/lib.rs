//! Fuzzing of every reader of files, without coverage and without a nightly compiler.
//!
//! A valid file is taken, some of its parts are changed (`mutate.rs`), what frames them is made to fit again (a length, a
//! checksum), and a reader gets the result (`targets/`). A reader may refuse or accept. It may not panic, allocate beyond a
//! bound that the input's size gives (`allocate.rs`), or take long; and what it accepts must keep what its documentation
//! promises. An input that is answered in a way not seen before joins those that are changed further: each distinct message
//! is a branch that was reached (`run.rs`).
//!
//! `cargo run --release -p assay-fuzz -- PARSER --seconds 600 --seed 1` is the long run; the tests are the short one, and read
//! again what earlier runs kept in `fixtures/fuzz/<parser>/`.

pub mod allocate;
pub mod mutate;
pub mod random;
pub mod run;
pub mod targets;
