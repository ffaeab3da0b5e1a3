"""Folders of files that tests read."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
GOLDEN_FILES = TESTS / "golden"
"""Files and arrays that the trainers' own programs made."""
