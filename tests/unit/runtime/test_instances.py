"""What the supervisor learns of executors from the files that others write: ready, lost, or both and so hanging."""

from pathlib import Path

import pytest

from services.runtime import instances


def test_an_empty_folder_knows_of_none(tmp_path: Path) -> None:
    assert not instances.is_ready(tmp_path)
    assert not instances.is_lost(tmp_path)
    instances.clear(tmp_path)


def test_one_that_is_ready_is_not_lost(tmp_path: Path) -> None:
    instances.tell_ready(str(tmp_path), 7)
    assert instances.is_ready(tmp_path)
    assert not instances.is_lost(tmp_path)


def test_one_that_was_ready_and_is_no_longer_heard_hangs(tmp_path: Path) -> None:
    instances.tell_ready(str(tmp_path), 7)
    instances.tell_lost(str(tmp_path), 7)
    assert instances.is_lost(tmp_path)


def test_the_loss_of_an_earlier_one_says_nothing_about_the_present_one(tmp_path: Path) -> None:
    instances.tell_ready(str(tmp_path), 7)
    instances.clear(tmp_path)  # it is dead, and the next one loads
    instances.tell_lost(str(tmp_path), 7)
    assert not instances.is_ready(tmp_path)
    assert not instances.is_lost(tmp_path)
    instances.tell_ready(str(tmp_path), 8)
    assert instances.is_ready(tmp_path)
    assert not instances.is_lost(tmp_path)


def test_clearing_forgets_both_and_leaves_nothing(tmp_path: Path) -> None:
    instances.tell_ready(str(tmp_path), 7)
    instances.tell_lost(str(tmp_path), 7)
    instances.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    instances.tell_ready("", 7)
    instances.tell_lost("", 7)
    assert list(tmp_path.iterdir()) == []
