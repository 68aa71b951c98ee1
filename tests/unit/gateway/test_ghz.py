"""The ghz configs, used as ghz uses them: the call found by reflection alone, its data filled into the request's JSON.

ghz asks for the file that contains the method's symbol, then for what that file imports, and refuses data with fields
that the request does not have.
"""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2 as pb

from gateway.reflection import SERVICE_NAMES as REFLECTIONS
from tests.unit.gateway.rig import Front, read, rest
from tests.unit.gateway.test_reflection import ask

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[3]
CONFIGS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "bench/ghz").glob("*.json"))
}
# The keys of ghz's own config that are used here, or that anybody would add.
KEYS = {"name", "call", "host", "insecure", "total", "concurrency", "connections", "skipFirst", "timeout", "data"}
KEYS |= {"async", "load-schedule", "load-start", "load-step", "load-end", "load-step-duration"}
KEYS |= {"stream-call-count", "count-errors"}
# What ghz's templates can say, as far as it is said here.
TEMPLATES: dict[str, Callable[[int], str]] = {
    r"\{\{\.RequestNumber\}\}": str,
    r"\{\{randomString \d+\}\}": lambda number: f"r{number:x}",
}


async def described(front: Front, symbol: str) -> MethodDescriptor:
    """A method, from what the server tells of itself."""
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    wanted = [pb.ServerReflectionRequest(file_containing_symbol=symbol)]
    while wanted:
        (reply,) = await ask(front, REFLECTIONS[-1], wanted.pop())
        assert reply.WhichOneof("message_response") == "file_descriptor_response", reply
        for raw in reply.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            files[file.name] = file
        missing = {name for file in files.values() for name in file.dependency} - files.keys()
        wanted = [pb.ServerReflectionRequest(file_by_filename=name) for name in sorted(missing)][:1]
    return pool_of(files).FindMethodByName(symbol)


def pool_of(files: dict[str, descriptor_pb2.FileDescriptorProto]) -> DescriptorPool:
    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name not in added:
            added.add(name)
            for needed in files[name].dependency:
                add(needed)
            pool.Add(files[name])

    for name in files:
        add(name)
    return pool


def filled(method: MethodDescriptor, data: object, number: int) -> Message:
    """The request of one call; fails on a field that is not there and a template that is not known."""
    text = json.dumps(data)
    for template, value in TEMPLATES.items():
        text = re.sub(template, value(number), text)
    assert "{{" not in text
    request = message_factory.GetMessageClass(method.input_type)()
    json_format.Parse(text, request, ignore_unknown_fields=False)
    return request


async def test_there_is_a_config_for_every_kind_of_load() -> None:
    assert CONFIGS.keys() >= {"unary", "stream", "first_token", "ramp"}
    for name, config in CONFIGS.items():
        assert config.keys() <= KEYS, name
        assert config["timeout"] == "120s", "ghz's own 20 s cut long answers off"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("number", [0, 7])
async def test_a_config_resolves_by_reflection_and_its_call_is_served(front: Front, name: str, number: int) -> None:
    config = CONFIGS[name]
    method = await described(front, config["call"].replace("/", "."))
    request = filled(method, config["data"], number)
    path = f"/{method.containing_service.full_name}/{method.name}"
    reply = message_factory.GetMessageClass(method.output_type)
    kind = front.channel.unary_stream if method.server_streaming else front.channel.unary_unary
    call: Any = kind(path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString)(
        request, timeout=10
    )
    submit = await front.engine.submit()
    front.engine.say(submit, "a", [5])
    if config.get("stream-call-count") == 1:
        assert (await read(call)).num_tokens == 1, "the first message carries a token: its latency is the first token's"
        call.cancel()
        assert (await front.engine.cancel()).identity == submit.identity, "leaving frees the request"
        return
    front.engine.end(submit)
    replies = await rest(call) if method.server_streaming else [await asyncio.wait_for(call, 5)]
    assert replies[-1].usage.completion_tokens == 2
    assert await call.code() is grpc.StatusCode.OK


async def test_two_calls_of_one_config_differ(front: Front) -> None:
    """Equal prompts would measure the prefix cache, and equal ids would collide."""
    for name, config in CONFIGS.items():
        method = await described(front, config["call"].replace("/", "."))
        assert filled(method, config["data"], 1) != filled(method, config["data"], 2), name
        assert "requestId" not in config["data"], name


async def test_the_protoset_serves_where_reflection_does_not() -> None:
    raw = (ROOT / "proto/tandem.protoset").read_bytes()
    files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file}
    for config in CONFIGS.values():
        method = pool_of(files).FindMethodByName(config["call"].replace("/", "."))
        assert filled(method, config["data"], 1)


async def test_make_ghz_runs_every_config_where_there_is_ghz(tmp_path: Path) -> None:
    ghz = tmp_path / "ghz"
    ghz.write_text('#!/bin/sh\necho "ghz: $*"\n')
    ghz.chmod(0o755)
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")

    def run(path: str) -> "subprocess.CompletedProcess[str]":
        command = [make, "ghz", "ARGS=--rps 5"]
        return subprocess.run(command, cwd=ROOT, env={"PATH": path}, capture_output=True, text=True)

    done = run(f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    told = {line for line in done.stdout.splitlines() if line.startswith("ghz: ")}
    assert told == {f"ghz: --config bench/ghz/{name}.json --rps 5" for name in CONFIGS}
    if shutil.which("ghz", path="/usr/bin:/bin") is None:
        assert "ghz is not on the PATH" in run("/usr/bin:/bin").stderr
