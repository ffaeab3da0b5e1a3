"""Convert the data arguments of a Megatron-LM run to the configuration of its index files.

With this configuration, the index files can be built before the run starts. Megatron-LM accepts
its data in several ways, for example `--data-path 0.7 data/web 0.3 data/code`, the same words in a
file, or other words for each split. All of them result in blends: datasets with their weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, FormatError, MissingError, combined
from nanoset_core.formats.indexed.identity import check_different_datasets
from nanoset_core.outputs.recorded_tokenization import check_same_tokenizer
from nanoset_core.records.parsing import parse
from nanoset_core.records.yaml_text import parse_yaml
from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.descriptions import read_identifiers
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.settings import EXAMPLE, TrainerSpec, trainer_errors
from nanoset_core.stages.mappings.settings import ScheduleSpec
from nanoset_core.storage.location import Location, location
from nanoset_core.storage.regular_files import read_regular

_SHARED_DATA = ("data_path", "data_args_path", "per_split_data_args_path")
"""Arguments that name the data of all splits; a run has at most one of them."""
_SPLIT_DATA = tuple(f"{split}_data_path" for split in SPLITS)
"""Arguments that name the data of one split, in the order of the splits."""
_EXPECTED_WORDS = "pairs of weight and prefix, such as 0.7 data/a 0.3 data/b; or prefixes alone"
_NO_IDENTIFIERS = "{}"
"""Value of --tokenizer-identifiers if the option is not given."""


def config_from_arguments(
    options: Mapping[str, Any], splits: Sequence[SplitName] = SPLITS
) -> NanosetConfig:
    """Convert the data options of a training run to the settings of its index files.

    A user who starts Megatron-LM with "--data-path 0.7 web 0.3 code --seq-length 4096 …" can build
    the index files that it will look for before the training, by the same options. Their names
    depend on all of these.

    Args:
        options: Megatron-LM's name of each option, with underscores → its value. Options that were
            not given have the value None, "" or ().
        splits: The splits (train, valid and test) for which the run requests samples.

    Returns:
        The settings.

    Raises:
        ConfigError: Arguments are missing, or contradict each other.
        MissingError: A file of data arguments does not exist.
        FormatError: A file of data arguments cannot be parsed.
    """
    if options["seq_length"] is None:
        raise ConfigError(
            "the length of a sample is not given",
            where="--seq-length",
            remedy="give the value that the run has",
        )
    preset = get_preset(options["preset"])
    data = _data_argument(options)

    # If each split has its own data, `split` is not used. It is checked all the same: an invalid
    # value is a mistake that the user should know of.
    parse_split(options["split"], exactly_three=preset.exactly_three_shares)

    cache_path = options["data_cache_path"]
    config = NanosetConfig(
        **data,
        sequence_length=options["seq_length"],
        random_seed=options["seed"],
        split=options["split"],
        path_to_cache=None if cache_path is None else str(cache_path),
        preset=options["preset"],
        tokenizer_identifiers=_identifiers(options),
        trainer_paths=_trainer_paths(data, options["trainer_path"]),
        compensated_sums=preset.compensates(options.get("trainer_python")),
    )
    samples = {split: count for split, count in _samples(options).items() if split in splits}
    return config.with_samples(samples)


# Blends.


def blend_from_words(words: Sequence[str], where: object) -> Blend:
    """Return the datasets and weights that the words of an option name, as Megatron-LM reads them.

        0.7 data/web 0.3 data/code    → {"data/web": 0.7, "data/code": 0.3}
        data/web data/code            → ["data/web", "data/code"]
        data/web                      → "data/web"

    Args:
        words: The words. Paths of datasets are without .bin or .idx.
        where: Where the words come from, for messages.

    Returns:
        One path, a list of paths, or a mapping from path to weight.

    Raises:
        ConfigError: There are no words, only some weights are numbers, or a path is named twice.
    """
    if not words:
        raise ConfigError(
            "no datasets are named",
            where=where,
            found=_excerpt_of(words),
            expected=_EXPECTED_WORDS,
            remedy="name .bin/.idx pairs, without these endings",
        )
    if not _has_weights(words):
        paths = list(words)
        _check_datasets(words, paths, where)
        return paths[0] if len(paths) == 1 else paths

    weights = words[::2]  # every second word, from the first one on
    paths = list(words[1::2])  # every second word, from the second one on
    _check_weights(weights, where)
    _check_datasets(words, paths, where)
    return dict(zip(paths, map(float, weights), strict=True))


def _has_weights(words: Sequence[str]) -> bool:
    """Return whether words are pairs of weight and path, such as "0.8 web 0.2 code".

    As in Megatron-LM's `get_blend_from_list`, they are pairs if their number is even, and at least
    one of those in place of a weight is a number.
    """
    numbers = [_parse_number(word) for word in words[::2]]
    return len(words) % 2 == 0 and any(number is not None for number in numbers)


def _dataset_location(prefix: str, where: object) -> Location:
    """Return where a dataset is: a path on this machine, or an object in a bucket.

    For example, for "data/web" or "s3://bucket/web". Two locations can be compared, which shows
    whether a dataset was named twice.

    Args:
        prefix: Path or URL of the dataset, without .bin or .idx.
        where: Where it was written, for messages.

    Raises:
        ConfigError: It is not a valid path or URL.
    """
    try:
        return location(prefix)
    except ConfigError as error:
        raise error.at(where) from error


def _check_datasets(words: Sequence[str], prefixes: Sequence[str], where: object) -> None:
    """Check that data arguments, such as "0.7 data/web 0.3 data/code", can be mixed.

    Each dataset is named once, and all have the same tokenizer.

        0.5 data/web 0.5 data/web      an error: data/web is named twice
        0.5 data/web 0.5 ./data/web    an error: both paths lead to the same dataset

    Args:
        words: All words, for messages.
        prefixes: The words that are paths of datasets.
        where: Where the words come from, for messages.

    Raises:
        ConfigError: A dataset is named twice, or a path is missing.
        FormatError: Two datasets have different tokenizers.
    """
    repeated = sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1})
    _check_numbers_are_not_prefixes(words, repeated, where)
    if repeated:
        raise ConfigError(
            "a dataset is named twice",
            where=where,
            found=", ".join(repeated),
            expected=_EXPECTED_WORDS,
            remedy="name it once, with the sum of its weights",
        )

    # Two paths may lead to the same dataset, such as data/web and ./data/web.
    datasets = [_dataset_location(prefix, where) for prefix in prefixes]
    check_different_datasets(datasets, where, "name it once, with the sum of its weights")
    check_same_tokenizer(datasets)


def _check_numbers_are_not_prefixes(
    words: Sequence[str], repeated_prefixes: Sequence[str], where: object
) -> None:
    """Check that no number is taken for a dataset that is named twice.

    In "0.5 data/web 0.5", the user has forgotten the last path. These three words are not pairs of
    weight and path. So Megatron-LM takes each word for a path, and 0.5 for a dataset that is named
    twice. The error says what is really wrong.

    Args:
        words: All words, for the message.
        repeated_prefixes: The words that are taken for paths and come twice: ["0.5"].
        where: Where the words come from, for the message.

    Raises:
        ConfigError: One of these words is a number.
    """
    if any(_parse_number(prefix) is not None for prefix in repeated_prefixes):
        raise ConfigError(
            "weights and prefixes do not come in pairs",
            where=where,
            found=_excerpt_of(words),
            expected=_EXPECTED_WORDS,
            remedy="add the missing weight or prefix, or remove the last number",
        )


def _check_weights(words: Sequence[str], where: object) -> None:
    """Check that all words in place of a weight are numbers: 0.7 data/web 0.3 data/code.

    In "0.7 data/web x data/code", the third word is not.

    Args:
        words: Every other word, from the first one on: 0.7, 0.3.
        where: Where the words come from, for messages.

    Raises:
        ConfigError: One is not.
    """
    for word in words:
        if _parse_number(word) is None:
            raise ConfigError(
                "a weight is not a number",
                where=where,
                found=repr(word),
                expected=_EXPECTED_WORDS,
                remedy="put a number before each prefix, or before none",
            )


def _excerpt_of(words: Sequence[str]) -> str:
    """Return the number of some words, and the first few of them, for messages."""
    return f"{len(words):,} words: {' '.join(words[:6])}"


def read_data_args(path: Path) -> Blend:
    """Read the file that Megatron-LM's option --data-args-path names: datasets and their weights.

    A file with the words `0.7 data/web 0.3 data/code` gives {"data/web": 0.7, "data/code": 0.3}.

    Args:
        path: The file. Its words are divided by spaces or newlines.

    Returns:
        One path of a dataset, a list of paths, or a mapping from path to weight.

    Raises:
        MissingError: The file cannot be read.
        FormatError: The file is not UTF-8.
        ConfigError: The words do not describe a blend.
    """
    return blend_from_words(_read(path).split(), path)


def read_per_split(path: Path) -> list[Blend | None]:
    """Read the JSON file that Megatron-LM's option --per-split-data-args-path names.

    It has the datasets, with or without weights, of train, valid and test. For example:

        {"train": ["0.8", "data/web", "0.2", "data/code"], "valid": "data/web", "test": null}

    gives [{"data/web": 0.8, "data/code": 0.2}, "data/web", None].

    Args:
        path: The file. Its entries are lists of words, texts, or null.

    Returns:
        The data of each split, in this order; None for a split without data.

    Raises:
        MissingError: The file cannot be read.
        FormatError: The file is not JSON, or has another structure.
        ConfigError: The words of a split do not describe a blend.
    """
    blends: list[Blend | None] = []
    for words in _read_words_by_split(path).values():
        blends.append(None if words is None else blend_from_words(words, path))
    return blends


def _read_words_by_split(path: Path) -> dict[SplitName, list[str] | None]:
    """Read a JSON file that names the data of train, valid and test.

        {"train": ["0.8", "data/web", "0.2", "data/code"], "valid": "data/web", "test": null}

    gives three entries: the four words, ["data/web"], and None.

    Args:
        path: The file.

    Returns:
        Split → words, or None without data.

    Raises:
        MissingError: The file cannot be read.
        FormatError: The file is not JSON, or has another structure.
    """
    try:
        value = json.loads(_read(path))
        return {split: _entry_words(value[split]) for split in SPLITS}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            "the file does not contain data arguments for each split",
            where=path,
            found=repr(error),
            expected='{"train": ["0.8", "prefix", …], "valid": …, "test": null}',
            remedy="write one entry for each split",
        ) from error


def _entry_words(entry: object) -> list[str] | None:
    """Return the words that name the data of one split, from an entry of a JSON file.

        ["0.8", "data/web", "0.2", "data/code"]    these words
        "0.8 data/web 0.2 data/code"               the same words
        null                                       None: the split has no data

    Args:
        entry: The parsed entry.

    Raises:
        TypeError: The entry is something else.
    """
    if entry is None:
        return None
    words = entry.split() if isinstance(entry, str) else entry
    if not isinstance(words, list) or not words:
        raise TypeError("a split is neither a list, nor a text, nor null")
    return [str(word) for word in words]


def _read(path: Path) -> str:
    """Read the text of a file that names the datasets of a training run, and their weights.

    Megatron-LM reads such a file with the option --data-args-path: it contains what would otherwise
    follow --data-path, such as

        0.7 /data/web 0.3 /data/code

    Args:
        path: The file.

    Returns:
        Its text; it may also be JSON, for other options.

    Raises:
        MissingError: The file cannot be read.
        FormatError: The file is not UTF-8.
    """
    problem = "the data arguments cannot be read"
    expected = "UTF-8: the words of --data-path, or JSON"
    remedy = "correct the path, or the file"
    try:
        return read_regular(path).decode()
    except OSError as error:
        raise MissingError(
            problem, where=path, found=error, expected=expected, remedy=remedy
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(
            problem, where=path, found=error, expected=expected, remedy=remedy
        ) from error


def _parse_number(word: str) -> float | None:
    """Return a word as a number, or None if it is not a number."""
    try:
        return float(word)
    except ValueError:
        return None


# Arguments.


def _data_argument(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return which data a run reads, as an argument of `NanosetConfig`.

        --data-path 0.7 web 0.3 code                     {"data_path": {"web": 0.7, "code": 0.3}}
        --train-data-path web --valid-data-path code     {"blend_per_split": ["web", "code", None]}

    In the first case, train, valid and test share the data.

    Args:
        options: Name of each option → value; None, "" or () if the option was not given.

    Raises:
        ConfigError: The data is not given, or it is given in several ways.
    """
    shared = [key for key in _SHARED_DATA if options[key]]  # such as ["data_path"]
    per_split = [key for key in _SPLIT_DATA if options[key]]  # such as ["train_data_path"]
    if len(shared) == 1 and not per_split:
        return _shared_data(options, shared[0])
    if per_split and not shared:
        # One entry for each split; None for a split without data.
        return {"blend_per_split": [_blend_of_option(options, key) for key in _SPLIT_DATA]}

    given_keys = [*shared, *per_split]
    raise ConfigError(
        "the data must be given in one way",
        found=", ".join(map(_flag, given_keys)) or "none of them",
        expected="--data-path, --data-args-path, --per-split-data-args-path, or those of "
        "the splits",
        remedy="leave all but one of them out" if given_keys else "give --data-path",
    )


def _shared_data(options: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return which datasets a run reads, with their weights, from the option that names them.

        --data-path                      words: 0.7 web 0.3 code
        --data-args-path                 a file with such words
        --per-split-data-args-path       a JSON file with such words for train, valid and test

    Args:
        options: Name of each option → value.
        key: The option, such as "data_path".

    Returns:
        An argument of `NanosetConfig`: `{"data_path": datasets of all splits}`, or
        `{"blend_per_split": [datasets of train, of valid, of test]}`.
    """
    value = options[key]
    if key == "per_split_data_args_path":
        return {"blend_per_split": read_per_split(value)}
    if key == "data_args_path":
        return {"data_path": read_data_args(value)}
    return {"data_path": _blend_of_option(options, key)}


def _blend_of_option(options: Mapping[str, Any], key: str) -> Blend | None:
    """Return the blend that the words of an option describe; None if it was not given."""
    if not options[key]:
        return None
    return blend_from_words(options[key], _flag(key))


def _flag(key: str) -> str:
    """Return an option as it is written on the command line."""
    return f"--{key.replace('_', '-')}"


def _samples(options: Mapping[str, Any]) -> Mapping[SplitName, int | None]:
    """Return how many samples of each split a training run requests.

    The user gives these numbers, or a schedule from which they follow:

        --train-samples 8000                                   train: 8,000
        --train-iters 1000 --global-batch-size 8 …             train: 1,000 * 8
        both                                                   an error
        neither                                                None: as many as one epoch has

    Args:
        options: Name of each option → value, such as `{"train_samples": 8000, "train_iters": None,
            …}`.

    Returns:
        Split (train, valid or test) → number of samples, or None.

    Raises:
        ConfigError: Only one option of the schedule is given, or both ways are used.
    """
    samples: dict[SplitName, int | None] = {split: options[f"{split}_samples"] for split in SPLITS}
    schedule = _schedule(options)
    if schedule is None:
        return samples

    # The schedule gives all numbers, so none may be given directly.
    flags = [f"--{split}-samples" for split in SPLITS if samples[split] is not None]
    if flags:
        raise ConfigError(
            "the samples are given twice",
            where="--train-iters",
            found=f"{', '.join(flags)} and --train-iters",
            remedy="leave one of them out",
        )
    return dict(schedule.samples())


def _schedule(options: Mapping[str, Any]) -> ScheduleSpec | None:
    """Return how long a run is, and how often it evaluates, if its options say so.

    For example, --train-iters 1000 and --global-batch-size 64 request 64,000 samples of train.

    Args:
        options: Name of each option → value.

    Returns:
        The schedule; None if neither of the two options is given.

    Raises:
        ConfigError: Only one of them is given.
    """
    iterations = options["train_iters"]
    batch_size = options["global_batch_size"]
    if iterations is None and batch_size is None:
        return None
    if iterations is None or batch_size is None:
        raise ConfigError(
            "one of two arguments that belong together is missing",
            where="--train-iters, --global-batch-size",
            found=f"{iterations} and {batch_size}",
            remedy="give both, or neither",
        )
    return ScheduleSpec(iterations, batch_size, options["eval_interval"], options["eval_iters"])


def _identifiers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Megatron-LM records of the tokenizer of a run, in the names of its index files.

    There are three ways for the user to give it:

        --trainer '{megatron_core: "0.16.1", …}'        the options of the trainer, as YAML
        --tokenizer-identifiers '{"class": "…"}'        the result itself, as JSON
        --tokenizer-identifiers identifiers.json        a file with this JSON

    Args:
        options: Name of each option → value.

    Returns:
        Such as `{"class": "…", "tokenizer_path": "/models/llama"}`; empty if the user gives none.

    Raises:
        ConfigError: The text is neither a JSON object nor the path of a file; or the settings of
            the trainer are wrong, or both options are given.
    """
    trainer_text = options.get("trainer")
    text = options["tokenizer_identifiers"]
    if trainer_text is not None:
        are_both_given = text != _NO_IDENTIFIERS
        return _trainer_identifiers(trainer_text, options["preset"], has_identifiers=are_both_given)

    is_json = text.lstrip().startswith("{")
    if is_json:
        return _parse_identifiers(text)
    return read_identifiers(Path(text), "--tokenizer-identifiers")


def _parse_identifiers(text: str) -> dict[str, Any]:
    """Parse the tokenizer's identifiers that a user gives on the command line as JSON.

    Megatron-LM names its index files by a hash that also covers these identifiers, so they must be
    known to build files that it finds:

        --tokenizer-identifiers '{"class": "…", "tokenizer_path": "/models/llama"}'

    Args:
        text: The JSON.

    Returns:
        Name of each identifier → value.

    Raises:
        ConfigError: The text is not a JSON object.
    """
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "not a JSON object",
            where="--tokenizer-identifiers",
            found=error,
            expected='an object such as {"class": "…"}',
            remedy="put it in single quotes for the shell, or name a file that contains it",
        ) from error


def _trainer_identifiers(text: str, preset: str, *, has_identifiers: bool) -> dict[str, Any]:
    """Return what Megatron-LM records of its tokenizer if it is started with certain options.

    The user gives its version and the options of the tokenizer as YAML:

        --trainer '{megatron_core: "0.16.1", tokenizer_type: NullTokenizer, vocab_size: 32000}'

    Args:
        text: The value of the option `--trainer`.
        preset: The name of the settings for a trainer, which must be for that version.
        has_identifiers: Whether the user also gives `--tokenizer-identifiers`, which is a mistake.

    Returns:
        Such as {"class": "…", "vocab_size": "32000", …}, in the order of Megatron-LM.

    Raises:
        ConfigError: The text is not YAML, or the settings are wrong or contradict others.
    """
    trainer = _parse_trainer(text)
    errors = list(trainer_errors("--", trainer, preset, has_identifiers=has_identifiers))
    if errors:
        raise combined(errors, "--trainer")
    return trainer.identifiers()


def trainer_warning(text: str | None) -> str | None:
    """Return a warning on the settings of a trainer, such as a version that is not known.

    Args:
        text: The value of the option `--trainer`; None if it is not given.

    Returns:
        A sentence without its full stop; None if there is nothing to warn of.

    Raises:
        ConfigError: The text is not YAML, or the settings are wrong.
    """
    if text is None:
        return None
    return _parse_trainer(text).version_warning()


def _parse_trainer(text: str) -> TrainerSpec:
    """Parse the value of the option `--trainer`, which is YAML.

    Raises:
        ConfigError: The text is not YAML, or the settings are wrong.
    """
    settings = parse_yaml(text, "--trainer", remedy=f"put a mapping in single quotes: '{EXAMPLE}'")
    trainer: TrainerSpec = parse(TrainerSpec, settings, "", "--trainer")
    return trainer


def _trainer_paths(data: Mapping[str, Any], spellings: Sequence[str]) -> dict[str, str]:
    """Return how a trainer names the datasets, if it sees their files under other paths.

    A trainer on a cluster may see the folder /home/me as /cluster. By "/home/me=/cluster", the
    dataset /home/me/web is /cluster/web there:

        {"/home/me/web": "/cluster/web"}

    Args:
        data: Which datasets the run reads: the result of `_data_argument`.
        spellings: Texts HERE=THERE. If several apply to a dataset, the last one counts.

    Returns:
        Path of a dataset on this machine → its path where the trainer runs.

    Raises:
        ConfigError: A text is not HERE=THERE.
    """
    replacements = [_parse_spelling(spelling) for spelling in spellings]
    trainer_paths: dict[str, str] = {}
    for prefix in _prefixes(data):
        for local_start, trainer_start in replacements:
            if prefix.startswith(local_start):
                trainer_paths[prefix] = trainer_start + prefix.removeprefix(local_start)
    return trainer_paths


def _parse_spelling(spelling: str) -> tuple[str, str]:
    """Divide the text HERE=THERE, by which a user says how paths differ where the trainer runs.

    The index files are built on one machine, and the trainer may run on another, on which the same
    folder has another path:

        "/home/me=/cluster"    → ("/home/me", "/cluster")
        "/home/me"             an error

    Args:
        spelling: The text.

    Raises:
        ConfigError: The text does not have both.
    """
    local_start, _, trainer_start = spelling.partition("=")
    if not local_start or not trainer_start:
        raise ConfigError(
            "not two paths",
            where="--trainer-path",
            found=repr(spelling),
            expected="HERE=THERE",
            remedy="write the start of a path here, =, and the start of that path there",
        )
    return local_start, trainer_start


def _prefixes(data: Mapping[str, Any]) -> list[str]:
    """Return the paths of all datasets that a run reads, without .bin and .idx.

        {"data_path": {"web": 0.7, "code": 0.3}}                 web, code
        {"blend_per_split": ["web", ["web", "code"], None]}      web, web, code

    Args:
        data: The data of the run: for all splits together, or an entry for each of train, valid and
            test. An entry is one path, a mapping from paths to weights, a list of paths, or None.
    """
    if "data_path" in data:
        entries = [data["data_path"]]
    else:
        entries = data["blend_per_split"]

    prefixes: list[str] = []
    for entry in entries:
        if entry is None:  # a split without data
            continue
        if isinstance(entry, str):
            prefixes.append(entry)
        else:
            prefixes.extend(entry)  # without the weights, if it is a mapping
    return prefixes
