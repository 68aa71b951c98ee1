"""`tandem token`: what it prints is what a server reads."""

from pathlib import Path

from typer.testing import CliRunner

from services.runtime import access
from tandem.cli import app


def test_the_entry_goes_into_the_file_and_the_token_to_its_owner(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["token", "search", "--tenant", "t", "--max-calls", "3"])
    more = CliRunner().invoke(app, ["token", "b"])
    assert (made.exit_code, more.exit_code) == (0, 0)
    (tmp_path / "tokens.toml").write_text(made.stdout + more.stdout)
    first, second = access.load(tmp_path / "tokens.toml")
    assert (first.name, first.tenant, first.max_calls, first.max_calls_per_minute) == ("search", "t", 3, 0)
    token = made.stderr.split()[-1]
    assert first.sha256 == access.digest(token) and token not in made.stdout
    assert second.name == "b" and second.sha256 != first.sha256
