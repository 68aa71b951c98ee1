"""The gateway's side for the overlap benchmark: submits requests once the engine is ready, and reads what comes back.

Usage: python -m tests.bench.overlap_driver RUN_DIR NUM_REQUESTS MAX_TOKENS
"""

import sys
import time

from services.runtime import process
from services.runtime.settings import LinkSettings
from services.wire import columns
from services.wire.links import Poller, open_inlet, open_outlet
from services.wire.liveness import Heart
from services.wire.messages import EngineReady, Identity, Output, Sampling, Stopping, Submit
from services.wire.topology import STATUS, SUBMIT, TEXT


def main(run_dir: str, num_requests: int, max_tokens: int) -> None:
    """Serve until killed."""
    at = LinkSettings(run_dir=run_dir)
    gateway = at.gateways[0]
    topology = process.topology(at)
    text = open_inlet(TEXT, topology.bound_address(TEXT, gateway))
    status = open_inlet(STATUS, topology.bound_address(STATUS, gateway))
    submit = open_outlet(SUBMIT, topology.address(SUBMIT), at.high_water_mark)
    poller = Poller(text, status)
    heart = Heart((submit,), at.heartbeat_s)
    is_engine_ready = has_begun = False
    while True:
        heart.beat(time.monotonic())
        is_engine_ready |= any(isinstance(message, EngineReady) for message in status.receive())
        text.receive()
        # Like a gateway, it waits for the detokenizer too: without its credit the scheduler pauses.
        if is_engine_ready and text.last_heard() and not has_begun:
            has_begun = True
            for number in range(num_requests):
                identity = Identity(gateway, f"bench-{number}", number)
                # Prompts that differ: equal ones would wait for one another's prefix.
                prompt = columns.pack([100 + number, 7, 8, 9])
                submit.send(Submit(identity, prompt, Sampling(), Stopping(max_tokens), Output()))
        poller.wait(0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
