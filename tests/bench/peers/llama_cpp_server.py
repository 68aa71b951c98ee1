"""llama.cpp's own server, from the package xllamacpp, under an interpreter that has it. Serves until it is ended.

Usage: PYTHON llama_cpp_server.py MODEL.gguf PORT NUM_THREADS NUM_SLOTS CONTEXT
"""

import signal
import sys

from xllamacpp import CommonParams, Server


def main(model: str, port: int, num_threads: int, num_slots: int, context: int) -> None:
    """Every slot gets the same share of the context; prompts are kept as its users have them, cached."""
    params = CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = num_slots
    params.n_ctx = num_slots * context
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = num_threads
    params.warmup = True
    server = Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
