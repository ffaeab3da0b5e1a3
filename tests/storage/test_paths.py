"""Names that files tell."""

from __future__ import annotations

import pytest

from nanoset_core.storage.paths import has_control_characters, is_inside


@pytest.mark.parametrize("name", ["a", "a.tar", "a/b c/d", "..a", "a..", "é漢", ".hidden"])
def test_inside(name):
    assert is_inside(name)


OUTSIDE = ["", "/", "/etc/passwd", "..", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "a\0b", "\ud800", None, 7, b"a"]
TOO_LONG = ["x" * 256, "a/" + "é" * 128, "a/" * 2048 + "a"]


@pytest.mark.parametrize("name", [*OUTSIDE, *TOO_LONG])
def test_outside(name):
    assert not is_inside(name)


def test_control_characters():
    assert not any(map(has_control_characters, ["a b", "日本\u3000語", "é-_.,"]))
    assert all(map(has_control_characters, ["a\n", "\x1b[2J", "\x7f", "\u0085", "\t", "a\0"]))
