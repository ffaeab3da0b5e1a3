import copy
import pickle

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


def through_pickle(error):
    return pickle.loads(pickle.dumps(error))


FAMILY = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NanosetError)
]


def test_message_says_what_where_found_expected_and_remedy():
    error = FormatError(
        "bad magic", where="a.idx, byte 0", found=b"XX", expected="MMIDIDX", remedy="write it again"
    )
    assert str(error) == (
        "a.idx, byte 0: bad magic\n  found: b'XX'\n  expected: MMIDIDX\n  remedy: write it again"
    )


def test_what_is_not_known_is_left_out_but_0_is_known():
    assert str(NanosetError("odd")) == "odd"
    assert str(NanosetError("odd", found=0, expected=0.0)) == "odd\n  found: 0\n  expected: 0.0"


@pytest.mark.parametrize(
    ("kind", "builtin"),
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
def test_each_kind_is_also_a_builtin(kind, builtin):
    assert issubclass(kind, NanosetError)
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("again", [through_pickle, copy.copy])
def test_every_part_survives_the_way_back_from_a_worker(kind, again):
    error = kind("what", where="where", found=3, expected="four", remedy="add one")
    twin = again(error)
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert (twin.what, twin.where, twin.found, twin.expected, twin.remedy) == (
        "what",
        "where",
        "3",
        "four",
        "add one",
    )


def test_foreign_names_do_not_reach_the_terminal_as_they_are():
    error = FormatError(
        "odd", where="/data/\x1b[2J\nx\udcff.idx", found="a\tb\nc\x9b1m\u202edlc", remedy="none"
    )
    text = str(error)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J" in text
    assert "\\udcff.idx" in text
    assert "found: a\\tb\\nc" in text
    text.encode()
    assert error.where == "/data/\x1b[2J\nx\udcff.idx"
    assert str(FormatError("é 日本\u3000語")) == "é 日本\u3000語"
