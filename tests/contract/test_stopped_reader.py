"""A receiving process that is stopped for a while and goes on afterwards loses nothing, however much was sent."""

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from services.wire.links import open_outlet
from services.wire.messages import Credit
from services.wire.topology import FEEDBACK
from tests.contract.ends import PATIENCE_S
from tests.ports import free_port

NUM_MESSAGES = 5000


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_stopped_reader_that_goes_on_gets_everything(transport: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/feedback" if transport == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.contract.counting_reader", address, str(NUM_MESSAGES)]
    with (
        closing(open_outlet(FEEDBACK, address, high_water_mark=NUM_MESSAGES)) as outlet,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader,
    ):
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "bound\n"
            outlet.send(Credit("g", 0))
            reader.send_signal(signal.SIGSTOP)
            for number in range(1, NUM_MESSAGES):
                outlet.send(Credit("g" * 200, number))
            reader.send_signal(signal.SIGCONT)
            assert reader.communicate(timeout=PATIENCE_S)[0] == "in order\n"
        finally:
            reader.kill()
