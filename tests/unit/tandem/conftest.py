"""The gateway that the tests of the SDK and the command talk to is the one of the gateway's own tests."""

from tests.unit.gateway.conftest import front, logged, shared_front, tokenizer

__all__ = ["front", "logged", "shared_front", "tokenizer"]
