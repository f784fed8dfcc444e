"""The pinned books that prompts are cut from: those inside the Rust crate `scrunch`, found through cargo.

The canonical form is the harness's own (what lies between the START and the END line, no byte-order mark, LF line ends),
and its SHA-256 is checked against fixtures/corpus/manifest.toml.
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import tomllib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "fixtures" / "corpus"


def books():
    """{file name: canonical text} of the prompt set `packaged`."""
    pins = tomllib.loads((CORPUS / "manifest.toml").read_text())["packaged"]
    folder = _folder(pins)
    return {pin["file"]: _read(folder / pin["file"], pin["canonical_sha256"]) for pin in pins["books"]}


def _folder(pins):
    named = os.environ.get("ASSAY_CORPUS_DIR")
    if named and (pathlib.Path(named) / pins["books"][0]["file"]).is_file():
        return pathlib.Path(named)
    package = pins["package"]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", CORPUS / package["manifest"]]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY).stdout)
    found = next(p for p in metadata["packages"] if (p["name"], p["version"]) == (package["name"], package["version"]))
    return pathlib.Path(found["manifest_path"]).parent / package["folder"]


def _read(path, sha256):
    raw = path.read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    start = re.search(r"^\*\*\*\s*START OF.*\n", raw, re.M)
    end = re.compile(r"^\*\*\*\s*END OF", re.M).search(raw, start.end())
    text = raw[start.end() : end.start()]
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != sha256:
        raise SystemExit(f"{path}: canonical SHA-256 {found}, expected {sha256}")
    return text


def sha256_of(path):
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
