"""The state in numbers, as gateways hear of it once a second and on demand."""

from services.scheduler.core.state import State
from services.wire.messages import Load


def load_of(state: State, now: int) -> Load:
    """What waits, runs and is free now, and the totals since the start."""
    counters, sizes = state.counters, state.step_sizes
    return Load(
        num_waiting=len(state.waiting),
        num_running=len(state.running),
        num_free_blocks=state.pool.num_free,
        num_blocks=state.pool.num_total,
        drain_rate=state.drain_rate.per_second(now),
        num_preemptions=counters.num_preemptions,
        num_steps=counters.num_steps,
        num_wasted_rows=counters.num_wasted_rows,
        num_prompt_tokens=counters.num_prompt_tokens,
        num_output_tokens=counters.num_output_tokens,
        num_looked_up_tokens=counters.num_looked_up_tokens,
        num_cached_tokens=counters.num_cached_tokens,
        num_swapped=sum(sequence.swapped is not None for sequence in state.waiting),
        num_epochs=state.epoch,
        num_step_tokens=sizes.num_tokens,
        step_time_us=sizes.time_us,
        step_tokens=tuple(sizes.by_tokens),
        step_times=tuple(sizes.by_time),
        time_ns=now,
        is_paused=state.is_paused,
        is_draining=state.is_draining,
    )
