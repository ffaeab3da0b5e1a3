"""`nanoset inspect` describes a dataset and shows its first sequences."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.cli import lengths as lengths_module
from nanoset_core.cli.commands.inspect import describe_dataset
from nanoset_core.cli.lengths import describe_lengths
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

GOLDEN = GOLDEN_FILES / "tokenization"
DATASET = GOLDEN / "text_document"
N_SEQUENCES = 11
MAX_TOKENS_SHOWN = 25


def test_a_dataset_is_described_by_its_counts_and_first_sequences():
    lines = list(describe_dataset(DATASET, sequences=2))

    assert lines == [
        f"{DATASET}: 13 documents, 11 sequences, uint16",
        "441 tokens; a sequence has 2 to 301 tokens, median 13",
        "[0] 6 tokens: 280 382 377 358 15 0",
        "[1] 2 tokens: 222 0",
    ]


def test_with_a_tokenizer_sequences_are_shown_as_text():
    lines = list(describe_dataset(DATASET, GOLDEN / "tokenizer.json", sequences=99))

    sequence_lines = lines[2:]
    assert len(sequence_lines) == N_SEQUENCES
    assert sequence_lines[0] == "[0] 6 tokens: 'The quick brown fox.<|endoftext|>'"
    assert sequence_lines[1] == "[1] 2 tokens: ' <|endoftext|>'"
    assert sequence_lines[-1] == "[10] 5 tokens: 'last<|endoftext|>'"


def test_only_the_first_tokens_of_a_long_sequence_are_shown():
    line = list(describe_dataset(DATASET, sequences=N_SEQUENCES))[-2]

    assert line.startswith("[9] 301 tokens: ")
    assert line.endswith(" …")
    # The tokens, of which the last word is the ellipsis.
    words = line.split(": ")[1].split()
    assert len(words) == MAX_TOKENS_SHOWN


@pytest.mark.parametrize("count", [1, 2, 7, 8, 1000, 1001])
@pytest.mark.parametrize("upper_bound", [1, 9, 70_000, 2**31])
def test_lengths_are_described_as_numpy_computes_them(count, upper_bound, monkeypatch):
    # Several chunks, also of few lengths.
    monkeypatch.setattr(lengths_module, "_CHUNK_LENGTHS", 300)
    lengths = np.random.default_rng(count).integers(0, upper_bound, count, dtype=np.int32)

    text = describe_lengths(lengths)

    median = np.median(lengths)
    assert text == f"{lengths.min():,} to {lengths.max():,} tokens, median {median:,.0f}"


def test_the_lengths_of_a_large_dataset_are_not_copied_into_memory():
    lengths = np.arange(8 << 20, dtype=np.int32)

    tracemalloc.start()
    try:
        text = describe_lengths(lengths)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert text.endswith("median 4,194,304")
    assert peak_bytes < lengths.nbytes / 2


def test_a_dataset_without_tokens_has_no_lengths(tmp_path):
    MMapIndexedDatasetBuilder(tmp_path / "empty").finalize()

    lines = list(describe_dataset(tmp_path / "empty"))

    assert lines == [f"{tmp_path / 'empty'}: 0 documents, 0 sequences, int32"]


def test_a_dataset_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(MissingError):
        list(describe_dataset(tmp_path / "nothing"))


def test_files_that_are_no_dataset_are_an_error(tmp_path):
    (tmp_path / "foreign.idx").write_bytes(b"not an index at all" * 10)
    (tmp_path / "foreign.bin").write_bytes(b"")

    with pytest.raises(FormatError):
        list(describe_dataset(tmp_path / "foreign"))
