//! Which Python runs the tasks, and which of the host's files it needs to run.

use crate::SandboxError;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names another interpreter than the system's.
const VARIABLE: &str = "ASSAY_PYTHON";
const SYSTEM: &str = "/usr/bin/python3";
/// Where the dynamic loader is looked for by its fixed path.
const LOADER_FOLDERS: [&str; 2] = ["/lib64", "/usr/lib64"];
/// Asks an interpreter for itself, its library and the shared objects of what tasks use.
const QUESTION: &str = r#"
import json, os, sys, sysconfig
import collections, copy, datetime, decimal, fractions, functools, hashlib, heapq, itertools, math, random, re, unittest
maps = sorted({line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/" in line})
print(json.dumps({
    "executable": os.path.realpath(sys.executable), "version": sys.version, "major": sys.version_info[0],
    "library": sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}),
    "mapped": [path for path in maps if path.startswith("/") and ".so" in path],
}))
"#;

/// A Python 3 interpreter of the host.
#[derive(Debug, Clone)]
pub struct Interpreter {
    /// The program, links resolved.
    pub executable: PathBuf,
    /// What it says of its version.
    pub version: String,
    /// What it needs to read: itself, its standard library, shared objects.
    pub read_only: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Answer {
    executable: PathBuf,
    version: String,
    major: u32,
    library: Vec<PathBuf>,
    mapped: Vec<PathBuf>,
}

impl Interpreter {
    /// The one that `ASSAY_PYTHON` names, else the system's, else the first `python3` on the path.
    ///
    /// # Errors
    /// [`SandboxError::Interpreter`] when there is none, or it is no Python 3.
    pub fn find() -> Result<Self, SandboxError> {
        let program = match std::env::var_os(VARIABLE) {
            Some(path) => PathBuf::from(path),
            None if Path::new(SYSTEM).exists() => PathBuf::from(SYSTEM),
            None => PathBuf::from("python3"),
        };
        let failed = |reason: String| SandboxError::Interpreter(format!("{}: {reason}", program.display()));
        let output = Command::new(&program)
            .args(["-I", "-S", "-c", QUESTION])
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, words.trim_end())));
        }
        let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
        if answer.major != 3 {
            return Err(failed(format!("expected Python 3, found {}", answer.version)));
        }
        Ok(Self::of(answer))
    }

    fn of(answer: Answer) -> Self {
        let inside = |path: &Path| answer.library.iter().any(|library| path.starts_with(library));
        let libraries: BTreeSet<PathBuf> = answer
            .mapped
            .iter()
            .filter(|path| !inside(path))
            .filter_map(|path| Some(path.canonicalize().ok()?.parent()?.to_owned()))
            .collect();
        let loaders = LOADER_FOLDERS.iter().filter_map(|folder| Path::new(folder).canonicalize().ok());
        let read_only: BTreeSet<PathBuf> = std::iter::once(answer.executable.clone())
            .chain(answer.library)
            .chain(libraries.iter().cloned())
            .chain(loaders)
            .collect();
        // A folder inside another one is there already.
        let outer = |path: &PathBuf| !read_only.iter().any(|other| other != path && path.starts_with(other));
        Self {
            executable: answer.executable,
            version: answer.version,
            read_only: read_only.iter().filter(|path| outer(path)).cloned().collect(),
            libraries: libraries.into_iter().collect(),
        }
    }

    /// The command line that runs `arguments` apart from the user's environment and installed packages.
    pub fn argv(&self, arguments: &[&str]) -> Vec<String> {
        let mut argv = vec![self.executable.display().to_string()];
        argv.extend(["-s", "-S", "-E", "-B"].map(str::to_owned));
        argv.extend(arguments.iter().map(|&argument| argument.to_owned()));
        argv
    }

    /// The whole environment of such a run.
    pub fn env(&self) -> BTreeMap<String, String> {
        let libraries: Vec<String> = self.libraries.iter().map(|path| path.display().to_string()).collect();
        BTreeMap::from([
            ("HOME".to_owned(), "/work".to_owned()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            // There is no loader cache inside.
            ("LD_LIBRARY_PATH".to_owned(), libraries.join(":")),
        ])
    }
}
