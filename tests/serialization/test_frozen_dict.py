import copy
import json
import pickle

import pytest

from nanoset_core.serialization.parsing import FrozenDict, freeze

CHANGES = [
    lambda value: value.__setitem__("a", 2),
    lambda value: value.__delitem__("a"),
    lambda value: value.update(a=2),
    lambda value: value.pop("a"),
    lambda value: value.popitem(),
    lambda value: value.clear(),
    lambda value: value.setdefault("b", 1),
    lambda value: value.__ior__({"b": 1}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_cannot_be_changed(change):
    value = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="cannot be changed"):
        change(value)
    assert value == {"a": 1}


def test_works_where_a_dict_does():
    value = freeze({"a": [1, {"b": 2}], "c": None})
    assert value == {"a": (1, {"b": 2}), "c": None}
    assert isinstance(value["a"][1], FrozenDict)
    assert json.dumps(value) == '{"a": [1, {"b": 2}], "c": null}'
    pickled = pickle.loads(pickle.dumps(value))
    for twin in (pickled, copy.copy(value), copy.deepcopy(value)):
        assert type(twin) is FrozenDict
        assert twin == value
    assert hash(value) == hash(freeze({"c": None, "a": [1, {"b": 2}]}))
    assert {**value, "c": 1} == {"a": (1, {"b": 2}), "c": 1}
