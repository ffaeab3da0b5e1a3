"""Exports in samples: MDS and litdata's chunks hold every token in order, once, and the real
readers read them.
"""

import json
import os
import struct
from itertools import pairwise

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.progress import RecordingDisplay
from helpers.sample_pairs import random_pair
from nanoset_core.errors import ConfigError
from nanoset_core.stages.exports import samples
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import FORMATS
from nanoset_core.stages.exports.standalone import ExportOptions, export_pair

SEEDS = range(50)
LENGTHS = (1, 7, 64, 300)
SMALL = 4096
"""Bytes of a file: a dataset of some thousand tokens takes several."""


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Exports a random dataset in small files; → (folder, its tokens, tokens of a sample, facts)."""
    monkeypatch.setattr(samples, "FILE_BYTES", SMALL)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # of thousands of small files

    def make(seed, kind):
        prefix, documents = random_pair(tmp_path, seed)
        tokens = np.concatenate(documents)
        length = min(LENGTHS[seed % len(LENGTHS)], len(tokens))
        folder = tmp_path / kind
        folder.mkdir()
        options = ExportOptions(format=kind, sequence_length=length)
        facts, files, is_new = export_pair(prefix, folder, options)
        assert is_new
        assert files[-1] == folder / "index.json"
        assert {path.name for path in files} == set(os.listdir(folder)) - {
            f".{prefix.name}.{kind}.made.json"
        }
        return folder, tokens, length, facts

    return make


def read_mds(folder, dtype):
    """Read MDS by its documentation: a count, offsets, settings; of each sample its size, its
    shape, its values.
    """
    found = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        assert shard["column_encodings"] == [f"ndarray:{np.dtype(dtype).name}"]
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        offsets = np.frombuffer(data, np.uint32, shard["samples"] + 1, 4).tolist()
        assert (struct.unpack_from("<I", data)[0], offsets[-1]) == (shard["samples"], len(data))
        for begin, end in pairwise(offsets):
            width = 1 << (data[begin + 4] & 3)
            values = np.frombuffer(data[begin + 5 + width : end], dtype)
            assert struct.unpack_from("<I", data, begin)[0] == end - begin - 4
            assert int.from_bytes(data[begin + 5 : begin + 5 + width], "little") == len(values)
            found.append(values)
    return found


def samples_of(tokens, length):
    return np.split(tokens, np.arange(length, len(tokens), length))


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_mds_holds_every_token_in_order(exported, seed):
    folder, tokens, length, facts = exported(seed, "mds")
    found = read_mds(folder, tokens.dtype)
    assert [one.tobytes() for one in found] == [one.tobytes() for one in samples_of(tokens, length)]
    assert (facts["tokens"], facts["samples"], facts["dropped"]) == (len(tokens), len(found), 0)


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_chunks_hold_every_token_in_order(exported, seed):
    folder, tokens, length, facts = exported(seed, "litdata")
    index = json.loads((folder / "index.json").read_text())
    chunks = [(folder / chunk["filename"]).read_bytes() for chunk in index["chunks"]]
    assert b"".join(data[12:] for data in chunks) == tokens.tobytes()
    assert all(struct.unpack("<III", data[:12]) == (1, 12, len(data)) for data in chunks)
    assert [chunk["chunk_bytes"] for chunk in index["chunks"]] == [*map(len, chunks)]
    assert not any(chunk["dim"] % length for chunk in index["chunks"][:-1])
    assert (facts["samples"], facts["dropped"]) == divmod(len(tokens), length)


@pytest.mark.parametrize("seed", SEEDS)
def test_streaming_reads_every_token_in_order(exported, seed, tmp_path):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    torch = pytest.importorskip("torch")
    folder, tokens, length, _ = exported(seed, "mds")
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(folder), batch_size=1, shuffle=False)
    wanted = samples_of(tokens, length)
    found = [dataset[k]["tokens"] for k in range(len(dataset))]
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]
    # as LLM Foundry's StreamingTextDataset makes a tensor of the column
    read = [torch.from_numpy(one[:length].copy()).to(torch.int64).numpy() for one in found]
    assert all(np.array_equal(*pair) for pair in zip(read, wanted, strict=True))
    theirs = tmp_path / "theirs"
    columns = {"tokens": f"ndarray:{tokens.dtype.name}"}
    with streaming.MDSWriter(columns=columns, out=str(theirs), size_limit=SMALL) as writer:
        for one in wanted:
            writer.write({"tokens": one})
    assert {path.name: path.read_bytes() for path in theirs.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_litdata_reads_every_token_in_order(exported, seed):
    litdata = pytest.importorskip("litdata", reason="litdata is not installed")
    folder, tokens, length, facts = exported(seed, "litdata")
    dataset = litdata.StreamingDataset(
        str(folder), item_loader=litdata.TokensLoader(block_size=length), shuffle=False
    )
    found = [np.asarray(one) for one in dataset]
    assert len(found) == facts["samples"]
    assert np.array_equal(np.concatenate(found), tokens[: len(tokens) - facts["dropped"]])


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_a_killed_call_goes_on_and_another_one_begins_anew(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(samples, "FILE_BYTES", SMALL)
    (prefix, _), options = random_pair(tmp_path, 3), ExportOptions(format=kind, sequence_length=7)
    (tmp_path / "whole").mkdir()
    _, whole, _ = export_pair(prefix, tmp_path / "whole", options)
    folder = tmp_path / "killed"
    folder.mkdir()
    seen = []

    def killed(report):
        seen.append(report)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_pair(prefix, folder, options, RecordingDisplay(killed).progress)
    assert len(whole) > 3
    there = {path.name: path.stat() for path in folder.iterdir() if not path.name.startswith(".")}
    assert len(there) == 2
    _, files, is_new = export_pair(prefix, folder, options)
    assert is_new
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in whole]
    assert all((folder / name).stat().st_ino == stat.st_ino for name, stat in there.items())
    assert not export_pair(prefix, folder, options)[2]
    # of another call no file stays, not even one of the same size
    inodes = {path.name: path.stat().st_ino for path in files}
    kept = [(folder / path.name).open("rb") for path in files]  # so that no inode is used again
    with pytest.raises(ConfigError, match="other input or settings"):
        export_pair(prefix, folder, ExportOptions(format=kind, sequence_length=300))
    _, fewer, _ = export_pair(
        prefix, folder, ExportOptions(format=kind, sequence_length=300), overwrite=True
    )
    assert {path.name for path in fewer} == {
        path.name for path in folder.iterdir() if not path.name.startswith(".")
    }
    assert not {path.stat().st_ino for path in fewer} & set(inodes.values())
    for file in kept:
        file.close()


def test_the_command_says_what_the_reader_passes_over(tmp_path):
    prefix, documents = random_pair(tmp_path, 2)
    words = [
        "export",
        str(prefix),
        "--format",
        "litdata",
        "-o",
        str(tmp_path / "out"),
        "--sequence-length",
    ]
    said = invoke_nanoset([*words, "100"], catch_exceptions=False).output
    assert f"skips the last {sum(map(len, documents)) % 100:,} tokens" in said
    for wrong in (words[:-1], [*words[:3], "datatrove", *words[4:], "9"]):
        assert invoke_nanoset(wrong).exit_code == 2


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_what_a_reader_cannot_read_is_refused(kind):
    known = {"where": "here", "dtype": np.dtype(np.uint16), "tokens": 5, "sequence_length": 6}
    for told, found in (
        ({"dtype": np.dtype(np.float32)}, "tokens of type float32"),
        ({"tokens": 0}, "no tokens"),
    ):
        with pytest.raises(ConfigError) as error:
            FORMATS[kind].check(DatasetTraits(**known | told))
        assert error.value.found == found
    FORMATS[kind].check(DatasetTraits(**known, has_end=False))  # they know no documents
    if kind == "litdata":
        with pytest.raises(ConfigError, match="5 tokens"):
            FORMATS[kind].cut(DatasetTraits(**known))


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_files_are_filled_to_64_mib(kind):
    for dtype, length, count in (
        ("uint16", 2049, 10**9),
        ("int32", 9, 10**8),
        ("uint8", 1 << 24, 1 << 28),
    ):
        export_format = FORMATS[kind]
        cut = export_format.cut(
            DatasetTraits(where="", dtype=np.dtype(dtype), tokens=count, sequence_length=length)
        )
        sizes = {export_format.size(cut, number) for number in range(cut.files - 1)}
        assert len(sizes) == 1
        assert samples.FILE_BYTES - max(sizes) < length * cut.dtype.itemsize + 11
        assert cut.span(cut.files - 1)[1] == count
