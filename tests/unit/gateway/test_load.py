"""What a gateway makes of the engine's load and of its settings, before anybody asks."""

import msgspec
import pytest

from gateway.about import about
from gateway.control import SERVICES
from gateway.load import LoadHistory, kv_usage, rates
from services.runtime.settings import GatewaySettings, ServerSettings
from services.runtime.supervisor import MODULES
from services.wire.messages import Load

LOAD = Load(3, 2, 10, 40, 1.5, num_steps=100, num_output_tokens=1000, num_prompt_tokens=500, time_ns=10**9)


def test_rates_need_two_loads_and_time() -> None:
    history = LoadHistory()
    assert history.rates() == rates(LOAD, LOAD)
    history.note(LOAD)
    assert history.rates().output_tokens == 0
    for tenth in range(1, 31):
        time_ns = LOAD.time_ns + tenth * 10**8
        history.note(msgspec.structs.replace(LOAD, num_output_tokens=1000 + 10 * tenth, time_ns=time_ns))
    assert history.rates().output_tokens == pytest.approx(100)
    baseline, last = history.baseline(), history.last
    assert baseline is not None and last is not None
    assert 0.9e9 <= last.time_ns - baseline.time_ns <= 2e9


def test_the_usage_of_no_blocks_is_none() -> None:
    assert kv_usage(Load(0, 0, 0, 0, 0.0)) == 0.0


def test_settings_are_told_and_secrets_are_not() -> None:
    told = about(ServerSettings(gateway=GatewaySettings(listen="unix:/x", drain_s=7.0)))
    assert (told["gateway.listen"], told["gateway.drain_s"]) == ("unix:/x", "7.0")
    assert (told["scheduler.policy"], told["log_level"]) == ("fcfs", "info")
    assert not [key for key in told if any(word in key for word in ("key", "auth", "bearer", "cert"))]


def test_log_levels_can_be_set_for_every_process_there_is() -> None:
    assert set(SERVICES) == set(MODULES)
