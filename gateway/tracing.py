"""Spans of calls for OpenTelemetry: what a call did and when, as children of whoever made it.

Made from the record of a call when it is over, so that no token pays for them. The caller's traceparent decides about
sampling; where there is none, a ratio does. Spans leave on a thread of the exporter. Nothing imports this module while
tracing is off. Knows no engine; what the engine reported stands in the record.

    the caller's span
    └── tandem.v1.InferenceService/StreamGenerate   arrival to end
        ├── tokenize     arrival to submission
        ├── queue        submission to first step
        ├── prefill      first step to first token
        ├── decode       first token to last, in the engine
        └── detokenize   first token in the engine to last text in the gateway
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.accounts import OK, Generation, Record
from services.runtime.settings import GatewaySettings

US = 1e-6
EXPORT_WITHIN_S = 3.0
Value = str | int | float | tuple[str, ...]


def exporting(settings: GatewaySettings) -> "Tracing":
    """Tracing to a collector, over OTLP; plain text unless the endpoint begins with https://."""
    endpoint = settings.otlp_endpoint
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=EXPORT_WITHIN_S
    )
    return Tracing(BatchSpanProcessor(exporter), settings, give_up=exporter.shutdown)


class Tracing:
    """An observer of records. wall_ns: the time of day in nanoseconds; give_up: stop trying to send."""

    def __init__(
        self,
        processor: SpanProcessor,
        settings: GatewaySettings,
        wall_ns: Callable[[], int] = time.time_ns,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        resource = Resource.create({"service.name": "tandem", "service.instance.id": settings.name})
        sampler = ParentBased(TraceIdRatioBased(settings.trace_ratio))
        # Not the process's global provider: whoever embeds a gateway may have one of its own.
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tandem.gateway")
        self._propagator = TraceContextTextMapPropagator()
        self._wall_ns = wall_ns
        self._give_up = give_up

    def observe(self, record: Record) -> None:
        """A call is over; only those of generation have spans."""
        if not record.is_generation:
            return
        now_ns = self._wall_ns()

        def wall(moment: float) -> int:
            return now_ns - round((record.ended - moment) * 1e9)

        span = self._tracer.start_span(
            f"{record.service}/{record.method}",
            context=self._parent(record),
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            start_time=wall(record.arrived),
        )
        if span.is_recording():
            if record.code != OK:
                span.set_status(Status(StatusCode.ERROR, record.reason))
            within = set_span_in_context(span)
            for name, start, end in _stretches(record):
                child = self._tracer.start_span(name, context=within, start_time=wall(start))
                child.end(wall(end))
        span.end(now_ns)

    def close(self, within_s: float) -> None:
        """Send what has not left yet; blocks for within_s, and for one attempt that is under way then."""
        patience = threading.Timer(within_s, self._give_up)
        patience.start()
        self._provider.shutdown()
        patience.cancel()

    def _parent(self, record: Record) -> Context | None:
        carrier = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        return self._propagator.extract(carrier) if record.traceparent else Context()


def _attributes(record: Record) -> Mapping[str, Value]:
    """As the semantic conventions for gRPC and for generative models name them; not a word of any text."""
    attributes: dict[str, Value] = {
        "rpc.system": "grpc",
        "rpc.service": record.service,
        "rpc.method": record.method,
        "rpc.response.status_code": record.code,
    }
    if record.reason:
        attributes["error.type"] = record.reason
    done = record.generation
    if done is None:
        return attributes
    ttft_s = record.ttft_s()
    attributes |= {
        "tandem.request_id": done.request_id,
        "tandem.tenant": done.tenant,
        "gen_ai.operation.name": "chat" if "Chat" in record.method else "text_completion",
        "gen_ai.response.finish_reasons": done.finishes,
        "gen_ai.usage.input_tokens": done.num_prompt_tokens,
        "gen_ai.usage.output_tokens": done.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": done.num_cached_tokens,
        "gen_ai.latency.e2e": record.ended - record.arrived,
        "gen_ai.latency.time_in_queue": done.engine.queue_us * US,
    }
    if ttft_s is not None:
        attributes["gen_ai.latency.time_to_first_token"] = ttft_s
    return attributes


def _stretches(record: Record) -> Iterator[tuple[str, float, float]]:
    """Each stretch of a call that was reached, in order: its name, start and end."""
    done = record.generation
    if done is None or done.submitted is None:
        return
    yield "tokenize", record.arrived, done.submitted
    planned = done.submitted + done.engine.queue_us * US
    first = planned + done.engine.prefill_us * US
    if done.engine.queue_us or done.engine.prefill_us:
        yield "queue", done.submitted, planned
        yield "prefill", planned, first
    elif done.first_token is not None:
        first = done.first_token  # broken off before the engine has told its times
    if done.first_token is not None and done.last_token is not None:
        yield "decode", first, _decoded(done, first)
        yield "detokenize", first, max(done.last_token, first)


def _decoded(done: Generation, first: float) -> float:
    """When the engine had the last token; of an end by stop string, which leaves before the engine's, the gateway."""
    assert done.last_token is not None
    return first + done.engine.decode_us * US if done.engine.decode_us else max(done.last_token, first)
