"""The engine's load in VllmEngine's words: what smg balances by.

The engine tells its load once a second; the rate of output is what it put out between two of its words. Blocks that
only the prefix cache holds count as free. Knows no call but what is open of it; knows no link and no gRPC.
"""

from dataclasses import dataclass

from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from gateway.service import Gateway
from services.wire.messages import Load

# Two words closer than this say nothing about a rate.
MIN_SPAN_S = 0.5


@dataclass(frozen=True)
class _Told:
    """One word of the engine, and when it was noticed."""

    load: Load
    at: float


class Loads:
    """The load of one engine. Asked by any number of readers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._told: _Told | None = None
        self._tokens_per_s = 0.0

    def current(self) -> pb.SchedulerLoad:
        """The load by now; raises CallError while no engine is there."""
        ready = self._gateway.engine.served().ready
        load = self._gateway.engine.load
        if load is None:
            return pb.SchedulerLoad(
                max_running_requests=ready.max_num_seqs, num_waiting_uncached_tokens=self._num_pending_tokens()
            )
        self._measure(load)
        num_used = load.num_blocks - load.num_free_blocks
        return pb.SchedulerLoad(
            num_running_reqs=load.num_running,
            num_waiting_reqs=load.num_waiting,
            num_total_reqs=load.num_running + load.num_waiting,
            num_used_tokens=num_used * ready.block_size,
            max_total_num_tokens=load.num_blocks * ready.block_size,
            token_usage=num_used / load.num_blocks if load.num_blocks else 0.0,
            gen_throughput=self._tokens_per_s,
            max_running_requests=ready.max_num_seqs,
            num_waiting_uncached_tokens=self._num_pending_tokens(),
        )

    def _num_pending_tokens(self) -> int:
        """Prompt tokens of the calls here that have no token yet."""
        return sum(call.num_prompt_tokens for call in self._gateway.calls if call.first_token is None)

    def record(self, sample: int) -> common_pb2.EngineLoad:
        """The same as a record of the event stream; `sample` numbers it there."""
        load = self.current()
        return common_pb2.EngineLoad(
            running_requests=load.num_running_reqs,
            waiting_requests=load.num_waiting_reqs,
            waiting_uncached_tokens=load.num_waiting_uncached_tokens,
            token_usage=load.token_usage,
            active_token_usage=load.token_usage,
            gen_throughput=load.gen_throughput,
            max_running_requests=load.max_running_requests,
            sample=sample,
            load_only=True,
            num_used_tokens=load.num_used_tokens,
            max_total_num_tokens=load.max_total_num_tokens,
            prefill_pending_tokens=load.num_waiting_uncached_tokens,
        )

    def _measure(self, load: Load) -> None:
        now = self._gateway.clock()
        told = self._told
        if told is None:
            self._told = _Told(load, now)
        elif told.load is not load and now - told.at >= MIN_SPAN_S:
            self._tokens_per_s = (load.num_output_tokens - told.load.num_output_tokens) / (now - told.at)
            self._told = _Told(load, now)
