"""Every metric that a gateway exports: its name, what it means, and the names by which the field's dashboards know it.

The table is the contract with dashboards, alerts and autoscalers, and docs/operations.md repeats it (tested). Names of
counters stand here without the `_total` that the text format adds. Knows no value.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What may happen to a value: go up and down, only rise, or be counted in buckets."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric. aliases: the same values under vLLM's names. labels: beside the model's name, which all have."""

    name: str
    kind: Kind
    help: str
    aliases: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def exported(self, name: str) -> str:
        """The name as queries spell it; of a histogram, without _bucket, _sum and _count."""
        return f"{name}_total" if self.kind is Kind.COUNTER else name


def _gauge(name: str, text: str, *aliases: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"tandem_{name}", Kind.GAUGE, text, tuple(f"vllm:{alias}" for alias in aliases), labels)


def _counter(name: str, text: str, *aliases: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"tandem_{name}", Kind.COUNTER, text, tuple(f"vllm:{alias}" for alias in aliases), labels)


def _histogram(name: str, text: str, *aliases: str) -> Metric:
    return Metric(f"tandem_{name}", Kind.HISTOGRAM, text, tuple(f"vllm:{alias}" for alias in aliases))


METRICS = (
    _gauge("running_sequences", "Sequences that run.", "num_requests_running"),
    _gauge("waiting_sequences", "Sequences that wait.", "num_requests_waiting"),
    _gauge("swapped_sequences", "Sequences that wait with their KV in host memory.", "num_requests_swapped"),
    _gauge("kv_usage_ratio", "Share of KV blocks in use, 0 to 1.", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    _gauge("kv_blocks", "KV blocks that requests can use."),
    _gauge("kv_free_blocks", "KV blocks that could be given out now."),
    _gauge("drain_rate_per_second", "Requests that ended per second, over the last 64."),
    _gauge("open_calls", "Generation calls open in this gateway."),
    _gauge("ready", "1 while calls are taken, else 0."),
    _gauge("paused", "1 while planning is paused, else 0."),
    _gauge(
        "engine_info",
        "Always 1; the labels say what is served.",
        "cache_config_info",
        labels=("backend", "dtype", "block_size", "num_gpu_blocks"),
    ),
    _gauge("goodput_ratio", "Share of the last calls that met both latency targets, 0 to 1."),
    _counter("prompt_tokens", "Prompt tokens of requests that got their first token.", "prompt_tokens"),
    _counter("output_tokens", "Tokens put out.", "generation_tokens"),
    _counter("prefix_cache_queried_tokens", "Prompt tokens looked up in the prefix cache.", "prefix_cache_queries"),
    _counter("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
    _counter("preemptions", "Sequences that had to give their KV back.", "num_preemptions"),
    _counter("steps", "Steps planned."),
    _counter("wasted_rows", "Rows computed for sequences that had ended meanwhile."),
    _counter("epochs", "Openings of the executor: its first, and one more after each failed step or death."),
    _counter("finished_sequences", "Sequences by how they ended.", "request_success", labels=("finished_reason",)),
    _counter("calls", "Calls that ended, by method, status code and reason.", labels=("method", "code", "reason")),
    _counter("judged_calls", "Generation calls held against the latency targets: all but those a client spoilt."),
    _counter("good_calls", "Of those, the ones that met a target.", labels=("target",)),
    _histogram("time_to_first_token_seconds", "From arrival to first token.", "time_to_first_token_seconds"),
    _histogram(
        "inter_token_seconds",
        "Between two tokens of a sequence, for every token.",
        "inter_token_latency_seconds",
        "time_per_output_token_seconds",
    ),
    _histogram(
        "time_per_output_token_seconds",
        "Mean time between the tokens of a call, for every call.",
        "request_time_per_output_token_seconds",
    ),
    _histogram("call_seconds", "From arrival to end, of calls that ended well.", "e2e_request_latency_seconds"),
    _histogram("queue_seconds", "From submission to the first step.", "request_queue_time_seconds"),
    _histogram("prefill_seconds", "From the first step to the first token.", "request_prefill_time_seconds"),
    _histogram("decode_seconds", "From the first token to the last.", "request_decode_time_seconds"),
    _histogram("inference_seconds", "From the first step to the last token.", "request_inference_time_seconds"),
    _histogram("call_prompt_tokens", "Prompt tokens of a call.", "request_prompt_tokens"),
    _histogram("call_output_tokens", "Tokens put out by a call.", "request_generation_tokens"),
    _histogram("call_max_tokens", "max_tokens of calls that set it.", "request_params_max_tokens"),
    _histogram("call_sequences", "Sequences of a call.", "request_params_n"),
    _histogram("step_tokens", "Tokens computed by a step.", "iteration_tokens_total"),
    _histogram("step_seconds", "Time of a step on the device."),
)
BY_NAME = {metric.name: metric for metric in METRICS}
