"""The engine's load in VllmEngine's words: what smg balances by.

The engine tells its load once a second. Blocks that only the prefix cache holds count as free. Knows no call but what
is open of it; knows no link and no gRPC.
"""

from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from gateway.load import kv_usage
from gateway.service import Gateway


class Loads:
    """The load of one engine. Asked by any number of readers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def current(self) -> pb.SchedulerLoad:
        """The load by now; raises CallError while no engine is there."""
        engine = self._gateway.engine
        ready, load = engine.served().ready, engine.loads.last
        told = pb.SchedulerLoad(
            max_running_requests=ready.max_num_seqs, num_waiting_uncached_tokens=self._num_pending_tokens()
        )
        if load is not None:
            rates = engine.loads.rates()
            told.num_running_reqs = load.num_running
            told.num_waiting_reqs = load.num_waiting
            told.num_total_reqs = load.num_running + load.num_waiting
            told.num_used_tokens = (load.num_blocks - load.num_free_blocks) * ready.block_size
            told.max_total_num_tokens = load.num_blocks * ready.block_size
            told.token_usage = kv_usage(load)
            told.gen_throughput = rates.output_tokens
            told.cache_hit_rate = rates.hit_rate or 0.0
        return told

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
            cache_hit_rate=load.cache_hit_rate,
            max_running_requests=load.max_running_requests,
            sample=sample,
            load_only=True,
            num_used_tokens=load.num_used_tokens,
            max_total_num_tokens=load.max_total_num_tokens,
            prefill_pending_tokens=load.num_waiting_uncached_tokens,
        )

    def _num_pending_tokens(self) -> int:
        """Prompt tokens of the calls here that have no token yet."""
        return sum(call.num_prompt_tokens for call in self._gateway.calls if call.first_token is None)
