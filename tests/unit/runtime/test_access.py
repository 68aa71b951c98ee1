"""The file of bearer tokens: what it may say, and what is wrong with one that may not be."""

from pathlib import Path

import pytest

from services.runtime import access
from services.runtime.access import AccessToken
from services.runtime.settings import SettingsError

HASH = access.digest("a token")
OTHER = access.digest("another")


def written(path: Path, text: str) -> Path:
    file = path / "tokens.toml"
    file.write_text(text)
    return file


def test_a_token_has_a_name_a_hash_and_bounds(tmp_path: Path) -> None:
    text = f'[[token]]\nname = "a"\nsha256 = "{HASH}"\ntenant = "t"\nmax_calls = 3\nmax_calls_per_minute = 60\n'
    text += f'[[token]]\nname = "b"\nsha256 = "{OTHER}"\n'
    a, b = access.load(written(tmp_path, text))
    assert a == AccessToken(name="a", sha256=HASH, tenant="t", max_calls=3, max_calls_per_minute=60)
    assert (b.tenant, b.max_calls, b.max_calls_per_minute) == ("", 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no .*token"),
        ("[[token]", "tokens.toml: "),
        (f'[[token]]\nsha256 = "{HASH}"', "name"),
        ('[[token]]\nname = "a"\nsha256 = "plain"', "sha256"),
        (f'[[token]]\nname = "a"\nsha256 = "{HASH}"\nquota = 3', "quota"),
        (f'[[token]]\nname = "a"\nsha256 = "{HASH}"\nmax_calls = -1', "max_calls"),
        (
            f'[[token]]\nname = "a"\nsha256 = "{HASH}"\n[[token]]\nname = "a"\nsha256 = "{OTHER}"',
            "name 'a' is there twice",
        ),
        (
            f'[[token]]\nname = "a"\nsha256 = "{HASH}"\n[[token]]\nname = "b"\nsha256 = "{HASH.upper()}"',
            "sha256 .* twice",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"^gateway.tokens: .*{why}"):
        access.load(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^gateway.tokens: .*absent.toml: No such file"):
        access.load(tmp_path / "absent.toml")


def test_minted_tokens_differ_and_are_long() -> None:
    tokens = {access.mint() for _ in range(100)}
    assert len(tokens) == 100 and min(map(len, tokens)) >= 40
