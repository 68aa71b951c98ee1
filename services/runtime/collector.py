"""What the garbage collector of a service's process looks through once the service has started."""

import gc


def keep_loaded() -> None:
    """What is there by now stays for good, so that the collector never looks through it again.

    Modules and a vocabulary's tables are some 50,000 containers. To look through them takes 20 to 30 ms, in which a
    device would wait for its next plan, and whoever awaits a token for its text.
    """
    gc.collect()
    gc.freeze()
