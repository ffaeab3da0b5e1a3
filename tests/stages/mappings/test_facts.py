"""What a split reads is added up from what is recorded of each of its datasets."""

from __future__ import annotations

from nanoset_core.stages.mappings.facts import tokens_read, unused_samples, unused_tokens


def test_tokens_of_all_datasets_are_added_up():
    facts = {
        "members": [
            {"samples_given": 3, "tokens_taken": 3 * 17},
            {"samples_given": 2, "tokens_taken": 2 * 17},
        ]
    }

    assert tokens_read(facts, sequence_length=16) == 5 * 17


def test_records_without_tokens_have_those_of_their_samples():
    facts = {"members": [{"samples_given": 3}, {"samples_given": 2}]}

    assert tokens_read(facts, sequence_length=16) == 5 * 16


def test_a_dataset_that_is_started_again_hides_no_unused_samples_of_another():
    # The trainer reads 19 samples of the first dataset again, instead of those of the second.
    facts = {"members": [{"surplus": -19}, {"surplus": 19}]}

    assert unused_samples(facts) == 19


def split_facts_of(*members, available, unique):
    """Return the facts of a split that reads one corpus through some datasets."""
    names = [member["corpus"] for member in members]
    corpus = {"members": names, "tokens_available": available, "unique_tokens": unique}
    return {"members": list(members), "corpora": [corpus]}


WEB = {"corpus": "web", "tokens": 1000, "tokens_unseen": 0}
"""A corpus that is read completely."""
HALF = {"corpus": "half", "tokens": 500, "tokens_unseen": 200}
"""A view, a part of which is not read."""
REST = {"corpus": "rest", "tokens": 500, "tokens_unseen": 30}
"""A view of the other documents."""


def test_tokens_that_are_read_through_another_dataset_are_not_unused():
    assert unused_tokens(split_facts_of(WEB, HALF, available=1000, unique=990)) == 10


def test_unused_tokens_of_datasets_without_common_documents_are_added_up():
    assert unused_tokens(split_facts_of(HALF, REST, available=1000, unique=760)) == 230


def test_unused_tokens_are_not_known_if_the_shuffle_decides():
    by_chance = {**WEB, "tokens_unseen": None}

    assert unused_tokens(split_facts_of(by_chance, available=1000, unique=700)) is None


def test_unused_tokens_are_not_known_if_an_earlier_phase_has_read_common_documents():
    read_before = {**HALF, "before": 3}
    facts = split_facts_of(WEB, HALF, available=1000, unique=500)
    facts_of_phase = {**facts, "members": [HALF]}

    assert unused_tokens(split_facts_of(WEB, read_before, available=1000, unique=500)) is None
    assert unused_tokens(facts_of_phase) is None


def test_old_records_have_the_unused_tokens_of_their_datasets():
    assert unused_tokens({"members": [HALF, REST]}) == 230
