"""Asks llama.cpp what Assay was asked of a synthetic model: the token after each of some random prompts.

    target/release/assay synth tiny --out /tmp/tiny
    target/release/assay synth answers /tmp/tiny --output json > /tmp/answers.json
    target/release/assay export gguf /tmp/tiny /tmp/tiny.gguf --dtype f32
    /tmp/witness/bin/python witness/capture/synthetic.py /tmp/tiny.gguf /tmp/answers.json

Every type of the GGUF holds the same weights. In F32 llama.cpp multiplies in F32, in BF16 and Q4_0 it rounds activations.

A prompt agrees where both have the same first token, or the margin of one of them is below 0.05 nats, and at least 8 of the ten
likeliest tokens are the same. Exit code 1 where one does not.
"""

import argparse
import json
import pathlib
import sys

from llama import PACKAGE, Llama, steps

MARGIN_NATS = 0.05
SHARED = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("answers", type=pathlib.Path, help="what `assay synth answers --output json` printed")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    prompts = json.loads(arguments.answers.read_text())["prompts"]
    context = max(len(prompt["input_token_ids"]) for prompt in prompts) + 8
    llama = Llama(arguments.gguf, threads=arguments.threads, context=context, flash_attention=False)
    rows = [compare(llama, prompt) for prompt in prompts]
    agree = sum(row["agrees"] for row in rows)
    json.dump({"witness": PACKAGE, "prompts": rows, "agree": agree, "of": len(rows)}, sys.stdout, indent=1)
    print()
    sys.exit(0 if agree == len(rows) else 1)


def compare(llama, prompt):
    ids, ours = prompt["input_token_ids"], prompt["top"]
    answered = steps(llama.generate(ids, 1, top_k=len(ours["ids"])))
    if not answered:
        raise SystemExit("llama.cpp holds this token back, as a part of a character: ask for prompts of another length")
    _, theirs = answered[0]
    margin = min(top["logprobs"][0] - top["logprobs"][1] for top in (ours, theirs))
    same, shared = ours["ids"][0] == theirs["ids"][0], len(set(ours["ids"]) & set(theirs["ids"]))
    known = dict(zip(theirs["ids"], theirs["logprobs"]))
    differences = [abs(value - known[id]) for id, value in zip(ours["ids"], ours["logprobs"]) if id in known]
    return {
        "tokens": len(ids),
        "first": [ours["ids"][0], theirs["ids"][0]],
        "margin_nats": margin,
        "shared": shared,
        "largest_logprob_difference_nats": max(differences, default=None),
        "agrees": (same or margin < MARGIN_NATS) and shared >= SHARED,
    }


if __name__ == "__main__":
    main()
