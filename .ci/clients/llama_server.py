"""llama.cpp's own HTTP server over a GGUF: python llama_server.py MODEL.gguf; prints its address, then serves until killed."""

import sys
import time

import xllamacpp


def main(path):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.port = 4096, 1, 0, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
