"""Documents are put into packs as by a walk over single packs and pieces."""

from __future__ import annotations

from itertools import chain

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
batch_sizes = st.sampled_from([3, 10, 1 << 19])


def plan_of(lengths, rule):
    """Return the plan of packs of documents."""
    return plan_packs(LengthHistogram.of(lengths).pieces(rule), rule.length)


@given(lengths=documents, rule=rules, seed=seeds, stratum_pieces=batch_sizes, chunk=batch_sizes)
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


@given(lengths=documents, rule=rules, seed=seeds, stratum_pieces=batch_sizes)
def test_the_room_in_packs_is_filled_as_by_a_walk_over_the_tokens(
    lengths, rule, seed, stratum_pieces
):
    lengths = np.array(lengths, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "_STRATUM_PIECES", stratum_pieces)
        batches = list(assign(lengths, rule, plan_of(lengths, rule), seed))

    carried = list(carry_room(batches, rule.length))

    assert packs_in(carried) == slow_carry(packs_in(batches), rule.length)


@pytest.fixture(scope="module")
def many_lengths():
    """Lengths of 3,000 documents, many of which are longer than a pack."""
    return np.random.default_rng(5).integers(1, 400, 3000)


def packs_of(lengths, seed):
    """Return packs of 256 tokens."""
    rule = PieceRule(256)
    return packs_in(assign(lengths, rule, plan_of(lengths, rule), seed))


def test_a_seed_gives_the_same_packs_every_time(many_lengths):
    assert packs_of(many_lengths, seed=1) == packs_of(many_lengths, seed=1)


def test_another_seed_puts_other_documents_together(many_lengths):
    packs = packs_of(many_lengths, seed=1)
    other_packs = packs_of(many_lengths, seed=2)

    assert packs != other_packs
    assert sorted(map(len, packs)) == sorted(map(len, other_packs))


def test_packs_are_about_where_their_documents_are(many_lengths):
    packs = packs_of(many_lengths, seed=1)

    mean_documents = []
    for pack in packs:
        mean_documents.append(np.mean([piece.document for piece in pack]))
    correlation = np.corrcoef(mean_documents, np.arange(len(packs)))[0, 1]
    assert correlation > 0.9


@given(
    documents=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12),
    chunk=st.integers(1, 4),
)
def test_a_document_is_as_long_as_its_sequences_together(documents, chunk):
    """A document is drawn as the lengths of its sequences."""
    sequence_lengths = np.array(list(chain.from_iterable(documents)), np.int32)
    document_indices = np.cumsum([0, *map(len, documents)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "_CHUNK_DOCUMENTS", chunk)
        lengths = document_lengths(sequence_lengths, document_indices)

    assert lengths.tolist() == [sum(document) for document in documents]


def test_lengths_of_documents_of_one_sequence_are_not_copied():
    sequence_lengths = np.array([3, 0, 4], np.int32)
    document_indices = np.arange(4)

    assert document_lengths(sequence_lengths, document_indices) is sequence_lengths
