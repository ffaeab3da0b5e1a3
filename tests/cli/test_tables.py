"""Tables fit terminals of any width without losing a number."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from nanoset_core.cli.terminal import print_rows

ROWS = [
    {
        "corpus": "web/of/a/name/that/is/long",
        "tokens": "1,234,567",
        "share": "39.69% of 40.00% asked",
    },
    {"corpus": "code", "tokens": "89", "share": "1.00%"},
]


def printed_table(width: int) -> str:
    """Return the table of `ROWS` as a terminal of some width shows it."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    print_rows(ROWS, console=console)
    # The console is not widened for the table.
    assert console.width == width
    return file.getvalue()


@pytest.mark.parametrize("width", [10, 30, 44, 80])
def test_no_number_and_no_heading_is_cut(width):
    text = printed_table(width)

    for row in ROWS:
        for word in f"{row['tokens']} {row['share']}".split():
            assert word in text
    for word in ("corpus", "tokens", "share", "code"):
        assert word in text


def test_a_wide_terminal_shows_the_table_with_a_frame():
    text = printed_table(80)

    assert "│" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_narrow_terminal_shows_the_table_without_a_frame():
    assert "│" not in printed_table(30)
