"""Names that files tell."""

from __future__ import annotations

import pytest

from nanoset_core.paths import is_inside


@pytest.mark.parametrize("name", ["a", "a.tar", "a/b c/d", "..a", "a..", "é漢", ".hidden"])
def test_inside(name):
    assert is_inside(name)


@pytest.mark.parametrize(
    "name",
    ["", "/", "/etc/passwd", "..", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "a\0b", "\ud800", None, 7, b"a"],
)
def test_outside(name):
    assert not is_inside(name)
