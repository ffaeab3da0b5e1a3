"""What people type and script against is still there, as it was at commit 2f92378; more may have
come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from golden_outputs.interface import FILE, interface

HELD = json.loads(FILE.read_bytes())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return json.loads(json.dumps(interface(tmp_path_factory.mktemp("interface")), default=str))


def lost(held: Any, found: Any, path: str) -> Iterator[str]:
    """Paths of what is not there any more, or differs."""
    if isinstance(held, dict) and isinstance(found, dict):
        for key, value in held.items():
            yield from lost(value, found.get(key, "nothing"), f"{path} > {key}")
    elif held != found:
        yield f"{path}: was {held}, is {found}"


@pytest.mark.parametrize("part", sorted(HELD))
def test_it_is_there_as_before(found: dict[str, Any], part: str) -> None:
    assert HELD[part]
    assert not list(lost(HELD[part], found[part], part))
