"""Exports that share the tokens of a dataset: their files, and what the real readers read of them.

The formats are datatrove's `.ds`, and OLMo-core's `.npy` without a header.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers import s3_server
from helpers.command import invoke_nanoset
from helpers.sample_pairs import END, random_pair
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import FORMATS, _metric
from nanoset_core.stages.exports.standalone import ExportOptions, export_pair
from nanoset_core.storage.location import location
from nanoset_core.storage.stores.s3.store import S3Store

SEEDS = range(50)
FORMATS_WITH_ENDS = [name for name, export in FORMATS.items() if export.needs_end]
"""Formats whose readers divide documents at the end token."""


class RandomExport(NamedTuple):
    """An export of a random dataset."""

    folder: Path
    name: str
    """Name of its files, without endings."""
    documents: Sequence[np.ndarray]
    """The tokens of each document that has any."""

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of all documents."""
        return np.concatenate(self.documents)


@pytest.fixture
def export_random(tmp_path: Path) -> Callable[[int, str], RandomExport]:
    """A function that exports the random dataset of a seed to a format."""

    def export(seed: int, format_name: str) -> RandomExport:
        prefix, documents = random_pair(tmp_path, seed, has_ends=True)
        folder = tmp_path / format_name
        folder.mkdir()
        options = ExportOptions(format=format_name, tokenizer_name="some/name")

        facts, _files, is_new = export_pair(prefix, folder, options)

        with_tokens = [document for document in documents if len(document)]
        assert is_new
        assert facts["documents"] == len(with_tokens)
        assert facts["left_out"] == len(documents) - len(with_tokens)
        return RandomExport(folder, prefix.name, with_tokens)

    return export


def write_pair(folder: Path, documents: Sequence[Sequence[int]]) -> Path:
    """Write a pair of documents with these tokens; return its prefix."""
    prefix = folder / "pair"
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for tokens in documents:
            builder.add_document(np.array(tokens, np.uint16))
    return prefix


def assert_equal_documents(documents: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Check that documents have the same tokens, of the same type."""
    tokens = [document.tobytes() for document in documents]
    assert tokens == [document.tobytes() for document in expected]


# The files, read as their formats are documented


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ds_file_has_every_document_in_order(export_random, seed):
    export = export_random(seed, "datatrove")

    tokens = np.fromfile(export.folder / f"{export.name}.ds", export.tokens.dtype)
    stops = np.fromfile(export.folder / f"{export.name}.ds.index", np.uint64).astype(int)
    assert_equal_documents(np.split(tokens, stops[:-1]), export.documents)

    metadata = (export.folder / f"{export.name}.ds.metadata").read_text().split("\n")
    assert metadata == [
        f"some/name|{tokens.itemsize}",
        str(len(tokens)),
        _metric(len(tokens)),
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_headless_npy_file_has_every_document_in_order(export_random, seed):
    export = export_random(seed, "olmo-core")

    tokens = np.fromfile(export.folder / f"{export.name}.npy", export.tokens.dtype)
    documents = []
    with gzip.open(export.folder / f"{export.name}.csv.gz", "rt") as file:
        for line in file:
            start, stop = map(int, line.split(","))
            documents.append(tokens[start:stop])
    assert_equal_documents(documents, export.documents)


# The files, read by the real readers


@pytest.mark.parametrize("seed", SEEDS)
def test_datatrove_reads_every_token_in_windows_of_one_token(export_random, seed):
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="datatrove is not installed")
    export = export_random(seed, "datatrove")

    windows = dataset.DatatroveFileDataset(
        str(export.folder / f"{export.name}.ds"), seq_len=0, token_size=export.tokens.itemsize
    )

    tokens = [int(windows[number]["input_ids"][0]) for number in range(len(windows))]
    assert np.array_equal(tokens, export.tokens)


@pytest.mark.parametrize("seed", SEEDS)
def test_datatrove_reads_tokens_and_their_positions_in_documents(export_random, seed):
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="datatrove is not installed")
    export = export_random(seed, "datatrove")
    length = 32

    windows = dataset.DatatroveFolderDataset(
        str(export.folder),
        seq_len=length - 1,
        token_size=export.tokens.itemsize,
        return_positions=True,
    )

    assert len(windows) == len(export.tokens) // length
    positions_in_documents = [np.arange(len(document)) for document in export.documents]
    positions_in_document = np.concatenate(positions_in_documents)  # (n_tokens,)
    positions_in_window = np.arange(length)
    for number in range(len(windows)):
        window = slice(length * number, length * (number + 1))
        assert np.array_equal(windows[number]["input_ids"], export.tokens[window])
        # Positions count from the start of the document, or of the window if that comes later.
        expected = np.minimum(positions_in_document[window], positions_in_window)
        assert np.array_equal(windows[number]["positions"], expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_olmo_core_finds_the_documents(export_random, seed):
    pytest.importorskip("olmo_core.data", reason="ai2-olmo-core is not installed")
    from olmo_core.data.utils import iter_document_indices

    export = export_random(seed, "olmo-core")
    path = str(export.folder / f"{export.name}.npy")

    ranges = list(iter_document_indices(path, use_array_if_local=False))

    documents = [export.tokens[start:stop] for start, stop in ranges]
    assert_equal_documents(documents, export.documents)
    # Without the .csv.gz, it divides documents at the end token.
    if seed % 5:
        dtype = np.uint16 if export.tokens.itemsize == 2 else np.uint32
        ranges_by_ends = iter_document_indices(path, eos_token_id=END, dtype=dtype)
        assert list(ranges_by_ends) == ranges


@pytest.mark.parametrize("seed", SEEDS)
def test_olmo_core_reads_every_token_in_order(export_random, seed, tmp_path):
    data = pytest.importorskip("olmo_core.data", reason="ai2-olmo-core is not installed")
    export = export_random(seed, "olmo-core")
    length = 8
    # The reader derives the size of a token from the vocabulary.
    vocab_size = 65_536 if export.tokens.itemsize == 2 else 200_000
    config = data.NumpyFSLDatasetConfig(
        paths=[str(export.folder / f"{export.name}.npy")],
        sequence_length=length,
        tokenizer=data.TokenizerConfig(vocab_size=vocab_size, eos_token_id=END, pad_token_id=END),
        work_dir=str(tmp_path),
    )

    dataset = config.build()
    dataset.prepare()

    assert len(dataset) == len(export.tokens) // length
    for number in range(len(dataset)):
        expected = export.tokens[length * number : length * (number + 1)]
        assert np.array_equal(dataset[number]["input_ids"].numpy(), expected)


# How the tokens get there


def test_tokens_are_linked_and_a_second_call_writes_nothing(tmp_path):
    prefix, _documents = random_pair(tmp_path, 2)
    words = ["export", str(prefix), "--format", "datatrove", "-o", str(tmp_path / "out")]
    words += ["--name", "n"]

    first = invoke_nanoset(words, catch_exceptions=False).output
    second = invoke_nanoset(words, catch_exceptions=False).output

    assert "tokens: hard link" in first
    assert second == first.replace("\n", " (already exists)\n")
    assert os.path.samefile(tmp_path / "out" / "n.ds", f"{prefix}.bin")


def test_tokens_are_copied_if_links_are_refused(tmp_path, monkeypatch):
    prefix, _documents = random_pair(tmp_path, 2)

    def refuse(*_arguments: object) -> None:
        raise OSError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        facts, files, _is_new = export_pair(
            prefix, tmp_path / "out", ExportOptions(format="olmo-core")
        )

    assert facts["made_by"] == "copy"
    assert files[0].read_bytes() == (tmp_path / f"{prefix.name}.bin").read_bytes()


class PairInBucket(NamedTuple):
    """A large pair in a local folder, and the same pair in a bucket."""

    local: Path
    """Prefix of the local pair."""
    bucket: S3Store

    def url(self, name: str) -> str:
        """Return the address of an object in the bucket."""
        return f"{self.bucket.url()}/{name}"


@pytest.fixture
def large_pair(tmp_path: Path, bucket: S3Store, monkeypatch: pytest.MonkeyPatch) -> PairInBucket:
    """A pair named `big` of 6 MiB, in a local folder and in a bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    prefix = tmp_path / "big"
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_document(np.arange(3 << 20).astype(np.uint16))
    for ending in (".bin", ".idx"):
        bucket.put_file(f"big{ending}", tmp_path / f"big{ending}")
    return PairInBucket(prefix, bucket)


@pytest.fixture
def transferred_bytes() -> Iterator[list[int]]:
    """The bytes that each request to a bucket transferred, in both directions."""
    n_bytes: list[int] = []

    def count(path: str, sent: int, answered: int) -> None:
        n_bytes.append(sent + answered)

    s3_server.listeners.append(count)
    yield n_bytes
    s3_server.listeners.remove(count)


def test_tokens_are_copied_within_a_bucket_and_not_transferred(large_pair, transferred_bytes):
    source = location(large_pair.url("big"))
    target = location(large_pair.url("out"))
    options = ExportOptions(format="datatrove")

    facts, _files, is_new = export_pair(source, target, options)

    assert is_new
    assert facts["made_by"] == "copy within the bucket"
    assert sum(transferred_bytes) < 100_000
    assert large_pair.bucket.sha256("out/big.ds") == large_pair.bucket.sha256("big.bin")
    _facts, _files, is_new = export_pair(source, target, options)
    assert not is_new


def test_tokens_are_uploaded_to_a_bucket(large_pair):
    target = location(large_pair.url("sent"))

    facts, _files, _is_new = export_pair(
        large_pair.local, target, ExportOptions(format="datatrove")
    )

    assert facts["made_by"] == "copy"
    assert large_pair.bucket.sha256("sent/big.ds") == large_pair.bucket.sha256("big.bin")


def test_tokens_are_downloaded_from_a_bucket(large_pair, tmp_path):
    source = location(large_pair.url("big"))
    folder = tmp_path / "downloaded"
    folder.mkdir()

    facts, _files, _is_new = export_pair(source, folder, ExportOptions(format="datatrove"))

    assert facts["made_by"] == "copy"
    expected = large_pair.local.with_suffix(".bin").read_bytes()
    assert (folder / "big.ds").read_bytes() == expected


# Datasets that a reader could not read are refused

READABLE = DatasetTraits(where="here", dtype=np.dtype(np.uint16), tokens=5)
"""A dataset that all readers can read."""


@pytest.mark.parametrize(
    ("format_name", "traits", "found"),
    [
        ("datatrove", {"dtype": np.dtype(np.uint8)}, "tokens of type uint8"),
        ("datatrove", {"dtype": np.dtype(np.int64)}, "tokens of type int64"),
        ("datatrove", {"has_end": False}, "no end tokens"),
        ("datatrove", {"tokens": 0}, "no tokens"),
        ("olmo-core", {"has_end": False}, "no end tokens"),
        ("olmo-core", {"dtype": np.dtype(np.int32), "vocab_size": 65_536}, "4 bytes a token"),
        ("olmo-core", {"vocab_size": 65_537}, "2 bytes a token"),
        ("olmo-core", {"vocab_size": 256}, "2 bytes a token"),
        ("olmo-core", {"dtype": np.dtype(np.float32)}, "tokens of type float32"),
        (
            "olmo-core",
            {"dtype": np.dtype(np.float32), "vocab_size": 70_000},
            "tokens of type float32",
        ),
        ("olmo-core", {"dtype": np.dtype(np.int16)}, "tokens of type int16"),
    ],
)
def test_a_dataset_that_the_reader_cannot_read_is_refused(format_name, traits, found):
    dataset = replace(READABLE, **traits)

    with pytest.raises(ConfigError) as error:
        FORMATS[format_name].check(dataset)

    assert error.value.found == found


@pytest.mark.parametrize(
    ("dtype", "vocab_size"),
    [("uint16", 65_536), ("uint16", 50_000), ("int32", 65_537), ("uint8", 256)],
)
def test_olmo_core_accepts_tokens_whose_size_follows_from_the_vocabulary(dtype, vocab_size):
    dataset = replace(READABLE, dtype=np.dtype(dtype), vocab_size=vocab_size)

    FORMATS["olmo-core"].check(dataset)


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "remedy"),
    [
        ("int32", 65_536, "link the .bin as a .npy yourself"),
        ("uint16", 65_537, "name the tokenizer that made the tokens"),
    ],
)
def test_the_remedy_for_another_token_size_does_not_name_presets(dtype, vocab_size, remedy):
    dataset = replace(READABLE, dtype=np.dtype(dtype), vocab_size=vocab_size)

    with pytest.raises(ConfigError) as error:
        FORMATS["olmo-core"].check(dataset)

    assert remedy in error.value.remedy


@pytest.mark.parametrize(("format_name", "has_notice"), [("olmo-core", True), ("datatrove", False)])
def test_a_notice_says_that_the_token_size_is_not_checked(tmp_path, format_name, has_notice):
    prefix, _documents = random_pair(tmp_path, 2)

    result = invoke_nanoset(["export", prefix, "--format", format_name, "-o", tmp_path / "out"])

    notice = "OLMo-core reads these tokens of 2 bytes only if it has 257 to 65,536 tokens"
    assert result.exit_code == 0
    assert (notice in result.stderr) == has_notice


DOCUMENTS_WITHOUT_ENDS = {
    "no document ends with it": [[5, 6], [6, 5, 8], [9]],
    "the last document was cut off": [[5, END], [6, END], [8, 9]],
    "the first document lacks it": [[5], [6, END], [8, END]],
    "a document has it elsewhere": [[5, END], [END, 6], [8, END]],
    "a document after an empty one lacks it": [[5, END], [], [8]],
    "all end with a token that also occurs elsewhere": [[9, 5, 9, 9], [9, 9, 6, 9], [8, 9, 9]],
}


@pytest.mark.parametrize("format_name", FORMATS_WITH_ENDS)
@pytest.mark.parametrize(
    "documents", DOCUMENTS_WITHOUT_ENDS.values(), ids=DOCUMENTS_WITHOUT_ENDS.keys()
)
def test_a_dataset_with_documents_without_the_end_token_is_refused(
    tmp_path, format_name, documents
):
    prefix = write_pair(tmp_path, documents)

    with pytest.raises(ConfigError, match="end token after each document") as caught:
        export_pair(prefix, tmp_path / "out", ExportOptions(format=format_name))

    assert "--append-eod" in str(caught.value)
    assert not list((tmp_path / "out").glob("*.*"))


@pytest.mark.parametrize("format_name", FORMATS_WITH_ENDS)
def test_documents_without_tokens_need_no_end_token(tmp_path, format_name):
    prefix = write_pair(tmp_path, [[], [5, END], [], [END], []])
    (tmp_path / "out").mkdir()

    facts, _files, _is_new = export_pair(
        prefix, tmp_path / "out", ExportOptions(format=format_name)
    )

    assert facts["documents"] == 2


@pytest.mark.parametrize("format_name", FORMATS_WITH_ENDS)
def test_documents_that_end_with_an_ordinary_token_of_the_tokenizer_are_refused(
    tmp_path, format_name, tokenizer_file
):
    prefix = write_pair(tmp_path, [[900, 901], [902, 901]])
    options = ExportOptions(format=format_name, tokenizer=tokenizer_file)

    with pytest.raises(ConfigError, match="token 901, which is no special token"):
        export_pair(prefix, tmp_path / "out", options)


@pytest.mark.parametrize("document", [0, 70_000, 139_999], ids=["first", "middle", "last"])
def test_the_only_document_without_an_end_token_is_named(tmp_path, document):
    n_documents = 140_000
    tokens = np.full((n_documents, 2), END, np.uint16)
    tokens[document, 1] = 9
    prefix = tmp_path / "many"
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_documents(tokens.ravel(), [2] * n_documents, [1] * n_documents)

    with pytest.raises(ConfigError, match=rf"1 of 140,000 documents .* first of them {document:,}"):
        export_pair(prefix, tmp_path / "out", ExportOptions(format="datatrove"))


def test_formats_in_samples_need_no_end_tokens(tmp_path):
    prefix = write_pair(tmp_path, [[5, 6], [6, 5, 8], [9]])
    (tmp_path / "out").mkdir()

    export_pair(prefix, tmp_path / "out", ExportOptions(format="mds", sequence_length=3))


def test_end_tokens_of_a_dataset_in_a_bucket_are_checked(tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    prefix = write_pair(tmp_path, [[5, END], [6, 9], [8, END]])
    for ending in (".bin", ".idx"):
        bucket.put_file(f"pair{ending}", prefix.with_suffix(ending))
    source = location(f"{bucket.url()}/pair")
    target = location(f"{bucket.url()}/out")

    with pytest.raises(ConfigError, match="1 of 3 documents"):
        export_pair(source, target, ExportOptions(format="olmo-core"))


# The count of tokens in the metadata of a .ds file, in the words of datatrove


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1.00 T"),
        (10, "10.0 T"),
        (999, "999 T"),
        (1000, "1.00 kT"),
        (9_999, "10.0 kT"),
        (12_345, "12.3 kT"),
        (99_950, "100 kT"),
        (999_999, "1.00 MT"),
        (123_456_789, "123 MT"),
        (15 * 10**12 + 7, "15.0 TT"),
    ],
)
def test_counts_are_written_as_datatrove_writes_them(count, text):
    assert _metric(count) == text


def test_counts_are_those_of_humanize():
    """datatrove writes counts by the package humanize."""
    humanize = pytest.importorskip("humanize", reason="humanize is not installed")
    counts = np.random.default_rng(1).integers(1, 10**15, 2000).tolist()
    counts += [10**n - 1 for n in range(1, 16)]
    counts += [*range(1, 2000), *range(9_900, 10_100), *range(99_400, 100_100)]

    for count in counts:
        assert _metric(count) == humanize.metric(count, unit="T")
