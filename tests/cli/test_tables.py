"""Tables on terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from nanoset_core.cli.terminal import print_rows

ROWS = [
    ("web/of/a/name/that/is/long", "1,234,567", "39.69% of 40.00% asked"),
    ("code", "89", "1.00%"),
]


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_rows(
        [dict(zip(("corpus", "tokens", "share"), row, strict=True)) for row in ROWS],
        console=console,
    )
    assert console.width == width
    return console.file.getvalue()


@pytest.mark.parametrize("width", [10, 30, 44, 80])
def test_nothing_is_cut(width):
    said = printed(width)
    for row in ROWS:
        for word in " ".join(row[1:]).split():
            assert word in said
    assert all(name in said for name in ("corpus", "tokens", "share", "code"))


def test_the_frame_goes_before_the_numbers():
    assert "│" in printed(80)
    assert "│" not in printed(30)
    assert max(map(len, printed(80).splitlines())) <= 80
