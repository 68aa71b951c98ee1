"""What a call cost: tokens and times, as its last message and its trailing metadata tell them.

Pure: knows a Call and the ends of its sequences; time comes in as an argument.
"""

from dataclasses import dataclass

from gateway.calls import Call
from tandem.v1 import common_pb2


@dataclass(frozen=True)
class Summary:
    """What is said once, at the end of a call."""

    usage: common_pb2.Usage
    timings: common_pb2.Timings

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The same as trailing metadata."""
        return (
            ("x-tandem-prompt-tokens", str(self.usage.prompt_tokens)),
            ("x-tandem-completion-tokens", str(self.usage.completion_tokens)),
            ("x-tandem-cached-tokens", str(self.usage.cached_tokens)),
            ("x-tandem-queue-ms", f"{self.timings.queue_ms:.3f}"),
            ("x-tandem-ttft-ms", f"{self.timings.ttft_ms:.3f}"),
            ("x-tandem-e2e-ms", f"{self.timings.e2e_ms:.3f}"),
        )


def summary(call: Call, now: float) -> Summary:
    """What a call cost until now; for one that was broken off, what is known of it here."""
    ends = call.ends
    # The first sequence stands for the prompt: the others share it.
    first = ends.get(0)
    has_ended = len(ends) == call.n
    num_output_tokens = sum(end.num_output_tokens for end in ends.values()) if has_ended else call.num_received_tokens
    num_prompt_tokens = call.num_prompt_tokens
    usage = common_pb2.Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        cached_tokens=first.num_cached_tokens if first else 0,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )
    e2e_ms = (now - call.arrived) * 1000
    ttft_ms = (call.first_token - call.arrived) * 1000 if call.first_token is not None else 0.0
    timings = common_pb2.Timings(
        queue_ms=first.timings.queue_us / 1000 if first else 0.0,
        prefill_ms=first.timings.prefill_us / 1000 if first else 0.0,
        ttft_ms=ttft_ms,
        decode_ms=e2e_ms - ttft_ms if call.first_token is not None else 0.0,
        e2e_ms=e2e_ms,
    )
    return Summary(usage, timings)
