"""The tables of a split omit columns that say nothing about its datasets."""

from __future__ import annotations

from typing import Any

from nanoset_core.stages.mappings.rows import member_rows, mixture_rows


def make_member(corpus: str, share: float) -> dict[str, Any]:
    """Return the JSON values of a member whose weight is a half.

    Args:
        corpus: Its dataset.
        share: Its share of the samples.
    """
    return {
        "corpus": corpus,
        "weight": 0.5,
        "share": share,
        "samples_given": 5,
        "surplus": 0,
        "epochs": 1.0,
        "max_epochs": None,
        "tokens": 1000,
        "tokens_unseen": None,
    }


def test_shares_that_equal_the_weights_are_not_shown():
    rows = member_rows([make_member("a", share=0.5), make_member("a", share=0.5)])

    assert "share" not in rows[0]


def test_shares_are_shown_if_one_differs_from_its_weight():
    rows = member_rows([make_member("a", share=0.5), make_member("b", share=0.4999)])

    assert [row["share"] for row in rows] == ["50%", "49.99%"]


def test_epochs_that_are_computed_from_tokens_have_another_heading():
    part = {
        "name": "a",
        "depth": 0,
        "asked": 0.5,
        "given": 0.5,
        "tokens": 1974,
        "epochs": 1.974,
        "decided_by": "share",
    }

    [row] = mixture_rows([part])

    assert row["epochs by tokens"] == "1.97"
    assert row.keys().isdisjoint({"epochs"})
    assert member_rows([make_member("a", share=0.5)])[0]["epochs"] == "1.00"


def test_a_dataset_that_is_started_again_has_no_unused_samples():
    often_read = make_member("a", share=0.6) | {"surplus": -19}
    rarely_read = make_member("b", share=0.4) | {"surplus": 19}

    rows = member_rows([often_read, rarely_read])

    assert [row["unused samples"] for row in rows] == ["0", "19"]
