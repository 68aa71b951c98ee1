"""What a supervisor refuses before it starts anything; whole servers are in tests/e2e."""

import signal
from pathlib import Path

import pytest

from services.runtime.settings import LinkSettings, ServerSettings, SettingsError
from services.runtime.supervisor import supervise


def _refused(settings: ServerSettings) -> str:
    """Why it is refused; nothing may have been started by then."""
    started: list[Path] = []
    with pytest.raises(SettingsError) as refusal:
        supervise(settings, started.append)
    assert started == []
    return str(refusal.value)


def test_a_run_directory_whose_path_is_too_long_for_a_socket_is_refused_and_removed(tmp_path: Path) -> None:
    run_dir = tmp_path / ("d" * 100)
    message = _refused(ServerSettings(links=LinkSettings(run_dir=str(run_dir))))
    assert "choose a shorter links.run_dir" in message
    assert not run_dir.exists()


@pytest.mark.parametrize("gateways", [("gateway-0", "gateway-1"), ("other",)])
def test_gateways_that_it_does_not_start_are_refused(gateways: tuple[str, ...]) -> None:
    message = _refused(ServerSettings(links=LinkSettings(gateways=gateways)))
    assert message == "links.gateways: a server of its own has one gateway, 'gateway-0'"


def test_ports_beyond_the_last_are_refused() -> None:
    message = _refused(ServerSettings(links=LinkSettings(transport="tcp", base_port=65530)))
    assert "65536" in message


def test_signal_handlers_are_as_they_were_afterwards(tmp_path: Path) -> None:
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    _refused(ServerSettings(links=LinkSettings(run_dir=str(tmp_path / ("d" * 100)))))
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
