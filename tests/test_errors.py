"""Errors have a message of up to four lines, and reach another process with all their parts."""

from __future__ import annotations

import copy
import pickle
from typing import TypeVar

import pytest

from nanoset_core import errors
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    InputError,
    MissingError,
    NanosetError,
    SampleIndexError,
    SourceChangedError,
    StaleError,
)

Error = TypeVar("Error", bound=NanosetError)


def error_classes() -> list[type[NanosetError]]:
    """Return all classes of our errors."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    return [cls for cls in classes if issubclass(cls, NanosetError)]


def test_a_message_says_what_is_wrong_where_and_what_to_do():
    error = FormatError(
        "bad magic", where="a.idx, byte 0", found=b"XX", expected="MMIDIDX", remedy="write it again"
    )

    assert str(error).splitlines() == [
        "a.idx, byte 0: bad magic",
        "  found: b'XX'",
        "  expected: MMIDIDX",
        "  remedy: write it again",
    ]


def test_a_message_has_no_line_for_what_is_not_known():
    assert str(NanosetError("odd")) == "odd"


def test_zero_is_a_value_that_is_known():
    error = NanosetError("odd", found=0, expected=0.0)

    assert str(error).splitlines() == ["odd", "  found: 0", "  expected: 0.0"]


@pytest.mark.parametrize(
    ("error_class", "base_class"),
    [
        (ConfigError, ValueError),
        (FormatError, ValueError),
        (InputError, ValueError),
        (SourceChangedError, InputError),
        (MissingError, FileNotFoundError),
        (StaleError, RuntimeError),
        (SampleIndexError, IndexError),
    ],
)
def test_an_error_is_ours_and_also_a_built_in_one(error_class, base_class):
    assert issubclass(error_class, NanosetError)
    assert issubclass(error_class, base_class)


def pickled_copy(error: Error) -> Error:
    """Return an error after it was pickled, as it is if a worker raises it."""
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("error_class", error_classes())
@pytest.mark.parametrize("make_copy", [pickled_copy, copy.copy])
def test_a_copy_of_an_error_has_its_class_message_and_parts(error_class, make_copy):
    error = error_class("what", where="where", found=3, expected="four", remedy="add one")

    copied = make_copy(error)

    assert type(copied) is error_class
    assert str(copied) == str(error)
    assert copied.what == "what"
    assert copied.where == "where"
    assert copied.found == "3"
    assert copied.expected == "four"
    assert copied.remedy == "add one"


HOSTILE_PATH = "/data/\x1b[2J\nx\udcff.idx"


@pytest.fixture
def hostile_error() -> FormatError:
    """An error about a file whose name and content control the terminal."""
    return FormatError("odd", where=HOSTILE_PATH, found="a\tb\nc\x9b1m\u202edlc", remedy="none")


def test_a_message_has_no_characters_that_control_the_terminal(hostile_error):
    message = str(hostile_error)

    assert "\x1b" not in message
    assert "\x9b" not in message
    assert "\u202e" not in message


def test_a_message_shows_such_characters_as_escapes(hostile_error):
    message = str(hostile_error)

    assert "\\x1b[2J" in message
    assert "\\udcff.idx" in message
    assert "found: a\\tb\\nc" in message


def test_a_message_can_be_encoded_as_utf_8(hostile_error):
    # This raises an error if a surrogate is left.
    str(hostile_error).encode()


def test_the_place_of_an_error_is_the_path_as_it_is(hostile_error):
    assert hostile_error.where == HOSTILE_PATH


def test_letters_of_all_scripts_are_shown():
    assert str(FormatError("é 日本\u3000語")) == "é 日本\u3000語"
