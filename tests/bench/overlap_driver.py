"""The far side of the scheduler for the overlap benchmark: submits requests, takes tokens in, gives credit.

Usage: python -m tests.bench.overlap_driver RUN_DIR NUM_REQUESTS MAX_TOKENS
"""

import sys
import time

from services.runtime.settings import LinkSettings
from services.wire import columns
from services.wire.links import Poller, open_inlet, open_outlet
from services.wire.liveness import Heart
from services.wire.messages import Credit, EngineReady, Identity, Output, Sampling, Stopping, Submit
from services.wire.topology import FEEDBACK, STATUS, SUBMIT, TOKENS, Topology

PROMPT = columns.pack([7, 8, 9, 10])


def main(run_dir: str, num_requests: int, max_tokens: int) -> None:
    """Serve until killed."""
    at = LinkSettings(run_dir=run_dir)
    gateway = at.gateways[0]
    topology = Topology(at.transport, at.run_dir, at.host, at.base_port, at.gateways)
    tokens = open_inlet(TOKENS, topology.address(TOKENS))
    status = open_inlet(STATUS, topology.address(STATUS, gateway))
    submit = open_outlet(SUBMIT, topology.address(SUBMIT), at.high_water_mark)
    feedback = open_outlet(FEEDBACK, topology.address(FEEDBACK), at.high_water_mark)
    poller = Poller(tokens, status)
    heart = Heart((submit, feedback), at.heartbeat_s)
    while True:
        heart.beat(time.monotonic())
        for message in status.receive():
            if isinstance(message, EngineReady):
                for number in range(num_requests):
                    identity = Identity(gateway, f"bench-{number}", number)
                    submit.send(Submit(identity, PROMPT, Sampling(), Stopping(max_tokens), Output()))
        for batch in tokens.receive():
            feedback.send(Credit(gateway, batch.number))
        poller.wait(0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
