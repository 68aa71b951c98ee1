"""What a gateway exports: own names and the field's, from records of calls, tokens and the engine's load."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.accounts import Generation, Record
from gateway.exposition import rendered
from gateway.goodput import Goodput
from gateway.histogram import LONG_SECONDS, SHORT_SECONDS, TOKENS, Histogram
from gateway.metric_table import BY_NAME, METRICS, Kind
from gateway.metrics import Metrics
from gateway.service import Gateway
from services.runtime.settings import GatewaySettings
from services.wire.memory import memory_link
from services.wire.messages import Load, Timings
from services.wire.topology import SUBMIT

LOAD = Load(
    num_waiting=3,
    num_running=2,
    num_free_blocks=10,
    num_blocks=40,
    drain_rate=1.5,
    num_preemptions=4,
    num_steps=7,
    num_prompt_tokens=500,
    num_output_tokens=1000,
    num_looked_up_tokens=400,
    num_cached_tokens=100,
    num_step_tokens=20,
    step_time_us=5000,
    step_tokens=(1, 2, 0, 4),
    step_times=(0, 7),
)
GENERATION = Generation(
    request_id="r",
    tenant="",
    n=1,
    max_tokens=64,
    finishes=("stop",),
    num_prompt_tokens=100,
    num_output_tokens=11,
    num_cached_tokens=0,
    submitted=10.01,
    first_token=10.5,
    last_token=11.0,
    engine=Timings(queue_us=200_000, prefill_us=250_000, decode_us=500_000),
)
RECORD = Record("tandem.v1.InferenceService", "Generate", False, "OK", "", 10.0, 11.2, "", "", GENERATION)


def gateway(settings: GatewaySettings = GatewaySettings()) -> Gateway:  # noqa: B008
    outlet, _inlet = memory_link(SUBMIT, 10)
    return Gateway(settings, outlet, None, lambda: 0.0, 1)  # type: ignore[arg-type]


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape, by its name and the labels that only it has."""
    text = b"".join(rendered(family) for family in metrics.families()).decode()
    return {
        (s.name, tuple((k, v) for k, v in sorted(s.labels.items()) if k not in ("model_name", "engine"))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def plain(found: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[str, float]:
    """Those without labels of their own."""
    return {name: value for (name, labels), value in found.items() if not labels}


def test_the_state_of_the_engine_shows_under_both_names() -> None:
    front = gateway()
    front.engine.loads.note(LOAD)
    found = plain(samples(Metrics(front, front.settings)))
    assert found["tandem_running_sequences"] == found["vllm:num_requests_running"] == 2
    assert found["tandem_waiting_sequences"] == found["vllm:num_requests_waiting"] == 3
    assert found["tandem_kv_usage_ratio"] == found["vllm:kv_cache_usage_perc"] == 0.75
    assert found["vllm:gpu_cache_usage_perc"] == 0.75
    assert found["tandem_output_tokens_total"] == found["vllm:generation_tokens_total"] == 1000
    assert found["vllm:prompt_tokens_total"] == 500
    assert found["vllm:num_preemptions_total"] == 4
    assert (found["vllm:prefix_cache_queries_total"], found["vllm:prefix_cache_hits_total"]) == (400, 100)
    assert (found["vllm:iteration_tokens_total_count"], found["vllm:iteration_tokens_total_sum"]) == (7, 20)
    assert (found["tandem_step_seconds_count"], found["tandem_step_seconds_sum"]) == (7, 0.005)


def test_steps_fall_into_the_buckets_that_the_scheduler_counted_them_in() -> None:
    front = gateway()
    front.engine.loads.note(LOAD)
    found = samples(Metrics(front, front.settings))
    buckets = {labels: value for (name, labels), value in found.items() if name == "tandem_step_tokens_bucket"}
    assert buckets == {(("le", "1.0"),): 1, (("le", "2.0"),): 3, (("le", "4.0"),): 3, (("le", "+Inf"),): 7}


def test_a_call_is_counted_by_what_it_cost() -> None:
    front = gateway()
    metrics = Metrics(front, front.settings)
    metrics.observe(RECORD)
    found = plain(samples(metrics))
    for name, value in {
        "vllm:time_to_first_token_seconds": 0.5,
        "vllm:e2e_request_latency_seconds": 1.2,
        "vllm:request_queue_time_seconds": 0.2,
        "vllm:request_prefill_time_seconds": 0.25,
        "vllm:request_decode_time_seconds": 0.5,
        "vllm:request_inference_time_seconds": 0.75,
        "vllm:request_prompt_tokens": 100,
        "vllm:request_generation_tokens": 11,
        "vllm:request_time_per_output_token_seconds": 0.05,
        "vllm:request_params_max_tokens": 64,
        "vllm:request_params_n": 1,
    }.items():
        assert found[f"{name}_count"] == 1, name
        assert found[f"{name}_sum"] == pytest.approx(value), name
    ended = samples(metrics)
    assert ended["vllm:request_success_total", (("finished_reason", "stop"),)] == 1
    method = ("method", "tandem.v1.InferenceService/Generate")
    assert ended["tandem_calls_total", (("code", "OK"), method, ("reason", ""))] == 1


def test_an_end_by_stop_string_has_the_time_of_decoding_that_the_gateway_saw() -> None:
    front = gateway()
    metrics = Metrics(front, front.settings)
    early = replace(GENERATION, engine=Timings(queue_us=1, prefill_us=1))
    metrics.observe(replace(RECORD, generation=early))
    assert plain(samples(metrics))["tandem_decode_seconds_sum"] == pytest.approx(0.5)


def test_a_refusal_counts_and_costs_nothing() -> None:
    front = gateway()
    metrics = Metrics(front, front.settings)
    metrics.observe(replace(RECORD, code="RESOURCE_EXHAUSTED", reason="QUEUE_FULL", generation=None))
    found = samples(metrics)
    labels = (
        ("code", "RESOURCE_EXHAUSTED"),
        ("method", "tandem.v1.InferenceService/Generate"),
        ("reason", "QUEUE_FULL"),
    )
    assert found["tandem_calls_total", labels] == 1
    assert plain(found)["tandem_call_seconds_count"] == 0
    assert plain(found)["tandem_goodput_ratio"] == 0


def test_tokens_are_counted_where_they_arrive() -> None:
    front = gateway()
    front.calls.gaps.observe(0.02, 3)
    found = plain(samples(Metrics(front, front.settings)))
    for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"):
        assert found[f"{name}_count"] == 3
        assert found[f"{name}_sum"] == pytest.approx(0.06)


def test_every_metric_is_in_every_answer_and_nothing_else() -> None:
    front = gateway()
    names = [family.name for family in Metrics(front, front.settings).families()]
    assert names == [name for metric in METRICS for name in (metric.name, *metric.aliases)]
    assert len(set(names)) == len(names)


def test_the_fields_names_can_be_left_out() -> None:
    settings = GatewaySettings(metrics_vllm_names=False)
    names = [family.name for family in Metrics(gateway(settings), settings).families()]
    assert names == list(BY_NAME)


def test_names_are_as_prometheus_wants_them() -> None:
    for metric in METRICS:
        assert metric.help.endswith(".")
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket")), metric.name
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith(("_seconds", "_tokens", "_sequences"))


@pytest.mark.parametrize("bounds", [SHORT_SECONDS, LONG_SECONDS, TOKENS])
def test_a_value_falls_into_the_first_bucket_that_holds_it(bounds: tuple[float, ...]) -> None:
    histogram = Histogram(bounds)
    for index, bound in enumerate(bounds):
        histogram.observe(bound)
        histogram.observe(math.nextafter(bound, math.inf))
        assert histogram.counts[index] == 2 - (index == 0)
    assert histogram.counts[-1] == 1
    assert sum(histogram.counts) == 2 * len(bounds)


class TestGoodput:
    """The share of calls that met their targets."""

    def judged(self, *records: Record, **targets: Any) -> Goodput:
        goodput = Goodput(**{"ttft_s": 0.6, "itl_s": 0.06, "window": 3, **targets})
        for record in records:
            goodput.judge(record)
        return goodput

    def changed(self, **fields: Any) -> Record:
        return replace(RECORD, generation=replace(GENERATION, **fields))

    def test_a_call_is_good_when_it_met_both(self) -> None:
        late = self.changed(first_token=10.7, last_token=11.0)
        slow = self.changed(last_token=11.2)
        goodput = self.judged(RECORD, late, slow)
        assert (goodput.num_judged, goodput.num_good) == (3, {"ttft": 2, "itl": 2, "both": 1})
        assert goodput.ratio() == pytest.approx(1 / 3)

    def test_targets_are_met_at_their_very_value(self) -> None:
        assert self.judged(RECORD, ttft_s=0.5, itl_s=0.05).ratio() == 1.0

    def test_no_target_is_met_by_all(self) -> None:
        assert self.judged(self.changed(first_token=99.0, last_token=999.0), ttft_s=0.0, itl_s=0.0).ratio() == 1.0

    def test_one_token_has_no_time_between_tokens(self) -> None:
        assert self.judged(self.changed(num_output_tokens=1, last_token=10.5)).ratio() == 1.0

    @pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"])
    def test_a_call_that_the_server_failed_is_not_good(self, code: str) -> None:
        assert self.judged(replace(RECORD, code=code)).ratio() == 0.0

    @pytest.mark.parametrize("code", ["CANCELLED", "INVALID_ARGUMENT", "ALREADY_EXISTS"])
    def test_a_call_that_its_client_spoilt_is_not_judged(self, code: str) -> None:
        goodput = self.judged(replace(RECORD, code=code))
        assert (goodput.num_judged, goodput.ratio()) == (0, None)

    def test_the_ratio_is_over_the_last_calls(self) -> None:
        bad = replace(RECORD, code="INTERNAL")
        goodput = self.judged(bad, bad, bad, RECORD, RECORD)
        assert goodput.ratio() == pytest.approx(2 / 3)
        assert (goodput.num_judged, goodput.num_good["both"]) == (5, 2)
