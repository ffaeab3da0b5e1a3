"""Reading .npy files that nobody vouches for."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nanoset_core.storage.regular_files import array_of


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
    found = array_of(saved(array, version))
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


HOSTILE = {
    "nothing": b"",
    "another file": b"PK\x03\x04" + bytes(40),
    "objects": forged("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"12345678"),
    "fields": forged("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,), }\n", b"12"),
    "code": forged("{'descr': '<u2', 'fortran_order': False, 'shape': (__import__('os').getpid(),), }\n", b"12"),
    "open brackets": forged("{'descr': '<u2', 'fortran_order': False, 'shape': " + "(" * 5000),
    "more numbers than there are": forged(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776,), }", b"12"
    ),
    "fewer": forged("{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }", b"1234"),
    "a product beyond 64 bits": forged(f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({2**62}, 8), }}"),
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
            array_of(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
