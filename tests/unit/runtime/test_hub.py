"""Models by their name on the hub, of which a small one is made here: a table of files behind HTTP."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.runtime import hub
from services.runtime.models import resolve
from services.runtime.settings import ModelSettings, SettingsError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "model.safetensors": bytes(100), "notes.bin": b"no"}
SHARDS = {"a.safetensors": b"a", "b.safetensors": b"b"}
SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}).encode(),
    **SHARDS,
}
REPOSITORIES = {
    "org/sharded": SHARDED,
    "org/model": FILES,
    "org/texts": {"README.md": b""},
    "org/broken": {**SHARDED, "model.safetensors.index.json": b"<html>"},
    "org/packed": {"small.gguf": b"GGUF"},
}


class Hub(BaseHTTPRequestHandler):
    """What the client asks for: a repository's commit and files, and each file's content."""

    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        self.asked.append("/".join(path))
        files = REPOSITORIES.get("/".join(path[2:4] if path[0] == "api" else path[:2]))
        if files is None:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif path[0] == "api" and "tree" in path:
            rows = [{"type": "file", "path": n, "size": len(c), "oid": _etag(c)} for n, c in files.items()]
            self._send(200, json.dumps(rows).encode())
        elif path[0] == "api":
            siblings = [{"rfilename": name} for name in files]
            self._send(200, json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            content = files["/".join(path[4:])]
            self._send(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_is_fetched_once_and_then_found_without_a_network(address: str) -> None:
    folder = resolve(ModelSettings(path="org/model", hub=address))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content for name, content in FILES.items() if name != "notes.bin"
    }
    Hub.asked.clear()
    assert resolve(ModelSettings(path="org/model", hub="http://127.0.0.1:9")) == folder
    assert Hub.asked == []


def test_the_text_side_fetches_no_weights(address: str) -> None:
    folder = resolve(ModelSettings(path="org/model", hub=address), with_weights=False)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "tokenizer.json"]
    assert (resolve(ModelSettings(path="org/model", hub=address)) / "model.safetensors").is_file()


def test_a_download_that_was_broken_off_is_made_whole(address: str) -> None:
    folder = resolve(ModelSettings(path="org/sharded", hub=address))
    (folder / "b.safetensors").unlink()
    assert (resolve(ModelSettings(path="org/sharded", hub=address)) / "b.safetensors").read_bytes() == b"b"


def test_what_another_program_left_without_a_tokenizer_is_made_whole(address: str) -> None:
    folder = resolve(ModelSettings(path="org/model", hub=address))
    (folder / "tokenizer.json").unlink()
    assert (resolve(ModelSettings(path="org/model", hub=address)) / "tokenizer.json").is_file()


def test_a_file_of_a_repository_has_a_name_too(address: str) -> None:
    assert resolve(ModelSettings(path="org/packed/small.gguf", hub=address)).read_bytes() == b"GGUF"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("org/nobody", "org/nobody cannot be fetched from the hub: "),
        ("org/texts", "the hub has no config.json, tokenizer.json and safetensors there"),
        ("org/broken", "org/broken cannot be fetched from the hub: Expecting value"),
        ("org/with--dashes", "org/with--dashes cannot be fetched from the hub: "),
        ("org/packed/../small.gguf", "there is no org/packed/../small.gguf"),
        ("org/packed/large.gguf", "the hub has no large.gguf there"),
        ("nowhere", "there is no nowhere"),
        ("/nowhere/at/all", "there is no /nowhere/at/all"),
    ],
)
def test_what_is_not_there_is_named(address: str, path: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=r"^model\.path: ") as raised:
        resolve(ModelSettings(path=path, hub=address))
    assert reason in str(raised.value)


def test_without_a_network_it_is_said_what_to_do(address: str) -> None:
    with pytest.raises(SettingsError, match=r"org/other .*: copy the model's folder to this machine"):
        resolve(ModelSettings(path="org/other", hub="http://127.0.0.1:9"))


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="pip install huggingface-hub"):
        resolve(ModelSettings(path="org/model"))
