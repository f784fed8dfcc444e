//! Compiles `cu/*.cu` to one fat binary a file where `nvcc` is found; else the sources are embedded, for NVRTC to compile
//! when a device is opened. `ASSAY_NVCC` names the compiler, or is `none`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Machine code for these, and PTX of the oldest for newer cards.
const TARGETS: [&str; 4] = [
    "arch=compute_80,code=sm_80",
    "arch=compute_90a,code=sm_90a",
    "arch=compute_120,code=sm_120",
    "arch=compute_80,code=compute_80",
];

/// The arithmetic contract's flags; NVRTC is given the same in `src/cuda/module.rs`.
const FLAGS: [&str; 6] = ["-std=c++17", "-O3", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"];

fn main() {
    println!("cargo::rerun-if-changed=cu");
    println!("cargo::rerun-if-env-changed=ASSAY_NVCC");
    if let Err(reason) = build() {
        println!("cargo::error={reason}");
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|error| error.to_string())?);
    let nvcc = find_nvcc();
    let mut sources: Vec<PathBuf> = fs::read_dir("cu")
        .map_err(|error| format!("cannot list cu: {error}"))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    let mut table = String::from("pub(super) const MODULES: &[Module] = &[\n");
    for source in &sources {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = inlined(source, &mut HashSet::new())?;
        let text_path = out.join(format!("{name}.cu"));
        // A source whose text is that of the last build has its machine code already. Where the text has changed the old code
        // goes first: a build without nvcc would leave it beside the new text, for a later one to take for its own.
        let unchanged = fs::read_to_string(&text_path).is_ok_and(|known| known == text);
        let fatbin = out.join(format!("{name}.fatbin"));
        if !unchanged && fatbin.exists() {
            fs::remove_file(&fatbin).map_err(|error| format!("cannot remove {}: {error}", fatbin.display()))?;
        }
        let fatbin = match &nvcc {
            Some(nvcc) => {
                if !(unchanged && fatbin.exists()) {
                    compile(nvcc, source, &fatbin)?;
                }
                format!("Some(include_bytes!({fatbin:?}))")
            }
            None => "None".into(),
        };
        fs::write(&text_path, text).map_err(|error| format!("cannot write {}: {error}", text_path.display()))?;
        let _ =
            writeln!(table, "    Module {{ name: {name:?}, source: include_str!({text_path:?}), fatbin: {fatbin} }},");
    }
    table.push_str("];\n");
    let path = out.join("modules.rs");
    fs::write(&path, table).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn find_nvcc() -> Option<PathBuf> {
    let runs = |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success());
    match env::var("ASSAY_NVCC") {
        Ok(name) if name == "none" => None,
        Ok(name) => Some(name.into()),
        Err(_) => ["nvcc", "/usr/local/cuda/bin/nvcc"].map(PathBuf::from).into_iter().find(|path| runs(path)),
    }
}

fn compile(nvcc: &Path, source: &Path, fatbin: &Path) -> Result<(), String> {
    let mut command = Command::new(nvcc);
    command.args(FLAGS).arg("-fatbin").args(["--threads", "2"]);
    for target in TARGETS {
        command.args(["-gencode", target]);
    }
    command.arg("-o").arg(fatbin).arg(source);
    let output = command.output().map_err(|error| format!("cannot run {}: {error}", nvcc.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).replace('\n', " | ");
    Err(format!("{} failed on {}: {words}", nvcc.display(), source.display()))
}

/// A source with its `#include "..."` lines replaced by the files, each once: NVRTC has no include path.
fn inlined(path: &Path, seen: &mut HashSet<PathBuf>) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut whole = String::with_capacity(text.len());
    for line in text.lines() {
        let included = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match included {
            Some(name) => {
                let header = path.with_file_name(name);
                if seen.insert(header.clone()) {
                    whole.push_str(&inlined(&header, seen)?);
                }
            }
            None if line.trim() == "#pragma once" => {}
            None => {
                whole.push_str(line);
                whole.push('\n');
            }
        }
    }
    Ok(whole)
}
