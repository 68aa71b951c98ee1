"""Bad input against a whole server: refused by name, while a neighbour's stream goes on and every process lives."""

from typing import Any

import grpc

from tandem import Client
from tandem.v1 import chat_pb2 as chat
from tandem.v1 import inference_pb2 as pb
from tandem.v1 import models_pb2 as models
from tests.e2e.serving import Serving
from tests.unit.gateway.bad_rows import Row, rows
from tests.unit.gateway.rig import failure

REPLIES: dict[str, Any] = {
    "InferenceService/Generate": pb.GenerateResponse,
    "InferenceService/StreamGenerate": pb.GenerateChunk,
    "InferenceService/Tokenize": pb.TokenizeResponse,
    "InferenceService/Detokenize": pb.DetokenizeResponse,
    "ChatService/Chat": chat.ChatResponse,
    "ChatService/StreamChat": chat.ChatChunk,
    "ModelService/GetModel": models.GetModelResponse,
}


def refused(channel: grpc.Channel, row: Row) -> Any:
    """The error that a bad request ends in."""
    is_stream = "/Stream" in row.method
    make = channel.unary_stream if is_stream else channel.unary_unary
    call: Any = make(f"/tandem.v1.{row.method}", type(row.request).SerializeToString, REPLIES[row.method].FromString)
    try:
        answer = call(row.request, timeout=10)
        if is_stream:
            next(answer)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"{row} was taken")


def test_every_bad_request_is_refused_and_nobody_else_notices(echo: Serving) -> None:
    start = echo.position()
    prompt = list(range(100, 150))
    with Client(echo.address) as client, grpc.insecure_channel(echo.address) as channel:
        table = list(rows(described(channel)))
        assert len(table) >= 60
        with client.stream_generate(prompt, max_tokens=400, ignore_eos=True, return_token_ids=True) as neighbour:
            heard = list(next(neighbour).token_ids)
            for row in table:
                error = failure(refused(channel, row))
                assert (error.reason, error.fields) == (row.reason, (row.field,) if row.field else ()), row
            heard += [token for chunk in neighbour for token in chunk.token_ids]
    assert heard == (prompt * 8)[:400]
    state = echo.idle(start)
    assert state["num_free_blocks"] == state["num_blocks"]
    submitted = [entry for entry in echo.entries(start) if entry["event"] == "request.submitted"]
    assert {entry["service"] for entry in submitted} == {"gateway", "scheduler"}
    assert len(submitted) == 2, "only the neighbour may reach the engine"


def described(channel: grpc.Channel) -> models.Model:
    call: Any = channel.unary_unary(
        "/tandem.v1.ModelService/GetModel",
        models.GetModelRequest.SerializeToString,
        models.GetModelResponse.FromString,
    )
    model: models.Model = call(models.GetModelRequest(), timeout=10).model
    return model
