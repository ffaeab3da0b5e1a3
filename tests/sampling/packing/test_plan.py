"""Lengths that go together into a pack are those of best-fit-decreasing, piece by piece."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.slow_packing import slow_best_fit, slow_pieces
from nanoset_core.sampling.packing import plan as plan_module
from nanoset_core.sampling.packing.plan import LengthHistogram, PieceRule, plan_packs

documents = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=60)
rules = st.builds(PieceRule, st.integers(1, 25), st.sampled_from(["fragment", "truncate"]))


@given(lengths=documents, rule=rules)
def test_packs_are_those_of_best_fit_piece_by_piece(lengths, rule):
    histogram = LengthHistogram.of(np.array(lengths, np.int32)).pieces(rule)

    plan = plan_packs(histogram, rule.length)

    piece_lengths = [piece.n_tokens for piece in slow_pieces(lengths, rule)]
    rooms = np.repeat(plan.room, plan.counts)
    assert sorted(rooms.tolist()) == sorted(slow_best_fit(piece_lengths, rule.length))
    assert plan.packs == len(rooms)
    assert plan.pieces == len(piece_lengths)


@given(lengths=documents, rule=rules)
def test_a_plan_has_a_place_for_every_piece(lengths, rule):
    histogram = LengthHistogram.of(np.array(lengths, np.int32)).pieces(rule)

    plan = plan_packs(histogram, rule.length)

    places_by_length = Counter()
    for class_number, n_packs in enumerate(plan.counts.tolist()):
        start, stop = plan.piece_starts[class_number : class_number + 2]
        for piece_length in plan.piece_lengths[start:stop].tolist():
            places_by_length[piece_length] += n_packs
    assert places_by_length == Counter(piece.n_tokens for piece in slow_pieces(lengths, rule))


@given(lengths=documents, chunk=st.integers(1, 9), max_counted_length=st.integers(2, 70))
def test_a_histogram_counts_documents_with_tokens_by_length(lengths, chunk, max_counted_length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "_CHUNK_DOCUMENTS", chunk)
        patch.setattr(plan_module, "_MAX_COUNTED_LENGTH", max_counted_length)
        histogram = LengthHistogram.of(np.array(lengths, np.int32))

    expected = Counter(length for length in lengths if length > 0)
    lengths_in_order = sorted(expected)
    assert histogram.lengths.tolist() == lengths_in_order
    assert histogram.counts.tolist() == [expected[length] for length in lengths_in_order]
    assert histogram.documents == expected.total()
    assert histogram.tokens == sum(lengths)


@given(lengths=documents, rule=rules)
def test_the_histogram_of_pieces_counts_the_pieces_of_each_document(lengths, rule):
    histogram = LengthHistogram.of(np.array(lengths, np.int32)).pieces(rule)

    expected = Counter(piece.n_tokens for piece in slow_pieces(lengths, rule))
    count_by_length = zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)
    assert dict(count_by_length) == expected


@given(lengths=st.lists(st.integers(1, 30), max_size=20), length=st.integers(1, 12))
def test_cuts_of_concatenated_documents_are_the_mean_over_all_starts(lengths, length):
    histogram = LengthHistogram.of(np.array(lengths, np.int32))

    n_cut = 0
    n_tokens_after_cut = 0
    for n_tokens in lengths:
        for start in range(length):  # position in a sample at which the document starts
            n_before_cut = length - start
            if n_tokens > n_before_cut:
                n_cut += 1
                n_tokens_after_cut += n_tokens - n_before_cut
    cut_documents, cut_tokens = histogram.cut_if_concatenated(length)
    assert cut_documents == pytest.approx(n_cut / length, abs=0.501)  # both are rounded
    assert cut_tokens == pytest.approx(n_tokens_after_cut / length, abs=0.501)


@pytest.fixture(scope="module")
def web_like_lengths():
    """Lengths of a million documents: most are short, and a few are very long."""
    generator = np.random.default_rng(1)
    lengths = generator.lognormal(np.log(600), 1.2, 1_000_000)
    return np.maximum(lengths, 1).astype(np.int32)


@pytest.mark.parametrize(("length", "max_padding"), [(2048, 2e-5), (8192, 3e-5)])
def test_packs_of_web_like_lengths_have_almost_no_padding(web_like_lengths, length, max_padding):
    histogram = LengthHistogram.of(web_like_lengths)

    plan = plan_packs(histogram.pieces(PieceRule(length)), length)

    tokens_of_class = plan.length - plan.room
    n_tokens = int(tokens_of_class @ plan.counts)
    assert n_tokens == histogram.tokens
    assert n_tokens == int(web_like_lengths.sum(dtype=np.int64))
    padding_share = 1 - n_tokens / (plan.packs * length)
    assert 0 <= padding_share < max_padding
