//! The loop: change, read, look at what happened.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::allocate;
use crate::mutate::mutate;
use crate::random::Random;
use crate::targets::{Target, Verdict};

/// Most changes to one input; half of the inputs get one.
const MAX_CHANGES: usize = 4;
/// Inputs that are changed further: of those that were accepted, and of those that were refused in a new way.
const MAX_INPUTS: usize = 256;
/// Inputs longer than this are not changed further, in bytes.
const MAX_INPUT_BYTES: usize = 256 << 10;
/// Processor time that one input may take.
const MAX_TIME: Duration = Duration::from_secs(2);

/// What is wrong with a reader.
#[derive(Debug, Clone)]
pub struct Finding {
    /// In what way, and where: one finding for each.
    pub what: String,
    /// The input.
    pub input: Vec<u8>,
}

/// What a run saw.
#[derive(Debug, Default)]
pub struct Report {
    /// Inputs read.
    pub executions: u64,
    /// Inputs that the reader accepted.
    pub accepted: u64,
    /// Distinct answers.
    pub answers: usize,
    /// The most memory that one input took, in bytes.
    pub peak_bytes: usize,
    /// Findings, each once.
    pub findings: BTreeMap<String, Finding>,
}

/// One reader under test, with inputs that got distinct answers.
pub struct Fuzzer<'a> {
    target: &'a Target,
    folder: tempfile::TempDir,
    random: Random,
    accepted: Vec<Vec<u8>>,
    refused: Vec<Vec<u8>>,
    answers: HashMap<String, Vec<u8>>,
    /// What has been seen.
    pub report: Report,
}

/// Whether a reader is at work: its panics are findings, all others are the fuzzer's own.
static READING: AtomicBool = AtomicBool::new(false);
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Keeps a panic's message and place instead of printing them.
pub fn catch_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !READING.load(Relaxed) {
            return print(info);
        }
        let place = info.location().map_or_else(String::new, |place| format!(" at {}:{}", place.file(), place.line()));
        let message = info.payload_as_str().unwrap_or("a panic without words");
        *PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(format!("panic{place}: {}", shape(message)));
    }));
}

impl<'a> Fuzzer<'a> {
    /// A fuzzer whose every choice `seed` decides.
    ///
    /// # Errors
    /// When no temporary folder can be made, or a seed cannot be read.
    pub fn new(target: &'a Target, seed: u64) -> anyhow::Result<Self> {
        // In memory where there is such a place: ledgers are synced after each record.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        (target.prepare)(folder.path())?;
        let inputs = (target.seeds)()?;
        let mut fuzzer = Self {
            target,
            folder,
            random: Random::new(seed),
            accepted: Vec::new(),
            refused: Vec::new(),
            answers: HashMap::new(),
            report: Report::default(),
        };
        for input in inputs {
            fuzzer.read(input.clone());
            // Whatever the answer: a file may be valid for one of several readers.
            fuzzer.accepted.push(input);
        }
        Ok(fuzzer)
    }

    /// Changes an input and reads it.
    pub fn step(&mut self) {
        // What is refused is mostly refused again, for the same reason.
        let inputs = if self.random.one_in(4) && !self.refused.is_empty() { &self.refused } else { &self.accepted };
        let Some(mut input) = self.random.pick(inputs).cloned() else { return };
        if input.len() > MAX_INPUT_BYTES {
            return;
        }
        (self.target.change)(&mut self.random, &mut input, &|random, part, text| {
            let changes = if random.one_in(2) { 1 } else { 1 + random.below(MAX_CHANGES) };
            for _ in 0..changes {
                mutate(random, part, text);
            }
        });
        self.read(input);
    }

    /// Reads one input, and keeps it where the answer is new.
    pub fn read(&mut self, input: Vec<u8>) {
        let before = processor_time();
        READING.store(true, Relaxed);
        let (result, bytes) =
            allocate::measure(|| catch_unwind(AssertUnwindSafe(|| (self.target.read)(self.folder.path(), &input))));
        READING.store(false, Relaxed);
        let time = processor_time().saturating_sub(before);
        let report = &mut self.report;
        report.executions += 1;
        report.peak_bytes = report.peak_bytes.max(bytes);
        let answer = match result {
            Ok(Ok(Verdict::Accepted)) => {
                report.accepted += 1;
                keep(&mut self.random, &mut self.accepted, &input);
                "accepted".to_owned()
            }
            Ok(Ok(Verdict::Refused(message))) => shape(&message),
            Ok(Err(broken)) => self.find(format!("broken promise: {}", shape(&broken)), &input),
            Err(_) => {
                let panic = PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
                self.find(panic.unwrap_or_else(|| "panic".to_owned()), &input)
            }
        };
        let limit = self.target.bytes_per_input_byte * input.len() + self.target.bytes;
        if bytes > limit {
            self.find("too much memory".to_owned(), &input);
        }
        if time > MAX_TIME {
            self.find("too slow".to_owned(), &input);
        }
        match self.answers.get_mut(&answer) {
            Some(known) if known.len() <= input.len() => {}
            Some(known) => *known = input,
            None => {
                keep(&mut self.random, &mut self.refused, &input);
                self.answers.insert(answer, input);
            }
        }
        self.report.answers = self.answers.len();
    }

    fn find(&mut self, what: String, input: &[u8]) -> String {
        let finding = Finding { what: what.clone(), input: input.to_vec() };
        let known = self.report.findings.entry(what.clone()).or_insert_with(|| finding.clone());
        if known.input.len() > input.len() {
            *known = finding;
        }
        what
    }

    /// The shortest inputs that got distinct answers, of at most `bytes` each, by the hash of the answer.
    pub fn kept(&self, bytes: usize) -> Vec<(String, &[u8])> {
        let short = self.answers.iter().filter(|(_, input)| input.len() <= bytes);
        let mut kept: Vec<(String, &[u8])> =
            short.map(|(answer, input)| (name(answer.as_bytes()), input.as_slice())).collect();
        kept.sort();
        kept
    }
}

/// Adds an input, at last in place of another.
fn keep(random: &mut Random, inputs: &mut Vec<Vec<u8>>, input: &[u8]) {
    if inputs.len() < MAX_INPUTS {
        inputs.push(input.to_vec());
    } else if random.one_in(8) {
        let place = random.below(MAX_INPUTS);
        inputs[place] = input.to_vec();
    }
}

/// The first 16 hexadecimal digits of the SHA-256.
pub fn name(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A message without what differs from input to input: names in quotes, numbers, and all beyond some words.
pub fn shape(message: &str) -> String {
    const WORDS: usize = 24;
    let plain =
        |word: &&str| word.len() < 20 && word.chars().all(|c| c.is_ascii_alphabetic() || ",:;()'.-".contains(c));
    let mut quoted = false;
    let outside: String = message
        .chars()
        .map(|c| {
            quoted ^= matches!(c, '"' | '`');
            if quoted || c.is_ascii_digit() { '0' } else { c }
        })
        .collect();
    outside.split_whitespace().filter(plain).take(WORDS).collect::<Vec<_>>().join(" ")
}

/// Processor time of this process so far; the wall clock's where the system does not say.
pub fn processor_time() -> Duration {
    /// Linux's clock ticks a second, the same on every architecture.
    const TICKS: u64 = 100;
    let read = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The fields after the program's name, which may hold spaces; user and system time are the 14th and 15th of all.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(Duration::from_millis(ticks * 1000 / TICKS))
    };
    read().unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap_or_default())
}

/// Where a parser's kept inputs lie.
pub fn corpus(parser: &str) -> PathBuf {
    root().join("fixtures/fuzz").join(parser)
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
