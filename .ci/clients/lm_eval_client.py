"""lm-evaluation-harness against a server: python lm_eval_client.py URL MODEL TOKENIZER-FOLDER"""

import pathlib
import string
import sys
import tempfile

import lm_eval
from lm_eval.tasks import TaskManager

HERE = pathlib.Path(__file__).parent / "tasks"


def main(url, model, tokenizer):
    with tempfile.TemporaryDirectory() as folder:
        task = string.Template((HERE / "assay_choice.yaml").read_text()).substitute(TASKS=HERE)
        (pathlib.Path(folder) / "assay_choice.yaml").write_text(task)
        runs = []
        for batch in (1, 4):
            result = lm_eval.simple_evaluate(
                model="local-completions",
                model_args={
                    "model": model,
                    "base_url": f"{url}/v1/completions",
                    "tokenizer": tokenizer,
                    "tokenizer_backend": "huggingface",
                    "tokenized_requests": True,
                    "num_concurrent": 2 if batch == 1 else 1,
                    "batch_size": batch,
                    "max_length": 1024,
                },
                tasks=["assay_choice"],
                task_manager=TaskManager(include_path=folder, include_defaults=False),
                bootstrap_iters=0,
                log_samples=True,
            )
            samples = sorted(result["samples"]["assay_choice"], key=lambda sample: sample["doc_id"])
            runs.append([sample["filtered_resps"] for sample in samples])
        assert len(runs[0]) == 8 and runs[0] == runs[1], "the same requests in other batches gave other log-likelihoods"
        accuracy = result["results"]["assay_choice"]["acc,none"]
        assert 0.5 <= accuracy <= 1, accuracy
    print(f"lm-eval {lm_eval.__version__}: local-completions, 8 documents, the same log-likelihoods in every batching")


if __name__ == "__main__":
    main(*sys.argv[1:])
