"""Conditions on documents: what is refused, and what is parsed once."""

from __future__ import annotations

import time

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.stages.views.conditions import parse_condition


@pytest.mark.parametrize("value", ["{0}", "'doc-{0}'", "-{0}.5"])
def test_a_long_list_of_values_is_refused_at_once_with_what_to_do_instead(value):
    listed = ", ".join(value.format(number) for number in range(200_000))
    begun = time.monotonic()
    with pytest.raises(ConfigError, match="too many values") as caught:
        parse_condition(f"id in ({listed})", "views.v.where")
    assert time.monotonic() - begun < 5
    assert "include" in str(caught.value.remedy)
    assert len(str(caught.value)) < 1000


def test_a_condition_is_parsed_once():
    text = f"number in ({', '.join(map(str, range(1000)))})"
    assert parse_condition(text, "a")._root is parse_condition(text, "b")._root
