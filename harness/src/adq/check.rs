//! Whether a task is sound: its tests tell right from wrong, and each of them is needed.

use super::grade::{Bench, Grade};
use super::task::{Mutant, Task, TaskError};
use super::tree::{Tree, TreeError, is_within};
use assay_ledgers::{Verdict, VerdictRow};
use assay_sandbox::SandboxError;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What stops a check.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The task's files.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The task's files.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// Judges a task, a row a property.
///
/// # Errors
/// When a variant cannot be made or run at all.
pub fn check(bench: &Bench, task: &Task) -> Result<Vec<VerdictRow>, CheckError> {
    let grade = |files: &Tree| Ok::<Grade, CheckError>(bench.grade(task, &task.repo_with(files)?)?);
    let oracle = grade(&task.solution)?;
    let untouched = grade(&Tree::default())?;
    let visible = grade(&task.visible)?;
    let failed = |grade: &Grade| Grade::failed(&grade.hidden).len();
    let mut rows = vec![
        row("solution passes", oracle.passed(), describe(&oracle)),
        row("untouched repository fails", !untouched.passed(), describe(&untouched)),
        row(
            "untouched repository fails public tests",
            untouched.public.iter().any(|case| !case.passed),
            describe(&untouched),
        ),
        row(
            "public-only solution fails hidden tests alone",
            visible.public.iter().all(|case| case.passed) && failed(&visible) > 0,
            describe(&visible),
        ),
    ];
    let touched: Vec<&String> = task
        .solution
        .files()
        .keys()
        .chain(task.visible.files().keys())
        .filter(|path| is_within(path, &task.file.protected) || is_within(path, &task.file.forbidden))
        .collect();
    rows.push(row("solutions leave protected paths alone", touched.is_empty(), format!("they touch {touched:?}")));
    rows.extend(needed(bench, task)?);
    Ok(rows)
}

/// A row for each hidden case: some mutant is caught by it and by nothing else.
fn needed(bench: &Bench, task: &Task) -> Result<Vec<VerdictRow>, CheckError> {
    let caught: Vec<(String, Result<BTreeSet<String>, String>)> = task
        .mutants
        .par_iter()
        .map(|mutant| {
            let tree = match mutate(task, mutant) {
                Ok(tree) => tree,
                Err(reason) => return Ok((mutant.name.clone(), Err(reason))),
            };
            let grade = bench.grade(task, &tree)?;
            let public = Grade::failed(&grade.public).into_iter().map(|case| format!("public: {case}"));
            Ok((mutant.name.clone(), Ok(public.chain(Grade::failed(&grade.hidden)).collect())))
        })
        .collect::<Result<_, CheckError>>()?;
    let mut rows = Vec::new();
    let mut by_case: BTreeMap<&str, &str> = BTreeMap::new();
    for (mutant, cases) in &caught {
        match cases {
            Err(reason) => rows.push(row(format!("mutant: {mutant}"), false, reason.clone())),
            Ok(cases) if cases.is_empty() => {
                rows.push(row(format!("mutant: {mutant}"), false, "no case catches it".to_owned()));
            }
            Ok(cases) => {
                if let [case] = cases.iter().collect::<Vec<_>>()[..] {
                    by_case.entry(case).or_insert(mutant);
                }
            }
        }
    }
    for case in &task.hidden {
        let mutant = by_case.get(case.name.as_str());
        let reason =
            mutant.map_or("no mutant is caught by it alone".to_owned(), |name| format!("it alone catches {name:?}"));
        rows.push(row(format!("needed: {}", case.name), mutant.is_some(), reason));
    }
    Ok(rows)
}

fn mutate(task: &Task, mutant: &Mutant) -> Result<Tree, String> {
    let mut tree = task.repo_with(&task.solution).map_err(|error| error.to_string())?;
    let text = tree.get(&mutant.file).ok_or_else(|| format!("there is no {}", mutant.file))?;
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let found = text.matches(&mutant.find).count();
    if found != 1 {
        return Err(format!("the text to be replaced stands {found} times in {}, expected once", mutant.file));
    }
    let text = text.replacen(&mutant.find, &mutant.replace, 1).into_bytes();
    tree.write(&mutant.file, text).map_err(|error| error.to_string())?;
    Ok(tree)
}

fn row(name: impl Into<String>, holds: bool, reason: String) -> VerdictRow {
    VerdictRow { row: name.into(), verdict: if holds { Verdict::Pass } else { Verdict::Fail }, reason }
}

fn describe(grade: &Grade) -> String {
    let part = |name: &str, cases: &[super::grade::CaseResult]| {
        let failed = Grade::failed(cases);
        let passed = cases.len() - failed.len();
        let list = if failed.is_empty() { String::new() } else { format!(" (failed: {})", failed.join("; ")) };
        format!("{name} {passed}/{}{list}", cases.len())
    };
    format!("{}, {}", part("public", &grade.public), part("hidden", &grade.hidden))
}
