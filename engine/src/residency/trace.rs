//! Route traces: which experts decode chose, token by token, so that residency can be replayed without the model.
//!
//! The file:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic, `ASSAYRTE` |
//! | 8 | length of the header, u64 little-endian |
//! | 32 | SHA-256 of all that follows |
//! | length | the header, JSON ([`TraceHeader`]) |
//! | the rest | routes: for each token, each MoE layer and each rank the expert, u16 little-endian |

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HeatmapIdentity;
use crate::checkpoint::hex;
use crate::file::{self, FileError};

const MAGIC: [u8; 8] = *b"ASSAYRTE";
/// The version this code writes and reads.
const FORMAT_VERSION: u32 = 1;
/// Magic, length and hash.
const PREFIX_BYTES: usize = 8 + 8 + 32;
/// A million tokens of 48 layers of 8 experts are 768 MB.
const MAX_BYTES: u64 = 2 << 30;

/// What a trace says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHeader {
    /// Version of this format.
    pub format_version: u32,
    /// What decided the routes.
    pub identity: HeatmapIdentity,
    /// Experts of each MoE layer.
    pub num_experts: usize,
    /// Experts chosen for a token, for each MoE layer.
    pub top_k: Vec<usize>,
    /// Bytes of one expert.
    pub expert_bytes: u64,
    /// Slots where cold experts land.
    pub landing_slots: usize,
    /// The requests, in order.
    pub requests: Vec<TraceRequest>,
}

/// One prefill and what was decoded after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Tokens prefilled.
    pub prompt_tokens: u64,
    /// Tokens decoded, each with its routes in the trace.
    pub decode_tokens: u64,
}

/// A trace in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTrace {
    /// What it is of.
    pub header: TraceHeader,
    /// Token by token, layer by layer, rank by rank.
    routes: Vec<u16>,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The system's words.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a trace, or a damaged one.
    #[error("route trace {}: {found}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected in its place.
        expected: String,
    },
}

impl RouteTrace {
    /// A trace of what an engine recorded.
    pub fn new(identity: HeatmapIdentity, shape: TraceShape, recorded: Recorded) -> Self {
        let TraceShape { num_experts, top_k, expert_bytes, landing_slots } = shape;
        let Recorded { requests, routes, .. } = recorded;
        let format_version = FORMAT_VERSION;
        let header =
            TraceHeader { format_version, identity, num_experts, top_k, expert_bytes, landing_slots, requests };
        Self { header, routes }
    }

    /// MoE layers.
    pub fn moe_layers(&self) -> usize {
        self.header.top_k.len()
    }

    /// Experts of the whole model.
    pub fn total_experts(&self) -> usize {
        self.header.num_experts * self.moe_layers()
    }

    /// Tokens decoded.
    pub fn tokens(&self) -> u64 {
        self.header.requests.iter().map(|request| request.decode_tokens).sum()
    }

    /// The routes of each token, all layers.
    pub fn token_routes(&self) -> impl Iterator<Item = TokenRoutes<'_>> {
        let top_k = &self.header.top_k;
        let width = top_k.iter().sum::<usize>().max(1);
        self.routes.chunks_exact(width).map(move |routes| TokenRoutes { top_k, routes })
    }

    /// Writes the file through a temporary one, so that it is whole or absent.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self, path: &Path) -> Result<(), TraceError> {
        let io = |action, source| TraceError::Io { action, path: path.into(), source };
        let header = serde_json::to_vec(&self.header).map_err(|error| io("write", std::io::Error::other(error)))?;
        let body: Vec<u8> = self.routes.iter().flat_map(|route| route.to_le_bytes()).collect();
        let hash = Sha256::new().chain_update(&header).chain_update(&body).finalize();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| io("create the folder of", source))?;
        }
        let temporary = path.with_extension("tmp");
        let write = || {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(&MAGIC)?;
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&hash)?;
            file.write_all(&header)?;
            file.write_all(&body)?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().map_err(|source| io("write", source))
    }

    /// Reads and checks a file: magic, hash, version, and routes that are the model's.
    ///
    /// # Errors
    /// A file that cannot be read, or is no trace.
    pub fn load(path: &Path) -> Result<Self, TraceError> {
        let malformed = |found: String, expected: &str| TraceError::Malformed {
            path: path.to_owned(),
            found,
            expected: expected.to_owned(),
        };
        let bytes = file::read(path, MAX_BYTES)?;
        let Some((prefix, rest)) = bytes.split_at_checked(PREFIX_BYTES).filter(|(prefix, _)| prefix[..8] == MAGIC)
        else {
            return Err(malformed(format!("{} bytes that do not begin as one", bytes.len()), "a route trace"));
        };
        let length = prefix[8..16].iter().rev().fold(0u64, |length, byte| length << 8 | u64::from(*byte));
        let split = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
        let Some((header, body)) = split else {
            return Err(malformed(format!("a header of {length} bytes"), &format!("at most {}", rest.len())));
        };
        let hash = Sha256::digest(rest);
        if hash[..] != prefix[16..] {
            return Err(malformed(format!("sha256 {}", hex(&hash)), &hex(&prefix[16..])));
        }
        let header: TraceHeader =
            serde_json::from_slice(header).map_err(|error| malformed(error.to_string(), "the header of a trace"))?;
        if header.format_version != FORMAT_VERSION {
            return Err(malformed(format!("format version {}", header.format_version), &FORMAT_VERSION.to_string()));
        }
        let routes = body.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        let trace = Self { header, routes };
        match trace.problem(body.len()) {
            None => Ok(trace),
            Some((found, expected)) => Err(malformed(found, &expected)),
        }
    }

    /// The first thing that does not fit, and what would.
    fn problem(&self, body_bytes: usize) -> Option<(String, String)> {
        let header = &self.header;
        let TraceHeader { num_experts, top_k, .. } = header;
        let largest = usize::from(u16::MAX) + 1;
        if !(1..=largest).contains(num_experts)
            || top_k.is_empty()
            || top_k.iter().any(|k| !(1..=*num_experts).contains(k))
        {
            let found = format!("{num_experts} experts, of which {top_k:?} are chosen");
            return Some((found, "layers that choose at least one of their experts".to_owned()));
        }
        if header.expert_bytes == 0 || header.landing_slots < top_k.iter().copied().max().unwrap_or(0) {
            let found = format!("{} landing slots of {} bytes", header.landing_slots, header.expert_bytes);
            return Some((found, "at least as many as a layer chooses".to_owned()));
        }
        let width = top_k.iter().sum::<usize>() as u64 * 2;
        let tokens = header.requests.iter().try_fold(0u64, |sum, request| sum.checked_add(request.decode_tokens));
        let expected = tokens.and_then(|tokens| tokens.checked_mul(width));
        if expected != Some(body_bytes as u64) {
            let expected = expected.map_or("a size that can be".to_owned(), |bytes| bytes.to_string());
            return Some((format!("{body_bytes} bytes of routes"), expected));
        }
        let route = self.routes.iter().find(|route| usize::from(**route) >= *num_experts)?;
        Some((format!("expert {route}"), format!("less than {num_experts}")))
    }
}

/// One token's routes.
#[derive(Debug, Clone, Copy)]
pub struct TokenRoutes<'a> {
    top_k: &'a [usize],
    routes: &'a [u16],
}

impl<'a> TokenRoutes<'a> {
    /// The experts of each MoE layer, by rank.
    pub fn layers(self) -> impl Iterator<Item = &'a [u16]> {
        let mut rest = self.routes;
        self.top_k.iter().map(move |&k| {
            let (layer, tail) = rest.split_at(k.min(rest.len()));
            rest = tail;
            layer
        })
    }
}

/// The parts of a trace's header that a model and its memory plan decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceShape {
    /// Experts of each MoE layer.
    pub num_experts: usize,
    /// Experts chosen for a token, for each MoE layer.
    pub top_k: Vec<usize>,
    /// Bytes of one expert.
    pub expert_bytes: u64,
    /// Slots where cold experts land.
    pub landing_slots: usize,
}

/// What an engine has recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    requests: Vec<TraceRequest>,
    routes: Vec<u16>,
    /// Routes of whole tokens.
    complete: usize,
}

impl Recorded {
    /// A prefill has ended.
    pub(crate) fn prefilled(&mut self, tokens: usize) {
        self.requests.push(TraceRequest { prompt_tokens: tokens as u64, decode_tokens: 0 });
    }

    /// A layer of the token in work has been routed.
    pub(crate) fn routed(&mut self, experts: &[u32]) {
        // A family has at most 16,384 experts in a layer.
        self.routes.extend(experts.iter().map(|&expert| expert as u16));
    }

    /// The token in work is decoded. Decoding without a prefill counts as one of no tokens.
    pub(crate) fn decoded(&mut self) {
        self.complete = self.routes.len();
        if self.requests.is_empty() {
            self.prefilled(0);
        }
        if let Some(request) = self.requests.last_mut() {
            request.decode_tokens += 1;
        }
    }

    /// The token in work has failed.
    pub(crate) fn failed(&mut self) {
        self.routes.truncate(self.complete);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn trace() -> RouteTrace {
        let text = |text: &str| text.to_owned();
        let identity = HeatmapIdentity {
            checkpoint_sha256: text("ab"),
            experts: text("int4"),
            attention: text("bf16"),
            dense: text("bf16"),
            kv: text("bf16"),
        };
        let mut recorded = Recorded::default();
        recorded.prefilled(5);
        for token in 0..3 {
            recorded.routed(&[token, 3]);
            recorded.routed(&[2]);
            recorded.decoded();
        }
        recorded.routed(&[1, 2]);
        recorded.failed();
        recorded.prefilled(2);
        recorded.routed(&[0, 1]);
        recorded.routed(&[3]);
        recorded.decoded();
        let shape = TraceShape { num_experts: 4, top_k: vec![2, 1], expert_bytes: 100, landing_slots: 4 };
        RouteTrace::new(identity, shape, recorded)
    }

    #[test]
    fn a_trace_is_read_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes.trace");
        let written = trace();
        written.save(&path).unwrap();
        let read = RouteTrace::load(&path).unwrap();
        assert_eq!(read, written);
        assert_eq!((read.tokens(), read.moe_layers(), read.total_experts()), (4, 2, 8));
        let layers: Vec<Vec<&[u16]>> = read.token_routes().map(|token| token.layers().collect()).collect();
        assert_eq!(layers[1], [&[1, 3][..], &[2]]);
        assert_eq!(layers[3], [&[0, 1][..], &[3]]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes.trace");
        trace().save(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            assert!(matches!(RouteTrace::load(&path), Err(TraceError::Malformed { .. })), "{length} bytes");
        }
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(matches!(RouteTrace::load(&path), Err(TraceError::Malformed { .. })), "byte {place}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes.trace");
        let check = |edit: &dyn Fn(&mut RouteTrace), part: &str| {
            let mut changed = trace();
            edit(&mut changed);
            changed.save(&path).unwrap();
            let message = RouteTrace::load(&path).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check(&|trace| trace.header.format_version = 2, "format version 2, expected 1");
        check(&|trace| trace.header.num_experts = 3, "expert 3, expected less than 3");
        check(&|trace| trace.header.num_experts = 0, "0 experts");
        check(&|trace| trace.header.top_k = vec![2, 5], "[2, 5] are chosen");
        check(&|trace| trace.header.top_k = vec![], "[] are chosen");
        check(&|trace| trace.header.landing_slots = 1, "1 landing slots");
        check(&|trace| trace.header.expert_bytes = 0, "of 0 bytes");
        check(&|trace| trace.header.requests[0].decode_tokens = 4, "24 bytes of routes, expected 30");
        check(&|trace| trace.header.requests[0].decode_tokens = u64::MAX, "expected a size that can be");
        assert!(RouteTrace::load(&folder.path().join("none")).is_err());
    }
}
