"""The least a Python server of gRPC can do with a stream: write the same bytes again and again, and nothing else.

python -m tests.bench.bare_stream STEP_S GATHERED: every STEP_S seconds one stream in GATHERED gets a message, by turns,
all of them in one go; on the loop that the gateway runs on. Prints its address. What this costs is the library's own
cost, the floor under the gateway's.
"""

import asyncio
import gc
import sys

import grpc
import uvloop

PATH = "/bare.Bare/Stream"
MESSAGE = b"x" * 40  # about as long as a token's


async def serve(step_s: float, gathered: int) -> None:
    """Until the process is ended."""
    loop = asyncio.get_running_loop()
    waiting: list[list[asyncio.Future[None]]] = [[] for _ in range(gathered)]
    num_calls = 0

    async def stream(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        nonlocal num_calls
        turn = num_calls % gathered
        num_calls += 1
        while True:
            due = loop.create_future()
            waiting[turn].append(due)
            await due
            await context.write(MESSAGE)

    server = grpc.aio.server()
    service, method = PATH.strip("/").split("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    gc.freeze()
    then, step = loop.time(), 0
    while True:
        then, step = max(then + step_s, loop.time()), step + 1
        await asyncio.sleep(then - loop.time())
        turn = step % gathered
        due, waiting[turn] = waiting[turn], []
        for each in due:
            if not each.done():
                each.set_result(None)


if __name__ == "__main__":
    uvloop.run(serve(float(sys.argv[1]), int(sys.argv[2])))
