import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.shuffling.tar import (
    TarMember,
    end_of_archive,
    headers,
    iterate_members,
    map_archive,
    octal,
    record_bytes,
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


def test_literal_bytes_of_one_member():
    head = (
        b"a.npy".ljust(100, b"\0")
        + b"0000644\0"
        + b"0000000\0" * 2
        + b"00000000003\0"
        + b"00000000000\0"
        + b"006706\0 "
        + b"0"
        + bytes(100)
        + b"ustar\x0000"
        + bytes(247)
    )
    assert our_tar([("a.npy", b"xyz")]) == (head + b"xyz").ljust(10240, b"\0")


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


@pytest.mark.parametrize("written", [0, 512, 8704, 9216, 9728, 10240])
def test_archives_end_at_whole_records(written):
    closing = end_of_archive(written)
    assert len(closing) >= 1024
    assert (written + len(closing)) % 10240 == 0


def test_octal_digits():
    assert octal(np.array([0, 8, 8**11 - 1]), 11).tobytes() == b"00000000000" + b"00000000010" + b"7" * 11


def test_the_largest_size_fits_and_the_next_does_not():
    name = np.frombuffer(b"a", dtype=np.uint8)[None]
    assert headers(name, np.array([8**11 - 1]))[0, 124:136].tobytes() == b"77777777777\0"
    for size in (8**11, -1):
        with pytest.raises(ConfigError, match="size"):
            headers(name, np.array([size]))


@pytest.mark.parametrize("name", [b"a" * 101, "é".encode(), b"\x7f"])
def test_names_that_a_plain_header_cannot_hold(name):
    with pytest.raises(ConfigError, match="name"):
        headers(np.frombuffer(name, dtype=np.uint8)[None], np.array([1]))


def test_members_are_found_again():
    archive = our_tar([("a.npy", b"x" * 600), ("b.npy", b""), ("c.npy", b"yz")])
    assert list(iterate_members(archive, "here")) == [
        TarMember("a.npy", 512, 600),
        TarMember("b.npy", 2048, 0),
        TarMember("c.npy", 2560, 2),
    ]
    assert record_bytes(600) == 1536


@pytest.mark.parametrize("shard", sorted(GOLDEN.glob("*/*.tar")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_golden_archives_read_as_tarfile_reads_them(shard):
    with tarfile.open(shard) as archive:
        expected = [TarMember(info.name, info.offset_data, info.size) for info in archive.getmembers()]
    assert list(iterate_members(shard.read_bytes(), shard)) == expected


def test_a_prefix_is_part_of_the_name():
    name = "d" * 60 + "/" + "n" * 60
    assert [member.name for member in iterate_members(their_tar([(name, b"x")]), "here")] == [name]


def changed(archive, offset, data):
    return archive[:offset] + data + archive[offset + len(data) :]


WHOLE = our_tar([("a.npy", b"x" * 600), ("b.npy", b"yz")])


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (b"", "ends without its two zero blocks"),
        (WHOLE[:100], "ends without its two zero blocks"),
        (WHOLE[:900], "is cut off"),
        (WHOLE[: 512 + 1024], "is cut off|ends without"),
        (WHOLE[: 512 + 1024 + 1024], "ends without its two zero blocks"),
        (WHOLE[: 512 + 1024 + 1024 + 512], "does not end in two or more zero blocks"),
        (changed(WHOLE, len(WHOLE) - 1, b"x"), "does not end in two or more zero blocks"),
        (WHOLE + bytes(2 << 20) + b"x" + bytes(511), "does not end in two or more zero blocks"),
        (WHOLE[:-1], "does not end in two or more zero blocks"),
        (changed(WHOLE, 0, b"z"), "checksum is wrong"),
        (changed(WHOLE, 124, b"zzz"), "not a plain tar header"),
        (changed(WHOLE, 124, b"-0000001000"), "not a plain tar header"),
        (changed(WHOLE, 124, b"+0000001000"), "not a plain tar header"),
        (changed(WHOLE, 124, b"0_000000010"), "not a plain tar header"),
        (changed(WHOLE, 148, b"        "), "not a plain tar header"),
        (changed(WHOLE, 0, "é".encode()), "not a plain tar header"),
        (b"just some text" * 1000, "not a plain tar header"),
    ],
)
def test_malformed_archives(archive, message):
    with pytest.raises(FormatError, match=message) as caught:
        list(iterate_members(archive, "shard.tar"))
    assert "shard.tar, offset" in str(caught.value)


def test_links_and_extended_headers_are_refused():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "target"
        archive.addfile(info)
    with pytest.raises(FormatError, match="regular file"):
        list(iterate_members(out.getvalue(), "shard.tar"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("n" * 300))
    with pytest.raises(FormatError, match="regular file"):
        list(iterate_members(out.getvalue(), "shard.tar"))


def test_a_missing_and_an_empty_archive(tmp_path):
    with pytest.raises(MissingError, match="no such shard"):
        map_archive(tmp_path / "shard.tar")
    (tmp_path / "empty.tar").touch()
    assert map_archive(tmp_path / "empty.tar") == b""
