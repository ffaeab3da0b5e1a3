"""Writing of JSON: deep values are written as shallow ones are."""

import json
import sys

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.text.json_writing import json_text

LEVELS = 1000
"""More than Python's json module writes, and at most as many as orjson reads."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@pytest.fixture(params=[(", ", ": "), (",", ":")], ids=["spaces", "no spaces"])
def encoder(request):
    return json.JSONEncoder(ensure_ascii=False, separators=request.param)


def test_a_deep_list_is_written(encoder):
    text = "[" * LEVELS + "]" * LEVELS
    value = orjson.loads(text)
    with pytest.raises(RecursionError):
        encoder.encode(value)

    assert json_text(value, encoder) == text


@settings(max_examples=20)
@given(json_values)
def test_a_value_within_a_deep_one_is_written_as_it_is_alone(value):
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    deep_value = value
    for _ in range(LEVELS):
        deep_value = {"a": [deep_value]}

    text = json_text(deep_value, encoder)

    assert text == '{"a":[' * LEVELS + encoder.encode(value) + "]}" * LEVELS


def test_the_text_does_not_depend_on_the_depth_of_calls():
    encoder = json.JSONEncoder()
    value = orjson.loads("[" * 500 + "]" * 500)

    def written_below(n_calls):
        """Return the text of the value, written by a function that is called by others."""
        if n_calls == 0:
            return json_text(value, encoder)
        return written_below(n_calls - 1)

    assert written_below(sys.getrecursionlimit() // 2) == json_text(value, encoder)
