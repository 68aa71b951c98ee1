"""Who may see whom. The rules are stated once, here, as tables; every import of every file is held against them."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.tree import PRODUCT, ROOT, Source, product, within

# What each part may see of ours besides itself; the longest name that fits a module is its part.
MAY_SEE: dict[str, tuple[str, ...]] = {
    "services": (),
    "services.wire": (),
    "services.model_file": (),
    "services.tokenizer": ("services.model_file",),
    "services.runtime": ("services.wire",),
    "services.scheduler.core": ("services.wire.messages", "services.wire.columns"),
    "services.scheduler.virtual": ("services.scheduler.core", "services.wire.messages", "services.wire.columns"),
    "services.scheduler": ("services.wire", "services.runtime"),
    "services.executor": ("services.wire", "services.runtime", "services.model_file", "services.tokenizer"),
    "services.detokenizer": ("services.wire", "services.runtime", "services.tokenizer"),
    "gateway": ("services.wire", "services.runtime", "services.tokenizer", "tandem.v1"),
    "tandem": (),
    # One command of the public face starts the server; the rest is a client like any other.
    "tandem.cli.serve": ("services.runtime", "tandem"),
    "tandem.cli.token": ("services.runtime.access", "tandem"),
    "tandem.cli.startup": ("services.runtime.settings", "tandem"),
    # Another looks at models without a server.
    "tandem.cli.models": ("services.runtime", "services.executor", "services.model_file", "tandem"),
    # Another finds the server that runs here.
    "tandem.cli.admin": ("services.runtime", "tandem"),
    # Another runs the scheduler's core over a device that only counts.
    "tandem.cli.bench": ("services.scheduler.virtual", "tandem"),
    "tandem.cli.bench_plots": ("services.scheduler.virtual", "tandem"),
}

# Libraries that belong to some parts alone.
RESERVED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("zmq",): ("services.wire.links",),
    ("torch", "numpy"): ("services.executor",),
    ("triton", "flash_attn", "flash_attn_interface"): ("services.executor.cuda",),
    ("llguidance",): ("services.executor.grammar",),
    ("grpc", "grpc_health", "grpc_reflection", "grpc_status", "google"): ("gateway", "tandem"),
    ("uvloop",): ("gateway",),
    ("prometheus_client",): ("gateway.metrics", "gateway.exposition"),
    ("opentelemetry",): ("gateway.tracing",),
    ("smg_grpc_proto",): ("gateway.vllm",),
    ("tokenizers", "jinja2"): ("services.tokenizer",),
    ("typer", "rich", "click"): ("tandem.cli",),
    ("huggingface_hub",): ("services.runtime.hub",),
    ("matplotlib",): ("tandem.cli.bench_plots", "tandem.cli.load_plots"),
    ("aiohttp",): ("tandem.load.completions_target",),
    ("subprocess",): ("services.runtime",),
    ("ctypes",): ("services.runtime", "services.executor.native", "services.executor.driver"),
}

# The core is a pure function of its inputs: time, ids and seeds come in as arguments.
IMPURE = {"asyncio", "concurrent", "multiprocessing", "os", "queue", "random", "secrets", "select", "signal", "socket"}
IMPURE |= {"subprocess", "sys", "threading", "time", "uuid"}


def part_of(module: str) -> str:
    return max((part for part in MAY_SEE if within(module, (part,))), key=len)


def ours(source: Source) -> Iterator[str]:
    """The modules of the product that a file imports."""
    known = {other.module for other in product()}
    for name in source.imports():
        if within(name, PRODUCT):
            # A name that is no module is a thing inside one; the generated modules are not read here.
            yield name if name in known or within(name, ("tandem.v1",)) else name.rpartition(".")[0]


@pytest.mark.parametrize("source", product(), ids=lambda source: source.module)
def test_a_file_imports_only_what_its_part_may_see(source: Source) -> None:
    part = part_of(source.module)
    allowed = (part, *MAY_SEE[part])
    assert [name for name in ours(source) if not within(name, allowed)] == []


@pytest.mark.parametrize("source", product(), ids=lambda source: source.module)
def test_a_library_is_imported_only_where_it_belongs(source: Source) -> None:
    for libraries, owners in RESERVED.items():
        used = [name for name in source.imports() if within(name, libraries)]
        assert not used or within(source.module, owners), f"{used} belong to {owners}"


def test_the_scheduler_core_imports_nothing_but_the_standard_library_and_none_of_its_clocks_and_chances() -> None:
    core = [source for source in product() if within(source.module, ("services.scheduler.core",))]
    assert len(core) > 5
    foreign = {(s.module, name) for s in core for name in s.imports() if not within(name, PRODUCT)}
    roots = {(module, name.partition(".")[0]) for module, name in foreign}
    pure = (sys.stdlib_module_names - IMPURE) | {"msgspec"}  # messages and state are made of its structs
    assert {(module, root) for module, root in roots if root not in pure} == set()


def test_the_environment_is_read_in_one_file_of_the_server_and_one_of_the_client() -> None:
    readers = [source.module for source in product() if "os.environ" in source.text or "os.getenv" in source.text]
    assert sorted(readers) == ["services.runtime.settings", "tandem.connection"]


def test_no_import_goes_in_a_circle() -> None:
    graph = {source.module: set(ours(source)) - {source.module} for source in product()}
    while leaves := {module for module, needs in graph.items() if not needs & graph.keys()}:
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert graph == {}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("services.scheduler.__main__", "torch numpy grpc google tokenizers gguf jinja2 typer"),
        ("services.detokenizer.__main__", "torch grpc google typer"),
        ("services.executor.__main__", "torch grpc google tokenizers jinja2 typer"),
        ("services.executor.opening", "torch grpc google tokenizers jinja2 typer"),
        ("gateway.__main__", "torch typer smg_grpc_proto gateway.vllm opentelemetry gateway.tracing"),
        ("tandem", "zmq torch tokenizers gguf services"),
        ("tandem.cli", "torch matplotlib tokenizers gguf gateway services.scheduler.service services.executor"),
    ],
)
def test_a_process_loads_nothing_that_is_not_its_business(module: str, unwanted: str) -> None:
    program = f"import sys, {module}; print(sorted(set({unwanted.split()!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
