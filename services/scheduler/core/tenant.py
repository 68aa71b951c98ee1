"""Tenants and what each has been served: the virtual token counters of fair scheduling.

After Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), algorithm 2: a counter rises with the tokens
a tenant is given, weighted; the least served goes first; whoever returns from idleness is lifted to the least served
of the active, less a head start, so that idle time cannot be saved up beyond it. Here prompts are charged as they are
computed, chunk by chunk. Counts are integers in units of one prefill token / UNIT.
"""

from services.scheduler.core.sequence import Sequence, Tenant

UNIT = 100
PREFILL_WEIGHT = UNIT  # a prompt token that is computed
CACHED_WEIGHT = UNIT // 10  # a prompt token found in the prefix cache
FORKED_WEIGHT = 0  # a prompt token shared with another sample of the request, which was charged for it
DECODE_WEIGHT = 2 * UNIT  # an output token
MAX_IDLE = 4096  # idle tenants whose counters are remembered


class Tenants:
    """Active tenants have an open sequence; idle ones are remembered while their counter is above the level that they
    would be lifted to anyway. head_start: prompt tokens that whoever returns may be behind the least served."""

    def __init__(self, head_start: int = 0) -> None:
        self._head_start = head_start * PREFILL_WEIGHT
        self._active: dict[str, Tenant] = {}
        self._idle: dict[str, Tenant] = {}  # longest idle first
        self._floor = 0  # counter of the least served active tenant, the last time there was one

    def join(self, name: str) -> Tenant:
        """One more open sequence of a tenant."""
        tenant = self._active.get(name)
        if tenant is None:
            self._raise_floor()
            tenant = self._idle.pop(name) if name in self._idle else Tenant(name)
            self._active[name] = tenant
            tenant.served = max(tenant.served, self._floor - self._head_start)
        tenant.num_open += 1
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """One open sequence fewer."""
        tenant.num_open -= 1
        if tenant.num_open == 0:
            self._raise_floor()
            del self._active[tenant.name]
            if tenant.served > self._floor - self._head_start:
                self._idle[tenant.name] = tenant
                if len(self._idle) > MAX_IDLE:
                    del self._idle[next(iter(self._idle))]

    def serve_prompt(self, sequence: Sequence, end: int, weight: int) -> None:
        """A prompt is served up to `end`: each token is charged once, whatever is computed again later."""
        num_prompt = sequence.num_prompt_tokens
        num_more = (end if end < num_prompt else num_prompt) - sequence.num_charged_tokens
        if num_more > 0:
            sequence.num_charged_tokens += num_more
            sequence.tenant.served += weight * num_more

    def serve_token(self, tenant: Tenant) -> None:
        """A row that was not carried puts out a token."""
        tenant.served += DECODE_WEIGHT

    def serve_step(self) -> None:
        """Every carried row is given a token."""
        for tenant in self._active.values():
            tenant.served += DECODE_WEIGHT * tenant.num_carried

    def _raise_floor(self) -> None:
        if self._active:
            self._floor = max(self._floor, min(tenant.served for tenant in self._active.values()))
