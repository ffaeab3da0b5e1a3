"""A stage that is sent to another process is that of the process's own list."""

from __future__ import annotations

import pickle

from helpers.toy_stage import COUNTS, Counts
from nanoset_core.stages import registry


def test_a_stage_is_unpickled_as_the_same_object():
    received_stages = pickle.loads(pickle.dumps(registry.stages()))

    for received, stage in zip(received_stages, registry.stages(), strict=True):
        assert received is stage


def test_an_added_stage_is_unpickled_as_the_same_object(monkeypatch):
    monkeypatch.setattr(registry, "_added", [COUNTS])

    assert pickle.loads(pickle.dumps(COUNTS)) is COUNTS


def test_a_stage_that_was_not_added_keeps_its_class_and_attributes():
    stage = Counts()
    stage.kind = "more counts"

    received = pickle.loads(pickle.dumps(stage))

    assert type(received) is Counts
    assert received.kind == "more counts"
    assert received.layout == stage.layout
