"""The detokenizer's process: loads the vocabulary, opens its links, and turns tokens into text until it is stopped."""

import structlog

from services.detokenizer.incremental import Tables
from services.detokenizer.service import DetokenizerService
from services.detokenizer.streams import Streams
from services.runtime import process
from services.runtime.collector import keep_loaded
from services.runtime.lifecycle import Stop, run
from services.runtime.models import resolve
from services.runtime.settings import ServerSettings
from services.tokenizer import Tokenizer, load
from services.wire.links import Poller, finish, open_inlet, open_outlet
from services.wire.liveness import Heart
from services.wire.topology import FEEDBACK, TEXT, TOKENS

# The last words lie in the outlets when the loop ends; a peer that is gone is not waited for any longer.
FLUSH_S = 1.0


def serve(settings: ServerSettings, stop: Stop) -> None:
    """The vocabulary comes first: a link that shows life belongs to a process that is ready."""
    streams = Streams(tables_of(load(resolve(settings.model, with_weights=False))))
    links = settings.links
    topology = process.topology(links)
    tokens = open_inlet(TOKENS, topology.bound_address(TOKENS))
    texts = {
        gateway: open_outlet(TEXT, topology.address(TEXT, gateway), links.high_water_mark) for gateway in links.gateways
    }
    feedback = open_outlet(FEEDBACK, topology.address(FEEDBACK), links.high_water_mark)
    poller = Poller(tokens)
    stop.on_set(poller.waker().wake)
    service = DetokenizerService(streams, tokens, texts, feedback, settings.detokenizer.max_pending)
    alive = process.sign_of_life(links.run_dir, "detokenizer")
    heart = Heart([*texts.values(), feedback], links.heartbeat_s, alive)
    keep_loaded()
    structlog.get_logger().info("service.ready")
    try:
        service.run(poller, heart, links, lambda: stop.is_set)
    finally:
        finish(FLUSH_S)


def tables_of(tokenizer: Tokenizer) -> Tables:
    """What every token of this vocabulary adds to a text."""
    ids = range(tokenizer.vocab_size)
    return Tables([tokenizer.token_bytes(i) for i in ids], [i for i in ids if tokenizer.is_special(i)])


if __name__ == "__main__":
    run("detokenizer", serve)
