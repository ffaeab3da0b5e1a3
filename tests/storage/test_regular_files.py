"""Files that others delivered: opening them, their names, and numpy's arrays in them."""

from __future__ import annotations

import io
import os
import socket
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nanoset_core.errors import FormatError
from nanoset_core.storage.npy_arrays import npy_array
from nanoset_core.storage.paths import has_control_characters, is_inside
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
    with (
        socket.socket(socket.AF_UNIX) as server,
        pytest.raises(OSError, match="No such device or address"),
    ):
        server.bind(str(tmp_path / "s"))
        open_regular(tmp_path / "s")


@pytest.mark.parametrize("name", ["a", "a.tar", "a/b c/d", "..a", "a..", "é漢", ".hidden"])
def test_inside(name):
    assert is_inside(name)


OUTSIDE = [
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
    "\ud800",
    None,
    7,
    b"a",
]
TOO_LONG = ["x" * 256, "a/" + "é" * 128, "a/" * 2048 + "a"]


@pytest.mark.parametrize("name", [*OUTSIDE, *TOO_LONG])
def test_outside(name):
    assert not is_inside(name)


def test_control_characters():
    assert not any(map(has_control_characters, ["a b", "日本\u3000語", "é-_.,"]))
    assert all(map(has_control_characters, ["a\n", "\x1b[2J", "\x7f", "\u0085", "\t", "a\0"]))


def saved(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def forged(header, numbers=b"", version=b"\x01\x00"):
    text = header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + numbers


@given(
    arrays.arrays(
        st.sampled_from(["<u1", "<u2", "<i4", "<i8", ">u4", "<f4", "<f8", "|b1"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_what_numpy_writes(array, version):
    array = np.ascontiguousarray(array).reshape(array.shape)
    found = npy_array(saved(array, version))
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


HOSTILE = {
    "nothing": b"",
    "another file": b"PK\x03\x04" + bytes(40),
    "objects": forged("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"12345678"),
    "fields": forged("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,), }\n", b"12"),
    "code": forged(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }\n", b"12"
    ),
    "open brackets": forged("{'descr': '<u2', 'fortran_order': False, 'shape': " + "(" * 5000),
    "more numbers than there are": forged(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776,), }", b"12"
    ),
    "fewer": forged("{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }", b"1234"),
    "a product beyond 64 bits": forged(
        f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({2**62}, 8), }}"
    ),
    "an odd type": forged("{'descr': '<u3', 'fortran_order': False, 'shape': (1,), }", b"123"),
    "one key twice": forged("{'descr': '<u2', 'descr': '<u2', 'shape': (1,), }", b"12"),
    "columns first": forged("{'descr': '<u1', 'fortran_order': True, 'shape': (2, 2), }", b"1234"),
    "a header past the end": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\.npy|header|bytes of numbers|Fortran|data type"):
            npy_array(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
