"""The values of every metric of one gateway, and their form for Prometheus.

Fed with the record of each call that is over; what the engine counts is read from its last Load, and the time between
tokens from the table of calls, when somebody asks. Knows no listener. Invariant: exactly the names of metric_table.py
are exported, each in every answer, with or without values.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from gateway.accounts import OK, Record
from gateway.errors import CallError
from gateway.goodput import Goodput
from gateway.histogram import LONG_SECONDS, SHORT_SECONDS, TOKENS, Histogram
from gateway.load import kv_usage
from gateway.metric_table import METRICS, Kind, Metric
from gateway.service import Gateway
from services.runtime.settings import GatewaySettings
from services.wire.messages import Load

Values = Iterable[tuple[tuple[str, ...], float | Histogram]]

# Of calls; those of steps come counted from the scheduler, those of tokens from the table of calls.
SECONDS = {
    "tandem_time_to_first_token_seconds": LONG_SECONDS,
    "tandem_time_per_output_token_seconds": SHORT_SECONDS,
    "tandem_call_seconds": LONG_SECONDS,
    "tandem_queue_seconds": LONG_SECONDS,
    "tandem_prefill_seconds": LONG_SECONDS,
    "tandem_decode_seconds": LONG_SECONDS,
    "tandem_inference_seconds": LONG_SECONDS,
}
SIZES = ("tandem_call_prompt_tokens", "tandem_call_output_tokens", "tandem_call_max_tokens", "tandem_call_sequences")
FINISHED_REASONS = ("stop", "length", "abort", "error")
# Labels of vLLM's that single engines have, and that dashboards ask for.
ENGINE = "0"
US = 1e-6


class Metrics:
    """Everything that is counted, and who is asked for the rest. is_aliased: export vLLM's names too."""

    def __init__(self, gateway: Gateway, settings: GatewaySettings) -> None:
        self._gateway = gateway
        self._is_aliased = settings.metrics_vllm_names
        self.goodput = Goodput(settings.goodput_ttft_ms / 1000, settings.goodput_itl_ms / 1000, settings.goodput_window)
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._finished: Counter[str] = Counter(dict.fromkeys(FINISHED_REASONS, 0))
        self._histograms = {name: Histogram(bounds) for name, bounds in SECONDS.items()}
        self._histograms |= {name: Histogram(TOKENS) for name in SIZES}

    def observe(self, record: Record) -> None:
        """A call is over."""
        self._calls[f"{record.service}/{record.method}", record.code, record.reason] += 1
        done = record.generation
        if record.is_generation:
            self.goodput.judge(record)
        if done is None:
            return
        self._finished.update(done.finishes)
        self._count("call_prompt_tokens", done.num_prompt_tokens)
        self._count("call_sequences", done.n)
        self._count("call_max_tokens", done.max_tokens)
        self._count("time_to_first_token_seconds", record.ttft_s())
        if record.code == OK:
            self._observe_whole(record)

    def refused(self, path: str, error: CallError) -> None:
        """A call was turned away at the door, before it had an account."""
        self._calls[path.removeprefix("/"), error.code_name, error.reason_name] += 1

    def families(self) -> Iterator[Family]:
        """Every metric in the form of the library, one after the other, so that a reader may pause between two."""
        values = self._values()
        ready = self._gateway.engine.offer
        model = "" if ready is None else ready.ready.card.name
        for metric in METRICS:
            names = (metric.name, *(metric.aliases if self._is_aliased else ()))
            for name in names:
                yield _family(metric, name, model, values.get(metric.name, ()))

    def _observe_whole(self, record: Record) -> None:
        """What only a call that ended well can tell."""
        done = record.generation
        assert done is not None
        engine = done.engine
        decode_us = engine.decode_us
        if not decode_us and done.first_token is not None and done.last_token is not None:
            decode_us = round((done.last_token - done.first_token) / US)  # a stop string ends it before the engine does
        self._count("call_output_tokens", done.num_output_tokens)
        self._count("time_per_output_token_seconds", done.inter_token_s())
        self._count("call_seconds", record.ended - record.arrived)
        self._count("queue_seconds", engine.queue_us * US)
        self._count("prefill_seconds", engine.prefill_us * US)
        self._count("decode_seconds", decode_us * US)
        self._count("inference_seconds", (engine.prefill_us + decode_us) * US)

    def _count(self, name: str, value: float | None) -> None:
        if value is not None:
            self._histograms[f"tandem_{name}"].observe(value)

    def _values(self) -> Mapping[str, Values]:
        goodput = self.goodput
        values: dict[str, Values] = {name: [((), histogram)] for name, histogram in self._histograms.items()}
        values |= self._engine_values()
        values |= {
            "tandem_open_calls": _one(len(self._gateway.calls)),
            "tandem_ready": _one(self._gateway.is_serving),
            "tandem_inter_token_seconds": _one(self._gateway.calls.gaps),
            "tandem_finished_sequences": [((reason,), count) for reason, count in self._finished.items()],
            "tandem_calls": list(self._calls.items()),
            "tandem_judged_calls": _one(goodput.num_judged),
            "tandem_good_calls": [((target,), count) for target, count in goodput.num_good.items()],
        }
        ratio = goodput.ratio()
        if ratio is not None:
            values["tandem_goodput_ratio"] = _one(ratio)
        return values

    def _engine_values(self) -> dict[str, Values]:
        values: dict[str, Values] = {}
        served, load = self._gateway.engine.offer, self._gateway.engine.load
        if served is not None:
            ready = served.ready
            labels = (ready.card.backend, ready.card.dtype, str(ready.block_size), str(ready.num_blocks))
            values["tandem_engine_info"] = [(labels, 1)]
        if load is not None:
            values |= _load_values(load)
        return values


def _one(value: float | Histogram) -> Values:
    return [((), value)]


def _load_values(load: Load) -> dict[str, Values]:
    return {
        "tandem_running_sequences": _one(load.num_running),
        "tandem_waiting_sequences": _one(load.num_waiting),
        "tandem_swapped_sequences": _one(load.num_swapped),
        "tandem_kv_usage_ratio": _one(kv_usage(load)),
        "tandem_kv_blocks": _one(load.num_blocks),
        "tandem_kv_free_blocks": _one(load.num_free_blocks),
        "tandem_drain_rate_per_second": _one(load.drain_rate),
        "tandem_paused": _one(load.is_paused),
        "tandem_prompt_tokens": _one(load.num_prompt_tokens),
        "tandem_output_tokens": _one(load.num_output_tokens),
        "tandem_prefix_cache_queried_tokens": _one(load.num_looked_up_tokens),
        "tandem_prefix_cache_hit_tokens": _one(load.num_cached_tokens),
        "tandem_preemptions": _one(load.num_preemptions),
        "tandem_steps": _one(load.num_steps),
        "tandem_wasted_rows": _one(load.num_wasted_rows),
        "tandem_epochs": _one(load.num_epochs),
        "tandem_step_tokens": _one(_doubling(load.step_tokens, 1.0, load.num_step_tokens)),
        "tandem_step_seconds": _one(_doubling(load.step_times, 100 * US, load.step_time_us * US)),
    }


def _doubling(counts: Sequence[int], unit: float, total: float) -> Histogram:
    """What the scheduler counted: bounds that double, the last bucket open."""
    histogram = Histogram([unit * (1 << power) for power in range(len(counts) - 1)])
    histogram.counts[: len(counts)] = counts
    histogram.total = total
    return histogram


def _family(metric: Metric, name: str, model: str, values: Values) -> Family:
    labels = ("model_name", "engine", *metric.labels)
    if metric.kind is Kind.HISTOGRAM:
        buckets = HistogramMetricFamily(name, metric.help, labels=labels)
        for own, value in values:
            assert isinstance(value, Histogram)
            buckets.add_metric((model, ENGINE, *own), *_cumulative(value))
        return buckets
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    numbers = kind(name, metric.help, labels=labels)
    for own, value in values:
        assert not isinstance(value, Histogram)
        numbers.add_metric((model, ENGINE, *own), value)
    return numbers


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Buckets as Prometheus counts them, each with all that is smaller; and the sum of all values."""
    running, buckets = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
    return buckets, histogram.total
