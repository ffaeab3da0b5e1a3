import gzip
import io
import tarfile

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from helpers.token_sources import read_tar
from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.formats.tars import tar_input
from nanoset_core.formats.tars.tar import TarMember, end_of_archive, headers, iterate_members
from nanoset_core.formats.tars.tar_input import flatten_tars, passed_over_text, survey_tars
from nanoset_core.loading.shard_files import iterate_shard

GOLDEN = GOLDEN_FILES / "webdataset"


def our_tar(members):
    """Archive of (name, body) pairs; all names of one length."""
    names = np.array([list(name.encode()) for name, _ in members], dtype=np.uint8).reshape(
        len(members), -1
    )
    sizes = np.array([len(body) for _, body in members], dtype=np.int64)
    block = headers(names, sizes)
    records = b"".join(
        head.tobytes() + body + bytes(-len(body) % 512)
        for head, (_, body) in zip(block, members, strict=True)
    )
    return records + end_of_archive(len(records))


def their_tar(members, format=tarfile.USTAR_FORMAT):
    """The same by Python's tarfile."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
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


@pytest.mark.parametrize(
    "shard", sorted(GOLDEN.glob("*/*.tar")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_golden_archives_read_as_tarfile_reads_them(shard):
    with tarfile.open(shard) as archive:
        expected = [
            TarMember(info.name, info.offset_data, info.size) for info in archive.getmembers()
        ]
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


def write_tar(path, members, format=tarfile.USTAR_FORMAT):
    path.write_bytes(their_tar(members, format))
    return path


def json_gz(tokens):
    return gzip.compress(orjson.dumps(tokens), mtime=0)


def rows_of(found, folder, **options):
    path = flatten_tars(found, folder, workers=options.pop("workers", 1), **options)
    return np.fromfile(path, found.dtype).reshape(-1, found.sequence_length)


@pytest.mark.parametrize("name", ["ray_like", "tokshuf_like"])
@pytest.mark.parametrize("workers", [1, 2])
def test_golden_tars_become_their_contexts(golden_tars, tmp_path, name, workers):
    tars = sorted((golden_tars / name).glob("*.tar"))
    found = survey_tars(tars)
    expected = np.concatenate([read_tar(tar) for tar in tars])
    assert (found.tokens, found.sequence_length, found.dtype) == (
        expected.size,
        expected.shape[1],
        "int32",
    )
    assert np.array_equal(rows_of(found, tmp_path, workers=workers), expected)


def test_the_json_beside_npy_is_left_out(golden_tars, tmp_path):
    found = survey_tars(sorted((golden_tars / "npy").glob("*.tar")))
    assert [(tar.data_key, tar.contexts) for tar in found.tars] == [("npy", 25)] * 2
    assert found.dtype == "uint16"
    ray = survey_tars(sorted((golden_tars / "ray_like").glob("*.tar")), dtype="uint16")
    a, b = rows_of(found, tmp_path / "a"), rows_of(ray, tmp_path / "b")
    assert sorted(map(bytes, a)) == sorted(map(bytes, b))


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_folders_and_other_members(tmp_path, format):
    rows = [[1, 2, 3], [4, 5, 6]]
    long = "00000000_" * 20
    members = [(f"{long}{i}.json.gz", json_gz(row)) for i, row in enumerate(rows)]
    path = write_tar(
        tmp_path / "a.tar",
        [*members, ("notes", b"no dot"), ("__meta__.json.gz", b"skipped")],
        format,
    )
    assert rows_of(survey_tars([path]), tmp_path / "out").tolist() == rows


def test_text_members(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"[1, 2]"), ("2.txt", b"[3, 4]")])
    assert rows_of(survey_tars([path]), tmp_path / "out").tolist() == [[1, 2], [3, 4]]
    path = write_tar(tmp_path / "b.tar", [("1.json", b'{"id": 1}'), ("1.txt", b"[3, 4]")])
    assert rows_of(survey_tars([path], data_key="txt"), tmp_path / "out2").tolist() == [[3, 4]]


@pytest.mark.parametrize("contexts", [3, 4, 5])
def test_chunks_that_end_with_a_tar_and_others(tmp_path, monkeypatch, contexts):
    monkeypatch.setattr(tar_input, "_CHUNK_BYTES", 2 * 2 * 4)  # two rows of two int32
    rows = [[i, i + 1] for i in range(contexts)]
    path = write_tar(
        tmp_path / "a.tar", [(f"{i}.json.gz", json_gz(row)) for i, row in enumerate(rows)]
    )
    assert rows_of(survey_tars([path]), tmp_path / "out").tolist() == rows


def test_finished_tars_are_left_alone(golden_tars, tmp_path, monkeypatch):
    tars = sorted((golden_tars / "ray_like").glob("*.tar"))
    found = survey_tars(tars)
    expected = rows_of(found, tmp_path)
    (tmp_path / "done-1.json").unlink()
    with (tmp_path / "tokens.bin").open("r+b") as file:
        file.write(bytes(8))
        file.seek(25 * 65 * 4)
        file.write(bytes(65 * 4))
    again = rows_of(found, tmp_path)
    assert again[0, 0] == 0  # of the first tar, which was noted as done
    again[0, :2] = expected[0, :2]
    assert np.array_equal(again, expected)


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([("1.json", b'{"a": 1}')], FormatError, "does not contain the tokens"),
        ([("1.txt", b'[1, "<|endoftext|>"]')], FormatError, "does not contain the tokens"),
        ([("1.json.gz", b"no gzip")], FormatError, "does not contain the tokens"),
        ([("1.jpg", b"")], FormatError, "no members with tokens"),
        ([("1.json", b"[1, 2]"), ("2.json", b"[1, 2, 3]")], InputError, "the same length"),
        ([("1.json", b"[1, 2]"), ("2.json", b"[1, -2]")], InputError, "does not fit"),
        ([("1.json", b"[1, 2]"), ("2.json", b"[1, 4294967296]")], InputError, "does not fit"),
    ],
)
def test_members_that_hold_no_contexts(tmp_path, members, error, message):
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(error, match=message) as caught:
        flatten_tars(survey_tars([path]), tmp_path / "out", workers=1)
    assert "a.tar" in str(caught.value)


def test_a_kind_of_member_that_cannot_be_read(golden_tars):
    with pytest.raises(ConfigError, match="cbor"):
        survey_tars([golden_tars / "npy" / "shard-000000.tar"], data_key="cbor")
    with pytest.raises(FormatError, match=r"25 \.json, 25 \.npy"):
        survey_tars([golden_tars / "npy" / "shard-000000.tar"], data_key="txt")


def test_names_and_kinds_of_a_hostile_tar_reach_nothing(tmp_path):
    body = json_gz([1, 2, 3])
    with tarfile.open(tmp_path / "h.tar", "w") as archive:
        for name, kind, target in (
            ("../../out.json.gz", tarfile.REGTYPE, ""),
            ("/etc/out.json.gz", tarfile.REGTYPE, ""),
            ("link.json.gz", tarfile.SYMTYPE, "/etc/passwd"),
            ("hard.json.gz", tarfile.LNKTYPE, "/etc/passwd"),
            ("device.json.gz", tarfile.BLKTYPE, ""),
            ("pipe.json.gz", tarfile.FIFOTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            info.size = len(body) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(body) if info.size else None)
    found = survey_tars([tmp_path / "h.tar"])
    assert found.tokens == 6
    assert rows_of(found, tmp_path / "work").tolist() == [[1, 2, 3]] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.tar", "work"]


def header(name, size, kind=b"0"):
    info = tarfile.TarInfo(name)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [b"0", b"x", b"L", b"g", b"S", b"5"])
@pytest.mark.parametrize(
    "size",
    [
        b"\xff" * 12,
        b"\x80" + b"\xff" * 11,
        b"\xff" * 10 + b"\xfc\x00",
        b"77777777777\0",
        b"-0000000512\0",
    ],
)
def test_impossible_sizes(tmp_path, kind, size):
    data = header("a.npy", b"00000000000\0") + header("b.npy", size, kind) + bytes(4096)
    (tmp_path / "h.tar").write_bytes(data)
    with pytest.raises(FormatError, match=r"h\.tar, offset"):
        survey_tars([tmp_path / "h.tar"])


def npy(tokens, dtype=np.int32):
    file = io.BytesIO()
    np.save(file, np.array(tokens, dtype))
    return file.getvalue()


def tar_with_folders(path, members):
    """Write members in order; a body of None is a folder, a text is a symbolic link to it."""
    with tarfile.open(path, "w") as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            if body is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(body, str):
                info.type, info.linkname = tarfile.SYMTYPE, body
            else:
                info.size = len(body)
            archive.addfile(info, io.BytesIO(body) if isinstance(body, bytes) else None)
    return path


@pytest.mark.parametrize(
    "members",
    [
        [("0.npy", npy([1, 2])), ("1.json.gz", json_gz([3, 4])), ("2.json.gz", json_gz([5, 6]))],
        [("0.json", b"[1, 2]"), ("1.json.gz", json_gz([3, 4]))],
        [("0.json.gz", json_gz([1, 2])), ("1.npy", npy([3, 4]))],
        [("0.txt", b"[1, 2]"), ("1.txt", b"[3, 4]"), ("2.json", b"[5, 6]")],
        [("0.npy", npy([1, 2])), ("0.json", b"{}"), ("1.json", b"[3, 4]")],
        [("0.npy", npy([1, 2])), ("1.tokens.npy", npy([3, 4]))],
        [("a/0.npy", npy([1, 2])), ("b/0.json.gz", json_gz([3, 4]))],
        [("README.md", b"#"), ("0.npy", npy([1, 2])), ("1.JSON.GZ", json_gz([3, 4]))],
    ],
)
def test_samples_with_their_tokens_in_different_kinds_of_members_are_refused(tmp_path, members):
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(FormatError, match=r"different kinds") as caught:
        survey_tars([path])
    assert "a.tar, offset" in str(caught.value)
    assert "--data-key" in str(caught.value)


def test_a_later_tar_with_another_kind_of_member_in_some_samples_is_refused(tmp_path):
    first = write_tar(tmp_path / "a.tar", [("0.npy", npy([1, 2]))])
    later = write_tar(tmp_path / "b.tar", [("0.npy", npy([3, 4])), ("1.json", b"[5, 6]")])
    with pytest.raises(FormatError, match=r"different kinds.*b\.tar|b\.tar.*different kinds"):
        survey_tars([first, later])


def test_samples_without_the_data_key_that_was_named_are_counted(tmp_path):
    path = write_tar(
        tmp_path / "a.tar", [("0.npy", npy([1, 2])), ("1.json", b"[3, 4]"), ("2.json", b"[5, 6]")]
    )
    found = survey_tars([path], data_key="npy")
    assert [(tar.contexts, tar.passed_over) for tar in found.tars] == [(1, 2)]
    assert "2 members without tokens passed over, such as '1.json' in a.tar" in passed_over_text(
        [found]
    )


@pytest.mark.parametrize("place", ["before", "between", "after"])
@pytest.mark.parametrize(
    "alien",
    [
        ("._0.json.gz", b"\0\5\x16\7"),
        ("._x", b"\0\5\x16\7"),
        (".DS_Store", b"x"),
        ("x/.DS_Store", b"x"),
        ("__MACOSX/._0.json.gz", b"x"),
        ("README.md", b"# tars"),
        ("README", b"tars"),
        ("LICENSE.txt", b"MIT"),
        ("info.json", b'{"tokens": 4}'),
        ("__meta__.json", b"{}"),
        ("folder", None),
        ("folder.npy", None),
        ("link.json.gz", "0.json.gz"),
    ],
    ids=lambda alien: alien[0],
)
def test_members_that_are_no_samples_are_passed_over_and_counted(tmp_path, alien, place):
    samples = [("0.json.gz", json_gz([1, 2])), ("1.json.gz", json_gz([3, 4]))]
    samples.insert({"before": 0, "between": 1, "after": 2}[place], alien)
    path = tar_with_folders(tmp_path / "a.tar", samples)
    found = survey_tars([path])
    assert rows_of(found, tmp_path / "out").tolist() == [[1, 2], [3, 4]]
    assert found.tars[0].passed_over == 1
    assert found.tars[0].passed_over_example.rstrip("/") == alien[0]


def test_a_hidden_member_between_those_of_a_sample_does_not_divide_it(tmp_path):
    members = [
        ("0.json", b"{}"),
        ("._0.npy", b"x"),
        ("0.npy", npy([1, 2])),
        ("1.json", b"{}"),
        ("1.npy", npy([3, 4])),
    ]
    found = survey_tars([write_tar(tmp_path / "a.tar", members)])
    assert rows_of(found, tmp_path / "out").tolist() == [[1, 2], [3, 4]]


def test_two_members_of_one_name_are_refused_as_webdataset_does(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("0.npy", npy([1, 2])), ("0.npy", npy([3, 4]))])
    with pytest.raises(FormatError, match="same extension"):
        survey_tars([path])


@pytest.mark.parametrize("alien", ["._0.npy", ".DS_Store", "README.md"])
def test_the_loader_passes_over_members_that_are_no_samples(tmp_path, alien):
    path = write_tar(
        tmp_path / "a.tar", [(alien, b"x"), ("0.npy", npy([1, 2])), ("1.json.gz", json_gz([3, 4]))]
    )
    assert [context.tolist() for context in iterate_shard(path)] == [[1, 2], [3, 4]]


def test_a_damaged_context_is_not_taken_for_a_description(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("0.json.gz", json_gz([1, 2])), ("1.npy", b"damaged")])
    with pytest.raises(FormatError, match="different kinds"):
        survey_tars([path])
    path = write_tar(tmp_path / "b.tar", [("0.json", b"[1, 2"), ("1.json", b"[3, 4]")])
    with pytest.raises(FormatError, match="does not contain the tokens"):
        rows_of(survey_tars([path]), tmp_path / "out")
