"""Indexed datasets are written and merged byte for byte as Megatron-LM does it."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.sample_pairs import pair_bytes, write_sequences
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    MissingError,
    SourceChangedError,
    StorageError,
)
from nanoset_core.formats.indexed import builder as builder_module
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder, merge_indexed_datasets
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, read_idx
from nanoset_core.storage.atomic import put_in_place
from nanoset_core.storage.writing.appending import append_file


def digests(prefix):
    """Return ending → sha256 of both files of a dataset."""
    tokens, index = pair_bytes(prefix)
    return {".bin": hashlib.sha256(tokens).hexdigest(), ".idx": hashlib.sha256(index).hexdigest()}


def documents_of(dataset):
    """Yield the sequences of each document, each a list of tokens."""
    for start, stop in pairwise(dataset.document_indices.tolist()):
        yield [sequence.tolist() for sequence in dataset[start:stop]]


def flatten(sequences):
    """Return the tokens of several sequences, concatenated."""
    return list(chain.from_iterable(sequences))


def lengths_of(sequences):
    """Return how many tokens each sequence has."""
    return [len(sequence) for sequence in sequences]


# The bytes of Megatron-LM's builder (tests/golden/megatron)


def add_by_document(builder, source):
    """Add the documents of a dataset one by one."""
    for sequences in documents_of(source):
        builder.add_document(flatten(sequences), lengths_of(sequences))


def add_by_sequence(builder, source):
    """Add the sequences of a dataset one by one."""
    for sequences in documents_of(source):
        for sequence in sequences:
            builder.add_item(sequence)
        builder.end_document()


def add_all_at_once(builder, source):
    """Add all documents of a dataset in one call."""
    builder.add_documents(source.tokens, source.sequence_lengths, np.diff(source.document_indices))


def add_files(builder, source):
    """Add the files of a dataset, without reading its documents."""
    builder.add_index(source.prefix)


@pytest.mark.parametrize("add", [add_by_document, add_by_sequence, add_all_at_once, add_files])
@pytest.mark.parametrize("case", cases("indexed_dataset"), ids=name_of)
def test_a_dataset_has_the_bytes_of_megatron_however_it_is_added(case, add, tmp_path):
    source = MMapIndexedDataset(FOLDER / case["params"]["prefix"])

    with MMapIndexedDatasetBuilder(tmp_path / "x", source.dtype) as builder:
        add(builder, source)

    assert digests(tmp_path / "x") == case["meta"]["sha256"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def write_multimodal(prefix, source):
    """Write a copy of a dataset with modes, document by document."""
    first_sequence = 0
    with MMapIndexedDatasetBuilder(prefix, source.dtype, multimodal=True) as builder:
        for sequences in documents_of(source):
            modes = source.modes[first_sequence : first_sequence + len(sequences)].tolist()
            builder.add_document(flatten(sequences), lengths_of(sequences), modes)
            first_sequence += len(sequences)


@pytest.mark.parametrize("case", cases("indexed_dataset_multimodal"), ids=name_of)
def test_a_multimodal_dataset_has_the_bytes_of_megatron(case, tmp_path):
    write_multimodal(tmp_path / "x", MMapIndexedDataset(FOLDER / case["params"]["prefix"]))

    assert digests(tmp_path / "x") == case["meta"]["sha256"]


@pytest.mark.parametrize("case", cases("indexed_dataset_multimodal"), ids=name_of)
def test_merging_keeps_modes(case, tmp_path):
    write_multimodal(tmp_path / "x", MMapIndexedDataset(FOLDER / case["params"]["prefix"]))

    merge_indexed_datasets([tmp_path / "x"], tmp_path / "y")

    assert pair_bytes(tmp_path / "y") == pair_bytes(tmp_path / "x")


@pytest.mark.parametrize("case", cases("merge"), ids=name_of)
def test_merged_datasets_have_the_bytes_of_megatron(case, tmp_path):
    prefixes = [FOLDER / part for part in case["params"]["parts"]]

    merge_indexed_datasets(prefixes, tmp_path / "x")

    assert digests(tmp_path / "x") == case["meta"]["sha256"]


# Merging


def test_datasets_are_merged_on_a_file_system_that_cannot_copy(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(errno.EXDEV, "not here")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    case = cases("merge")[0]
    prefixes = [FOLDER / part for part in case["params"]["parts"]]

    merge_indexed_datasets(prefixes, tmp_path / "x")

    assert digests(tmp_path / "x") == case["meta"]["sha256"]


def test_a_copy_that_the_system_refuses_half_way_is_completed_without_it(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 40)

    def copy_1000_bytes_only(source_handle, target_handle, count, offset_src):
        if offset_src > 0:
            raise OSError(errno.EINVAL, "enough")
        return os.write(target_handle, os.pread(source_handle, 1000, 0))

    monkeypatch.setattr(os, "copy_file_range", copy_1000_bytes_only)

    with (tmp_path / "target").open("w+b") as target, source.open("rb") as file:
        target.write(b"before")
        append_file(file, target, 10240)
        position = target.tell()
        target.write(b"after")

    # What is written next follows the copy.
    assert position == len(b"before") + 10240
    assert (tmp_path / "target").read_bytes() == b"before" + source.read_bytes() + b"after"


def test_a_source_that_became_shorter_is_an_error(tmp_path):
    (tmp_path / "source").write_bytes(b"abc")

    with (
        (tmp_path / "target").open("w+b") as target,
        (tmp_path / "source").open("rb") as source,
        pytest.raises(SourceChangedError, match="byte 3"),
    ):
        append_file(source, target, 5)


sequence_lists = st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=3)
document_lists = st.lists(sequence_lists, max_size=4)


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(document_lists, min_size=1, max_size=4))
def test_merged_parts_are_the_dataset_of_all_documents(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("merge")
    part_prefixes = []
    with MMapIndexedDatasetBuilder(folder / "all", np.uint16) as builder_of_all:
        for number, documents in enumerate(parts):
            part_prefixes.append(folder / f"part{number}")
            with MMapIndexedDatasetBuilder(part_prefixes[-1], np.uint16) as builder_of_part:
                for sequences in documents:
                    tokens = flatten(sequences)
                    lengths = lengths_of(sequences)
                    builder_of_all.add_document(tokens, lengths)
                    builder_of_part.add_document(tokens, lengths)

    merge_indexed_datasets(part_prefixes, folder / "merged")

    assert pair_bytes(folder / "merged") == pair_bytes(folder / "all")


def test_datasets_of_different_types_are_not_merged(tmp_path):
    write_sequences(tmp_path / "a", [[1]])
    with MMapIndexedDatasetBuilder(tmp_path / "b", np.int32) as builder:
        builder.add_document([1])

    with pytest.raises(FormatError, match=r"b\.idx, byte 17") as caught:
        merge_indexed_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert caught.value.expected == f"uint16, as in {tmp_path / 'a'}"
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="too short"),
        pytest.param(b"\x01\x00\x02\x00\x03\x00", id="too long"),
    ],
)
def test_a_token_file_that_does_not_match_its_index_is_not_merged(tmp_path, content):
    write_sequences(tmp_path / "a", [[1, 2]])
    (tmp_path / "a.bin").write_bytes(content)

    with pytest.raises(FormatError, match="back to back"):
        merge_indexed_datasets([tmp_path / "a"], tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_merge_needs_a_list_and_not_a_single_path(tmp_path, as_type):
    write_sequences(tmp_path / "a", [[1]])

    with pytest.raises(ConfigError, match="a list, such as"):
        merge_indexed_datasets(as_type(tmp_path / "a"), tmp_path / "out")


def test_the_error_for_a_merge_of_gaps_names_views(tmp_path):
    write_sequences(tmp_path / "corpus", [[1], [2], [3]])
    corpus = read_idx(tmp_path / "corpus.idx")
    is_kept = np.array([True, False, True])
    # A view has the lengths, pointers and documents of its sequences alone.
    header = HEADER.pack(MAGIC, 1, 8, 2, 3)
    lengths = corpus.sequence_lengths[is_kept].tobytes()
    pointers = corpus.sequence_pointers[is_kept].tobytes()
    view_idx = header + lengths + pointers + np.arange(3).tobytes()
    (tmp_path / "view.idx").write_bytes(view_idx)
    (tmp_path / "view.bin").write_bytes((tmp_path / "corpus.bin").read_bytes())

    with pytest.raises(FormatError, match="that the view was made from"):
        merge_indexed_datasets([tmp_path / "view"], tmp_path / "out")


def test_a_folder_in_place_of_the_token_file_is_called_so(tmp_path):
    write_sequences(tmp_path / "a", [[1]])
    (tmp_path / "a.bin").unlink()
    (tmp_path / "a.bin").mkdir()

    with pytest.raises(MissingError, match="this is a folder"):
        MMapIndexedDataset(tmp_path / "a")


def test_a_merge_needs_datasets(tmp_path):
    with pytest.raises(ConfigError, match="nothing to merge"):
        merge_indexed_datasets([], tmp_path / "out")


def test_a_merge_of_a_missing_dataset_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="none"):
        merge_indexed_datasets([tmp_path / "none"], tmp_path / "out")


# Input that is refused


@pytest.mark.parametrize(
    ("tokens", "dtype", "wrong_token"),
    [
        pytest.param([1, 65536], np.uint16, 65536, id="too large for uint16"),
        pytest.param([-1], np.uint16, -1, id="negative"),
        pytest.param([2**31], np.int32, 2**31, id="too large for int32"),
    ],
)
def test_a_token_that_does_not_fit_the_type_is_refused(tmp_path, tokens, dtype, wrong_token):
    builder = MMapIndexedDatasetBuilder(tmp_path / "x", dtype)

    with pytest.raises(ConfigError, match=r"np\.uint16 for a vocabulary below 65,500") as caught:
        builder.add_document(tokens)

    assert caught.value.found == str(wrong_token)
    builder.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([[1, 2]], id="two dimensions"),
        pytest.param([0.5], id="fractions"),
        pytest.param(["a"], id="text"),
        pytest.param([[1, 2], [3]], id="lists of unequal lengths"),
    ],
)
def test_tokens_must_be_a_flat_array_of_integers(tmp_path, tokens):
    with (
        pytest.raises(ConfigError, match="flat array"),
        MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder,
    ):
        builder.add_document(tokens)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([1], id="too few"),
        pytest.param([1, 2], id="too many"),
        pytest.param([-1, 3], id="negative"),
        pytest.param([[2]], id="two dimensions"),
        pytest.param([1.5, 1.5], id="fractions"),
        pytest.param([2, float("nan")], id="not a number"),
        pytest.param([2, float("inf")], id="infinite"),
    ],
)
def test_the_lengths_of_sequences_must_add_up_to_the_tokens(tmp_path, lengths):
    with (
        pytest.raises(ConfigError, match="lengths"),
        MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder,
    ):
        builder.add_document([1, 2], lengths)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "sequences_per_document",
    [
        pytest.param([1], id="too few"),
        pytest.param([3], id="too many"),
        pytest.param([-1, 3], id="negative"),
    ],
)
def test_the_sequences_of_documents_must_add_up(tmp_path, sequences_per_document):
    with (
        pytest.raises(ConfigError, match="add up"),
        MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder,
    ):
        builder.add_documents([1, 2], [1, 1], sequences_per_document)
    assert not list(tmp_path.iterdir())


def test_lengths_and_counts_may_be_floats_without_fractions(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder:
        builder.add_documents([1, 2, 3], np.array([2.0, 1.0]), np.ones(2))

    dataset = MMapIndexedDataset(tmp_path / "x")
    assert [tokens.tolist() for tokens in dataset] == [[1, 2], [3]]
    assert dataset.document_indices.tolist() == [0, 1, 2]


def test_the_last_document_must_be_ended(tmp_path):
    with (
        pytest.raises(ConfigError, match="end_document"),
        MMapIndexedDatasetBuilder(tmp_path / "x") as builder,
    ):
        builder.add_item([1])
    assert not list(tmp_path.glob("x.*"))


def test_a_mode_needs_a_multimodal_dataset(tmp_path):
    with (
        pytest.raises(ConfigError, match="multimodal"),
        MMapIndexedDatasetBuilder(tmp_path / "x") as builder,
    ):
        builder.add_item([1], mode=2)


@pytest.mark.parametrize("modes", [[0], 1, [[0, 0]]])
def test_each_sequence_of_a_multimodal_dataset_needs_a_mode(tmp_path, modes):
    with (
        pytest.raises(ConfigError, match="number of modes"),
        MMapIndexedDatasetBuilder(tmp_path / "x", multimodal=True) as builder,
    ):
        builder.add_document([1, 2], [1, 1], modes=modes)


@pytest.mark.parametrize("modes", [[1.9, 0], ["a", 0], [None, 0]])
def test_modes_are_whole_numbers(tmp_path, modes):
    with (
        pytest.raises(ConfigError, match="modes are not whole numbers"),
        MMapIndexedDatasetBuilder(tmp_path / "x", multimodal=True) as builder,
    ):
        builder.add_document([1, 2], [1, 1], modes)


def test_only_the_first_merged_dataset_may_be_multimodal(tmp_path):
    write_sequences(tmp_path / "text", [[1]])
    with MMapIndexedDatasetBuilder(tmp_path / "images", np.uint16, multimodal=True) as builder:
        builder.add_document([2], modes=[1])

    with pytest.raises(FormatError, match="only one of two datasets") as caught:
        merge_indexed_datasets([tmp_path / "text", tmp_path / "images"], tmp_path / "all")
    assert caught.value.where == f"{tmp_path / 'images'}.idx"

    merge_indexed_datasets([tmp_path / "images", tmp_path / "text"], tmp_path / "all")
    assert MMapIndexedDataset(tmp_path / "all").modes.tolist() == [1, 0]


@pytest.mark.parametrize("modes", [[200, 0], [-129, 0]])
def test_a_mode_must_fit_into_8_bits(tmp_path, modes):
    with (
        pytest.raises(ConfigError, match="-128 to 127"),
        MMapIndexedDatasetBuilder(tmp_path / "x", multimodal=True) as builder,
    ):
        builder.add_document([1, 2], [1, 1], modes)


def test_the_error_for_a_generator_of_tokens_says_to_make_a_list_of_it(tmp_path):
    with (
        pytest.raises(ConfigError, match="make a list of it") as caught,
        MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder,
    ):
        builder.add_document(token for token in [1, 2])
    assert "an object of type generator" in caught.value.found


def test_whole_numbers_are_refused_in_a_dataset_of_floats(tmp_path):
    with (
        pytest.raises(ConfigError, match="not a flat array of floats"),
        MMapIndexedDatasetBuilder(tmp_path / "x", np.float32) as builder,
    ):
        builder.add_document([1, 2])


@pytest.mark.parametrize("dtype", ["int99", np.float16, None])
def test_a_type_that_an_idx_cannot_name_is_refused(tmp_path, dtype):
    with pytest.raises(ConfigError, match="uint8, int8, int16"):
        MMapIndexedDatasetBuilder(tmp_path / "x", dtype)


# The files are replaced as the last step


def test_a_dataset_is_replaced_when_the_builder_finishes(tmp_path):
    write_sequences(tmp_path / "x", [[1, 2]])
    before = pair_bytes(tmp_path / "x")
    builder = MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16)

    builder.add_document([3])
    assert pair_bytes(tmp_path / "x") == before

    builder.finalize()
    assert MMapIndexedDataset(tmp_path / "x")[0].tolist() == [3]


def test_a_finished_builder_cannot_be_used(tmp_path):
    builder = MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16)
    builder.finalize()

    with pytest.raises(ConfigError, match="finished"):
        builder.add_document([4])
    with pytest.raises(ConfigError, match="finished"):
        builder.finalize()


def test_an_exception_leaves_the_former_dataset(tmp_path):
    write_sequences(tmp_path / "x", [[1, 2]])
    before = pair_bytes(tmp_path / "x")

    with pytest.raises(KeyError), MMapIndexedDatasetBuilder(tmp_path / "x", np.uint16) as builder:
        builder.add_document([3])
        raise KeyError

    assert pair_bytes(tmp_path / "x") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


@pytest.mark.parametrize("n_successful", [0, 1], ids=["first", "second"])
def test_a_rename_that_fails_leaves_no_index_of_other_tokens(tmp_path, monkeypatch, n_successful):
    write_sequences(tmp_path / "x", [[1, 2]])
    rename = os.replace
    renamed = []

    def rename_or_fail(source, target):
        if len(renamed) == n_successful:
            raise OSError(errno.EIO, "lost")
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", rename_or_fail)

    with pytest.raises(OSError, match="lost"):
        write_sequences(tmp_path / "x", [[3], [4]])

    assert not (tmp_path / "x.idx").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"x.bin"}


def test_two_builders_of_a_dataset_never_leave_the_files_of_different_ones(tmp_path, monkeypatch):
    second = threading.Thread(target=write_sequences, args=(tmp_path / "x", [[2, 2]] * 4))

    def put_while_another_finishes(file, target):
        put_in_place(file, target)
        if not second.ident:  # not started yet: this is the .bin of the first builder
            second.start()
            second.join(0.3)

    monkeypatch.setattr(builder_module, "put_in_place", put_while_another_finishes)

    write_sequences(tmp_path / "x", [[1, 1, 1]] * 5)
    second.join()

    written = MMapIndexedDataset(tmp_path / "x")
    assert [tokens.tolist() for tokens in written] == [[2, 2]] * 4
    assert written.token_count == written.sequence_lengths.sum()


# Paths that cannot be written


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("file/x", "File exists", id="below a file"),
        pytest.param("file/x/y", "Not a directory", id="far below a file"),
        pytest.param("x" * 300, "File name too long", id="long name"),
    ],
)
def test_a_builder_says_that_the_system_refuses_a_path(tmp_path, name, found):
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="the system refuses this") as caught:
        MMapIndexedDatasetBuilder(tmp_path / name)
    assert found in caught.value.found


def test_a_builder_does_not_replace_a_folder(tmp_path):
    (tmp_path / "x.bin").mkdir()
    builder = MMapIndexedDatasetBuilder(tmp_path / "x")

    with pytest.raises(StorageError, match="the system refuses this"):
        builder.finalize()
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]


def test_a_builder_says_that_the_disk_is_full(tmp_path, monkeypatch):
    def write(data):
        """Fail as writing does if the disk is full."""
        raise OSError(errno.ENOSPC, "No space left on device")

    builder = MMapIndexedDatasetBuilder(tmp_path / "x")
    monkeypatch.setattr(builder._file, "write", write)

    with pytest.raises(StorageError, match="the disk is full") as caught:
        builder.add_document([1])
    assert caught.value.where == str(tmp_path)
    builder.abort()


@pytest.mark.parametrize("prefix", ["", "data/", ".", "..", "data/.", Path()])
def test_the_prefix_of_a_new_dataset_has_a_name(tmp_path, monkeypatch, prefix):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)

    with pytest.raises(ConfigError, match="ends with a name"):
        MMapIndexedDatasetBuilder(prefix)
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_the_prefix_of_a_new_dataset_has_no_ending(tmp_path, ending):
    with pytest.raises(ConfigError, match="has no ending") as caught:
        MMapIndexedDatasetBuilder(tmp_path / f"web{ending}")
    assert caught.value.expected == f"a path such as {str(tmp_path / 'web')!r}"


# Unfinished files


def test_a_builder_that_is_deleted_leaves_no_file(tmp_path):
    builder = MMapIndexedDatasetBuilder(tmp_path / "x")
    builder.add_document([1])
    assert [*tmp_path.iterdir()]

    del builder

    assert not [*tmp_path.iterdir()]


def test_a_builder_that_is_deleted_in_a_forked_process_keeps_its_file(tmp_path, monkeypatch):
    builder = MMapIndexedDatasetBuilder(tmp_path / "x")
    with builder._file as file:
        monkeypatch.setattr(os, "getpid", lambda: 0)

        del builder

        assert os.path.exists(file.name)


def test_a_document_that_was_not_ended_can_be_ended_after_the_error(tmp_path):
    builder = MMapIndexedDatasetBuilder(tmp_path / "x")
    builder.add_item([1])
    with pytest.raises(ConfigError, match="after the last document"):
        builder.finalize()

    builder.end_document()
    builder.finalize()

    assert len(MMapIndexedDataset(tmp_path / "x")) == 1


def test_a_builder_removes_the_files_of_killed_builders(tmp_path):
    program = """
import os, sys
from nanoset_core import MMapIndexedDatasetBuilder
builder = MMapIndexedDatasetBuilder(sys.argv[1])
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "x"], check=False)
    assert [*tmp_path.iterdir()]

    write_sequences(tmp_path / "y", [[1]])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["y.bin", "y.idx"]


def test_a_builder_keeps_old_hidden_files_of_other_programs_and_machines(tmp_path):
    folder = tmp_path / ".tmp-anna"
    folder.mkdir()
    file = tmp_path / ".tmp-web.bin-0therm4chine-1.2-123456"
    file.touch()
    for path in (folder, file):
        os.utime(path, (0, 0))

    write_sequences(tmp_path / "y", [[1]])

    assert folder.exists()
    assert file.exists()
