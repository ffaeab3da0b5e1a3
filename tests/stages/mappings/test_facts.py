"""What a split reads is added up from what is recorded of each of its datasets."""

from __future__ import annotations

from nanoset_core.stages.mappings.facts import tokens_read, unused_samples


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
