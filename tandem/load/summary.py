"""What runs were worth: throughput, latencies, goodput, failures. Pure functions of the calls.

Percentiles are of the nearest rank, over the calls that ended well. Goodput counts the calls that met both targets:
the time to the first token, and a gap between messages that 99 in 100 of the call's own stay within.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tandem.load.calls import Call

PERCENTS = (50, 90, 99)


class Targets(Struct, frozen=True):
    """What a client would call good, in milliseconds."""

    ttft_ms: float = 1000.0
    itl_ms: float = 100.0


class Spread(Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50: float
    p90: float
    p99: float


class Summary(Struct, frozen=True):
    """Runs against one server.

    ttft: to the first token. itl: gaps between messages with tokens. tpot: mean time of a token after the first
    message. e2e: to the end of the answer. send_lag: how late the client itself was, which should be next to nothing.
    """

    num_calls: int
    num_ok: int
    failures: dict[str, int]
    duration_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    num_output_tokens: int
    num_input_tokens: int
    tokens_per_message: float
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    send_lag_ms: Spread
    good_share: float
    goodput_per_s: float


def summarize(runs: Sequence[Sequence[Call]], targets: Targets) -> Summary:
    """Sum up runs of at least one call each as if they were one; each lasts from its first sending to its last end."""
    calls = [call for run in runs for call in run]
    good = [call for call in calls if call.is_ok and call.times]
    duration = sum(max(call.ended for call in run) - min(call.sent for call in run) for run in runs)
    num_output = sum(call.num_output_tokens for call in good)
    num_input = sum(call.num_prompt_tokens for call in good)
    num_messages = sum(len(call.times) for call in good)
    num_met = sum(is_met(call, targets) for call in good)
    return Summary(
        num_calls=len(calls),
        num_ok=sum(call.is_ok for call in calls),
        failures=dict(sorted(Counter(call.status for call in calls if not call.is_ok).items())),
        duration_s=duration,
        output_tokens_per_s=_per(num_output, duration),
        input_tokens_per_s=_per(num_input, duration),
        num_output_tokens=num_output,
        num_input_tokens=num_input,
        tokens_per_message=_per(num_output, num_messages),
        ttft_ms=spread(call.ttft for call in good),
        itl_ms=spread(gap for call in good for gap in call.gaps),
        tpot_ms=spread(call.time_per_token for call in good if len(call.times) > 1),
        e2e_ms=spread(call.ended - call.sent for call in good),
        send_lag_ms=spread(call.sent - call.due for call in calls),
        good_share=num_met / len(calls),
        goodput_per_s=_per(num_met, duration),
    )


def is_met(call: Call, targets: Targets) -> bool:
    """Whether a call that ended well met both targets."""
    return call.ttft * 1000 <= targets.ttft_ms and percentile(sorted(call.gaps), 99) * 1000 <= targets.itl_ms


def spread(seconds: Iterable[float]) -> Spread:
    ordered = sorted(seconds)
    return Spread(*(percentile(ordered, percent) * 1000 for percent in PERCENTS))


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value of the nearest rank among sorted ones; 0 when there are none."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0.0


def _per(count: float, of: float) -> float:
    return count / of if of > 0 else 0.0
