"""Which lengths go together into a pack, against best-fit-decreasing piece by piece."""

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

    piece_lengths = [tokens for _, _, tokens in slow_pieces(lengths, rule)]
    rooms = np.repeat(plan.room, plan.counts)
    assert sorted(rooms.tolist()) == sorted(slow_best_fit(piece_lengths, rule.length))
    assert plan.packs == len(rooms)
    assert plan.pieces == len(piece_lengths)


@given(lengths=documents, rule=rules)
def test_a_plan_has_a_place_for_every_piece(lengths, rule):
    histogram = LengthHistogram.of(np.array(lengths, np.int32)).pieces(rule)

    plan = plan_packs(histogram, rule.length)

    places = Counter()
    for class_number, count in enumerate(plan.counts.tolist()):
        start, stop = plan.piece_starts[class_number : class_number + 2]
        for tokens in plan.piece_lengths[start:stop].tolist():
            places[tokens] += count
    assert places == Counter(tokens for _, _, tokens in slow_pieces(lengths, rule))


@given(lengths=documents, chunk=st.integers(1, 9), counted=st.integers(2, 70))
def test_a_histogram_counts_documents_with_tokens_by_length(lengths, chunk, counted):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "_CHUNK_DOCUMENTS", chunk)
        patch.setattr(plan_module, "_MAX_COUNTED_LENGTH", counted)
        histogram = LengthHistogram.of(np.array(lengths, np.int32))

    expected = Counter(tokens for tokens in lengths if tokens)
    assert histogram.lengths.tolist() == sorted(expected)
    assert histogram.counts.tolist() == [expected[tokens] for tokens in sorted(expected)]
    assert (histogram.documents, histogram.tokens) == (expected.total(), sum(lengths))


@given(lengths=documents, rule=rules)
def test_the_histogram_of_pieces_counts_the_pieces_of_each_document(lengths, rule):
    histogram = LengthHistogram.of(np.array(lengths, np.int32)).pieces(rule)

    expected = Counter(tokens for _, _, tokens in slow_pieces(lengths, rule))
    assert dict(zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)) == expected


@given(lengths=st.lists(st.integers(1, 30), max_size=20), length=st.integers(1, 12))
def test_cuts_of_concatenated_documents_are_the_mean_over_all_starts(lengths, length):
    histogram = LengthHistogram.of(np.array(lengths, np.int32))

    n_cut = 0
    tokens_after_cut = 0
    for tokens in lengths:
        for start in range(length):  # position in a sample at which the document starts
            n_before_cut = length - start
            n_cut += tokens > n_before_cut
            tokens_after_cut += max(tokens - n_before_cut, 0)
    cut_documents, cut_tokens = histogram.cut_if_concatenated(length)
    assert cut_documents == pytest.approx(n_cut / length, abs=0.501)
    assert cut_tokens == pytest.approx(tokens_after_cut / length, abs=0.501)


def test_packs_of_web_like_lengths_have_almost_no_padding():
    generator = np.random.default_rng(1)
    lengths = np.maximum(generator.lognormal(np.log(600), 1.2, 1_000_000), 1).astype(np.int32)
    histogram = LengthHistogram.of(lengths)
    for length, max_padding in ((2048, 2e-5), (8192, 3e-5)):
        plan = plan_packs(histogram.pieces(PieceRule(length)), length)

        n_tokens = int((plan.length - plan.room) @ plan.counts)
        assert n_tokens == histogram.tokens == int(lengths.sum(dtype=np.int64))
        assert 0 <= 1 - n_tokens / (plan.packs * length) < max_padding
