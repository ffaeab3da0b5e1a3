"""Exports in samples: MDS and litdata's chunks have every token in order, and once.

The real readers of both formats read them.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
from nanoset_core.storage.atomic import open_unfinished

SEEDS = range(50)
FEWER_SEEDS = range(12)
LENGTHS = (1, 7, 64, 300)
"""Tokens of a sample, by seed."""
SMALL_FILE_BYTES = 4096
"""Size of a file with which a dataset of some thousand tokens has several."""
FORMAT_NAMES = ["mds", "litdata"]
CHUNK_HEADER = struct.Struct("<III")
"""Header of a chunk of litdata: number of items, offset of the first and of the end."""


class RandomExport(NamedTuple):
    """An export of a random dataset."""

    folder: Path
    tokens: np.ndarray
    """The tokens of the dataset, shape (n_tokens,)."""
    length: int
    """Tokens of a sample."""
    facts: Any
    """What `export_pair` returned."""

    @property
    def samples(self) -> list[np.ndarray]:
        """The tokens of each sample. The last one may be shorter."""
        starts = np.arange(self.length, len(self.tokens), self.length)
        return np.split(self.tokens, starts)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exports have small files, so that a small dataset has several of them."""
    monkeypatch.setattr(samples, "FILE_BYTES", SMALL_FILE_BYTES)


@pytest.fixture
def export_random(
    tmp_path: Path, small_files: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, str], RandomExport]:
    """A function that exports the random dataset of a seed to a format, in small files."""
    # Waiting for the disk after each of thousands of small files would take long.
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def export(seed: int, format_name: str) -> RandomExport:
        prefix, documents = random_pair(tmp_path, seed)
        tokens = np.concatenate(documents)
        length = min(LENGTHS[seed % len(LENGTHS)], len(tokens))
        folder = tmp_path / format_name
        folder.mkdir()
        options = ExportOptions(format=format_name, sequence_length=length)

        facts, files, is_new = export_pair(prefix, folder, options)

        assert is_new
        assert files[-1] == folder / "index.json"
        receipt = f".{prefix.name}.{format_name}.made.json"
        assert {path.name for path in files} == set(os.listdir(folder)) - {receipt}
        return RandomExport(folder, tokens, length, facts)

    return export


def visible_files(folder: Path) -> list[Path]:
    """Return the files of an export, without its receipt."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]


def assert_equal_samples(
    actual_samples: Sequence[np.ndarray], expected_samples: Sequence[np.ndarray]
) -> None:
    """Check that samples have the same tokens, of the same type."""
    actual_bytes = [sample.tobytes() for sample in actual_samples]
    assert actual_bytes == [sample.tobytes() for sample in expected_samples]


# The files, read as their formats are documented


def read_mds(folder: Path, dtype: np.dtype) -> list[np.ndarray]:
    """Return the tokens of each sample in a folder of MDS files.

    A file has the number of its samples, an offset for each of them and for the end, and settings.
    A sample has its size in bytes, an encoding of its shape, and its tokens.
    """
    read_samples = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        assert shard["column_encodings"] == [f"ndarray:{np.dtype(dtype).name}"]
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]

        (n_samples,) = struct.unpack_from("<I", data)
        assert n_samples == shard["samples"]
        offsets = np.frombuffer(data, np.uint32, n_samples + 1, offset=4).tolist()
        assert offsets[-1] == len(data)
        for start, stop in pairwise(offsets):
            (n_bytes,) = struct.unpack_from("<I", data, start)
            assert n_bytes == stop - start - 4

            # The shape: a byte whose lowest bits say the width of the number of tokens.
            width = 1 << (data[start + 4] & 3)
            tokens_start = start + 5 + width
            tokens = np.frombuffer(data[tokens_start:stop], dtype)
            n_tokens = int.from_bytes(data[start + 5 : tokens_start], "little")
            assert n_tokens == len(tokens)
            read_samples.append(tokens)
    return read_samples


@pytest.mark.parametrize("seed", FEWER_SEEDS)
def test_mds_has_every_token_in_order(export_random, seed):
    export = export_random(seed, "mds")

    read_samples = read_mds(export.folder, export.tokens.dtype)

    assert_equal_samples(read_samples, export.samples)
    assert export.facts["tokens"] == len(export.tokens)
    assert export.facts["samples"] == len(read_samples)
    assert export.facts["dropped"] == 0


@pytest.mark.parametrize("seed", FEWER_SEEDS)
def test_chunks_of_litdata_have_every_token_in_order(export_random, seed):
    export = export_random(seed, "litdata")

    chunks = json.loads((export.folder / "index.json").read_text())["chunks"]
    contents = [(export.folder / chunk["filename"]).read_bytes() for chunk in chunks]
    tokens = b"".join(content[CHUNK_HEADER.size :] for content in contents)
    assert tokens == export.tokens.tobytes()

    # A chunk has one item, from the end of the header to the end of the chunk.
    for content in contents:
        header = CHUNK_HEADER.unpack(content[: CHUNK_HEADER.size])
        assert header == (1, CHUNK_HEADER.size, len(content))

    # Readers take samples within a chunk, so only the last one may have an incomplete sample.
    assert [chunk["chunk_bytes"] for chunk in chunks] == [len(content) for content in contents]
    for chunk in chunks[:-1]:
        assert chunk["dim"] % export.length == 0


@pytest.mark.parametrize("seed", FEWER_SEEDS)
def test_the_last_incomplete_sample_of_litdata_is_counted_as_dropped(export_random, seed):
    export = export_random(seed, "litdata")

    n_samples, n_dropped = divmod(len(export.tokens), export.length)
    assert export.facts["samples"] == n_samples
    assert export.facts["dropped"] == n_dropped


# The files, read by the real readers


@pytest.mark.parametrize("seed", SEEDS)
def test_streaming_reads_every_token_in_order(export_random, seed):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    torch = pytest.importorskip("torch")
    export = export_random(seed, "mds")

    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(export.folder), batch_size=1, shuffle=False)
    read_samples = [dataset[number]["tokens"] for number in range(len(dataset))]

    assert_equal_samples(read_samples, export.samples)
    # LLM Foundry's StreamingTextDataset converts the tokens of a sample in this way.
    for sample, expected in zip(read_samples, export.samples, strict=True):
        tensor = torch.from_numpy(sample[: export.length].copy()).to(torch.int64)
        assert np.array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_mds_files_have_the_bytes_that_streaming_writes(export_random, seed, tmp_path):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    export = export_random(seed, "mds")

    peer_folder = tmp_path / "streaming"
    columns = {"tokens": f"ndarray:{export.tokens.dtype.name}"}
    with streaming.MDSWriter(
        columns=columns, out=str(peer_folder), size_limit=SMALL_FILE_BYTES
    ) as writer:
        for sample in export.samples:
            writer.write({"tokens": sample})

    peer_bytes = {path.name: path.read_bytes() for path in peer_folder.iterdir()}
    assert peer_bytes == {path.name: path.read_bytes() for path in visible_files(export.folder)}


@pytest.mark.parametrize("seed", SEEDS)
def test_litdata_reads_every_token_of_whole_samples_in_order(export_random, seed):
    litdata = pytest.importorskip("litdata", reason="litdata is not installed")
    export = export_random(seed, "litdata")

    loader = litdata.TokensLoader(block_size=export.length)
    dataset = litdata.StreamingDataset(str(export.folder), item_loader=loader, shuffle=False)
    read_samples = [np.asarray(sample) for sample in dataset]

    assert len(read_samples) == export.facts["samples"]
    n_read = len(export.tokens) - export.facts["dropped"]
    assert np.array_equal(np.concatenate(read_samples), export.tokens[:n_read])


# A call that was killed, and other calls


class InterruptedExport(NamedTuple):
    """An export that was interrupted after two files."""

    prefix: Path
    folder: Path
    options: ExportOptions
    complete_files: list[Path]
    """The files of the same export that was not interrupted, in another folder."""


@pytest.fixture(params=FORMAT_NAMES)
def interrupted(request, tmp_path: Path, small_files: None) -> InterruptedExport:
    """An export that was interrupted after two files."""
    prefix, _documents = random_pair(tmp_path, 3)
    options = ExportOptions(format=request.param, sequence_length=7)
    (tmp_path / "complete").mkdir()
    _facts, complete_files, _is_new = export_pair(prefix, tmp_path / "complete", options)
    assert len(complete_files) > 3

    folder = tmp_path / "interrupted"
    folder.mkdir()
    reports = []

    def interrupt(report: object) -> None:
        reports.append(report)
        if len(reports) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_pair(prefix, folder, options, RecordingDisplay(interrupt).progress)
    assert len(visible_files(folder)) == 2
    return InterruptedExport(prefix, folder, options, complete_files)


def test_an_interrupted_call_is_completed_by_the_next_one(interrupted):
    inode_by_path = {path: path.stat().st_ino for path in visible_files(interrupted.folder)}

    _facts, files, is_new = export_pair(interrupted.prefix, interrupted.folder, interrupted.options)

    assert is_new
    contents = [path.read_bytes() for path in files]
    assert contents == [path.read_bytes() for path in interrupted.complete_files]
    # The files that the first call wrote were not written again.
    for path, inode in inode_by_path.items():
        assert path.stat().st_ino == inode


def test_a_completed_call_is_not_repeated(interrupted):
    export_pair(interrupted.prefix, interrupted.folder, interrupted.options)

    _facts, _files, is_new = export_pair(
        interrupted.prefix, interrupted.folder, interrupted.options
    )

    assert not is_new


def test_the_next_call_removes_the_incomplete_file_of_a_killed_one(interrupted):
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    with open_unfinished(interrupted.folder / "shard.00002.mds") as file:
        mark = f"-{os.getpid()}."
        os.rename(file.name, file.name.replace(mark, f"-{ended_process.pid}."))

    export_pair(interrupted.prefix, interrupted.folder, interrupted.options)

    assert not list(interrupted.folder.glob(".tmp-*"))


def test_no_file_of_another_call_remains_if_it_is_replaced(interrupted):
    prefix = interrupted.prefix
    folder = interrupted.folder
    _facts, old_files, _is_new = export_pair(prefix, folder, interrupted.options)
    old_inodes = {path.stat().st_ino for path in old_files}
    # As long as the old files are open, the system does not use their inodes again.
    open_files = [path.open("rb") for path in old_files]
    other_options = replace(interrupted.options, sequence_length=300)

    with pytest.raises(ConfigError, match="other input or settings"):
        export_pair(prefix, folder, other_options)
    _facts, files, _is_new = export_pair(prefix, folder, other_options, overwrite=True)

    assert sorted(files) == visible_files(folder)
    assert old_inodes.isdisjoint(path.stat().st_ino for path in files)
    for file in open_files:
        file.close()


@pytest.mark.parametrize("format_name", FORMAT_NAMES)
def test_a_folder_with_other_files_is_refused(tmp_path, format_name):
    prefix, _documents = random_pair(tmp_path, 3)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    options = ExportOptions(format=format_name, sequence_length=7)

    with pytest.raises(ConfigError, match="other files") as caught:
        export_pair(prefix, folder, options)
    assert caught.value.found == "notes.txt"
    assert visible_files(folder) == [folder / "notes.txt"]

    _facts, files, _is_new = export_pair(prefix, folder, options, overwrite=True)
    assert visible_files(folder) == sorted([*files, folder / "notes.txt"])
    # The same call has nothing to do, whatever else is in the folder.
    assert not export_pair(prefix, folder, options).is_new


@pytest.mark.parametrize(("old_format", "new_format"), [("litdata", "mds"), ("mds", "litdata")])
def test_an_export_in_another_format_is_removed_if_it_is_replaced(
    tmp_path, small_files, old_format, new_format
):
    prefix, _documents = random_pair(tmp_path, 3)
    folder = tmp_path / "out"
    export_pair(prefix, folder, ExportOptions(format=old_format, sequence_length=7))
    new_options = ExportOptions(format=new_format, sequence_length=7)

    with pytest.raises(ConfigError):
        export_pair(prefix, folder, new_options)
    _facts, files, _is_new = export_pair(prefix, folder, new_options, overwrite=True)

    assert visible_files(folder) == sorted(files)
    [receipt] = folder.glob(".*.made.json")
    assert new_format in receipt.name


def test_an_export_of_another_kind_in_the_folder_is_kept(tmp_path):
    """It has no file in common with the export of samples."""
    prefix, _documents = random_pair(tmp_path, 3)
    folder = tmp_path / "out"
    other = export_pair(prefix, folder, ExportOptions(format="datatrove"))

    export_pair(prefix, folder, ExportOptions(format="mds", sequence_length=7), overwrite=True)

    assert set(other.files) < set(visible_files(folder))


# The command


def test_the_command_reports_tokens_that_the_reader_skips(tmp_path):
    prefix, documents = random_pair(tmp_path, 2)
    n_tokens = sum(len(document) for document in documents)
    words = ["export", str(prefix), "--format", "litdata", "-o", str(tmp_path / "out")]

    output = invoke_nanoset([*words, "--sequence-length", "100"], catch_exceptions=False).output

    assert f"skips the last {n_tokens % 100:,} tokens" in output


def test_the_command_needs_a_sequence_length(tmp_path):
    prefix, _documents = random_pair(tmp_path, 2)

    result = invoke_nanoset(
        ["export", str(prefix), "--format", "litdata", "-o", str(tmp_path / "out")]
    )

    assert result.exit_code == 2


def test_the_command_refuses_a_sequence_length_for_formats_without_samples(tmp_path):
    prefix, _documents = random_pair(tmp_path, 2)
    words = ["export", str(prefix), "--format", "datatrove", "-o", str(tmp_path / "out")]

    result = invoke_nanoset([*words, "--sequence-length", "9"])

    assert result.exit_code == 2


# Datasets that a reader could not read are refused

READABLE = DatasetTraits(where="here", dtype=np.dtype(np.uint16), tokens=5, sequence_length=6)
"""A dataset of fewer tokens than a sample has."""


@pytest.mark.parametrize("format_name", FORMAT_NAMES)
@pytest.mark.parametrize(
    ("traits", "found"),
    [
        ({"dtype": np.dtype(np.float32)}, "tokens of type float32"),
        ({"tokens": 0}, "no tokens"),
    ],
)
def test_a_dataset_that_the_reader_cannot_read_is_refused(format_name, traits, found):
    with pytest.raises(ConfigError) as error:
        FORMATS[format_name].check(replace(READABLE, **traits))

    assert error.value.found == found


@pytest.mark.parametrize("format_name", FORMAT_NAMES)
def test_documents_need_no_end_tokens(format_name):
    FORMATS[format_name].check(replace(READABLE, has_end=False))


def test_litdata_needs_the_tokens_of_one_sample():
    with pytest.raises(ConfigError, match="5 tokens"):
        FORMATS["litdata"].cut(READABLE)


# The size of files


@pytest.mark.parametrize("format_name", FORMAT_NAMES)
@pytest.mark.parametrize(
    ("dtype", "length", "n_tokens"),
    [("uint16", 2049, 10**9), ("int32", 9, 10**8), ("uint8", 1 << 24, 1 << 28)],
)
def test_files_are_filled_to_64_mib(format_name, dtype, length, n_tokens):
    export_format = FORMATS[format_name]
    dataset = DatasetTraits(
        where="", dtype=np.dtype(dtype), tokens=n_tokens, sequence_length=length
    )

    cut = export_format.cut(dataset)

    # All files but the last one have the same size, and no room for one more sample: its tokens,
    # and up to 11 bytes that MDS stores with them.
    (size,) = {export_format.size(cut, number) for number in range(cut.files - 1)}
    bytes_of_sample = length * cut.dtype.itemsize + 11
    assert samples.FILE_BYTES - size < bytes_of_sample
    _start, stop = cut.span(cut.files - 1)
    assert stop == n_tokens
