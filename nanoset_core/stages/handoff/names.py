"""Versions of the stage `handoff`, which writes the files that start a trainer."""

from __future__ import annotations

VERSION = 2
"""Version of the files of most trainers."""
VERSION_BY_PRESET = {
    # The first versions with preflight.py.
    "megatron": 3,
    "megatron-0.10": 3,
    # The first versions with a data stage, instead of a section `data`, which the trainer refuses.
    "nanotron-main": 4,
    "nanotron-main-bytes": 4,
}
"""Preset → version of the files of its trainer, if it is not `VERSION`.

When what is written for a trainer changes, its number is raised, and the next build writes the
files again. Files of other trainers keep their number, so that they are not written again.
"""
