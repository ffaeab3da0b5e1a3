"""The nearest folder above a path that exists, in which a folder of this path can be created."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nanoset_core.storage.paths import nearest_existing


@pytest.mark.parametrize(
    ("path", "existing"),
    [
        pytest.param("data", "data", id="the folder itself"),
        pytest.param("data/new/outputs", "data", id="the second folder above it"),
        pytest.param("data/file/outputs", "data/file", id="a file that is in the way"),
    ],
)
def test_the_nearest_path_that_exists_is_found(tmp_path, path, existing):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").touch()

    assert nearest_existing(tmp_path / path) == tmp_path / existing


def test_a_relative_path_is_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert nearest_existing(Path("new/outputs")) == Path()


def test_a_folder_that_this_user_may_not_look_into_is_the_nearest_one(tmp_path, monkeypatch):
    private = tmp_path / "private"
    private.mkdir()
    stat = os.stat

    def refuse_below_private(path: Any, **options: Any) -> os.stat_result:
        if private in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse_below_private)

    assert nearest_existing(private / "new/outputs") == private
