"""Settings: one frozen struct for each service, composed into ServerSettings; defaults and units live here alone.

Read from TOML with a section for each service; an unknown key is refused by name. A service is handed its own
section, never the whole. Nothing is changed after start: what is found out at run time (the number of KV blocks)
arrives as a message. This is the only module that reads os.environ.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

MAX_PORT = 65535

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Duration = Annotated[float, Meta(ge=0)]  # as Seconds, or in microseconds; 0 is none
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,32}$")]  # becomes part of file names
LogLevel = Literal["debug", "info", "warning", "error"]


# A listener in the run directory, where nobody else can reach it.
LOCAL = "local"


class SettingsError(Exception):
    """A setting is unknown, of the wrong type or out of range; the text names it."""


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is served: docs/models.md."""

    path: str = ""  # GGUF file, Hugging Face directory, or ORG/NAME on the hub; empty = the embedded default
    name: str = ""  # the name clients ask for; empty = what the model file calls itself
    hub: str = ""  # address of the hub that names are fetched from; empty = the huggingface-hub package's own


class LinkSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the four processes reach one another."""

    transport: Literal["ipc", "tcp"] = "ipc"  # sockets in run_dir, or ports of host
    run_dir: str = ""  # folder of the ipc sockets; made afresh by the supervisor when empty
    host: str = "127.0.0.1"  # tcp only; {receiver} in it stands for the service that receives, where each has a host
    bind: str = ""  # tcp only: the address of its host that a receiver binds, * for all; empty = host
    base_port: Annotated[int, Meta(ge=1, le=MAX_PORT)] = 5700  # tcp only: one port for each link from here on
    gateways: Annotated[tuple[Name, ...], Meta(min_length=1)] = ("gateway-0",)  # the names of those that may be served
    heartbeat_s: Seconds = 1.0  # how often each sender shows that it lives
    death_s: Seconds = 5.0  # silence that counts as a death
    high_water_mark: Positive = 4096  # unsent messages an outlet may hold
    keys: str = ""  # tcp only: file of the keys that every process must have; made when absent, empty = in run_dir


class SchedulerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds and policy of the scheduler. Tokens and counts."""

    depth: Annotated[int, Meta(ge=1, le=3)] = 2  # plans unacknowledged at most: 1 (no overlap), 2 or 3
    token_budget: Positive = 512  # most tokens one step computes
    chunk_size: Count = 0  # most tokens of one prefill row; 0 = token_budget
    max_num_seqs: Positive = 256  # most sequences running at once
    max_waiting: Count = 1024  # most sequences in the waiting queue
    max_unread: Positive = 64  # uncredited TokenBatches to a gateway before its sequences pause
    policy: Literal["fcfs", "priority", "fair", "static"] = "fcfs"  # who goes first; see docs/scheduling.md
    aging_s: Duration = 10.0  # priority only: seconds of waiting that one priority level is worth
    prefix_cache: bool = True  # find the KV of a prompt's beginning that somebody computed before
    preemption: Literal["recompute", "swap", "auto"] = "recompute"  # how a running sequence gives its KV back
    victim: Literal["lifo", "lru", "cost"] = "lifo"  # whom to preempt, within the lowest class
    forecast: bool = True  # look at KV usage to come before anybody joins
    prefill_quantum: Count = 0  # tokens of each step that decode rows leave to prefill
    inter_token_ms: Duration = 0.0  # target for a step with decode rows; 0 = none
    head_start: Count = 4096  # fair only: prompt tokens that a tenant back from idleness may be behind the least served
    max_preparing: Annotated[int, Meta(ge=1, le=256)] = (
        8  # constraints being compiled at once, asked of the executor and not answered
    )
    executor_absence_s: Seconds = 600.0  # how long requests wait for another executor when theirs is lost


class ExecutorSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device, memory and backend of the executor."""

    backend: Literal["torch", "simulated", "echo"] = "torch"  # what runs steps; the last two need no model
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where the torch backend computes; auto = a GPU if torch sees one
    attention: Literal["auto", "flash3", "flash2", "varlen", "triton", "gather"] = (
        "auto"  # cuda only: auto = the best that is installed; docs/gpu.md
    )
    graph_rows: Count = 256  # cuda only: rows of the largest decode step that is captured as a graph; 0 = none is
    precision: Literal["fast", "exact", "bfloat16", "float16"] = (
        "fast"  # native kernels, or plain torch in float32 (exact) or a smaller type: docs/kernels.md
    )
    kv_dtype: Literal["auto", "float32", "float16", "int8"] = "auto"  # of KV in memory, fast only; auto = float16
    block_size: Positive = 16  # positions of a KV block
    num_blocks: Count = 0  # blocks of the pool, the dummy included; 0 = from memory
    kv_memory_mb: Count = 0  # MiB for the KV pool when num_blocks is 0; 0 = half of what is free after the weights
    swap_space_mb: Count = 0  # MiB of host memory for the KV of preempted sequences; 0 = none is swapped
    num_host_blocks: Count = 0  # the same in blocks; 0 = from swap_space_mb
    max_rows: Positive = 288  # rows of a step, and run slots; unless given, an eighth more than max_num_seqs
    num_threads: Count = 0  # compute threads; 0 = every core
    mask_threads: Positive = 1  # threads that work out which tokens structured output allows
    constraint_cache: Count = 64  # compiled constraints kept beyond those that live requests use
    constraint_size: Positive = 100_000  # most symbols of a constraint's grammar
    constraint_states: Positive = 50_000  # most states of its lexer; each takes one or two kB
    constraint_compile_work: Positive = 1_000_000  # most lexer work of compiling it; about 50 a microsecond
    constraint_mask_work: Positive = 50_000  # most lexer work of one token's mask; about 14 a microsecond
    max_restarts: Count = 3  # how often within restart_window_s a dead executor is started again; 0 = never
    restart_window_s: Seconds = 300.0  # the time in which max_restarts are counted
    vocab_size: Positive = 49152  # simulated and echo only
    context_length: Positive = 8192  # simulated and echo only
    eos_token_id: Count = 2  # simulated and echo only
    step_fixed_us: Duration = 0.0  # simulated and echo: duration of a step
    step_per_token_us: Duration = 0.0  # simulated and echo
    step_per_kv_token_us: Duration = 0.0  # simulated and echo: for each position read back


class DetokenizerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the detokenizer."""

    max_pending: Positive = 256  # TextBatches kept for one gateway whose outlet is full


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gRPC front."""

    name: Name = "gateway-0"  # one of links.gateways
    listen: str = "127.0.0.1:50051"  # host:port or unix:path; several are separated by commas
    vllm_listen: str = ""  # VllmEngine, for the smg gateway (extra `smg`): who reaches it needs no token; empty = off
    max_message_bytes: Positive = 16 * 1024 * 1024  # of one gRPC message, either way
    max_open_calls: Positive = 2048  # generation calls open at once
    max_prompt_bytes: Positive = 4 * 1024 * 1024  # of prompt text before it is tokenized
    max_stop_strings: Count = 64  # of a request
    max_stop_string_chars: Count = 1024  # of each
    max_stop_token_ids: Count = 1024  # of a request
    max_logprobs: Count = 20  # likeliest tokens told for each position
    max_n: Positive = 16  # sequences of a request
    model_defaults: bool = False  # absent sampling fields are what the model's generation_config.json says, if anything
    max_logit_bias: Count = 1024  # entries
    max_allowed_token_ids: Count = 16384  # of a request
    max_bad_words: Count = 64  # of a request
    max_bad_word_chars: Positive = 128  # of each
    max_constraint_bytes: Count = 64 * 1024  # of the source of a constraint
    max_choices: Count = 1024  # texts of a choice
    max_chat_messages: Positive = 1024  # of a conversation
    max_tools: Count = 128  # of a request
    max_tool_bytes: Count = 64 * 1024  # of all tools of a request together
    max_tool_calls: Positive = 16  # of one answer, and of one message of a conversation
    max_cache_salt_chars: Positive = 128  # of a request
    max_tokenizing: Positive = 256  # texts that wait for the tokenizer's thread
    max_request_id_chars: Positive = 128  # of a request
    max_tenant_chars: Positive = 128  # of a request
    max_unread_tokens: Positive = 16384  # of one stream, kept while its client does not read; beyond it the call ends
    stall_s: Seconds = 30.0  # a reader that takes nothing for so long is ended
    drain_s: Duration = 30.0  # how long a stopping server lets open calls finish
    drain_delay_s: Duration = 0.0  # before that: health says NOT_SERVING and new calls are served all the same
    admin_listen: str = LOCAL  # of ControlService: host:port, unix:path, "local" (a socket in run_dir), empty for none
    admin_tokens: str = ""  # TOML file of bearer tokens for admin_listen, as `tokens`; "local" asks for none
    metrics_listen: str = ""  # host:port of /metrics for Prometheus; empty for none
    metrics_vllm_names: bool = True  # export the metrics that vLLM has under its names too
    goodput_ttft_ms: Duration = 1000.0  # a good call has its first token within this; 0 = whenever
    goodput_itl_ms: Duration = 100.0  # and so long between its tokens at most, on average; 0 = however long
    goodput_window: Positive = 1000  # calls that the goodput ratio is over
    otlp_endpoint: str = ""  # collector of OpenTelemetry spans, such as http://127.0.0.1:4317; empty for no tracing
    trace_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0  # share of calls traced that bring no decision of their own
    order_timeout_s: Seconds = 5.0  # how long the scheduler may take to answer an operator's order
    max_load_watchers: Count = 16  # streams of WatchLoad open at once, and subscribers of vllm_listen
    tls_certificate: str = ""  # PEM file, leaf first; with tls_key it makes TLS of every host:port
    tls_key: str = ""  # PEM file
    tls_client_ca: str = ""  # PEM file; clients must then show a certificate that one of these signed
    tokens: str = ""  # TOML file of bearer tokens (access.py); empty = nobody is asked for one
    tokenless: tuple[Literal["health", "reflection"], ...] = ("health", "reflection")  # what needs no token
    max_metadata_bytes: Annotated[int, Meta(ge=1024)] = 16 * 1024  # of a call's metadata, keys and values
    keepalive_s: Seconds = 30.0  # a connection that was silent for so long is asked for a sign of life
    keepalive_timeout_s: Seconds = 20.0  # and given up when none comes within this
    min_ping_s: Seconds = 5.0  # clients that ping more often, with nothing to say, get a strike each time
    max_ping_strikes: Positive = 3  # one more, and the connection is closed
    coalesce_ms: Duration = 24.0  # how long tokens are held back at most, to send several in a message; 0 = never
    max_messages_per_s: Positive = 4000  # of all streams together; beyond it tokens are held back


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `tandem serve` needs, a section for each service."""

    model: ModelSettings = ModelSettings()
    links: LinkSettings = LinkSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    executor: ExecutorSettings = ExecutorSettings()
    detokenizer: DetokenizerSettings = DetokenizerSettings()
    gateway: GatewaySettings = GatewaySettings()
    log_level: LogLevel = "info"  # the least that is logged


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> ServerSettings:
    """Settings from a TOML file, if any, with overrides of the same shape on top.

    Raises SettingsError with the name of the key that is wrong.
    """
    try:
        sections = msgspec.toml.decode(path.read_bytes(), type=dict[str, Any]) if path else {}
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path}: {error}") from error
    sections = merged(sections, overrides or {})
    _make_room(sections)
    try:
        settings = msgspec.convert(sections, ServerSettings)
    except msgspec.ValidationError as error:
        # "what - at `$.section.key`"; the place is what a reader looks for first.
        what, _, place = str(error).partition(" - at `$.")
        raise SettingsError(f"{place.rstrip('`')}: {what}" if place else what) from error
    _check(settings)
    return settings


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Values by section and key, the later layers above the earlier, key by key. A section that is none stays what it
    is, to be refused."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = result.get(name, {})
            if not isinstance(value, Mapping):
                result[name] = value
            elif isinstance(below, dict):
                result[name] = {**below, **value}
    return result


def _make_room(sections: dict[str, Any]) -> None:
    """A run that is ending keeps its row for a step more, while another may have its place among max_num_seqs."""
    scheduler, executor = sections.get("scheduler", {}), sections.setdefault("executor", {})
    if isinstance(scheduler, dict) and isinstance(executor, dict):
        most = scheduler.get("max_num_seqs")
        if isinstance(most, int) and most > 0:
            executor.setdefault("max_rows", most + max(1, most // 8))


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ


def _check(settings: ServerSettings) -> None:
    """What no single field's bounds can say."""
    if settings.links.death_s <= settings.links.heartbeat_s:
        raise SettingsError("links.death_s: must be longer than links.heartbeat_s")
    gateway = settings.gateway
    for address in gateway.listen.split(","):
        _check_address("gateway.listen", address)
    if gateway.vllm_listen:
        _check_address("gateway.vllm_listen", gateway.vllm_listen)
    if gateway.admin_listen not in ("", LOCAL):
        _check_address("gateway.admin_listen", gateway.admin_listen)
    if gateway.metrics_listen:
        _check_address("gateway.metrics_listen", gateway.metrics_listen)
        if gateway.metrics_listen.startswith("unix:"):
            raise SettingsError("gateway.metrics_listen: expected host:port")
    if bool(gateway.tls_certificate) != bool(gateway.tls_key):
        raise SettingsError("gateway.tls_key: goes together with gateway.tls_certificate")
    if gateway.tls_client_ca and not gateway.tls_certificate:
        raise SettingsError("gateway.tls_client_ca: needs gateway.tls_certificate and gateway.tls_key")


def _check_address(key: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not address.startswith("unix:") and not (host and port.isdecimal() and int(port) <= MAX_PORT):
        raise SettingsError(f"{key}: expected host:port or unix:path, got {address!r}")


def handed_down(path: Path) -> ServerSettings:
    """The settings that the supervisor wrote for its children, as JSON (every value filled in)."""
    return msgspec.json.decode(path.read_bytes(), type=ServerSettings)


def temporary_root() -> Path:
    """Where private run directories are made: XDG_RUNTIME_DIR when it is usable, else TMPDIR, else /tmp."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        value = os.environ.get(name)
        if value and os.access(value, os.W_OK):
            return Path(value)
    return Path("/tmp")
