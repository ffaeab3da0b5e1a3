"""Packs against best-fit-decreasing document by document, and every token of every document in just
one of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from nanoset_core.sampling.packing import assignment
from nanoset_core.sampling.packing.assignment import Pieces, assign, carry_room, document_lengths
from nanoset_core.sampling.packing.plan import LengthHistogram, PieceRule, plan_packs

SETS = 80
"""Of 1,000 all are equal, too."""


def packs_one_by_one(lengths: Sequence[int], length: int) -> int:
    """How many packs best-fit-decreasing takes, which looks at one piece after the other."""
    rooms: list[int] = []
    packs = 0
    for piece in sorted(lengths, reverse=True):
        at = bisect_left(rooms, piece)
        packs += at == len(rooms)
        room = (length if at == len(rooms) else rooms.pop(at)) - piece
        if room:
            insort(rooms, room)
    return packs


def pieces_of(lengths: Sequence[int], cut: PieceRule) -> list[int]:
    if cut.long == "truncate":
        return [min(tokens, cut.length) for tokens in lengths if tokens]
    whole = [cut.length] * sum(tokens // cut.length for tokens in lengths)
    return whole + [tokens % cut.length for tokens in lengths if tokens % cut.length]


def joined(windows: Sequence[Pieces]) -> list[list[tuple[int, int, int]]]:
    """(document, first token, tokens) of the pieces of each pack."""
    packs = []
    for window in windows:
        rows = np.stack(window[1:], axis=1).tolist()
        packs += [
            [(a, b, c) for a, b, c in rows[begin:end]]
            for begin, end in pairwise(window.bounds.tolist())
        ]
    return packs


@pytest.fixture(params=[1 << 20, 32], ids=["at once", "in strata"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "_CHUNK_DOCUMENTS", request.param)
    monkeypatch.setattr(assignment, "_STRATUM_PIECES", request.param)


@pytest.mark.usefixtures("steps")
def test_packs_are_those_of_the_algorithm_and_hold_every_token_once():
    generator = np.random.default_rng(31)
    for number in range(SETS):
        cut = PieceRule(int(generator.integers(1, 300)), "truncate" if number % 2 else "fragment")
        lengths = generator.integers(
            0, int(generator.integers(1, 900)), int(generator.integers(0, 400))
        )
        plan = plan_packs(LengthHistogram.of(lengths).pieces(cut), cut.length)
        assert plan.packs == packs_one_by_one(pieces_of(lengths.tolist(), cut), cut.length)
        padded = list(assign(lengths, cut, plan, number))
        for windows in (padded, list(carry_room(padded, cut.length))):
            packs, tokens = joined(windows), 0
            covered = [np.zeros(count, np.int64) for count in lengths.tolist()]
            for pack in packs:
                held = sum(count for _, _, count in pack)
                assert 0 < held <= cut.length
                assert all(count > 0 for _, _, count in pack)
                tokens += held
                for document, first, count in pack:
                    covered[document][first : first + count] += 1
            for document in covered:
                kept = len(document) if cut.long == "fragment" else min(len(document), cut.length)
                assert (document[:kept] == 1).all()
                assert not document[kept:].any()
            assert len(packs) == (plan.packs if windows is padded else -(-tokens // cut.length))
            assert windows is padded or all(
                sum(row[2] for row in pack) == cut.length for pack in packs[:-1]
            )


@pytest.mark.usefixtures("steps")
def test_a_seed_decides_which_documents_meet_and_packs_lie_about_where_their_documents_do():
    lengths = np.random.default_rng(5).integers(1, 400, 3000)
    cut = PieceRule(256)
    plan = plan_packs(LengthHistogram.of(lengths).pieces(cut), 256)
    one, same, other = (joined(list(assign(lengths, cut, plan, seed))) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(map(len, one)) == sorted(map(len, other))
    middles = [np.mean([row[0] for row in pack]) for pack in one]
    assert np.corrcoef(middles, np.arange(len(middles)))[0, 1] > 0.9
    assert all(pack == sorted(pack) for pack in one)


def test_padding_of_web_like_lengths():
    generator = np.random.default_rng(1)
    lengths = np.maximum(generator.lognormal(np.log(600), 1.2, 1_000_000), 1).astype(np.int32)
    histogram = LengthHistogram.of(lengths)
    for length, most in ((2048, 2e-5), (8192, 3e-5)):
        plan = plan_packs(histogram.pieces(PieceRule(length)), length)
        assert (
            histogram.tokens
            == int(lengths.sum(dtype=np.int64))
            == int((plan.length - plan.room) @ plan.counts)
        )
        assert 0 <= 1 - histogram.tokens / (plan.packs * length) < most


def test_documents_of_several_sequences_are_as_long_as_these_together(monkeypatch):
    monkeypatch.setattr(assignment, "_CHUNK_DOCUMENTS", 3)
    sequences, bounds = np.array([3, 0, 4, 5, 1], np.int32), np.array([0, 2, 2, 4, 5, 5])
    assert document_lengths(sequences, bounds).tolist() == [3, 0, 9, 1, 0]
    assert document_lengths(sequences, np.arange(6)) is sequences
    assert document_lengths(sequences[:4], np.array([0, 1, 1, 2, 4])).tolist() == [3, 0, 0, 9]


def test_lengths_beyond_those_that_are_counted_in_an_array(monkeypatch):
    monkeypatch.setattr("nanoset_core.sampling.packing.plan._MAX_COUNTED_LENGTH", 10)
    histogram = LengthHistogram.of(np.array([12, 3, 9, 12, 0, 40]))
    assert (histogram.lengths.tolist(), histogram.counts.tolist()) == ([3, 9, 12, 40], [1, 1, 2, 1])
    assert (histogram.documents, histogram.tokens) == (5, 76)
