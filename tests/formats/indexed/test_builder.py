"""Writing and merging indexed datasets, byte for byte."""

import errno
import hashlib
import os

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, FormatError, MissingError, SourceChangedError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder, merge_indexed_datasets
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.storage.appending import append_file


def digests(prefix):
    return {
        end: hashlib.sha256(prefix.with_suffix(end).read_bytes()).hexdigest()
        for end in (".bin", ".idx")
    }


def pair(prefix):
    return prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes()


def documents_of(dataset):
    """(tokens, lengths) of every document."""
    for begin, end in zip(dataset.document_indices[:-1], dataset.document_indices[1:], strict=True):
        sequences = dataset[int(begin) : int(end)]
        yield (
            [token for sequence in sequences for token in sequence.tolist()],
            [len(part) for part in sequences],
        )


def by_document(builder, source):
    for tokens, lengths in documents_of(source):
        builder.add_document(tokens, lengths)


def by_item(builder, source):
    for begin, end in zip(source.document_indices[:-1], source.document_indices[1:], strict=True):
        for sequence in source[int(begin) : int(end)]:
            builder.add_item(sequence)
        builder.end_document()


def all_at_once(builder, source):
    builder.add_documents(source.tokens, source.sequence_lengths, np.diff(source.document_indices))


def by_index(builder, source):
    builder.add_index(source.prefix)


@pytest.mark.parametrize("way", [by_document, by_item, all_at_once, by_index])
@pytest.mark.parametrize("case", cases("indexed_dataset"), ids=name_of)
def test_golden(case, way, tmp_path):
    source = MMapIndexedDataset(FOLDER / case["params"]["prefix"])
    with MMapIndexedDatasetBuilder(tmp_path / "x", source.dtype) as builder:
        way(builder, source)
    assert digests(tmp_path / "x") == case["meta"]["sha256"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


@pytest.mark.parametrize("case", cases("indexed_dataset_multimodal"), ids=name_of)
def test_golden_multimodal(case, tmp_path):
    source = MMapIndexedDataset(FOLDER / case["params"]["prefix"])
    with MMapIndexedDatasetBuilder(tmp_path / "x", source.dtype, multimodal=True) as builder:
        modes = iter(source.modes.tolist())
        for tokens, lengths in documents_of(source):
            builder.add_document(tokens, lengths, [next(modes) for _ in lengths])
    assert digests(tmp_path / "x") == case["meta"]["sha256"]
    merge_indexed_datasets([tmp_path / "x"], tmp_path / "y")
    assert pair(tmp_path / "x") == pair(tmp_path / "y")


@pytest.mark.parametrize("case", cases("merge"), ids=name_of)
def test_golden_merge(case, tmp_path):
    merge_indexed_datasets([FOLDER / part for part in case["params"]["parts"]], tmp_path / "x")
    assert digests(tmp_path / "x") == case["meta"]["sha256"]


def refuse(*_args, **_options):
    raise OSError(errno.EXDEV, "not here")


def test_merge_where_the_file_system_cannot_copy(tmp_path, monkeypatch):
    case = cases("merge")[0]
    monkeypatch.setattr(os, "copy_file_range", refuse)
    merge_indexed_datasets([FOLDER / part for part in case["params"]["parts"]], tmp_path / "x")
    assert digests(tmp_path / "x") == case["meta"]["sha256"]


def test_a_copy_that_is_refused_half_way_goes_on_another_way(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 40)

    def some(read, write, count, offset_src):
        if offset_src:
            raise OSError(errno.EINVAL, "enough")
        return os.write(write, os.pread(read, 1000, 0))

    monkeypatch.setattr(os, "copy_file_range", some)
    with open(tmp_path / "target", "w+b") as target:
        target.write(b"before")
        with source.open("rb") as file:
            append_file(file, target, 10240)
        assert target.tell() == 10246
        target.write(b"after")
    assert (tmp_path / "target").read_bytes() == b"before" + source.read_bytes() + b"after"


def test_a_source_that_shrinks_is_an_error(tmp_path):
    (tmp_path / "source").write_bytes(b"abc")
    target, source = (tmp_path / "target").open("w+b"), (tmp_path / "source").open("rb")
    with target, source, pytest.raises(SourceChangedError, match="byte 3"):
        append_file(source, target, 5)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=3), max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_merge_is_building_in_one_go(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("merge")
    with MMapIndexedDatasetBuilder(folder / "whole", np.uint16) as whole:
        for number, documents in enumerate(parts):
            with MMapIndexedDatasetBuilder(folder / f"part{number}", np.uint16) as part:
                for sequences in documents:
                    tokens = [token for sequence in sequences for token in sequence]
                    for builder in (whole, part):
                        builder.add_document(tokens, [len(sequence) for sequence in sequences])
    merge_indexed_datasets(
        [folder / f"part{number}" for number in range(len(parts))], folder / "merged"
    )
    assert pair(folder / "merged") == pair(folder / "whole")


def write(prefix, documents, dtype=np.uint16):
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for document in documents:
            builder.add_document(document)


def test_merge_of_different_dtypes(tmp_path):
    write(tmp_path / "a", [[1]])
    write(tmp_path / "b", [[1]], np.int32)
    with pytest.raises(FormatError, match=r"b\.idx, byte 17"):
        merge_indexed_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("end", [b"", b"\x01\x00\x02\x00\x03\x00"])
def test_merge_of_a_token_file_that_is_not_its_sequences(tmp_path, end):
    write(tmp_path / "a", [[1, 2]])
    (tmp_path / "a.bin").write_bytes(end)
    with pytest.raises(FormatError, match="back to back"):
        merge_indexed_datasets([tmp_path / "a"], tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_merge_of_nothing_or_of_something_missing(tmp_path):
    with pytest.raises(ConfigError, match="nothing to merge"):
        merge_indexed_datasets([], tmp_path / "out")
    with pytest.raises(MissingError, match="none"):
        merge_indexed_datasets([tmp_path / "none"], tmp_path / "out")


@pytest.mark.parametrize(
    ("tokens", "dtype", "found"),
    [([1, 65536], np.uint16, 65536), ([-1], np.uint16, -1), ([2**31], np.int32, 2**31)],
)
def test_tokens_that_do_not_fit(tmp_path, tokens, dtype, found):
    builder = MMapIndexedDatasetBuilder(tmp_path / "x", dtype)
    with pytest.raises(ConfigError, match="optimal_dtype") as caught:
        builder.add_document(tokens)
    assert caught.value.found == str(found)
    builder.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        *(("add_document", (tokens,), "flat array") for tokens in ([[1, 2]], [0.5], ["a"])),
        *(
            ("add_document", ([1, 2], lengths), "lengths")
            for lengths in ([1], [1, 2], [-1, 3], [[2]])
        ),
        *(("add_documents", ([1, 2], [1, 1], counts), "add up") for counts in ([1], [3], [-1, 3])),
    ],
)
def test_what_does_not_fit(tmp_path, call, arguments, message):
    with (
        pytest.raises(ConfigError, match=message),
        MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder,
    ):
        getattr(builder, call)(*arguments)
    assert not list(tmp_path.iterdir())


def test_sequences_without_a_document(tmp_path):
    with (
        pytest.raises(ConfigError, match="end_document"),
        MMapIndexedDatasetBuilder(tmp_path / "x") as builder,
    ):
        builder.add_item([1])
    assert not list(tmp_path.glob("x.*"))


def test_modes_need_a_multimodal_builder(tmp_path):
    with (
        pytest.raises(ConfigError, match="multimodal"),
        MMapIndexedDatasetBuilder(tmp_path / "x") as builder,
    ):
        builder.add_item([1], mode=2)
    with (
        pytest.raises(ConfigError, match="number of modes"),
        MMapIndexedDatasetBuilder(tmp_path / "x", multimodal=True) as builder,
    ):
        builder.add_document([1, 2], [1, 1], [0])


def test_nothing_is_there_before_finalize(tmp_path):
    write(tmp_path / "x", [[1, 2]])
    before = pair(tmp_path / "x")
    builder = MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16)
    builder.add_document([3])
    assert pair(tmp_path / "x") == before
    builder.finalize()
    assert MMapIndexedDataset(tmp_path / "x")[0].tolist() == [3]
    with pytest.raises(ConfigError, match="finished"):
        builder.add_document([4])
    with pytest.raises(ConfigError, match="finished"):
        builder.finalize()


def test_an_exception_leaves_the_old_dataset(tmp_path):
    write(tmp_path / "x", [[1, 2]])
    before = pair(tmp_path / "x")
    with pytest.raises(KeyError), MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder:
        builder.add_document([3])
        raise KeyError
    assert pair(tmp_path / "x") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failing_rename_never_leaves_an_index_beside_other_tokens(tmp_path, monkeypatch, failing):
    write(tmp_path / "x", [[1, 2]])
    rename, calls = os.replace, []

    def replace(*paths):
        calls.append(paths)
        if len(calls) == failing:
            raise OSError(errno.EIO, "lost")
        rename(*paths)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="lost"):
        write(tmp_path / "x", [[3], [4]])
    assert not (tmp_path / "x.idx").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"x.bin"}
