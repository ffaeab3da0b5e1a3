"""Which document goes into which pack, against a walk over single packs and pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.slow_packing import packs_in, slow_assign, slow_carry
from nanoset_core.sampling.packing import assignment, queues
from nanoset_core.sampling.packing.assignment import assign, document_lengths
from nanoset_core.sampling.packing.carry import carry_room
from nanoset_core.sampling.packing.plan import LengthHistogram, PieceRule, plan_packs

documents = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=60)
rules = st.builds(PieceRule, st.integers(1, 25), st.sampled_from(["fragment", "truncate"]))
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([3, 10, 1 << 19])


def plan_of(lengths, rule):
    return plan_packs(LengthHistogram.of(lengths).pieces(rule), rule.length)


@given(lengths=documents, rule=rules, seed=seeds, stratum_pieces=sizes, chunk=sizes)
def test_documents_are_where_a_walk_over_the_packs_puts_them(
    lengths, rule, seed, stratum_pieces, chunk
):
    lengths = np.array(lengths, np.int32)
    plan = plan_of(lengths, rule)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "_STRATUM_PIECES", stratum_pieces)
        patch.setattr(queues, "CHUNK_DOCUMENTS", chunk)
        packs = packs_in(assign(lengths, rule, plan, seed))

    assert packs == slow_assign(lengths.tolist(), rule, plan, seed, stratum_pieces)


@given(lengths=documents, rule=rules, seed=seeds, stratum_pieces=sizes)
def test_the_room_in_packs_is_filled_as_by_a_walk_over_the_tokens(
    lengths, rule, seed, stratum_pieces
):
    lengths = np.array(lengths, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "_STRATUM_PIECES", stratum_pieces)
        batches = list(assign(lengths, rule, plan_of(lengths, rule), seed))

    carried = list(carry_room(batches, rule.length))

    assert packs_in(carried) == slow_carry(packs_in(batches), rule.length)


def test_a_seed_decides_which_documents_share_a_pack():
    lengths = np.random.default_rng(5).integers(1, 400, 3000)
    rule = PieceRule(256)
    plan = plan_of(lengths, rule)

    packs, same, other = (packs_in(assign(lengths, rule, plan, seed)) for seed in (1, 1, 2))

    assert packs == same
    assert packs != other
    assert sorted(map(len, packs)) == sorted(map(len, other))


def test_packs_are_about_where_their_documents_are():
    lengths = np.random.default_rng(5).integers(1, 400, 3000)
    rule = PieceRule(256)

    packs = packs_in(assign(lengths, rule, plan_of(lengths, rule), 1))

    mean_documents = [np.mean([document for document, _, _ in pack]) for pack in packs]
    assert np.corrcoef(mean_documents, np.arange(len(packs)))[0, 1] > 0.9


@given(
    documents=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12),
    chunk=st.integers(1, 4),
)
def test_a_document_is_as_long_as_its_sequences_together(documents, chunk):
    sequence_lengths = np.array([n for document in documents for n in document], np.int32)
    document_indices = np.cumsum([0, *map(len, documents)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "_CHUNK_DOCUMENTS", chunk)
        lengths = document_lengths(sequence_lengths, document_indices)

    assert lengths.tolist() == [sum(document) for document in documents]


def test_lengths_of_documents_of_one_sequence_are_not_copied():
    sequence_lengths = np.array([3, 0, 4], np.int32)

    assert document_lengths(sequence_lengths, np.arange(4)) is sequence_lengths
