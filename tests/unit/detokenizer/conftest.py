"""The default model's vocabulary, as the detokenizer sees it."""

import pytest

from services.detokenizer.__main__ import tables_of
from services.detokenizer.incremental import Tables
from services.detokenizer.streams import Streams
from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from services.tokenizer import Tokenizer, load


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load(resolve(ModelSettings()))


@pytest.fixture(scope="session")
def tables(tokenizer: Tokenizer) -> Tables:
    return tables_of(tokenizer)


@pytest.fixture
def streams(tables: Tables) -> Streams:
    return Streams(tables)
