"""Read Megatron-LM's data arguments: a run's arguments → the configuration whose index files it will look for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoset_core.config.nanoset import ScheduleSpec
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.mapping.config import Blend, NanosetConfig
from nanoset_core.mapping.naming import read_identifiers
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.storage.regular_files import read_regular

_SHARED = ("data_path", "data_args_path", "per_split_data_args_path")
_OWN = tuple(f"{split}_data_path" for split in SPLITS)
_PAIRS = "pairs of weight and prefix, such as 0.7 data/a 0.3 data/b; or prefixes alone"


def config_from_arguments(options: Mapping[str, Any], splits: Sequence[SplitName] = SPLITS) -> NanosetConfig:
    """Return the configuration of a run with these arguments.

    Args:
        options: by Megatron-LM's names with underscores; None, "" or () for what was not given.
        splits: those that matter.

    Raises:
        ConfigError: arguments are missing, or contradict each other.
        MissingError, FormatError: a file of data arguments is not there, or not one.
    """
    if options["seq_length"] is None:
        raise ConfigError("the length of a sample is not given", where="--seq-length", remedy="give the run's")
    data = _data(options)
    config = NanosetConfig(
        **data,
        sequence_length=options["seq_length"],
        random_seed=options["seed"],
        split=options["split"],
        path_to_cache=None if options["data_cache_path"] is None else str(options["data_cache_path"]),
        preset=options["preset"],
        tokenizer_identifiers=_identifiers(options["tokenizer_identifiers"]),
        trainer_paths=_trainer_paths(data, options["trainer_path"]),
        compensated_sums=get_preset(options["preset"]).compensates(options.get("trainer_python")),
    )
    return config.with_samples({split: count for split, count in _samples(options).items() if split in splits})


def blend_from_words(words: Sequence[str], where: object) -> Blend:
    """Return a prefix, a list of prefixes, or {prefix: weight} (Megatron-LM `get_blend_from_list`).

    An even number of words is pairs of weight and prefix, unless no weight is a number: then all are prefixes.

    Args:
        words: of the data arguments.
        where: their origin, for the message.

    Raises:
        ConfigError: there are no words, only some weights are numbers, or a prefix is named twice.
    """
    if not words:
        what, remedy = "no datasets are named", "name .bin/.idx pairs, without these endings"
        raise ConfigError(what, where=where, expected="prefixes, or pairs of weight and prefix", remedy=remedy)
    weights = [_number(word) for word in words[::2]]
    if len(words) % 2 or all(weight is None for weight in weights):
        prefixes = list(words)
        _check_once(prefixes, where)
        return prefixes[0] if len(prefixes) == 1 else prefixes
    if None in weights:
        odd = words[::2][weights.index(None)]
        remedy = "put a number before each prefix, or before none"
        raise ConfigError("a weight is not a number", where=where, found=repr(odd), expected=_PAIRS, remedy=remedy)
    prefixes = list(words[1::2])
    _check_once(prefixes, where)
    return {prefix: weight for prefix, weight in zip(prefixes, weights, strict=True) if weight is not None}


def read_data_args(path: Path) -> Blend:
    """Read the blend of a --data-args-path file: words between spaces or newlines.

    Raises:
        MissingError, FormatError: the file cannot be read, or is not UTF-8.
        ConfigError: as `blend_from_words`.
    """
    return blend_from_words(_read(path).split(), path)


def read_per_split(path: Path) -> list[Blend | None]:
    """Read the blends of a --per-split-data-args-path file: JSON with a list, a text or null for each split.

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
        remedy = "save them as UTF-8"
        raise FormatError("the data arguments are not UTF-8", where=path, found=error, remedy=remedy) from error
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
            expected=_PAIRS,
            remedy="name the prefix that is missing, or leave the last number out",
        )
    if twice:
        named = ", ".join(sorted(twice))
        remedy = "name it once, with the sum of its weights"
        raise ConfigError("a dataset is named twice", where=where, found=named, remedy=remedy)


def _data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return data_path or blend_per_split."""
    shared = [key for key in _SHARED if options[key]]
    own = [key for key in _OWN if options[key]]
    if len(shared) + bool(own) != 1:
        raise ConfigError(
            "the data must be given once",
            found=", ".join(map(_flag, shared + own)),
            expected="one of --data-path, --data-args-path, --per-split-data-args-path, or those of the splits",
            remedy="leave all but one of them out",
        )
    if own:
        blends = [blend_from_words(options[key], _flag(key)) if options[key] else None for key in _OWN]
        return {"blend_per_split": blends}
    given = options[shared[0]]
    if shared[0] == "data_path":
        return {"data_path": blend_from_words(given, "--data-path")}
    if shared[0] == "data_args_path":
        return {"data_path": read_data_args(given)}
    return {"blend_per_split": read_per_split(given)}


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _samples(options: Mapping[str, Any]) -> Mapping[SplitName, int | None]:
    samples: dict[SplitName, int | None] = {split: options[f"{split}_samples"] for split in SPLITS}
    steps, batch = options["train_iters"], options["global_batch_size"]
    if (steps is None) != (batch is None):
        raise ConfigError(
            "one of two arguments that belong together is missing",
            where="--train-iters, --global-batch-size",
            found=f"{steps} and {batch}",
            remedy="give both, or neither",
        )
    if steps is None:
        return samples
    if any(count is not None for count in samples.values()):
        given = ", ".join(f"--{split}-samples" for split in SPLITS if samples[split] is not None)
        what, remedy = "the samples are given twice", "leave one of them out"
        raise ConfigError(what, where="--train-iters", found=f"{given} beside it", remedy=remedy)
    return {**ScheduleSpec(steps, batch, options["eval_interval"], options["eval_iters"]).samples()}


def _identifiers(text: str) -> dict[str, Any]:
    where = "--tokenizer-identifiers"
    if not text.lstrip().startswith("{"):
        return read_identifiers(Path(text), where)
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "not a JSON object",
            where=where,
            found=error,
            expected='an object such as {"class": "…"}',
            remedy="put it in single quotes for the shell, or name a file that holds it",
        ) from error


def _trainer_paths(data: Mapping[str, Any], spellings: Sequence[str]) -> dict[str, str]:
    """Return prefix → the trainer's path of it, by HERE=THERE."""
    pairs = []
    for spelling in spellings:
        here, _, there = spelling.partition("=")
        if not here or not there:
            what, remedy = "not two paths", "put = between a path here and what the trainer has in its place"
            raise ConfigError(what, where="--trainer-path", found=repr(spelling), expected="HERE=THERE", remedy=remedy)
        pairs.append((here, there))
    blends = [data["data_path"]] if "data_path" in data else data["blend_per_split"]
    found: dict[str, str] = {}
    for blend in filter(None, blends):
        for prefix in [blend] if isinstance(blend, str) else blend:
            for here, there in pairs:
                if prefix.startswith(here):
                    found[prefix] = there + prefix.removeprefix(here)
    return found
