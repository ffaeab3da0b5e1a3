import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import FormatError
from nanoset_core.shuffling.tar import (
    TarMember,
    end_of_archive,
    headers,
    iterate_members,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "webdataset"


def our_tar(members):
    """Archive of (name, body) pairs; all names of one length."""
    names = np.array([list(name.encode()) for name, _ in members], dtype=np.uint8).reshape(len(members), -1)
    sizes = np.array([len(body) for _, body in members], dtype=np.int64)
    block = headers(names, sizes)
    records = b"".join(
        head.tobytes() + body + bytes(-len(body) % 512) for head, (_, body) in zip(block, members, strict=True)
    )
    return records + end_of_archive(len(records))


def their_tar(members):
    """The same by Python's tarfile."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


@settings(deadline=None, max_examples=60)
@given(
    bodies=st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * 511, b"y" * 512, b"z" * 9000])),
        min_size=1,
        max_size=30,
    ),
    width=st.integers(1, 100),
)
def test_bytes_equal_those_of_tarfile(bodies, width):
    members = [(f"{i:0{width}d}"[:width], body) for i, body in enumerate(bodies)]
    assert our_tar(members) == their_tar(members)


@pytest.mark.parametrize("shard", sorted(GOLDEN.glob("*/*.tar")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_golden_archives_read_as_tarfile_reads_them(shard):
    with tarfile.open(shard) as archive:
        expected = [TarMember(info.name, info.offset_data, info.size) for info in archive.getmembers()]
    assert list(iterate_members(shard.read_bytes(), shard)) == expected


def changed(archive, offset, data):
    return archive[:offset] + data + archive[offset + len(data) :]


WHOLE = our_tar([("a.npy", b"x" * 600), ("b.npy", b"yz")])


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (b"", "does not end in two or more zero blocks"),
        (WHOLE[:100], "does not end in two or more zero blocks"),
        (WHOLE[:900], "is cut off"),
        (WHOLE[: 512 + 1024], "does not end in two or more zero blocks"),
        (WHOLE[: 512 + 1024 + 1024], "does not end in two or more zero blocks"),
        (WHOLE[: 512 + 1024 + 1024 + 512], "does not end in two or more zero blocks"),
        (changed(WHOLE, len(WHOLE) - 1, b"x"), "does not end in two or more zero blocks"),
        (WHOLE + bytes(2 << 20) + b"x" + bytes(511), "does not end in two or more zero blocks"),
        (WHOLE[:-1], "does not end in two or more zero blocks"),
        (changed(WHOLE, 0, b"z"), "checksum is wrong"),
        (changed(WHOLE, 124, b"zzz"), "not a tar header"),
        (changed(WHOLE, 124, b"-0000001000"), "not a tar header"),
        (changed(WHOLE, 124, b"+0000001000"), "not a tar header"),
        (changed(WHOLE, 124, b"0_000000010"), "not a tar header"),
        (changed(WHOLE, 148, b"        "), "not a tar header"),
        (b"just some text" * 1000, "not a tar header"),
    ],
)
def test_malformed_archives(archive, message):
    with pytest.raises(FormatError, match=message) as caught:
        list(iterate_members(archive, "shard.tar"))
    assert "shard.tar, offset" in str(caught.value)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_are_skipped_and_prefixes_and_extended_headers_read(format):
    long = "d" * 60 + "/" + "n" * (60 if format == tarfile.USTAR_FORMAT else 300)
    out, names = io.BytesIO(), ["link", "é" * 20, long]
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE if name == "link" else tarfile.REGTYPE
            archive.addfile(info)
    assert [member.name for member in iterate_members(out.getvalue(), "any.tar")] == names[1:]
