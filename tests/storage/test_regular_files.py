"""Opening files that others delivered."""

from __future__ import annotations

import os
import socket

import pytest

from nanoset_core.errors import FormatError
from nanoset_core.storage.regular_files import map_regular, open_regular


def test_a_file_is_read_and_mapped_also_through_a_link(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"abc"
        assert map_regular(tmp_path / name)[:] == b"abc"
    (tmp_path / "empty").touch()
    assert map_regular(tmp_path / "empty") == b""


@pytest.mark.parametrize("kind", ["a named pipe", "a character device"])
def test_what_would_not_end_is_not_read(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    open_files = len(os.listdir("/proc/self/fd"))
    for use in (open_regular, map_regular):
        with pytest.raises(FormatError, match=kind) as caught:
            use(path)
        assert caught.value.where == str(path)
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_other_errors_are_those_of_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with socket.socket(socket.AF_UNIX) as server, pytest.raises(OSError, match="No such device or address"):
        server.bind(str(tmp_path / "s"))
        open_regular(tmp_path / "s")
