"""Writes a witness artifact: what llama.cpp answers to exact token ids. With --replay, answers to an artifact that exists.

    python3 -m venv /tmp/witness && /tmp/witness/bin/pip install -r witness/capture/requirements.txt
    target/release/assay export gguf fixtures/models/tiny-moe /tmp/tiny-moe.gguf --dtype f32
    /tmp/witness/bin/python witness/capture/capture.py fixtures/models/tiny-moe /tmp/tiny-moe.gguf witness/artifacts/tiny-moe.json
    /tmp/witness/bin/python witness/capture/capture.py fixtures/models/tiny-moe /tmp/tiny-moe.gguf /tmp/llama.json \\
        --replay witness/artifacts/tiny-moe.json
    target/release/assay reference-test tiny-moe-bf16 --observed /tmp/llama.json

With `--experts int4-search`, here and for `assay export gguf`, the witness computes with the very weights of a quantised
config, whose arithmetic can then be judged as strictly as that in BF16: witness/artifacts/tiny-moe.int4-search.json.

The GGUF is best in F32: it holds the BF16 weights exactly, and llama.cpp then multiplies in F32 instead of rounding
activations to BF16, so that what differs from another implementation is the order of additions alone.

llama.cpp gives log-probabilities for generated tokens only. So positions inside a prompt are asked for one by one: one token
after each prefix, nothing reused from the request before. A replay is set up differently on purpose (one thread, other batches, prompt cache on),
or it would only show that a program equals itself. Flash attention stays off: on a processor it rounds to F16.
"""

import argparse
import json
import pathlib
import sys

import tokenizers

from llama import PACKAGE, Llama, steps
from texts import books, sha256_of

SCHEMA_VERSION = 1
TOP_K = 10
STEPS = 64
# Predictions inside a prompt: at its first tokens, then evenly.
POSITIONS = 16
LENGTHS = [1, 2, 7, 33, 129, 300, 700, 1000, 2000, 3000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="checkpoint folder")
    parser.add_argument("gguf", type=pathlib.Path, help="the same weights as GGUF")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--experts", default="bf16", help="what `assay export gguf --experts` rounded them to")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--replay", type=pathlib.Path, metavar="ARTIFACT")
    arguments = parser.parse_args()
    value = replay(arguments) if arguments.replay else capture(arguments)
    write(arguments.out, value)


def capture(arguments):
    config = json.loads((arguments.model / "config.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    llama = Llama(arguments.gguf, threads=arguments.threads, context=max(LENGTHS) + STEPS + 8, flash_attention=False)
    prompts = [answer(llama, *prompt) for prompt in cut(tokenizer)]
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            "name": arguments.model.resolve().name,
            "weights_sha256": {path.name: sha256_of(path) for path in sorted(arguments.model.glob("*.safetensors"))},
            "vocab_size": config["vocab_size"],
            "experts": arguments.experts,
        },
        "tokenizer": {"sha256": sha256_of(arguments.model / "tokenizer.json")},
        "witness": {
            "runtime": "llama.cpp",
            "package": PACKAGE,
            "arithmetic": "weights widened exactly to F32, F32 KV",
            "file_sha256": sha256_of(arguments.gguf),
            "threads": arguments.threads,
        },
        "top_k": TOP_K,
        "prompts": prompts,
    }


def cut(tokenizer):
    """(name, source, ids): one prompt a length, the books in turn, each from the middle of a different part."""
    texts = books()
    names = sorted(texts)
    short = {name: name.removesuffix(".txt").split(".")[-1].lower() for name in names}
    for index, length in enumerate(LENGTHS):
        book = names[index % len(names)]
        text = texts[book]
        start = text.index("\n\n", len(text) * (1 + index) // (2 + len(LENGTHS))) + 2
        ids = tokenizer.encode(text[start : start + 12 * length + 64], add_special_tokens=False).ids[:length]
        assert len(ids) == length, (book, start, len(ids))
        yield f"{short[book]}-{length}", f"{book}, from character {start} of its canonical text", ids


def answer(llama, name, source, ids):
    print(f"{name}: {len(ids)} tokens", file=sys.stderr)
    greedy = steps(llama.generate(ids, STEPS, top_k=TOP_K))
    if len(greedy) != STEPS or any(token != top["ids"][0] for token, top in greedy):
        # Part of a character at the end, or an end-of-text token that was not allowed.
        raise SystemExit(f"{name}: not every step has log-probabilities with the chosen token first: take another text")
    prefill = []
    for position in positions(len(ids)):
        # Where the likeliest token is part of a character there is no answer: the next place has one.
        while position < len(ids) - 1 and position not in {place["position"] for place in prefill}:
            top = one_token(llama, ids[: position + 1], TOP_K)
            if top:
                prefill.append({"position": position, "top": top})
                break
            position += 1
    return {
        "name": name,
        "source": source,
        "input_token_ids": ids,
        "greedy": [{"token_id": token, "top": top} for token, top in greedy],
        "prefill": prefill,
    }


def one_token(llama, ids, top_k, reuse=False):
    """The likeliest tokens after `ids`, or None."""
    rows = steps(llama.generate(ids, 1, top_k=top_k, reuse=reuse))
    return rows[0][1] if rows else None


def positions(length):
    """Up to POSITIONS places before the last token."""
    places = range(length - 1)
    if len(places) <= POSITIONS:
        return list(places)
    return sorted({0, 1, *(round((index + 0.5) * len(places) / (POSITIONS - 2)) for index in range(POSITIONS - 2))})


def replay(arguments):
    artifact = json.loads(arguments.replay.read_text())
    context = max(len(prompt["input_token_ids"]) + len(prompt["greedy"]) for prompt in artifact["prompts"]) + 8
    llama = Llama(arguments.gguf, threads=1, context=context, ubatch=128, flash_attention=False)
    observed = []
    for prompt in artifact["prompts"]:
        print(f"{prompt['name']}: replaying", file=sys.stderr)
        ids, top_k = prompt["input_token_ids"], artifact["top_k"]
        forced = []
        for index in range(len(prompt["greedy"])):
            prefix = ids + [step["token_id"] for step in prompt["greedy"][:index]]
            forced.append(one_token(llama, prefix, top_k, reuse=True))
        own = steps(llama.generate(ids, len(prompt["greedy"]), top_k=top_k, reuse=True))
        prefill = []
        for place in prompt["prefill"]:
            top = one_token(llama, ids[: place["position"] + 1], top_k, reuse=True)
            prefill.append({"position": place["position"], "top": top})
        if None in forced or None in [place["top"] for place in prefill] or len(own) != len(forced):
            raise SystemExit(f"{prompt['name']}: llama.cpp held back a token that it gave before")
        observed.append({
            "name": prompt["name"],
            "greedy_token_ids": [token for token, _ in own],
            "teacher_forced": forced,
            "prefill": prefill,
        })
    return {
        "schema_version": SCHEMA_VERSION,
        "artifact_sha256": sha256_of(arguments.replay),
        "runtime": f"llama.cpp ({PACKAGE}), 1 thread, batches of 128, prompt cache",
        "prompts": observed,
    }


def write(path, value):
    """JSON with a line a step, so that a difference can be read."""
    text = json.dumps(value, separators=(",", ":"))
    for mark in ('{"name":', '{"token_id":', '{"position":', '"greedy":', '"prefill":', '"prompts":', '{"ids":['):
        text = text.replace(mark, ("" if mark == '{"ids":[' else "\n") + mark)
    json.loads(text)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    main()
