"""The check of an indexed dataset: which faults it reports, and which tokens it reads.

Large datasets are divided into ranges, whose outcomes are combined. However they are divided, the
outcome is that of a slow twin, which looks at one token after the other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.built_project import overwrite
from helpers.sample_pairs import write_sequences
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.stages.dataset import token_check
from nanoset_core.stages.dataset import token_ranges as ranges_module
from nanoset_core.stages.dataset import verify_pair as pair_module
from nanoset_core.stages.dataset.token_check import Expected, TokenCheck, hash_limit
from nanoset_core.stages.dataset.token_ranges import (
    TokenRange,
    spread_chunks,
    spread_rows,
    token_ranges,
)
from nanoset_core.stages.dataset.verify_pair import verify_pair
from nanoset_core.stages.report import DividedCheck, Finding, Report, group_by_bytes, run_here
from nanoset_core.storage.store import PieceDigest
from nanoset_core.storage.stores.local import LocalStore

EOD = 0
N_SEQUENCES = 6
N_TOKENS = 60
EXPECTED = Expected(
    max_id=499,
    dtype="uint16",
    after=(EOD,),
    documents=N_SEQUENCES,
    sequences=N_SEQUENCES,
    tokens=N_TOKENS,
)
"""What is expected of the small dataset."""
TOKEN_BYTES = 2
UNFRAMED = "a sequence does not begin and end with the tokens that it should"
FOREIGN = "a token is not in the vocabulary"

LENGTHS_START = 34
"""Byte of the .idx at which the lengths of the sequences start, four bytes each."""
POINTERS_START = LENGTHS_START + 4 * N_SEQUENCES
"""Byte at which the pointers of the sequences start, eight bytes each."""
DOCUMENTS_START = POINTERS_START + 8 * N_SEQUENCES
"""Byte at which the first sequences of the documents start, eight bytes each."""


def idx_path(prefix: Path) -> Path:
    """Return the path of the .idx of a dataset."""
    return Path(f"{prefix}.idx")


def bin_path(prefix: Path) -> Path:
    """Return the path of the .bin of a dataset."""
    return Path(f"{prefix}.bin")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """The prefix of a small dataset whose six documents end with EOD."""
    generator = np.random.default_rng(1)
    builder = MMapIndexedDatasetBuilder(tmp_path / "data", np.uint16)
    for n_words in [5, 1, 9, 30, 2, 7]:
        tokens = np.append(generator.integers(1, 500, n_words), EOD).astype(np.uint16)
        builder.add_document(tokens, [n_words + 1])
    builder.finalize()
    return tmp_path / "data"


@pytest.fixture
def few_tokens_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a quick check of more than 16 tokens read only four places."""
    for module in [ranges_module, token_check, pair_module]:
        monkeypatch.setattr(module, "QUICK_TOKENS", 16)
    monkeypatch.setattr(ranges_module, "QUICK_PLACES", 4)
    monkeypatch.setattr(token_check, "QUICK_PLACES", 4)


def only_error(report: Report) -> Finding:
    """Return the only finding of a report, which is an error with a remedy."""
    [finding] = report.findings
    assert finding.severity == "error"
    assert finding.remedy
    return finding


# A valid dataset


def test_a_valid_dataset_has_no_findings(prefix):
    assert verify_pair(prefix).findings == []


def test_a_deep_check_reads_all_tokens(prefix):
    report = verify_pair(prefix, expected=EXPECTED, deep=True)

    assert report.findings == []
    assert report.figures["tokens"] == N_TOKENS
    assert report.figures["tokens_read"] == N_TOKENS
    assert report.figures["duplicate_documents"] == 0.0


def test_the_name_of_a_dataset_need_not_be_text(tmp_path):
    """Names of files may have bytes that are not UTF-8."""
    dataset = write_sequences(tmp_path / "n\udcffx", SEQUENCES)

    report = verify_pair(dataset.prefix, expected=FRAMED, deep=True)

    assert report.findings == []


# Faults of files


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        pytest.param(0, b"X", "not an index of an indexed dataset", id="magic"),
        pytest.param(9, b"\x02", "unknown version", id="version"),
        pytest.param(17, b"\x63", "unknown dtype code", id="dtype"),
        pytest.param(18, b"\x07", "the file ends too early", id="number of sequences"),
        pytest.param(
            LENGTHS_START + 4,
            struct.pack("<i", -3),
            "sequence 1 has a negative length",
            id="length",
        ),
        pytest.param(
            POINTERS_START + 8,
            struct.pack("<q", 13),
            "sequence 1 has an impossible pointer",
            id="pointer",
        ),
        pytest.param(
            DOCUMENTS_START,
            struct.pack("<q", 1),
            "the first document does not begin at sequence 0",
            id="first document",
        ),
        pytest.param(
            DOCUMENTS_START + 8 * 3,
            struct.pack("<q", 1),
            "document 3 begins before the previous one",
            id="order of documents",
        ),
        pytest.param(
            DOCUMENTS_START + 8 * N_SEQUENCES,
            struct.pack("<q", 5),
            "the documents do not end at the last sequence",
            id="end of documents",
        ),
    ],
)
def test_a_fault_of_the_idx_is_reported(prefix, offset, data, message):
    overwrite(idx_path(prefix), offset, data)

    finding = only_error(verify_pair(prefix))

    assert finding.what == message
    assert str(idx_path(prefix)) in finding.where


def test_a_gap_between_sequences_is_reported(prefix):
    overwrite(idx_path(prefix), LENGTHS_START + 4, struct.pack("<i", 1))

    finding = only_error(verify_pair(prefix))

    assert finding.what == "the .bin is not as long as its sequences"
    assert finding.expected == "118 bytes"


def test_another_type_than_the_tokenizer_requires_is_reported(prefix):
    finding = only_error(verify_pair(prefix, expected=Expected(dtype="int32")))

    assert finding.what == "the tokens have another type than the tokenizer requires"
    assert finding.found == "uint16"


def test_another_number_of_tokens_than_in_the_manifest_is_reported(prefix):
    finding = only_error(verify_pair(prefix, expected=Expected(tokens=N_TOKENS + 1)))

    assert finding.what == "the .idx has another number of tokens than its manifest"
    assert finding.expected == "61"


def test_several_faults_are_reported_together(prefix):
    report = verify_pair(prefix, expected=Expected(dtype="int32", tokens=N_TOKENS + 1))

    assert len(report.findings) == 2


def test_a_bin_that_is_too_short_is_reported(prefix):
    content = bin_path(prefix).read_bytes()
    bin_path(prefix).write_bytes(content[:-2])

    finding = only_error(verify_pair(prefix))

    assert finding.what == "the token file is shorter than its index says"


def test_a_bin_that_is_too_long_is_reported(prefix):
    content = bin_path(prefix).read_bytes()
    bin_path(prefix).write_bytes(content + b"\0\0")

    finding = only_error(verify_pair(prefix))

    assert finding.what == "the .bin is not as long as its sequences"
    assert finding.found == "122 bytes"


def test_a_missing_bin_is_reported(prefix):
    bin_path(prefix).unlink()

    assert only_error(verify_pair(prefix)).what == "no such file"


# Faults of tokens


@pytest.mark.parametrize(
    ("position", "token", "message", "place", "tokens"),
    [
        pytest.param(10, 500, FOREIGN, "byte 20 (sequence 2)", "id 500", id="not in vocabulary"),
        pytest.param(7, 3, UNFRAMED, "byte 12 (sequence 1)", "[] … [3]", id="no end token"),
    ],
)
def test_a_wrong_token_is_reported(prefix, position, token, message, place, tokens):
    overwrite(bin_path(prefix), TOKEN_BYTES * position, struct.pack("<H", token))

    finding = only_error(verify_pair(prefix, expected=EXPECTED))

    assert finding.what == message
    assert finding.where.endswith(place)
    assert finding.found == tokens


def test_of_several_wrong_sequences_the_first_is_reported_with_their_number(prefix):
    overwrite(bin_path(prefix), 0, struct.pack("<H", 9))
    expected = Expected(before=(777,), after=(EOD,))

    finding = only_error(verify_pair(prefix, expected=expected))

    assert finding.what == UNFRAMED
    assert finding.where.endswith("byte 0 (sequence 0, and 5 more)")
    assert finding.found == "[9] … [0]"


# Samples of large datasets


@pytest.mark.usefixtures("few_tokens_are_read")
def test_a_quick_check_of_a_large_dataset_reads_some_of_its_tokens(prefix):
    report = verify_pair(prefix, expected=EXPECTED)

    assert 0 < report.figures["tokens_read"] < N_TOKENS
    assert "duplicate_documents" not in report.figures


@pytest.mark.usefixtures("few_tokens_are_read")
def test_a_quick_check_reads_the_end_of_the_last_document(prefix):
    overwrite(bin_path(prefix), TOKEN_BYTES * (N_TOKENS - 1), struct.pack("<H", 3))

    assert not verify_pair(prefix, expected=EXPECTED).passed


@pytest.mark.usefixtures("few_tokens_are_read")
def test_a_deep_check_of_a_large_dataset_reads_all_tokens(prefix):
    overwrite(bin_path(prefix), TOKEN_BYTES * (N_TOKENS - 1), struct.pack("<H", 3))

    report = verify_pair(prefix, expected=EXPECTED, deep=True)

    assert report.figures["tokens_read"] == N_TOKENS


BOD = 1
"""Token at the start of the documents below."""


@pytest.fixture
def check_long_documents(tmp_path: Path, few_tokens_are_read: None) -> Callable[[int, int], Report]:
    """A function that writes five documents of 50 tokens, one with a wrong end, and checks them.

    Its arguments are the number of the document, and the position of the wrong token in it.
    """

    def check(wrong_document: int, position: int) -> Report:
        builder = MMapIndexedDatasetBuilder(tmp_path / "long", np.uint16)
        for number in range(5):
            tokens = np.full(50, 3, np.uint16)
            tokens[0] = BOD
            tokens[-1] = EOD
            if number == wrong_document:
                tokens[position] = 7
            builder.add_document(tokens, [50])
        builder.finalize()
        return verify_pair(tmp_path / "long", expected=Expected(before=(BOD,), after=(EOD,)))

    return check


@pytest.fixture
def datasets_are_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check believe that a dataset is in a bucket, where each read takes a request."""
    open_below = MMapIndexedDataset.below

    def below(*arguments: Any, **options: Any) -> Any:
        dataset = open_below(*arguments, **options)
        dataset.is_here = False
        return dataset

    monkeypatch.setattr(MMapIndexedDataset, "below", below)


@pytest.mark.parametrize("document", [0, 2, 4])
@pytest.mark.parametrize("position", [0, -1], ids=["start", "end"])
def test_a_quick_check_reads_the_ends_of_all_documents_in_a_local_file(
    check_long_documents, document, position
):
    report = check_long_documents(document, position)

    finding = only_error(report)
    assert finding.what == UNFRAMED
    assert f"byte {100 * document} (sequence {document})" in finding.where


@pytest.mark.usefixtures("datasets_are_remote")
@pytest.mark.parametrize("document", [0, 4])
@pytest.mark.parametrize("position", [0, -1], ids=["start", "end"])
def test_a_quick_check_reads_the_ends_of_the_first_and_last_document_in_a_bucket(
    check_long_documents, document, position
):
    report = check_long_documents(document, position)

    finding = only_error(report)
    assert finding.what == UNFRAMED
    assert f"byte {100 * document} (sequence {document})" in finding.where


@pytest.mark.usefixtures("datasets_are_remote")
@pytest.mark.parametrize("position", [0, -1], ids=["start", "end"])
def test_a_quick_check_does_not_read_the_ends_of_all_documents_in_a_bucket(
    check_long_documents, position
):
    assert check_long_documents(2, position).passed


@pytest.mark.parametrize(
    ("n_rows", "expected"),
    [
        pytest.param(3, [0, 1, 2], id="few rows"),
        pytest.param(101, [0, 25, 50, 75, 100], id="many rows"),
        pytest.param(0, [], id="no rows"),
    ],
)
def test_sampled_rows_are_evenly_spread_from_the_first_to_the_last(n_rows, expected):
    assert spread_rows(n_rows, 5).tolist() == expected


def test_sampled_chunks_are_spread_from_the_start_to_the_end_and_do_not_overlap():
    chunks = list(spread_chunks(10**9))

    first_start, _ = chunks[0]
    _, last_stop = chunks[-1]
    assert first_start == 0
    assert last_stop == 10**9
    for (_, stop), (next_start, _) in pairwise(chunks):
        assert next_start >= stop


# Division into ranges

FRAMED = Expected(max_id=4, before=(1, 2), after=(3,))
SEQUENCES = [[1, 2, number % 5, 3] for number in range(40)]
"""Sequences that are as FRAMED expects, of 320 bytes."""


def check_ranges(check: TokenCheck, ranges: Sequence[TokenRange]) -> Report:
    """Check some ranges of a dataset, and return the report."""
    report = Report("dataset")
    divided_check = DividedCheck(
        parts=ranges, check_part=check.check_range, add_outcomes=check.conclude
    )
    run_here(report, divided_check)
    return report


def check_deeply(
    dataset: MMapIndexedDataset,
    expected: Expected = FRAMED,
    pieces: Sequence[PieceDigest] = (),
) -> Report:
    """Check all tokens of a dataset, range by range, and return the report."""
    check = TokenCheck.of(dataset, expected, deep=True)
    return check_ranges(check, token_ranges(dataset, pieces))


class SlowCheck(NamedTuple):
    """What a loop over all tokens finds."""

    places: dict[str, str]
    """Message of each fault → where it is."""
    duplicate_share: float
    """Share of the sequences with tokens that repeat others."""


def check_slowly(sequences: Sequence[Sequence[int]]) -> SlowCheck:
    """Compare sequences with FRAMED, one token after the other."""
    unframed_places = []
    foreign_places = []
    start = 0
    for number, sequence in enumerate(sequences):
        place = f"byte {start * TOKEN_BYTES} (sequence {number}"
        if len(sequence) < 3 or list(sequence[:2]) != [1, 2] or sequence[-1] != 3:
            unframed_places.append(place)
        for position, token in enumerate(sequence):
            if token > 4:
                foreign_places.append(
                    f"byte {(start + position) * TOKEN_BYTES} (sequence {number})"
                )
        start += len(sequence)

    places = {}
    if foreign_places:
        places[FOREIGN] = foreign_places[0]
    if unframed_places:
        n_more = len(unframed_places) - 1
        ending = f", and {n_more} more)" if n_more else ")"
        places[UNFRAMED] = unframed_places[0] + ending

    filled = [tuple(sequence) for sequence in sequences if sequence]
    share = 0.0
    if filled:
        share = round(1 - len(set(filled)) / len(filled), 6)
    return SlowCheck(places, share)


FRAMED_SEQUENCES = st.lists(st.integers(0, 4), max_size=9).map(lambda inner: [1, 2, *inner, 3])
ANY_SEQUENCES = st.lists(st.integers(0, 5), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    # Three of four sequences are framed.
    sequences=st.lists(
        FRAMED_SEQUENCES | FRAMED_SEQUENCES | FRAMED_SEQUENCES | ANY_SEQUENCES, max_size=30
    ),
    part_bytes=st.sampled_from([2, 10, 60, 1 << 20]),
    read_bytes=st.sampled_from([2, 6, 30]),
    chunk_tokens=st.sampled_from([1, 4, 7]),
)
def test_the_outcome_does_not_depend_on_how_a_dataset_is_divided(
    tmp_path_factory, sequences, part_bytes, read_bytes, chunk_tokens
):
    dataset = write_sequences(tmp_path_factory.mktemp("d") / "d", sequences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "PART_BYTES", part_bytes)
        patch.setattr(token_check, "_BLOCK_SEQUENCES", 3)
        patch.setattr(token_check, "_READ_BYTES", read_bytes)
        patch.setattr(token_check, "_CHUNK_BYTES", chunk_tokens * dataset.dtype.itemsize)
        report = check_deeply(dataset)
        ranges = token_ranges(dataset)

    # The ranges are all of the dataset.
    for first, second in pairwise(ranges):
        assert first.stop_byte == second.start_byte
        assert first.stop_sequence == second.first_sequence
    if ranges:
        assert ranges[0].first_sequence == 0
        assert ranges[0].start_byte == 0
        assert ranges[-1].stop_sequence == len(dataset)
        assert ranges[-1].stop_byte == dataset.bin_bytes

    # The faults and figures are those that a loop over all tokens finds.
    expected = check_slowly(sequences)
    greatest_ids = [max(sequence) for sequence in sequences if sequence]
    assert report.figures == {
        "tokens_read": sum(len(sequence) for sequence in sequences),
        "greatest_id": max(greatest_ids, default=-1),
        "duplicate_documents": expected.duplicate_share,
    }
    places = {finding.what: finding.where for finding in report.findings}
    assert places == {
        message: f"{dataset.prefix}.bin, {place}" for message, place in expected.places.items()
    }
    assert len(report.findings) == len(places)


def digests_of(data: bytes, sizes: Iterable[int]) -> list[PieceDigest]:
    """Return the digests of consecutive pieces of a file."""
    digests = []
    start = 0
    for size in sizes:
        digests.append(PieceDigest(hashlib.sha256(data[start : start + size]).hexdigest(), size))
        start += size
    return digests


@pytest.fixture(params=[1, 30, 100, 1 << 20], ids="parts of {} bytes".format)
def small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide datasets into ranges of few bytes, or of more than they have."""
    part_bytes = request.param
    monkeypatch.setattr(ranges_module, "PART_BYTES", part_bytes)
    monkeypatch.setattr(
        ranges_module, "group_by_bytes", lambda sizes: group_by_bytes(sizes, part_bytes)
    )


PIECE_SIZES = [
    pytest.param([80, 80, 160], id="three pieces"),
    pytest.param([8] * 40, id="a piece of each sequence"),
    pytest.param([320], id="one piece"),
    pytest.param([12, 68, 100, 140], id="pieces that end within sequences"),
]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sizes", PIECE_SIZES)
def test_unchanged_pieces_pass_wherever_they_end(tmp_path, sizes):
    dataset = write_sequences(tmp_path / "d", SEQUENCES)
    pieces = digests_of(bin_path(tmp_path / "d").read_bytes(), sizes)

    report = check_deeply(dataset, pieces=pieces)

    assert report.findings == []
    pieces_of_ranges: list[PieceDigest] = []
    for token_range in token_ranges(dataset, pieces):
        pieces_of_ranges += token_range.pieces
    assert pieces_of_ranges == pieces


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sizes", PIECE_SIZES)
@pytest.mark.parametrize("position", [0, 79, 150, 319])
def test_a_changed_byte_is_reported_with_the_piece_that_has_it(tmp_path, sizes, position):
    dataset = write_sequences(tmp_path / "d", SEQUENCES)
    path = bin_path(tmp_path / "d")
    data = path.read_bytes()
    overwrite(path, position, bytes([data[position] ^ 8]))
    piece_starts = accumulate(sizes, initial=0)
    piece_start = max(start for start in piece_starts if start <= position)

    report = check_deeply(dataset, pieces=digests_of(data, sizes))

    findings = [finding for finding in report.findings if "other bytes" in finding.what]
    assert f"of bytes {piece_start} to " in findings[0].found


@pytest.mark.parametrize(
    "sizes",
    [pytest.param([80, 80], id="too few"), pytest.param([80, 80, 160, 2], id="too many")],
)
def test_pieces_that_are_not_all_of_the_file_are_reported(tmp_path, sizes):
    write_sequences(tmp_path / "d", SEQUENCES)
    data = bin_path(tmp_path / "d").read_bytes()
    pieces = digests_of(data + b"\0\0", sizes)

    report = verify_pair(tmp_path / "d", expected=FRAMED, deep=True, pieces=pieces)

    assert [finding.what for finding in report.findings] == [
        "the pieces of a file are not all of it"
    ]
    assert report.figures["tokens_read"] == 160


def test_a_file_that_becomes_shorter_during_a_check_is_reported(tmp_path):
    dataset = write_sequences(tmp_path / "d", SEQUENCES)
    check = TokenCheck.of(dataset, FRAMED, deep=True)
    ranges = token_ranges(dataset)
    bin_path(tmp_path / "d").write_bytes(b"\1\0")

    [finding] = check_ranges(check, ranges).errors

    assert finding.what == "the object is not the one that was listed"
    assert isinstance(check.tokens.store, LocalStore)


def test_of_many_sequences_some_are_compared_for_the_share_of_duplicates(tmp_path, monkeypatch):
    """Those with the lowest hashes, of each range its share."""
    monkeypatch.setattr(ranges_module, "PART_BYTES", 1000)
    generator = np.random.default_rng(5)
    unique = [generator.integers(0, 5, 12).tolist() for _ in range(2000)]
    dataset = write_sequences(tmp_path / "d", unique + unique[:1000])
    exact_share = check_deeply(dataset, Expected()).figures["duplicate_documents"]

    # There is room for 600 hashes of the 3,000 sequences.
    monkeypatch.setattr(token_check, "hash_limit", lambda count: hash_limit(count, 600))
    check = TokenCheck.of(dataset, Expected(), deep=True)
    outcomes = [check.check_range(token_range) for token_range in token_ranges(dataset)]
    report = Report("dataset")
    check.conclude(report, outcomes)

    assert 400 < sum(outcome.n_hashed for outcome in outcomes) < 900
    assert abs(report.figures["duplicate_documents"] - exact_share) < 0.08
