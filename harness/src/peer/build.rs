//! llama-bench, built on this machine for this machine.

use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose source holds the llama.cpp that is compared with.
pub const PACKAGE: &str = "llama-cpp-python";
/// Its version.
pub const VERSION: &str = "0.3.36";
/// The two, as they follow a commit.
pub const RELEASE: &str = " of llama-cpp-python 0.3.36";
/// Where a llama.cpp tree lies in that package.
const VENDORED: &str = "vendor/llama.cpp";

/// A build that is there.
#[derive(Debug, Clone)]
pub struct Built {
    /// The program.
    pub llama_bench: PathBuf,
    /// The commands that made it.
    pub commands: Vec<String>,
}

/// The llama.cpp source tree in `dir`: the tree itself, or an unpacked source package.
///
/// # Errors
/// When there is none.
pub fn find_source(dir: &Path) -> anyhow::Result<PathBuf> {
    let tree = [dir.to_owned(), dir.join(VENDORED)].into_iter().find(|tree| tree.join("ggml/CMakeLists.txt").is_file());
    tree.with_context(|| {
        format!(
            "{}: no llama.cpp source tree there, nor in {VENDORED} under it (no ggml/CMakeLists.txt)",
            dir.display()
        )
    })
}

/// Downloads the pinned source package into `dir` and unpacks it, unless that was done before.
///
/// # Errors
/// When python3, pip or tar is missing, or the package index cannot be reached.
pub fn fetch_source(dir: &Path) -> anyhow::Result<PathBuf> {
    let unpacked = dir.join(format!("llama_cpp_python-{VERSION}"));
    if !unpacked.is_dir() {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let mut pip = Command::new("python3");
        // Of this package the source; what makes its metadata may come built.
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest"]).arg(dir);
        pip.arg(format!("{PACKAGE}=={VERSION}"));
        run(&mut pip).with_context(|| {
            format!("downloading the source of {PACKAGE} {VERSION}; with a tree at hand, name it: --source DIR")
        })?;
        let archive = dir.join(format!("llama_cpp_python-{VERSION}.tar.gz"));
        run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(dir))?;
    }
    find_source(&unpacked)
}

/// Configures and builds llama-bench in `build`; does little where that was done before.
///
/// `recipe` is the folder with our CMakeLists.txt; with `cuda` the CUDA backend is built for the card of this machine.
///
/// # Errors
/// When cmake or a compiler is missing, or the build fails; the build's last lines are in the error.
pub fn build(source: &Path, recipe: &Path, build: &Path, cuda: bool) -> anyhow::Result<Built> {
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| path.display().to_string());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut configure = Command::new("cmake");
    configure
        .arg("-S")
        .arg(recipe)
        .arg("-B")
        .arg(build)
        .arg("-DCMAKE_BUILD_TYPE=Release")
        .arg(format!("-DLLAMA_CPP_SOURCE={}", absolute(source)?.display()));
    configure.args([format!("-DGGML_CUDA={}", if cuda { "ON" } else { "OFF" })]);
    configure.args(cuda.then_some("-DCMAKE_CUDA_ARCHITECTURES=native"));
    let mut compile = Command::new("cmake");
    compile.arg("--build").arg(build).args(["--target", "llama-bench", "--parallel", &threads.to_string()]);
    let mut commands = Vec::new();
    for command in [&mut configure, &mut compile] {
        commands.push(shown(command));
        run(command)?;
    }
    let llama_bench = build.join("llama-bench/llama-bench");
    ensure!(llama_bench.is_file(), "{}: the build did not make it", llama_bench.display());
    Ok(Built { llama_bench, commands })
}

/// A command as it would be typed.
pub fn shown(command: &Command) -> String {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts.map(|part| part.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs to the end; the last lines of its output are in the error.
fn run(command: &mut Command) -> anyhow::Result<()> {
    const LINES: usize = 20;
    let output = command.output().with_context(|| format!("starting `{}`", shown(command)))?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    ensure!(output.status.success(), "`{}` ended with {}:\n{last}", shown(command), output.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_release_is_that_of_the_package() {
        assert_eq!(RELEASE, format!(" of {PACKAGE} {VERSION}"));
    }

    #[test]
    fn a_tree_is_found_as_it_is_and_in_a_package() {
        let dir = tempfile::tempdir().unwrap();
        let error = find_source(dir.path()).unwrap_err().to_string();
        assert!(error.contains("ggml/CMakeLists.txt"), "{error}");
        let tree = dir.path().join(VENDORED);
        std::fs::create_dir_all(tree.join("ggml")).unwrap();
        std::fs::write(tree.join("ggml/CMakeLists.txt"), "").unwrap();
        assert_eq!(find_source(dir.path()).unwrap(), tree);
        assert_eq!(find_source(&tree).unwrap(), tree);
    }

    #[test]
    fn a_failed_command_says_its_last_lines() {
        let error = run(Command::new("sh").args(["-c", "seq 30; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("\n30") && !error.contains("\n9\n"), "{error}");
    }
}
