"""One pair: every fault is found and named, and every token is looked at once, however it is cut
into ranges.
"""

import hashlib
import itertools
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.built_project import overwrite
from helpers.sample_pairs import write_sequences as write
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.stages.dataset import token_check
from nanoset_core.stages.dataset import token_ranges as ranges_module
from nanoset_core.stages.dataset import verify_pair as pair_module
from nanoset_core.stages.dataset.token_check import Expected, TokenCheck, hash_limit
from nanoset_core.stages.dataset.token_ranges import spread_chunks, spread_rows, token_ranges
from nanoset_core.stages.dataset.verify_pair import verify_pair
from nanoset_core.stages.report import DividedCheck, Report, run_here, runs
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import PieceDigest

EOD = 0
HEADER_BYTES = 34
"""Bytes before the lengths of sequences in an .idx file."""
UNFRAMED = "a sequence does not begin and end with the tokens that it should"


def idx_path(prefix):
    return Path(f"{prefix}.idx")


def bin_path(prefix):
    return Path(f"{prefix}.bin")


@pytest.fixture
def prefix(tmp_path):
    rng = np.random.default_rng(1)
    builder = MMapIndexedDatasetBuilder(tmp_path / "data", np.uint16)
    for length in (5, 1, 9, 30, 2, 7):
        builder.add_document(
            np.append(rng.integers(1, 500, length), EOD).astype(np.uint16), [length + 1]
        )
    builder.finalize()
    return tmp_path / "data"


EXPECTED = Expected(max_id=499, dtype="uint16", after=(EOD,), documents=6, sequences=6, tokens=60)


def only(report):
    (finding,) = report.findings
    assert finding.severity == "error"
    assert finding.remedy
    return finding


def sample_in_four_places(monkeypatch):
    """Let datasets of more than 16 tokens be read in four places alone."""
    for module in (ranges_module, token_check, pair_module):
        monkeypatch.setattr(module, "QUICK_TOKENS", 16)
    monkeypatch.setattr(ranges_module, "QUICK_PLACES", 4)
    monkeypatch.setattr(token_check, "QUICK_PLACES", 4)


def test_a_healthy_pair(prefix):
    report = verify_pair(prefix, expected=EXPECTED, deep=True)
    assert report.findings == []
    assert report.figures["tokens"] == report.figures["tokens_read"] == 60
    assert report.figures["duplicate_documents"] == 0.0
    assert verify_pair(prefix).findings == []


@pytest.mark.parametrize(
    ("offset", "data", "what"),
    [
        (0, b"X", "not an index of an indexed dataset"),
        (9, b"\x02", "unknown version"),
        (17, b"\x63", "unknown dtype code"),
        (18, b"\x07", "the file ends too early"),
        (HEADER_BYTES + 4, struct.pack("<i", -3), "sequence 1 has a negative length"),
        (HEADER_BYTES + 4 * 6 + 8, struct.pack("<q", 13), "sequence 1 has an impossible pointer"),
        (
            HEADER_BYTES + 12 * 6,
            struct.pack("<q", 1),
            "the first document does not begin at sequence 0",
        ),
        (
            HEADER_BYTES + 12 * 6 + 8 * 3,
            struct.pack("<q", 1),
            "document 3 begins before the previous one",
        ),
        (
            HEADER_BYTES + 12 * 6 + 8 * 6,
            struct.pack("<q", 5),
            "the documents do not end at the last sequence",
        ),
    ],
)
def test_faults_of_the_idx(prefix, offset, data, what):
    overwrite(idx_path(prefix), offset, data)
    finding = only(verify_pair(prefix))
    assert finding.what == what
    assert str(idx_path(prefix)) in finding.where


def test_a_gap_between_sequences(prefix):
    overwrite(idx_path(prefix), HEADER_BYTES + 4, struct.pack("<i", 1))
    finding = only(verify_pair(prefix))
    assert (finding.what, finding.expected) == (
        "the .bin is not as long as its sequences",
        "118 bytes",
    )


def test_a_wrong_dtype_and_wrong_counts(prefix):
    found = {
        f.what: f for f in verify_pair(prefix, expected=Expected(dtype="int32", tokens=61)).findings
    }
    assert found["the tokens have another type than the tokenizer requires"].found == "uint16"
    assert found["the .idx has another number of tokens than its manifest"].expected == "61"


def test_a_cut_and_a_long_bin(prefix):
    path = bin_path(prefix)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    assert only(verify_pair(prefix)).what == "the token file is shorter than its index says"
    path.write_bytes(whole + b"\0\0")
    finding = only(verify_pair(prefix))
    assert (finding.what, finding.found) == (
        "the .bin is not as long as its sequences",
        "122 bytes",
    )
    path.unlink()
    assert only(verify_pair(prefix)).what == "no such file"


@pytest.mark.parametrize(
    ("token", "value", "expected", "what", "where", "found"),
    [
        (10, 500, EXPECTED, "a token is not in the vocabulary", "byte 20 (sequence 2)", "id 500"),
        (7, 3, EXPECTED, UNFRAMED, "byte 12 (sequence 1)", "[] … [3]"),
        (
            0,
            9,
            Expected(before=(777,), after=(EOD,)),
            UNFRAMED,
            "byte 0 (sequence 0, and 5 more)",
            "[9] … [0]",
        ),
    ],
)
def test_faults_of_tokens(prefix, token, value, expected, what, where, found):
    overwrite(bin_path(prefix), 2 * token, struct.pack("<H", value))
    finding = only(verify_pair(prefix, expected=expected))
    assert (finding.what, finding.found) == (what, found)
    assert finding.where.endswith(where)


def test_big_datasets_are_looked_at_in_spread_places(prefix, monkeypatch):
    sample_in_four_places(monkeypatch)
    report = verify_pair(prefix, expected=EXPECTED)
    assert 0 < report.figures["tokens_read"] < 60
    assert "duplicate_documents" not in report.figures
    overwrite(bin_path(prefix), 2 * 59, struct.pack("<H", 3))
    assert not verify_pair(prefix, expected=EXPECTED).passed, (
        "the last document is always looked at"
    )
    assert verify_pair(prefix, expected=EXPECTED, deep=True).figures["tokens_read"] == 60


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("document", [0, 2, 4])
@pytest.mark.parametrize("token", [0, -1])
def test_ends_of_long_documents_are_looked_at(tmp_path, monkeypatch, is_here, document, token):
    sample_in_four_places(monkeypatch)
    opened = MMapIndexedDataset.below

    def below(*given, **named):
        dataset = opened(*given, **named)
        dataset.is_here = is_here
        return dataset

    monkeypatch.setattr(MMapIndexedDataset, "below", below)
    builder = MMapIndexedDatasetBuilder(tmp_path / "long", np.uint16)
    for number in range(5):
        tokens = np.full(50, 3, np.uint16)
        tokens[[0, -1]] = 1, EOD
        tokens[token] = 7 if number == document else tokens[token]
        builder.add_document(tokens, [50])
    builder.finalize()
    report = verify_pair(tmp_path / "long", expected=Expected(before=(1,), after=(EOD,)))
    if is_here or document != 2:
        assert only(report).what == UNFRAMED
        assert f"byte {100 * document} (sequence {document})" in report.findings[0].where
    else:
        assert report.passed


def test_spreading():
    assert spread_rows(3, 5).tolist() == [0, 1, 2]
    assert spread_rows(101, 5).tolist() == [0, 25, 50, 75, 100]
    assert spread_rows(0, 5).tolist() == []
    chunks = list(spread_chunks(10**9))
    assert chunks[0][0] == 0
    assert chunks[-1][1] == 10**9
    assert all(begin >= before for (_, before), (begin, _) in pairwise(chunks))


FRAMED = Expected(max_id=4, before=(1, 2), after=(3,))


def verified(dataset, expected=FRAMED, pieces=()):
    return looked_at(TokenCheck.of(dataset, expected, deep=True), token_ranges(dataset, pieces))


def looked_at(check, ranges):
    report = Report("it")
    check_of_ranges = DividedCheck(
        parts=ranges, check_part=check.check_range, add_outcomes=check.conclude
    )
    run_here(report, check_of_ranges)
    return report


def wanted(sequences):
    """What a loop over all tokens finds: (sequences not framed, first token outside, share of
    copies).
    """
    unframed = [
        number
        for number, one in enumerate(sequences)
        if len(one) < 3 or (one[:2], one[-1:]) != ([1, 2], [3])
    ]
    flat = [(number, token) for number, one in enumerate(sequences) for token in one]
    outside = next(
        ((2 * at, *found) for at, found in enumerate(flat) if found[1] > FRAMED.max_id), None
    )
    filled = [tuple(one) for one in sequences if one]
    return unframed, outside, round(1 - len(set(filled)) / len(filled), 6) if filled else 0.0


framed = st.lists(st.integers(0, 4), max_size=9).map(lambda inner: [1, 2, *inner, 3])
any_ids = st.lists(st.integers(0, 5), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(framed | framed | framed | any_ids, max_size=30),
    part=st.sampled_from([2, 10, 60, 1 << 20]),
    read=st.sampled_from([2, 6, 30]),
    chunk=st.sampled_from([1, 4, 7]),
)
def test_however_it_is_cut(tmp_path_factory, sequences, part, read, chunk):
    dataset = write(tmp_path_factory.mktemp("d") / "d", sequences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "PART_BYTES", part)
        patch.setattr(token_check, "_BLOCK_SEQUENCES", 3)
        patch.setattr(token_check, "_READ_BYTES", read)
        patch.setattr(token_check, "_CHUNK_BYTES", chunk * dataset.dtype.itemsize)
        report = verified(dataset)
        ranges = token_ranges(dataset)
    unframed, outside, share = wanted(sequences)
    assert all(
        one.stop_byte == other.start_byte and one.stop_sequence == other.first_sequence
        for one, other in itertools.pairwise(ranges)
    )
    if ranges:
        assert (ranges[0].first_sequence, ranges[0].start_byte) == (0, 0)
        assert (ranges[-1].stop_sequence, ranges[-1].stop_byte) == (len(dataset), dataset.bin_bytes)
    assert report.figures == {
        "tokens_read": sum(map(len, sequences)),
        "greatest_id": max((token for one in sequences for token in one), default=-1),
        "duplicate_documents": share,
    }
    found = {finding.what: finding.where for finding in report.findings}
    foreign = found.pop("a token is not in the vocabulary", None)
    where = dataset.prefix + ".bin"
    assert foreign == (outside and f"{where}, byte {outside[0]} (sequence {outside[1]})")
    wrong = found.pop("a sequence does not begin and end with the tokens that it should", None)
    more = f", and {len(unframed) - 1} more" if len(unframed) > 1 else ""
    begins = np.cumsum([0, *map(len, sequences)]) * 2
    assert wrong == (
        f"{where}, byte {begins[unframed[0]]} (sequence {unframed[0]}{more})" if unframed else None
    )
    assert not found


def digests(data, sizes):
    ends = list(itertools.accumulate(sizes))
    return [
        PieceDigest(hashlib.sha256(data[end - size : end]).hexdigest(), size)
        for end, size in zip(ends, sizes, strict=True)
    ]


SEQUENCES = [[1, 2, number % 5, 3] for number in range(40)]


@pytest.mark.parametrize("sizes", [[80, 80, 160], [8] * 40, [320], [12, 68, 100, 140]])
@pytest.mark.parametrize("part", [1, 30, 100, 1 << 20])
def test_pieces_are_compared_wherever_they_end(tmp_path, monkeypatch, sizes, part):
    monkeypatch.setattr(ranges_module, "PART_BYTES", part)
    monkeypatch.setattr(ranges_module, "runs", lambda sizes: runs(sizes, part))
    dataset = write(tmp_path / "d", SEQUENCES)
    path = tmp_path / "d.bin"
    data = path.read_bytes()
    pieces = digests(data, sizes)
    ranges = token_ranges(dataset, pieces)
    assert [piece for one in ranges for piece in one.pieces] == pieces
    assert verified(dataset, pieces=pieces).findings == []
    for place in (0, 79, 150, 319):
        changed = bytearray(data)
        changed[place] ^= 8
        path.write_bytes(changed)
        found = [
            finding
            for finding in verified(dataset, pieces=pieces).findings
            if "other bytes" in finding.what
        ]
        begin = max(end for end in [0, *itertools.accumulate(sizes)] if end <= place)
        assert f"of bytes {begin} to " in found[0].found
    path.write_bytes(data)


def test_a_file_that_becomes_shorter_is_no_data(tmp_path):
    dataset = write(tmp_path / "d", SEQUENCES)
    check, ranges = TokenCheck.of(dataset, FRAMED, deep=True), token_ranges(dataset)
    (tmp_path / "d.bin").write_bytes(b"\1\0")
    (finding,) = looked_at(check, ranges).errors
    assert finding.what == "the object is not the one that was listed"
    assert isinstance(check.tokens.store, LocalStore)


def test_pieces_that_are_not_all_of_the_file(tmp_path):
    write(tmp_path / "d", SEQUENCES)
    data = (tmp_path / "d.bin").read_bytes()
    for sizes in ([80, 80], [80, 80, 160, 2]):
        report = verify_pair(
            tmp_path / "d", expected=FRAMED, deep=True, pieces=digests(data + b"\0\0", sizes)
        )
        assert [finding.what for finding in report.findings] == [
            "the pieces of a file are not all of it"
        ]
        assert report.figures["tokens_read"] == 160


def test_a_name_that_is_no_text(tmp_path):
    dataset = write(tmp_path / "n\udcffx", SEQUENCES)
    assert verify_pair(dataset.prefix, expected=FRAMED, deep=True).findings == []


def test_many_sequences_are_sampled_by_their_hashes(tmp_path, monkeypatch):
    """About as many are kept as there is room for, in each range its share."""
    monkeypatch.setattr(ranges_module, "PART_BYTES", 1000)
    rng = np.random.default_rng(5)
    unique = [rng.integers(0, 5, 12).tolist() for _ in range(2000)]
    dataset = write(tmp_path / "d", unique + unique[:1000])
    whole = verified(dataset, Expected()).figures["duplicate_documents"]
    monkeypatch.setattr(token_check, "hash_limit", lambda count: hash_limit(count, 600))
    check, report = TokenCheck.of(dataset, Expected(), deep=True), Report("it")
    outcomes = [check.check_range(one) for one in token_ranges(dataset)]
    assert 400 < sum(outcome.n_hashed for outcome in outcomes) < 900
    check.conclude(report, outcomes)
    assert abs(report.figures["duplicate_documents"] - whole) < 0.08
