"""llama.cpp, driven by token ids through the PyPI package `xllamacpp`."""

import importlib.metadata

import xllamacpp

PACKAGE = f"xllamacpp {importlib.metadata.version('xllamacpp')}"


class Llama:
    """A loaded GGUF. Nothing of one request is reused by the next unless `reuse` says so."""

    def __init__(self, path, *, threads, context, kv="f32", ubatch=512, flash_attention=None):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
        params.n_batch, params.n_ubatch = 2048, ubatch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        kinds = {"f32": xllamacpp.ggml_type.GGML_TYPE_F32, "f16": xllamacpp.ggml_type.GGML_TYPE_F16}
        params.cache_type_k = params.cache_type_v = kinds[kv]
        if flash_attention is not None:
            kind = xllamacpp.llama_flash_attn_type
            params.flash_attn_type = (
                kind.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attention else kind.LLAMA_FLASH_ATTN_TYPE_DISABLED
            )
        params.verbosity = -1
        self._server = xllamacpp.Server(params)

    def generate(self, ids, tokens, *, top_k=0, reuse=False):
        """The greedy continuation of `ids`: llama.cpp's own answer, log-probabilities and timings in it."""
        request = {
            "prompt": ids,
            "max_tokens": tokens,
            "temperature": 0,
            "cache_prompt": reuse,
            "ignore_eos": True,
        }
        if top_k:
            request["logprobs"] = top_k
        answer = self._server.handle_completions(request)
        if "usage" not in answer:
            raise RuntimeError(f"llama.cpp refused the request: {answer}")
        usage = answer["usage"]
        if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(ids), tokens):
            raise RuntimeError(f"{usage} where {len(ids)} tokens went in and {tokens} were to come out")
        if not reuse and answer["timings"]["cache_n"] != 0:
            raise RuntimeError(f"{answer['timings']['cache_n']} tokens came out of the prompt cache")
        return answer


def steps(answer):
    """[(token id, {"ids": [...], "logprobs": [...]})] of an answer with log-probabilities. Shorter than the answer, or empty,
    where tokens were held back: llama.cpp gives none for a token that is part of a character until the character is complete.
    """
    rows = []
    for entry in (answer["choices"][0]["logprobs"] or {"content": []})["content"]:
        top = entry["top_logprobs"]
        rows.append((entry["id"], {"ids": [t["id"] for t in top], "logprobs": [t["logprob"] for t in top]}))
    return rows
