"""Spans of calls: whose children they are, what they tell, and that no token pays for them."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.tracing import Tracing
from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from services.wire.messages import Timings
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import SETTINGS, eventually, running
from tests.unit.gateway.test_metrics import GENERATION, RECORD

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, DROPPED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
NOW_NS = 1_800_000_000 * 10**9
PARTS = ["tokenize", "queue", "prefill", "decode", "detokenize"]


@dataclass
class Collector:
    """A tracing with a clock that stands still, and what it exports."""

    tracing: Tracing
    exporter: InMemorySpanExporter

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def collector(settings: GatewaySettings) -> Collector:
    exporter = InMemorySpanExporter()
    return Collector(Tracing(SimpleSpanProcessor(exporter), settings, lambda: NOW_NS), exporter)


@pytest.fixture
def there() -> Iterator[Collector]:
    made = collector(GatewaySettings(name="g-7"))
    yield made
    made.tracing.close(1.0)


def seconds(span: ReadableSpan) -> Sequence[float]:
    """Start and end, on the record's clock."""
    assert span.start_time is not None and span.end_time is not None
    return [RECORD.ended + (moment - NOW_NS) / 1e9 for moment in (span.start_time, span.end_time)]


def test_a_call_is_the_child_of_its_caller_and_the_parent_of_its_parts(there: Collector) -> None:
    there.tracing.observe(replace(RECORD, traceparent=SAMPLED, tracestate="vendor=x"))
    spans = there.spans()
    root = spans.pop("tandem.v1.InferenceService/Generate")
    assert root.parent is not None and root.context is not None
    assert f"{root.parent.span_id:016x}" == PARENT and f"{root.context.trace_id:032x}" == TRACE
    assert root.context.trace_state.get("vendor") == "x"
    assert root.kind is SpanKind.SERVER and root.status.status_code is StatusCode.UNSET
    assert list(spans) == PARTS
    assert all(span.parent and span.parent.span_id == root.context.span_id for span in spans.values())
    assert root.resource.attributes["service.name"] == "tandem"
    assert root.resource.attributes["service.instance.id"] == "g-7"


def test_its_parts_lie_where_the_time_went(there: Collector) -> None:
    there.tracing.observe(RECORD)
    spans = there.spans()
    root = spans.pop("tandem.v1.InferenceService/Generate")
    assert seconds(root) == pytest.approx([10.0, 11.2], abs=1e-6)
    assert {name: seconds(span) for name, span in spans.items()} == {
        "tokenize": pytest.approx([10.0, 10.01], abs=1e-6),
        "queue": pytest.approx([10.01, 10.21], abs=1e-6),
        "prefill": pytest.approx([10.21, 10.46], abs=1e-6),
        "decode": pytest.approx([10.46, 10.96], abs=1e-6),
        "detokenize": pytest.approx([10.46, 11.0], abs=1e-6),
    }


def test_it_says_what_the_call_cost_and_nothing_of_what_was_said(there: Collector) -> None:
    there.tracing.observe(RECORD)
    attributes = there.spans()["tandem.v1.InferenceService/Generate"].attributes or {}
    assert attributes["gen_ai.usage.input_tokens"] == 100
    assert attributes["gen_ai.usage.output_tokens"] == 11
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["gen_ai.latency.time_to_first_token"] == 0.5
    assert attributes["rpc.response.status_code"] == "OK"
    assert attributes["tandem.request_id"] == "r"


def test_a_failure_is_one(there: Collector) -> None:
    there.tracing.observe(replace(RECORD, code="INTERNAL", reason="POISONED_ROW"))
    root = there.spans()["tandem.v1.InferenceService/Generate"]
    assert root.status.status_code is StatusCode.ERROR
    assert (root.attributes or {})["error.type"] == "POISONED_ROW"


def test_a_refusal_has_no_parts(there: Collector) -> None:
    there.tracing.observe(replace(RECORD, code="INVALID_ARGUMENT", reason="INVALID_FIELD", generation=None))
    assert list(there.spans()) == ["tandem.v1.InferenceService/Generate"]


def test_a_call_broken_off_tells_what_the_gateway_saw(there: Collector) -> None:
    cut = replace(GENERATION, engine=Timings(), finishes=("abort",))
    there.tracing.observe(replace(RECORD, code="CANCELLED", reason="CANCELLED", generation=cut))
    spans = there.spans()
    assert list(spans)[:-1] == ["tokenize", "decode", "detokenize"]
    assert seconds(spans["decode"]) == pytest.approx([10.5, 11.0], abs=1e-6)


def test_other_calls_have_no_span(there: Collector) -> None:
    there.tracing.observe(replace(RECORD, method="ListModels", generation=None))
    assert there.spans() == {}


@pytest.mark.parametrize(("traceparent", "ratio", "count"), [(DROPPED, 1.0, 0), (SAMPLED, 0.0, 6), ("", 0.0, 0)])
def test_the_caller_decides_about_sampling_and_else_the_ratio(traceparent: str, ratio: float, count: int) -> None:
    made = collector(GatewaySettings(trace_ratio=ratio))
    made.tracing.observe(replace(RECORD, traceparent=traceparent))
    assert len(made.spans()) == count
    made.tracing.close(1.0)


@pytest.mark.parametrize("traceparent", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é"])
def test_a_caller_that_cannot_be_read_begins_a_trace_of_its_own(there: Collector, traceparent: str) -> None:
    there.tracing.observe(replace(RECORD, traceparent=traceparent))
    root = there.spans()["tandem.v1.InferenceService/Generate"]
    assert root.parent is None


@pytest.mark.asyncio(loop_scope="session")
async def test_a_call_over_the_wire_brings_its_parent(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, drain_s=0.1)) as front:
        made = collector(front.server.gateway.settings)
        front.server.operations.accounts.observers.append(made.tracing.observe)
        method = front.channel.unary_unary(
            "/tandem.v1.InferenceService/Generate",
            pb.GenerateRequest.SerializeToString,
            pb.GenerateResponse.FromString,
        )
        call = method(pb.GenerateRequest(text="x"), metadata=(("traceparent", SAMPLED),), timeout=5)
        submit = await front.engine.submit()
        front.engine.say(submit, "a", [1])
        front.engine.end(submit)
        await call
        await eventually(lambda: bool(made.spans()))
        root = made.spans()["tandem.v1.InferenceService/Generate"]
        assert root.parent is not None and f"{root.parent.span_id:016x}" == PARENT
        assert list(made.spans())[:-1] == PARTS
        made.tracing.close(1.0)


def test_a_collector_that_is_not_there_holds_nobody_up() -> None:
    program = (
        "from gateway.tracing import exporting\n"
        "from services.runtime.settings import GatewaySettings\n"
        "from tests.unit.gateway.test_metrics import RECORD\n"
        "tracing = exporting(GatewaySettings(otlp_endpoint='http://127.0.0.1:9'))\n"
        "tracing.observe(RECORD); tracing.close(0.2); print('closed')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "closed\n"


def test_spans_reach_a_collector_over_the_wire() -> None:
    program = """
import grpc, sys
from concurrent.futures import ThreadPoolExecutor
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from gateway.tracing import exporting
from services.runtime.settings import GatewaySettings
from tests.unit.gateway.test_metrics import RECORD

def export(request, context):
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            print(*sorted(span.name for span in scope.spans), sep="\\n", flush=True)
    return pb.ExportTraceServiceResponse()

handler = grpc.unary_unary_rpc_method_handler(
    export, pb.ExportTraceServiceRequest.FromString, pb.ExportTraceServiceResponse.SerializeToString
)
server = grpc.server(ThreadPoolExecutor(1))
service = "opentelemetry.proto.collector.trace.v1.TraceService"
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
tracing = exporting(GatewaySettings(otlp_endpoint=f"http://127.0.0.1:{port}"))
tracing.observe(RECORD)
tracing.close(20.0)
server.stop(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == sorted([*PARTS, "tandem.v1.InferenceService/Generate"]), done.stderr
