"""Assay and llama.cpp side by side: prefill and decode of the same weights, the same token ids, the same threads.

    python3 -m venv /tmp/witness && /tmp/witness/bin/pip install -r witness/capture/requirements.txt
    cargo build --release -p assay-harness
    /tmp/witness/bin/python witness/capture/speed.py --out speed.json

Runs go A B B A: `assay benchmark`, llama.cpp, llama.cpp, `assay benchmark`. Assay's run log says which stretch of which book
each repetition was; the same ids go to llama.cpp, whose prompt cache is off and which is warmed up on the same text as Assay
(that is never timed). llama.cpp gets the GGUF that `assay export gguf` writes, and its own clock is taken. Exit code 1 if a ratio is below --least.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import tokenizers

from llama import PACKAGE, Llama
from texts import REPOSITORY, books

SUITE = """format = 1
name = "side-by-side"
version = 1
prompt_set = "packaged"

[prefill]
tokens = [1000, 4096]

[decode]
prompt_tokens = 512
tokens = [100]

[repetitions]
warm_up = 1
timed = 6
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assay", type=pathlib.Path, default=REPOSITORY / "target/release/assay")
    parser.add_argument("--config", default="tiny-moe-bf16")
    parser.add_argument("--model", type=pathlib.Path, default=REPOSITORY / "fixtures/models/tiny-moe")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.25, help="smallest ratio that passes")
    parser.add_argument("--out", type=pathlib.Path, help="raw samples, as JSON")
    arguments = parser.parse_args()

    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    texts = books()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        gguf, suite = folder / "model.gguf", folder / "side-by-side.toml"
        subprocess.run([arguments.assay, "export", "gguf", arguments.model, gguf], check=True, stdout=sys.stderr)
        suite.write_text(SUITE)
        runs = [run_assay(arguments, suite)]
        prompts = [prompt(entry, texts, tokenizer) for entry in runs[0]]
        llama = Llama(gguf, threads=arguments.threads, context=8192, kv="f16")
        for _ in range(2):
            runs.append([run_llama(llama, entry, ids) for entry, ids in zip(runs[0], prompts)])
        del llama
        runs.append(run_assay(arguments, suite))
    rows = summarise(runs[0] + runs[3], runs[1] + runs[2])
    print(table(rows))
    if os.getloadavg()[0] > arguments.threads + 0.5:
        print("the machine was busy with something else: llama.cpp suffers most from that", file=sys.stderr)
    result = {"llama_cpp": PACKAGE, "config": arguments.config, "threads": arguments.threads, "rows": rows, "load": os.getloadavg()}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if any(row["ratio"] < arguments.least for row in rows):
        raise SystemExit(1)


def run_assay(arguments, suite):
    """The run log's entries: measure, tokens, prompt_tokens, text, seconds."""
    command = [arguments.assay, "benchmark", arguments.config, "--suite", suite, "--output", "json"]
    environment = os.environ | {"RAYON_NUM_THREADS": str(arguments.threads)}
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, cwd=REPOSITORY).stdout)
    show = [arguments.assay, "ledger", "show", answer["evidence"], "--output", "json"]
    record = json.loads(subprocess.run(show, check=True, stdout=subprocess.PIPE, cwd=REPOSITORY).stdout)
    log = find_log(record)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [entry | {"seconds": entry["sample"]["seconds"]} for entry in entries if "sample" in entry]


def find_log(record):
    """The file of the only raw log of a record in the local ledger."""
    log = record.get("record", record)["logs"][0]
    found = [path for path in (REPOSITORY / "ledgers/local").rglob("*") if path.is_file() and log["sha256"] in path.name]
    if not found:
        raise SystemExit(f"no raw log {log['sha256']} in ledgers/local")
    return found[0]


def prompt(entry, texts, tokenizer):
    """The exact ids of a run log's entry: the first tokens of its stretch of text."""
    span = entry["text"]
    text = texts[span["book"]].encode()[span["start"] : span["end"]]
    # More bytes than so many tokens have, cut where no character is.
    cut = text[: entry["prompt_tokens"] * 12].decode(errors="ignore")
    ids = tokenizer.encode(cut, add_special_tokens=False).ids
    if len(ids) <= entry["prompt_tokens"] and len(cut.encode()) < len(text):
        raise SystemExit(f"{len(ids)} tokens in {len(cut)} characters, expected more than {entry['prompt_tokens']}")
    return ids[: entry["prompt_tokens"]]


def run_llama(llama, entry, ids):
    """The same entry with llama.cpp's time. Its first generated token comes out of the prompt, so that n more take n steps."""
    decode = entry["measure"] == "decode"
    timings = llama.generate(ids, 1 + entry["tokens"] if decode else 1)["timings"]
    return entry | {"seconds": timings["predicted_ms" if decode else "prompt_ms"] / 1000}


def summarise(assay, llama):
    rows = []
    for measure, tokens in dict.fromkeys((entry["measure"], entry["tokens"]) for entry in assay):
        samples = {
            name: [e["tokens"] / e["seconds"] for e in side if (e["phase"], e["measure"], e["tokens"]) == ("timed", measure, tokens)]
            for name, side in (("assay", assay), ("llama_cpp", llama))
        }
        medians = {name: statistics.median(values) for name, values in samples.items()}
        rows.append({
            "measure": measure,
            "tokens": tokens,
            "unit": "tok/s",
            "median": medians,
            "best": {name: max(values) for name, values in samples.items()},
            "ratio": medians["assay"] / medians["llama_cpp"],
            "samples": samples,
        })
    return rows


def table(rows):
    lines = [
        "tok/s, median (best)",
        f"{'measure':<8} {'tokens':>6} {'assay':>16} {'llama.cpp':>16} {'ratio':>6} {'of best':>8} {'n':>3}",
    ]
    for row in rows:
        sides = [f"{row['median'][side]:.1f} ({row['best'][side]:.0f})" for side in ("assay", "llama_cpp")]
        best = row["best"]["assay"] / row["best"]["llama_cpp"]
        count = len(row["samples"]["assay"])
        lines.append(
            f"{row['measure']:<8} {row['tokens']:>6} {sides[0]:>16} {sides[1]:>16} {row['ratio']:>6.2f} {best:>8.2f} {count:>3}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
