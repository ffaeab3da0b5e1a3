import gzip
import io
import tarfile

import numpy as np
import orjson
import pytest
from token_sources import read_shard

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.shuffling import tar_input
from nanoset_core.shuffling.tar_input import flatten_tars, survey_tars


def write_tar(path, members, format=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w", format=format) as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def json_gz(tokens):
    return gzip.compress(orjson.dumps(tokens), mtime=0)


def rows_of(found, folder, **options):
    path = flatten_tars(found, folder, workers=options.pop("workers", 1), **options)
    return np.fromfile(path, found.dtype).reshape(-1, found.sequence_length)


@pytest.mark.parametrize("name", ["ray_like", "tokshuf_like"])
@pytest.mark.parametrize("workers", [1, 2])
def test_golden_tars_become_their_contexts(golden, tmp_path, name, workers):
    tars = sorted((golden / name).glob("*.tar"))
    found = survey_tars(tars)
    expected = np.concatenate([read_shard(tar) for tar in tars])
    assert (found.tokens, found.sequence_length, found.dtype) == (expected.size, expected.shape[1], "int32")
    assert np.array_equal(rows_of(found, tmp_path, workers=workers), expected)


def test_the_json_beside_npy_is_left_out(golden, tmp_path):
    found = survey_tars(sorted((golden / "npy").glob("*.tar")))
    assert [(tar.data_key, tar.contexts) for tar in found.tars] == [("npy", 25)] * 2
    assert found.dtype == "uint16"
    ray = survey_tars(sorted((golden / "ray_like").glob("*.tar")), dtype="uint16")
    a, b = rows_of(found, tmp_path / "a"), rows_of(ray, tmp_path / "b")
    assert sorted(map(bytes, a)) == sorted(map(bytes, b))


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_folders_and_other_members(tmp_path, format):
    rows = [[1, 2, 3], [4, 5, 6]]
    long = "00000000_" * 20
    members = [(f"{long}{i}.json.gz", json_gz(row)) for i, row in enumerate(rows)]
    path = write_tar(tmp_path / "a.tar", [*members, ("notes", b"no dot"), ("__meta__.json.gz", b"skipped")], format)
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
    path = write_tar(tmp_path / "a.tar", [(f"{i}.json.gz", json_gz(row)) for i, row in enumerate(rows)])
    assert rows_of(survey_tars([path]), tmp_path / "out").tolist() == rows


def test_finished_tars_are_left_alone(golden, tmp_path, monkeypatch):
    tars = sorted((golden / "ray_like").glob("*.tar"))
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
    "change",
    [
        *(lambda data, kept=kept: data[:kept] for kept in (-9728, 512 + 100, 1024 + 100)),
        lambda data: data[:1024] + b"\xff" * 6 + data[1030:],
        lambda data: data + data,
        *(lambda _, text=text: text for text in (b"", b"hello", bytes(range(256)) * 8, gzip.compress(bytes(4096)))),
        lambda _: bytes(512),
    ],
)
def test_what_is_no_whole_tar(golden, tmp_path, change):
    path = tmp_path / "bad.tar"
    path.write_bytes(change((golden / "ray_like" / "00000001.tar").read_bytes()))
    with pytest.raises(FormatError, match=r"bad\.tar, offset \d+") as caught:
        survey_tars([path])
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([("1.json", b'{"a": 1}')], FormatError, "does not hold the tokens"),
        ([("1.txt", b'[1, "<|endoftext|>"]')], FormatError, "does not hold the tokens"),
        ([("1.json.gz", b"no gzip")], FormatError, "does not hold the tokens"),
        ([("1.jpg", b"")], FormatError, "no members with tokens"),
        ([("1.json", b"[1, 2]"), ("2.json", b"[1, 2, 3]")], InputError, "one length"),
        ([("1.json", b"[1, 2]"), ("2.json", b"[1, -2]")], InputError, "does not fit"),
        ([("1.json", b"[1, 2]"), ("2.json", b"[1, 4294967296]")], InputError, "does not fit"),
    ],
)
def test_members_that_hold_no_contexts(tmp_path, members, error, message):
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(error, match=message) as caught:
        flatten_tars(survey_tars([path]), tmp_path / "out", workers=1)
    assert "a.tar" in str(caught.value)


def test_a_kind_of_member_that_cannot_be_read(golden):
    with pytest.raises(ConfigError, match="cbor"):
        survey_tars([golden / "npy" / "shard-000000.tar"], data_key="cbor")
    with pytest.raises(FormatError, match=r"25 \.json, 25 \.npy"):
        survey_tars([golden / "npy" / "shard-000000.tar"], data_key="txt")


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
    "size", [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"\xff" * 10 + b"\xfc\x00", b"77777777777\0", b"-0000000512\0"]
)
def test_impossible_sizes(tmp_path, kind, size):
    data = header("a.npy", b"00000000000\0") + header("b.npy", size, kind) + bytes(4096)
    (tmp_path / "h.tar").write_bytes(data)
    with pytest.raises(FormatError, match=r"h\.tar, offset"):
        survey_tars([tmp_path / "h.tar"])
