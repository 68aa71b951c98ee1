"""The folder of a server: private, locked while it is used, gone afterwards."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.run_dir import SETTINGS_FILE, open_run_dir, publish
from services.runtime.settings import SettingsError


def test_a_private_folder_is_for_its_owner_alone_and_is_removed(tmp_path: Path) -> None:
    with open_run_dir("", tmp_path) as path:
        assert path.parent == tmp_path
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "socket").touch()
    assert list(tmp_path.iterdir()) == []


def test_two_servers_get_two_private_folders(tmp_path: Path) -> None:
    with open_run_dir("", tmp_path) as first, open_run_dir("", tmp_path) as second:
        assert first != second
        assert first.is_dir()


def test_a_wanted_folder_is_made_and_removed(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    with open_run_dir(str(wanted), tmp_path) as path:
        assert path == wanted
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "socket").touch()
    assert not wanted.exists()


def test_a_wanted_folder_that_was_there_keeps_what_it_held(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with open_run_dir(str(tmp_path), tmp_path) as path:
        (path / "socket").touch()
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("wanted", ["", "run", "."])
def test_nothing_is_left_after_an_error_either(tmp_path: Path, wanted: str) -> None:
    def fail(path: Path) -> None:
        (path / "socket").touch()
        raise RuntimeError

    with (
        pytest.raises(RuntimeError),
        open_run_dir(str(tmp_path / wanted) if wanted else "", tmp_path) as path,
    ):
        fail(path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_server_in_the_same_folder_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    wanted = str(tmp_path / "run")
    with open_run_dir(wanted, tmp_path) as path:
        (path / "socket").touch()
        with pytest.raises(SettingsError, match="another server runs in"), open_run_dir(wanted, tmp_path):
            pass
        assert (path / "socket").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(SettingsError, match=r"links\.run_dir: cannot make .*/file/run"),
        open_run_dir(str(tmp_path / "file" / "run"), tmp_path),
    ):
        pass


def test_what_a_killed_server_left_is_removed_by_the_next_and_what_a_living_one_uses_is_not(tmp_path: Path) -> None:
    program = (
        "import os, pathlib; from services.runtime.run_dir import SETTINGS_FILE, open_run_dir\n"
        f"with open_run_dir('', pathlib.Path('{tmp_path}')) as path:\n"
        "    (path / SETTINGS_FILE).touch()\n"
        "    os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    (left,) = tmp_path.iterdir()
    with open_run_dir("", tmp_path) as living:
        (living / SETTINGS_FILE).touch()
        assert not left.exists()
        with open_run_dir("", tmp_path):
            assert living.exists()


def test_a_folder_just_made_and_not_locked_yet_is_left_alone(tmp_path: Path) -> None:
    young = tmp_path / "tandem-young"
    young.mkdir()
    with open_run_dir("", tmp_path):
        assert young.exists()


def test_what_is_published_replaces_what_was_there_and_leaves_no_draft(tmp_path: Path) -> None:
    for text in ("first", "second"):
        publish(tmp_path / "gateway-0.listen", text)
    assert [path.name for path in tmp_path.iterdir()] == ["gateway-0.listen"]
    assert (tmp_path / "gateway-0.listen").read_text() == "second"
