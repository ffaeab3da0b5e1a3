"""Under which limits the output of an earlier call is kept."""

from nanoset_core.text.rejects import RejectOptions

STRICT = RejectOptions(max_rejected_fraction=0.1)
LAX = RejectOptions(max_rejected_fraction=0.5)


def test_an_output_without_rejected_lines_is_kept_under_any_limits():
    facts = {"rejected": 0, "policy": LAX.recorded}

    assert STRICT.accept(facts)


def test_an_output_with_rejected_lines_is_kept_only_under_the_limits_that_it_was_made_under():
    facts = {"rejected": 3, "policy": LAX.recorded}

    assert LAX.accept(facts)
    assert not STRICT.accept(facts)


def test_an_output_with_rejected_lines_and_unknown_limits_is_not_kept():
    assert not LAX.accept({"rejected": 3})
