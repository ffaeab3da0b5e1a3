"""Let a test fail if it has nothing to check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def nonempty(items: Iterable[Item]) -> list[Item]:
    """Return the items that a test is about to check, of which there must be at least one.

    The assertions in a loop are never reached if there is nothing to loop over, and the test
    passes. This function makes such a test fail:

        for run in nonempty(instance.get_runs()):
            assert run.tags["user"] == "nanoset build"
    """
    item_list = list(items)
    assert item_list, "there is nothing to check"
    return item_list
