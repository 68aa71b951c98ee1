"""The public face of Tandem: Client and AsyncClient, what they return and raise, and the `tandem` command.

    from tandem import Client

    with Client("127.0.0.1:50051") as client:
        for chunk in client.stream_chat([{"role": "user", "content": "Hello"}]):
            print(chunk.text, end="")

The generated stubs of the contract are in tandem.v1.
"""

from tandem.aio import AsyncClient, AsyncStream
from tandem.client import Client, Stream
from tandem.connection import Tls
from tandem.errors import TandemError
from tandem.options import ChatOptions, Options
from tandem.results import (
    Candidate,
    Chunk,
    Completion,
    Finish,
    Generation,
    Model,
    Timings,
    TokenLogprobs,
    Usage,
)
from tandem.retries import NO_RETRIES, Retries
from tandem.tool_calls import ToolCall, ToolCallDelta

__all__ = [
    "NO_RETRIES",
    "AsyncClient",
    "AsyncStream",
    "Candidate",
    "ChatOptions",
    "Chunk",
    "Client",
    "Completion",
    "Finish",
    "Generation",
    "Model",
    "Options",
    "Retries",
    "Stream",
    "TandemError",
    "Timings",
    "Tls",
    "TokenLogprobs",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
]
