import tracemalloc

import numpy as np
import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.cli import lengths as cli_lengths
from nanoset_core.cli.commands.inspect import describe_dataset
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

GOLDEN = GOLDEN_FILES / "tokenization"


def test_counts_and_first_sequences():
    assert list(describe_dataset(GOLDEN / "text_document", sequences=2)) == [
        f"{GOLDEN / 'text_document'}: 13 documents, 11 sequences, uint16",
        "441 tokens; a sequence has 2 to 301 tokens, median 13",
        "[0] 6 tokens: 280 382 377 358 15 0",
        "[1] 2 tokens: 222 0",
    ]


def test_decoded():
    shown = list(
        describe_dataset(GOLDEN / "text_document", GOLDEN / "tokenizer.json", sequences=99)
    )[2:]
    assert len(shown) == 11
    assert shown[0] == "[0] 6 tokens: 'The quick brown fox.<|endoftext|>'"
    assert shown[1] == "[1] 2 tokens: ' <|endoftext|>'"
    assert shown[-1] == "[10] 5 tokens: 'last<|endoftext|>'"


def test_long_sequences_are_cut():
    line = list(describe_dataset(GOLDEN / "text_document", sequences=11))[-2]
    assert line.startswith("[9] 301 tokens: ")
    assert line.endswith(" …")
    assert len(line.split(": ")[1].split()) == 25


@pytest.mark.parametrize("count", [1, 2, 7, 8, 1000, 1001])
def test_the_median_is_numpys(count, monkeypatch):
    monkeypatch.setattr(cli_lengths, "_CHUNK_LENGTHS", 300)
    for most in (1, 9, 70_000, 2**31):
        lengths = np.random.default_rng(count).integers(0, most, count, dtype=np.int32)
        expected = (
            f"{lengths.min():,} to {lengths.max():,} tokens, median {np.median(lengths):,.0f}"
        )
        assert cli_lengths.describe_lengths(lengths) == expected


def test_lengths_are_never_copied_together():
    lengths = np.arange(8 << 20, dtype=np.int32)
    tracemalloc.start()
    try:
        assert cli_lengths.describe_lengths(lengths).endswith("median 4,194,304")
        assert tracemalloc.get_traced_memory()[1] < lengths.nbytes / 2
    finally:
        tracemalloc.stop()


def test_what_has_no_tokens_and_what_is_no_dataset(tmp_path):
    MMapIndexedDatasetBuilder(tmp_path / "empty").finalize()
    assert list(describe_dataset(tmp_path / "empty")) == [
        f"{tmp_path / 'empty'}: 0 documents, 0 sequences, int32"
    ]
    (tmp_path / "foreign.idx").write_bytes(b"not an index at all" * 10)
    (tmp_path / "foreign.bin").write_bytes(b"")
    for name, error in (("nothing", MissingError), ("foreign", FormatError)):
        with pytest.raises(error):
            list(describe_dataset(tmp_path / name))
