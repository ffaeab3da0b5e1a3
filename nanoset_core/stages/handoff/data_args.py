"""Read Megatron-LM's data arguments: a run's arguments → the configuration whose index files it will look for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, FormatError, MissingError, combined
from nanoset_core.formats.indexed.identity import check_different_datasets
from nanoset_core.records.parsing import parse, parse_yaml
from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.descriptions import read_identifiers
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.settings import EXAMPLE, TrainerSpec, trainer_errors
from nanoset_core.stages.mappings.settings import ScheduleSpec
from nanoset_core.storage.location import location
from nanoset_core.storage.regular_files import read_regular

_SHARED = ("data_path", "data_args_path", "per_split_data_args_path")
_OWN = tuple(f"{split}_data_path" for split in SPLITS)
_PAIRS = "pairs of weight and prefix, such as 0.7 data/a 0.3 data/b; or prefixes alone"


def config_from_arguments(options: Mapping[str, Any], splits: Sequence[SplitName] = SPLITS) -> NanosetConfig:
    """Return the configuration of a run with these arguments.

    Args:
        options: by Megatron-LM's names with underscores; None, "" or () for what was not given.
        splits: those that are configured; the others get no number of samples.

    Raises:
        ConfigError: arguments are missing, or contradict each other.
        MissingError, FormatError: a file of data arguments is not there, or cannot be parsed.
    """
    if options["seq_length"] is None:
        raise ConfigError("the length of a sample is not given", where="--seq-length", remedy="give the run's")
    data = _data(options)
    # Also if each split has data of its own: a text that nobody reads is a mistake that should be known.
    parse_split(options["split"], exactly_three=get_preset(options["preset"]).exactly_three_shares)
    config = NanosetConfig(
        **data,
        sequence_length=options["seq_length"],
        random_seed=options["seed"],
        split=options["split"],
        path_to_cache=None if options["data_cache_path"] is None else str(options["data_cache_path"]),
        preset=options["preset"],
        tokenizer_identifiers=_identifiers(options),
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
    weights = [_number(word) for word in words[::2]]
    is_plain = len(words) % 2 == 1 or all(weight is None for weight in weights)
    prefixes = list(words) if is_plain else list(words[1::2])
    twice = sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1})
    what, found, remedy = (
        "",
        f"{len(words):,} words: {' '.join(words[:6])}",
        "name it once, with the sum of its weights",
    )
    if not words:
        what, remedy = "no datasets are named", "name .bin/.idx pairs, without these endings"
    elif not is_plain and None in weights:
        found, remedy = repr(words[2 * weights.index(None)]), "put a number before each prefix, or before none"
        what = "a weight is not a number"
    elif any(_number(word) is not None for word in twice):
        what, remedy = "weights and prefixes do not come in pairs", "name what is missing, or leave the last number out"
    elif twice:
        what, found = "a dataset is named twice", ", ".join(twice)
    if what:
        raise ConfigError(what, where=where, found=found, expected=_PAIRS, remedy=remedy)
    check_different_datasets(map(location, prefixes), where, "name it once, with the sum of its weights")
    if is_plain:
        return prefixes[0] if len(prefixes) == 1 else prefixes
    return {prefix: float(word) for prefix, word in zip(prefixes, words[::2], strict=True)}


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
        what, remedy = "the file does not hold data arguments for each split", "write one entry for each of them"
        expected = '{"train": ["0.8", "prefix", …], "valid": …, "test": null}'
        raise FormatError(what, where=path, found=repr(error), expected=expected, remedy=remedy) from error
    return [entry and blend_from_words([str(word) for word in entry], path) for entry in words]


def _read(path: Path) -> str:
    expected, remedy = "UTF-8: the words of --data-path, or JSON", "correct the path, or the file"
    try:
        return read_regular(path).decode()
    except (UnicodeDecodeError, OSError) as error:
        kind, what = MissingError if isinstance(error, OSError) else FormatError, "the data arguments cannot be read"
        raise kind(what, where=path, found=error, expected=expected, remedy=remedy) from error


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return data_path or blend_per_split."""
    shared = [key for key in _SHARED if options[key]]
    own = [key for key in _OWN if options[key]]
    if len(shared) + bool(own) != 1:
        expected = "one of --data-path, --data-args-path, --per-split-data-args-path, or those of the splits"
        found = ", ".join(map(_flag, shared + own)) or "none of them"
        remedy = "leave all but one of them out" if shared or own else "give --data-path"
        raise ConfigError("the data must be given in one way", found=found, expected=expected, remedy=remedy)
    if own:
        blends = [blend_from_words(options[key], _flag(key)) if options[key] else None for key in _OWN]
        return {"blend_per_split": blends}
    given = options[shared[0]]
    if shared[0] == "per_split_data_args_path":
        return {"blend_per_split": read_per_split(given)}
    blend = read_data_args(given) if shared[0] == "data_args_path" else blend_from_words(given, "--data-path")
    return {"data_path": blend}


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _samples(options: Mapping[str, Any]) -> Mapping[SplitName, int | None]:
    samples: dict[SplitName, int | None] = {split: options[f"{split}_samples"] for split in SPLITS}
    steps, batch = options["train_iters"], options["global_batch_size"]
    if (steps is None) != (batch is None):
        what, where = "one of two arguments that belong together is missing", "--train-iters, --global-batch-size"
        raise ConfigError(what, where=where, found=f"{steps} and {batch}", remedy="give both, or neither")
    if steps is None:
        return samples
    if given := [f"--{split}-samples" for split in SPLITS if samples[split] is not None]:
        what, found = "the samples are given twice", f"{', '.join(given)} beside it"
        raise ConfigError(what, where="--train-iters", found=found, remedy="leave one of them out")
    return {**ScheduleSpec(steps, batch, options["eval_interval"], options["eval_iters"]).samples()}


def _identifiers(options: Mapping[str, Any]) -> dict[str, Any]:
    text, where = options["tokenizer_identifiers"], "--tokenizer-identifiers"
    if (given := options.get("trainer")) is not None:
        remedy = f"put a mapping in single quotes: '{EXAMPLE}'"
        trainer: TrainerSpec = parse(TrainerSpec, parse_yaml(given, "--trainer", remedy=remedy), "", "--trainer")
        if errors := list(trainer_errors("--", trainer, options["preset"], has_identifiers=text != "{}")):
            raise combined(errors, "--trainer")
        return trainer.identifiers()
    if not text.lstrip().startswith("{"):
        return read_identifiers(Path(text), where)
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        expected = 'an object such as {"class": "…"}'
        remedy = "put it in single quotes for the shell, or name a file that holds it"
        raise ConfigError("not a JSON object", where=where, found=error, expected=expected, remedy=remedy) from error


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
    prefixes = [one for blend in filter(None, blends) for one in ([blend] if isinstance(blend, str) else blend)]
    replaced = [(prefix, here, there) for prefix in prefixes for here, there in pairs if prefix.startswith(here)]
    return {prefix: there + prefix.removeprefix(here) for prefix, here, there in replaced}
