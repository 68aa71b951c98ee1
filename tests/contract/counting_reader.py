"""A reading process for test_stopped_reader.py: receives so many messages, then says whether all came in order."""

import sys
from contextlib import closing

from services.wire.links import Poller, open_inlet
from services.wire.messages import Credit
from services.wire.topology import FEEDBACK

if __name__ == "__main__":
    address, count = sys.argv[1], int(sys.argv[2])
    with closing(open_inlet(FEEDBACK, address)) as inlet, closing(Poller(inlet)) as poller:
        print("bound", flush=True)
        seqs: list[int] = []
        while len(seqs) < count:
            poller.wait(1.0)
            seqs += [message.seq for message in inlet.receive() if isinstance(message, Credit)]
        print("in order" if seqs == list(range(count)) else f"wrong: {seqs[:20]}...", flush=True)
