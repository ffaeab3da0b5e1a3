"""Where files are that tests read, whatever the depth of the test's folder."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
GOLDEN_FILES = TESTS / "golden"
"""Files and arrays that the trainers' own programs made."""
