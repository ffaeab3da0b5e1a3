"""One pair: every fault is found and named."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from built_project import poke

from nanoset_core.indexed import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.indexed.layout import HEADER, bin_path, idx_path
from nanoset_core.verification import ranges as module
from nanoset_core.verification.dataset import verify_dataset
from nanoset_core.verification.ranges import Expected, spread_chunks, spread_rows

EOD = 0
UNFRAMED = "a sequence does not begin and end with the tokens that it should"


@pytest.fixture
def prefix(tmp_path):
    rng = np.random.default_rng(1)
    builder = MMapIndexedDatasetBuilder(tmp_path / "data", np.uint16)
    for length in (5, 1, 9, 30, 2, 7):
        builder.add_document(np.append(rng.integers(1, 500, length), EOD).astype(np.uint16), [length + 1])
    builder.finalize()
    return tmp_path / "data"


EXPECTED = Expected(max_id=499, dtype="uint16", after=(EOD,), documents=6, sequences=6, tokens=60)


def only(report):
    (finding,) = report.findings
    assert finding.severity == "error"
    assert finding.remedy
    return finding


def test_a_healthy_pair(prefix):
    report = verify_dataset(prefix, expected=EXPECTED, deep=True)
    assert report.findings == []
    assert report.figures["tokens"] == report.figures["tokens_read"] == 60
    assert report.figures["duplicate_documents"] == 0.0
    assert verify_dataset(prefix).findings == []


@pytest.mark.parametrize(
    ("offset", "data", "what"),
    [
        (0, b"X", "not an index of an indexed dataset"),
        (9, b"\x02", "unknown version"),
        (17, b"\x63", "unknown dtype code"),
        (18, b"\x07", "the file ends too early"),
        (HEADER.size + 4, struct.pack("<i", -3), "sequence 1 has a negative length"),
        (HEADER.size + 4 * 6 + 8, struct.pack("<q", 13), "sequence 1 has an impossible pointer"),
        (HEADER.size + 12 * 6, struct.pack("<q", 1), "the first document does not begin at sequence 0"),
        (HEADER.size + 12 * 6 + 8 * 3, struct.pack("<q", 1), "document 3 begins before the one in front of it"),
        (HEADER.size + 12 * 6 + 8 * 6, struct.pack("<q", 5), "the documents do not end at the last sequence"),
    ],
)
def test_faults_of_the_idx(prefix, offset, data, what):
    poke(idx_path(prefix), offset, data)
    finding = only(verify_dataset(prefix))
    assert finding.what == what
    assert str(idx_path(prefix)) in finding.where


def test_a_gap_between_sequences(prefix):
    poke(idx_path(prefix), HEADER.size + 4, struct.pack("<i", 1))
    finding = only(verify_dataset(prefix))
    assert (finding.what, finding.expected) == ("the .bin is not as long as its sequences", "118 bytes")


def test_a_wrong_dtype_and_wrong_counts(prefix):
    found = {f.what: f for f in verify_dataset(prefix, expected=Expected(dtype="int32", tokens=61)).findings}
    assert found["the tokens have another type than the tokenizer asks for"].found == "uint16"
    assert found["the .idx has another number of tokens than its manifest"].expected == "61"


def test_a_cut_and_a_long_bin(prefix):
    path = bin_path(prefix)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    assert only(verify_dataset(prefix)).what == "the token file is shorter than its index says"
    path.write_bytes(whole + b"\0\0")
    finding = only(verify_dataset(prefix))
    assert (finding.what, finding.found) == ("the .bin is not as long as its sequences", "122 bytes")
    path.unlink()
    assert only(verify_dataset(prefix)).what == "no such file"


@pytest.mark.parametrize(
    ("token", "value", "expected", "what", "where", "found"),
    [
        (10, 500, EXPECTED, "a token is not in the vocabulary", "byte 20 (sequence 2)", "id 500"),
        (7, 3, EXPECTED, UNFRAMED, "byte 12 (sequence 1)", "[] … [3]"),
        (0, 9, Expected(before=(777,), after=(EOD,)), UNFRAMED, "byte 0 (sequence 0, and 5 more)", "[9] … [0]"),
    ],
)
def test_faults_of_tokens(prefix, token, value, expected, what, where, found):
    poke(bin_path(prefix), 2 * token, struct.pack("<H", value))
    finding = only(verify_dataset(prefix, expected=expected))
    assert (finding.what, finding.found) == (what, found)
    assert finding.where.endswith(where)


def test_big_datasets_are_looked_at_in_spread_places(prefix, monkeypatch):
    monkeypatch.setattr(module, "QUICK_TOKENS", 16)
    monkeypatch.setattr(module, "QUICK_PLACES", 4)
    report = verify_dataset(prefix, expected=EXPECTED)
    assert 0 < report.figures["tokens_read"] < 60
    assert "duplicate_documents" not in report.figures
    poke(bin_path(prefix), 2 * 59, struct.pack("<H", 3))
    assert not verify_dataset(prefix, expected=EXPECTED).passed, "the last document is always looked at"
    assert verify_dataset(prefix, expected=EXPECTED, deep=True).figures["tokens_read"] == 60


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("document", [0, 2, 4])
@pytest.mark.parametrize("token", [0, -1])
def test_ends_of_long_documents_are_looked_at(tmp_path, monkeypatch, is_here, document, token):
    monkeypatch.setattr(module, "QUICK_TOKENS", 16)
    monkeypatch.setattr(module, "QUICK_PLACES", 4)
    monkeypatch.setattr(MMapIndexedDataset, "is_here", is_here)
    builder = MMapIndexedDatasetBuilder(tmp_path / "long", np.uint16)
    for number in range(5):
        tokens = np.full(50, 3, np.uint16)
        tokens[[0, -1]] = 1, EOD
        tokens[token] = 7 if number == document else tokens[token]
        builder.add_document(tokens, [50])
    builder.finalize()
    report = verify_dataset(tmp_path / "long", expected=Expected(before=(1,), after=(EOD,)))
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
