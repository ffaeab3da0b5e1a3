"""Fixtures by which tests of tokenizers need not find out the same twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from nanoset_core.tokenizers.engines import proof, rules
from nanoset_core.tokenizers.engines.classes import ClassRules

FEW_CANARIES = ("", "It's a test,  1234 x.\n\n\t", "é世\u0301🎉 Привет '中ſ", "a" * 300)


@pytest.fixture(scope="session")
def probe_classes_once() -> Callable[[ClassRules, int], Any]:
    """The function `probe_classes`, which takes long, but remembers its results."""
    cached_probe = cache(rules.probe_classes)

    def probe_classes(class_rules: ClassRules, rest: int) -> Any:
        return cached_probe(class_rules, rest).copy()

    return probe_classes


@pytest.fixture(scope="session", autouse=True)
def _probe_each_pattern_once(
    probe_classes_once: Callable[[ClassRules, int], Any],
) -> Iterator[None]:
    """Find the class of every code point once for each split pattern."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "probe_classes", probe_classes_once)
        yield


@pytest.fixture
def few_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare engines with the reference on few texts, and on those of their vocabularies.

    It is for tests of something else than the comparison, which takes seconds. The tests of `proof`
    and of `make_engine` compare engines of each kind on all texts.
    """
    monkeypatch.setattr(proof, "_common_canaries", lambda: FEW_CANARIES)
