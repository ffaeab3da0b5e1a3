"""The rows of a plan's members, as people are shown them."""

from __future__ import annotations

from nanoset_core.stages.mappings.rows import member_rows


def test_a_plan_has_the_column_given_where_it_is_not_as_asked():
    member = {
        "weight": 0.5,
        "share": 0.5,
        "samples_given": 5,
        "surplus": 0,
        "epochs": 1.0,
        "max_epochs": None,
    }
    member |= {"tokens": 1000, "tokens_unseen": None}
    same, other = {"corpus": "a"} | member, {"corpus": "b"} | member | {"share": 0.4999}
    assert "share" not in member_rows([same, same])[0]
    assert [row["share"] for row in member_rows([same, other])] == ["50%", "49.99%"]
