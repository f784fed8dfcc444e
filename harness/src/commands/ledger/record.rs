//! `assay ledger record`: another program's run, kept as evidence.

use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::Exit;
use crate::output::{Answer, Format};
use crate::repository::Repository;
use crate::runtime::{cpu_name, source};
use anyhow::{Context, ensure};
use assay_engine::device::cuda::describe;
use assay_ledgers::{Draft, EvidenceClass, ExternalBody, ExternalRow, Sha256, Verdict, VerdictRow};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  assay ledger record --name 'kernels against twins' -- cargo test --release -p assay-kernels --test cuda
  assay ledger record --name memcheck -- compute-sanitizer --error-exitcode 1 target/release/deps/cuda-1234";

/// Run a command and keep its outcome: exit code, time, whole output, and the counts of a test harness
///
/// PASS where it ends with 0 and, if it says how many tests passed, some did and none failed; INCOMPLETE where tests were not
/// run; FAIL otherwise. The record says which source, program and machine it was.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RecordCommand {
    /// What it shows
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Tests counted in the output of a test harness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tests {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl RecordCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let (program, arguments) = self.command.split_first().context("no command")?;
        ensure!(!self.name.trim().is_empty(), "--name is empty: say what the command shows");
        let ledger = open_ledger(&repository)?;
        let start = Instant::now();
        let output = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {program}"))?;
        let seconds = start.elapsed().as_secs_f64();
        crate::interrupt::check()?;
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let tests = Tests::in_output(&stdout);
        let (verdict, reason) = judge(output.status.code(), tests);

        let row = |measure: &str, unit: &str, value: f64| ExternalRow {
            measure: measure.to_owned(),
            tokens: None,
            unit: unit.to_owned(),
            value,
            ci95: None,
            samples: Vec::new(),
        };
        let mut rows = vec![row("wall time", "s", seconds)];
        if let Some(code) = output.status.code() {
            rows.push(row("exit code", "code", f64::from(code)));
        }
        for (name, count) in tests.iter().flat_map(Tests::named) {
            rows.push(row(name, "tests", count as f64));
        }
        let typed = std::iter::once(short(program)).chain(arguments.iter().map(|argument| short(argument)));
        let body = ExternalBody {
            subject: self.name.clone(),
            source: typed.collect::<Vec<_>>().join(" "),
            setting: setting(program, &repository)?,
            rows,
        };
        let mut log = RunLog::default();
        log.line(&json!({ "status": output.status.to_string(), "stdout": stdout, "stderr": stderr }));
        let verdicts = vec![VerdictRow { row: self.name.clone(), verdict, reason: reason.clone() }];
        let draft = Draft::without_identity(EvidenceClass::Functional, body);
        let evidence = record(&ledger, draft, verdicts, &log)?;
        let json = json!({ "name": self.name, "verdict": verdict, "reason": reason, "seconds": seconds, "evidence": evidence });
        let line = format!("{verdict}  {}: {reason} ({seconds:.1} s)", self.name);
        Answer::new(&json)?.line(line).line(format!("record {}", evidence.short())).print(format)?;
        Ok(verdict.into())
    }
}

/// A path without the folders of this machine; anything else as it is.
fn short(argument: &str) -> String {
    let path = Path::new(argument);
    match path.file_name() {
        Some(name) if path.is_absolute() => name.to_string_lossy().into_owned(),
        _ => argument.to_owned(),
    }
}

/// Which source, program and machine.
fn setting(program: &str, repository: &Repository) -> anyhow::Result<BTreeMap<String, String>> {
    let source = source(repository)?;
    let mut setting = BTreeMap::from([("commit".to_owned(), source.commit), ("processor".to_owned(), cpu_name())]);
    setting.extend(source.dirty.map(|dirty| ("uncommitted changes".to_owned(), dirty.to_string())));
    // A program that is found by PATH is the system's, not ours.
    let file = PathBuf::from(program);
    if file.is_file() {
        setting.insert("binary_sha256".to_owned(), Sha256::of_file(&file)?.to_string());
    }
    // Without a card the record has none.
    if let Ok(card) = describe(0) {
        setting.insert("card".to_owned(), format!("{}, driver {}, CUDA {}", card.name, card.driver, card.cuda));
    }
    Ok(setting)
}

fn judge(code: Option<i32>, tests: Option<Tests>) -> (Verdict, String) {
    let counts = tests.map_or(String::new(), |tests| {
        format!(", {} passed, {} failed, {} not run", tests.passed, tests.failed, tests.ignored)
    });
    match (code, tests) {
        (None, _) => (Verdict::Incomplete, format!("ended by a signal{counts}")),
        (Some(0), Some(Tests { passed: 0, .. })) => (Verdict::Incomplete, format!("exit code 0{counts}")),
        (Some(0), Some(Tests { failed: 0, ignored: 1.., .. })) => (Verdict::Incomplete, format!("exit code 0{counts}")),
        (Some(0), None | Some(Tests { failed: 0, .. })) => (Verdict::Pass, format!("exit code 0{counts}")),
        (Some(code), _) => (Verdict::Fail, format!("exit code {code}{counts}")),
    }
}

impl Tests {
    /// Sums of the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …`; `None` without one.
    fn in_output(output: &str) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for line in output.lines().filter(|line| line.starts_with("test result:")) {
            let sum = sum.get_or_insert_default();
            for part in line.split([';', '.']) {
                let mut words = part.split_whitespace();
                let (Some(count), Some(what)) =
                    (words.next().and_then(|count| count.parse::<u64>().ok()), words.next())
                else {
                    continue;
                };
                match what {
                    "passed" => sum.passed += count,
                    "failed" => sum.failed += count,
                    "ignored" => sum.ignored += count,
                    _ => {}
                }
            }
        }
        sum
    }

    fn named(&self) -> [(&'static str, u64); 3] {
        [("passed", self.passed), ("failed", self.failed), ("not run", self.ignored)]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counts_of_several_harnesses_are_summed() {
        let output = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s\n\
                      test result: FAILED. 4 passed; 2 failed; 0 ignored\n";
        assert_eq!(Tests::in_output(output), Some(Tests { passed: 7, failed: 2, ignored: 1 }));
        assert_eq!(Tests::in_output("no tests here"), None);
    }

    #[test]
    fn nothing_run_never_passes() {
        let tests = |passed, failed, ignored| Some(Tests { passed, failed, ignored });
        for (code, tests, expected) in [
            (Some(0), None, Verdict::Pass),
            (Some(0), tests(3, 0, 0), Verdict::Pass),
            (Some(0), tests(3, 0, 1), Verdict::Incomplete),
            (Some(0), tests(0, 0, 0), Verdict::Incomplete),
            (Some(0), tests(3, 1, 0), Verdict::Fail),
            (Some(101), tests(3, 1, 0), Verdict::Fail),
            (Some(1), None, Verdict::Fail),
            (None, None, Verdict::Incomplete),
        ] {
            assert_eq!(judge(code, tests).0, expected, "{code:?} {tests:?}");
        }
    }

    #[test]
    fn paths_lose_their_folders() {
        assert_eq!(short("/home/someone/target/release/deps/cuda-12"), "cuda-12");
        assert_eq!(short("--exact"), "--exact");
        assert_eq!(short("target/release/deps/cuda-12"), "target/release/deps/cuda-12");
    }
}
