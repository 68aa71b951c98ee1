"""Tenants and what each has been served: the virtual token counters of fair scheduling.

After Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), algorithm 2: a counter rises with the tokens
a tenant is given, weighted; the least served goes first; whoever returns from idleness is lifted to the least served
of the active, so that idle time cannot be saved up. Counts are integers in units of one prefill token / UNIT.
"""

from services.scheduler.core.sequence import Sequence, Tenant

UNIT = 100
PREFILL_WEIGHT = UNIT  # a prompt token that is computed
CACHED_WEIGHT = UNIT // 10  # a prompt token found in the prefix cache
DECODE_WEIGHT = 2 * UNIT  # an output token
MAX_IDLE = 4096  # idle tenants whose counters are remembered


class Tenants:
    """Active tenants have an open sequence; idle ones are remembered while their counter is above the floor."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._floor = 0  # counter of the least served active tenant, the last time there was one

    def join(self, name: str) -> Tenant:
        """One more open sequence of a tenant."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        if tenant.num_open == 0:
            self._raise_floor()
            tenant.served = max(tenant.served, self._floor)
        tenant.num_open += 1
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """One open sequence fewer."""
        if tenant.num_open == 1:
            self._raise_floor()
        tenant.num_open -= 1
        if tenant.num_open == 0 and len(self._tenants) > MAX_IDLE:
            self._forget()

    def serve_prompt(self, sequence: Sequence) -> None:
        """A prompt is admitted: charged whole, once, whatever is computed again later."""
        num_cached = sequence.num_cached_tokens
        num_computed = sequence.num_prompt_tokens - num_cached
        sequence.tenant.served += PREFILL_WEIGHT * num_computed + CACHED_WEIGHT * num_cached

    def serve_step(self) -> None:
        """Every carried row is given a token."""
        for tenant in self._tenants.values():
            tenant.served += DECODE_WEIGHT * tenant.num_carried

    def _raise_floor(self) -> None:
        active = [tenant.served for tenant in self._tenants.values() if tenant.num_open]
        if active:
            self._floor = max(self._floor, min(active))

    def _forget(self) -> None:
        """Idle tenants at or below the floor would be lifted to it anyway; beyond those, the oldest idle ones go."""
        idle = [tenant for tenant in self._tenants.values() if tenant.num_open == 0]
        for tenant in idle:
            if tenant.served <= self._floor or len(self._tenants) > 2 * MAX_IDLE:
                del self._tenants[tenant.name]
