"""Read settings that people write: plain values, such as those of a YAML file, as dataclasses.

A frozen dataclass declares the keys of a mapping: its fields have the keys' names and types, and
may have defaults. For example, `{count: 3}` becomes `Spec(count=3, name="a")` by

    @dataclass(frozen=True)
    class Spec:
        count: Annotated[int, Range(1, 10)]
        name: str = "a"

    spec = parse(Spec, {"count": 3}, path="", where="nanoset.yaml")

Unknown keys, missing keys, values of a wrong type and numbers out of range are errors. All of them
are collected, so that a user sees every mistake of a file at once. Which types fields may have is
described in `codecs.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, combined
from nanoset_core.records.codecs import Notation, codec_of
from nanoset_core.records.mismatches import Mismatch, MismatchError, range_mismatch
from nanoset_core.records.settings import Range

CONFIG_FILE = "nanoset.yaml"
"""Name of the file with a project's settings."""
CONFIG_VARIABLE = "NANOSET_CONFIG"
"""Environment variable with the path of this file, for commands and for Dagster."""


def config_file(path: Path) -> Path:
    """Return the nanoset.yaml that a path names.

    Args:
        path: The file itself, which need not exist, or a folder that contains it.
    """
    return path / CONFIG_FILE if path.is_dir() else path


def parse(hint: Any, value: object, path: str, where: object) -> Any:
    """Convert a value from a YAML file to the type that the program declares for it.

    For example, the mapping {"seed": 7, "corpora": ["web"]} becomes `Blend(seed=7,
    corpora=("web",))`. Nothing in the result can be changed.

    Args:
        hint: The type: a dataclass, or another type that its fields may have.
        value: The value that was read from the file.
        path: Where in the file the value is, such as "nanosets.web"; empty for the whole file.
        where: The file, for messages.

    Raises:
        ConfigError: Keys are unknown or missing, or values are wrong. It lists all mistakes.
    """
    parsed = parse_or_errors(hint, value, path, where)
    if parsed.errors:
        raise combined(parsed.errors, where)
    return parsed.value


class ParsedSettings(NamedTuple):
    """A value that was converted to the declared type, or the mistakes in it."""

    value: Any
    """The converted value; None if there are mistakes."""
    errors: list[ConfigError]
    """All mistakes; empty if the value was converted."""


def parse_or_errors(hint: Any, value: object, path: str, where: object) -> ParsedSettings:
    """Convert a value from a YAML file to the declared type, or return all mistakes in it.

    For example, the file nanoset.yaml has {"sed": 7} under `nanosets.web`, where a dataclass with
    the field `seed` is expected. The result has one mistake:

        nanoset.yaml: nanosets.web.sed: this key is not known; did you mean 'seed'?

    The mistakes are returned and not raised, so that the caller can collect those of several
    values, and look up the lines of the file that they are about.

    Args:
        hint: The declared type, usually a dataclass.
        value: The value that was read from the file.
        path: Where in the file it is, such as "nanosets.web"; empty for the whole file.
        where: The file, for messages.
    """
    codec = codec_of(hint, Notation.YAML)  # converts values of YAML to the type
    try:
        return ParsedSettings(codec.decode(value), [])
    except MismatchError as error:
        mismatches = error.below(path)  # with "nanosets.web" before the key `sed`
    except RecursionError:
        # A YAML alias can put a list or mapping into itself: `key: &list [*list]`.
        remedy = "remove the YAML alias that makes it so"
        mismatches = [Mismatch("a value holds itself", remedy=remedy)]
    return ParsedSettings(None, [_config_error(mismatch, where) for mismatch in mismatches])


def out_of_range(value_range: Range, value: float, where: object) -> ConfigError:
    """Return the error for a number that is not in a range.

    Args:
        value_range: The range.
        value: The number.
        where: Place of the number.
    """
    (mismatch,) = range_mismatch(value_range, value, value).mismatches
    return _config_error(mismatch, where)


def _config_error(mismatch: Mismatch, where: object) -> ConfigError:
    """Convert a mistake in a file to the error that users see.

    The mistake knows which key it is about, and the error also names the file:

        nanoset.yaml: views.en.sed: this key is not known

    Args:
        mismatch: The mistake, such as one about the key `views.en.sed`.
        where: The file.
    """
    return ConfigError(
        mismatch.what,
        where=f"{where}: {mismatch.path}" if mismatch.path else where,
        found=mismatch.found,
        expected=mismatch.expected,
        remedy=mismatch.remedy,
    )
