"""Megatron-LM's data arguments, read: what a run will be given → the configuration whose caches it will look for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.mapping.config import Blend
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.storage.regular_files import read_regular


def blend_from_words(words: Sequence[str], where: object) -> Blend:
    """A prefix, a list of prefixes, or {prefix: weight} (Megatron-LM `get_blend_from_list`).

    An even number of words is pairs of weight and prefix, unless no weight is a number: then all are prefixes.

    Args:
        words: of the data arguments.
        where: they come from, for the message.

    Raises:
        ConfigError: there are no words, only some weights are numbers, or a prefix is named twice.
    """
    if not words:
        raise ConfigError(
            "no datasets are named",
            where=where,
            expected="prefixes, or pairs of weight and prefix",
            remedy="name the .bin/.idx pairs, without these endings",
        )
    weights = [_number(word) for word in words[::2]]
    if len(words) % 2 or all(weight is None for weight in weights):
        prefixes = list(words)
        _check_once(prefixes, where)
        return prefixes[0] if len(prefixes) == 1 else prefixes
    if None in weights:
        odd = words[::2][weights.index(None)]
        raise ConfigError(
            "a weight is not a number",
            where=where,
            found=repr(odd),
            expected="pairs of weight and prefix, such as 0.7 data/a 0.3 data/b; or prefixes alone",
            remedy="put a number before each prefix, or before none",
        )
    prefixes = list(words[1::2])
    _check_once(prefixes, where)
    return {prefix: weight for prefix, weight in zip(prefixes, weights, strict=True) if weight is not None}


def read_data_args(path: Path) -> Blend:
    """The blend of a --data-args-path file: words between spaces or newlines.

    Raises:
        MissingError, FormatError: the file cannot be read, or is not UTF-8.
        ConfigError: as `blend_from_words`.
    """
    return blend_from_words(_read(path).split(), path)


def read_per_split(path: Path) -> list[Blend | None]:
    """The blends of a --per-split-data-args-path file: JSON with train, valid and test, each a list, a text or null.

    Raises:
        MissingError, FormatError: the file cannot be read, or is none of this kind.
        ConfigError: as `blend_from_words`.
    """
    try:
        value = json.loads(_read(path))
        words = [value[split].split() if isinstance(value[split], str) else value[split] for split in SPLITS]
        if not all(entry is None or (isinstance(entry, list) and entry) for entry in words):
            raise TypeError("a split is neither a list, nor a text, nor null")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            "the file does not hold data arguments for each split",
            where=path,
            found=repr(error),
            expected='{"train": ["0.8", "prefix", …], "valid": …, "test": null}',
            remedy="write one entry for each of train, valid and test",
        ) from error
    return [entry and blend_from_words([str(word) for word in entry], path) for entry in words]


def _read(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            "the data arguments are not UTF-8", where=path, found=str(error), remedy="save them as UTF-8"
        ) from error
    except OSError as error:
        raise MissingError(
            "the data arguments cannot be read",
            where=path,
            found=error.strerror,
            expected="a text file with the words of --data-path, or JSON with those of each split",
            remedy="correct the path",
        ) from error


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _check_once(prefixes: Sequence[str], where: object) -> None:
    twice = {prefix for prefix in prefixes if prefixes.count(prefix) > 1}
    if any(_number(word) is not None for word in twice):
        raise ConfigError(
            "weights and prefixes do not come in pairs",
            where=where,
            found=f"{len(prefixes):,} words: {' '.join(prefixes[:6])}",
            expected="pairs of weight and prefix, such as 0.7 data/a 0.3 data/b; or prefixes alone",
            remedy="name the prefix that is missing, or leave the last number out",
        )
    if twice:
        raise ConfigError(
            "a dataset is named twice",
            where=where,
            found=", ".join(sorted(twice)),
            remedy="name it once, with the sum of its weights",
        )
