"""The gateway's process: python -m gateway --settings PATH.

Opens the links, starts the server, writes the address it bound to `<run_dir>/<name>.listen` (so that port 0 is of
use), and serves until told to stop.
"""

import asyncio
import gc
from functools import partial
from pathlib import Path

import uvloop

from gateway.about import about
from gateway.server import Ending, Links, Server
from services import tokenizer
from services.runtime import models, process
from services.runtime.collector import keep_loaded
from services.runtime.lifecycle import Stop, run
from services.runtime.run_dir import publish
from services.runtime.settings import ModelSettings, ServerSettings
from services.wire.links import open_async_inlet, open_outlet
from services.wire.topology import STATUS, SUBMIT, TEXT

# Containers made, less those gone again, before the youngest are looked through for cycles.
GC_THRESHOLD = 20_000


def serve(settings: ServerSettings, stop: Stop) -> None:
    """The body of the process."""
    uvloop.run(_serve(settings, stop))


async def _serve(settings: ServerSettings, stop: Stop) -> None:
    loop = asyncio.get_running_loop()
    links = _open_links(settings)
    server = Server(settings.gateway, settings.links, links, about(settings))

    def on_stop() -> None:
        loop.call_soon_threadsafe(lambda: server.stop(Ending(stop.kind)))

    stop.on_set(on_stop)
    address = await server.start()
    run_dir, name = Path(settings.links.run_dir), settings.gateway.name
    # The public address comes last: who has it may look for the others.
    if server.vllm_address:
        publish(run_dir / f"{name}.vllm", server.vllm_address)
    for what, bound in (("admin", server.operations.admin_address), ("metrics", server.operations.metrics_address)):
        if bound:
            publish(run_dir / f"{name}.{what}", bound)
    publish(run_dir / f"{name}.listen", address)
    try:
        await server.serve(partial(_load, settings.model))
    finally:
        links.texts.close()
        links.statuses.close()


def _load(model: ModelSettings) -> tokenizer.Tokenizer:
    """The tokenizer, fetched where the model is one of the hub, and then a calmer garbage collector.

    Messages and tasks come and go by the thousand, rarely in cycles, so rubbish is looked for less often.
    """
    loaded = tokenizer.load(models.resolve(model, with_weights=False))
    keep_loaded()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    return loaded


def _open_links(settings: ServerSettings) -> Links:
    wire, name = settings.links, settings.gateway.name
    topology = process.topology(wire)
    return Links(
        submits=open_outlet(SUBMIT, topology.address(SUBMIT), wire.high_water_mark),
        statuses=open_async_inlet(STATUS, topology.bound_address(STATUS, name)),
        texts=open_async_inlet(TEXT, topology.bound_address(TEXT, name)),
    )


if __name__ == "__main__":
    run("gateway", serve)
