"""Files from other people are opened, named and parsed without trust in them."""

from __future__ import annotations

import io
import os
import socket
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nanoset_core.errors import FormatError
from nanoset_core.storage.paths import has_control_characters, is_inside
from nanoset_core.storage.reading.npy_arrays import npy_array
from nanoset_core.storage.regular_files import map_regular, open_regular


class EndlessFile(NamedTuple):
    """A file without an end."""

    path: Path
    kind: str
    """What errors call it."""


# Opening files


@pytest.mark.parametrize("name", ["file", "link"])
def test_a_file_and_a_link_to_it_are_read_and_mapped(tmp_path, name):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")

    with open_regular(tmp_path / name) as file:
        assert file.read() == b"abc"
    assert map_regular(tmp_path / name)[:] == b"abc"


def test_an_empty_file_is_mapped(tmp_path):
    """The operating system refuses to map no bytes."""
    (tmp_path / "empty").touch()

    assert map_regular(tmp_path / "empty") == b""


@pytest.fixture(params=["a named pipe", "a character device"])
def endless_file(request: pytest.FixtureRequest, tmp_path: Path) -> EndlessFile:
    """A path whose reader would wait, or read, forever."""
    path = tmp_path / "endless"
    if request.param == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return EndlessFile(path, request.param)


@pytest.mark.parametrize("open_file", [open_regular, map_regular])
def test_a_file_without_an_end_is_refused(endless_file, open_file):
    n_open_files = len(os.listdir("/proc/self/fd"))

    with pytest.raises(FormatError, match=endless_file.kind) as caught:
        open_file(endless_file.path)

    assert caught.value.where == str(endless_file.path)
    assert len(os.listdir("/proc/self/fd")) == n_open_files


def test_a_missing_file_raises_the_error_of_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


def test_a_folder_raises_the_error_of_open(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_socket_raises_the_error_of_open(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))

        with pytest.raises(OSError, match="No such device or address"):
            open_regular(tmp_path / "s")


# Names of files


@pytest.mark.parametrize("name", ["a", "a.tar", "a/b c/d", "..a", "a..", "é漢", ".hidden"])
def test_a_relative_path_is_inside_of_its_folder(name):
    assert is_inside(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../a",
        "a/../b",
        "a/..",
        "./a",
        "a//b",
        "a/",
        "a\0b",
        pytest.param("\ud800", id="half of a surrogate pair"),
        None,
        7,
        b"a",
    ],
)
def test_a_path_that_may_lead_out_of_its_folder_is_not_inside(name):
    assert not is_inside(name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("x" * 256, id="name of 256 bytes"),
        pytest.param("a/" + "é" * 128, id="name of 128 characters of two bytes"),
        pytest.param("a/" * 2048 + "a", id="path of 4097 bytes"),
    ],
)
def test_a_path_that_is_too_long_for_file_systems_is_not_inside(name):
    assert not is_inside(name)


@pytest.mark.parametrize("text", ["a b", "日本\u3000語", "é-_.,"])
def test_a_text_without_control_characters_is_recognised(text):
    assert not has_control_characters(text)


@pytest.mark.parametrize("text", ["a\n", "\x1b[2J", "\x7f", "\u0085", "\t", "a\0"])
def test_a_text_with_control_characters_is_recognised(text):
    assert has_control_characters(text)


# Arrays of numpy


def npy_file(array: np.ndarray, version: tuple[int, int]) -> bytes:
    """Return an array as a .npy file of a version of the format, as numpy writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def forged_file(header: str, numbers: bytes = b"") -> bytes:
    """Return a .npy file of version 1.0 with any header, and the bytes of its numbers."""
    header_bytes = header.encode()
    header_size = len(header_bytes).to_bytes(2, "little")
    return b"\x93NUMPY" + b"\x01\x00" + header_size + header_bytes + numbers


@given(
    arrays.arrays(
        st.sampled_from(["<u1", "<u2", "<i4", "<i8", ">u4", "<f4", "<f8", "|b1"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_an_array_is_read_as_numpy_wrote_it(array, version):
    written_array = np.ascontiguousarray(array).reshape(array.shape)

    read_array = npy_array(npy_file(written_array, version))

    np.testing.assert_array_equal(read_array, written_array)
    assert read_array.dtype == written_array.dtype
    assert read_array.shape == written_array.shape


HOSTILE_FILES = {
    "empty file": b"",
    "another file": b"PK\x03\x04" + bytes(40),
    "objects": forged_file(
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"12345678"
    ),
    "fields": forged_file(
        "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,), }\n", b"12"
    ),
    "code": forged_file(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }\n", b"12"
    ),
    "open brackets": forged_file("{'descr': '<u2', 'fortran_order': False, 'shape': " + "(" * 5000),
    "more numbers than there are": forged_file(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776,), }", b"12"
    ),
    "fewer numbers than there are": forged_file(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }", b"1234"
    ),
    "a product beyond 64 bits": forged_file(
        f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({2**62}, 8), }}"
    ),
    "an odd type": forged_file("{'descr': '<u3', 'fortran_order': False, 'shape': (1,), }", b"123"),
    "one key twice": forged_file("{'descr': '<u2', 'descr': '<u2', 'shape': (1,), }", b"12"),
    "columns first": forged_file(
        "{'descr': '<u1', 'fortran_order': True, 'shape': (2, 2), }", b"1234"
    ),
    "a header past the end": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
}
"""What is wrong with a file → its content."""


@pytest.mark.parametrize("data", HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_a_hostile_file_is_refused_without_much_memory(data):
    max_bytes = 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\.npy|header|bytes of numbers|Fortran|data type"):
            npy_array(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < max_bytes
