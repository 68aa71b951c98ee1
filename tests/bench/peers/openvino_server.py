"""OpenVINO GenAI's continuous batching behind the least of servers: streaming /v1/completions of token ids.

Its own server is no Python package, so this stands in: one thread steps the pipeline, one serves each connection, and
answers hold ids without text, which spares it the detokenizing that every other engine does.

Usage: PYTHON openvino_server.py MODEL PORT NUM_THREADS MAX_NUM_SEQS CACHE_GIB
"""

import itertools
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

Answer = queue.SimpleQueue[list[int] | None]  # lists of new ids as they come, then None


class Engine:
    """The pipeline and the requests in it. Only `run` touches the pipeline."""

    def __init__(self, model: str, num_threads: int, max_num_seqs: int, cache_gib: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_seqs = max_num_seqs
        scheduler.max_num_batched_tokens = 512
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": num_threads}
        )
        self._arrivals: queue.SimpleQueue[tuple[list[int], int, Answer]] = queue.SimpleQueue()
        self._numbers = itertools.count()

    def submit(self, prompt: list[int], max_tokens: int) -> Answer:
        """Join the next step."""
        answer: Answer = queue.SimpleQueue()
        self._arrivals.put((prompt, max_tokens, answer))
        return answer

    def run(self) -> None:
        """Step for ever."""
        live: list[tuple[Any, Answer]] = []
        while True:
            while not self._arrivals.empty() or not live:
                live.append(self._add(*self._arrivals.get()))
            self._pipeline.step()
            live = [entry for entry in live if not self._deliver(*entry)]

    def _add(self, prompt: list[int], max_tokens: int, answer: Answer) -> tuple[Any, Answer]:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        tensor = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(next(self._numbers), tensor, config), answer

    @staticmethod
    def _deliver(handle: Any, answer: Answer) -> bool:
        """Whether the request has ended."""
        has_ended: bool = handle.get_status() != genai.GenerationStatus.RUNNING
        while handle.can_read():
            for output in handle.read().values():
                answer.put(list(output.generated_ids))
        if has_ended:
            answer.put(None)
        return has_ended


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        """Ready."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """A streaming completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        answer = self.engine.submit(body["prompt"], body["max_tokens"])
        count = 0
        while (ids := answer.get()) is not None:
            count += len(ids)
            self._event({"choices": [{"text": "", "token_ids": ids}]})
        self._event({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _event(self, value: object) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class HttpServer(ThreadingHTTPServer):
    """Many may come at once."""

    request_queue_size = 256
    daemon_threads = True


def main(model: str, port: int, num_threads: int, max_num_seqs: int, cache_gib: int) -> None:
    """Serve until ended."""
    Handler.engine = Engine(model, num_threads, max_num_seqs, cache_gib)
    threading.Thread(target=Handler.engine.run, daemon=True).start()
    HttpServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
