"""The default model's tokenizer, and small ones made of a few tokens."""

from collections.abc import Sequence

import pytest

from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from services.tokenizer import Tokenizer, load
from services.tokenizer.vocabulary import TokenKind, Vocabulary


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load(resolve(ModelSettings()))


def small_vocabulary(
    specials: Sequence[str],
    *,
    chat_template: str | None = None,
    pre_tokenizer: str = "gpt-2",
    add_bos: bool | None = None,
    user_defined: Sequence[str] = (),
) -> Vocabulary:
    """Every byte is a token; the special tokens come first and the first of them is the BOS."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = [*map(chr, visible), *map(chr, range(0x100, 0x100 + 256 - len(visible)))]
    kinds = (
        [TokenKind.CONTROL] * len(specials) + [TokenKind.NORMAL] * 256 + [TokenKind.USER_DEFINED] * len(user_defined)
    )
    return Vocabulary(
        pre_tokenizer=pre_tokenizer,
        texts=(*specials, *alphabet, *user_defined),
        kinds=tuple(kinds),
        merges=(),
        eos_token_ids=(0,),
        bos_token_id=0 if specials else None,
        add_bos=add_bos,
        chat_template=chat_template,
    )
