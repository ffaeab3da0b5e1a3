"""What users type and call in scripts is the same as at commit 2f92378; more may have been added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from golden_outputs.interface import FILE, describe_interface

RECORDED = json.loads(FILE.read_bytes())


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The present interface, as it would be read from a file."""
    folder = tmp_path_factory.mktemp("interface")
    text = json.dumps(describe_interface(folder), default=str)
    return json.loads(text)


def losses(recorded: Any, present: Any, path: str) -> Iterator[str]:
    """Yield a line for each recorded value that is missing now, or that differs."""
    if isinstance(recorded, dict) and isinstance(present, dict):
        for key, value in recorded.items():
            yield from losses(value, present.get(key, "nothing"), f"{path} > {key}")
    elif recorded != present:
        yield f"{path}: was {recorded}, is {present}"


@pytest.mark.parametrize("part", sorted(RECORDED))
def test_nothing_in_the_interface_was_removed_or_changed(
    present: dict[str, Any], part: str
) -> None:
    assert RECORDED[part]
    assert list(losses(RECORDED[part], present[part], part)) == []
