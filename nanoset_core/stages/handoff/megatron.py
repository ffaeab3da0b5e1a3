"""Write the files with which Megatron-LM is started: arguments, data files and preflight.py.

Sources:
    Megatron-LM core_v0.16.1 `training/utils.py` (get_blend_and_blend_per_split),
    `training/training.py` (get_train_valid_test_num_samples) and
    `tools/build_sequences_per_dataset.py`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from pprint import pformat

from nanoset_core.sampling.config import DOCUMENTS
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.handoff import preflight
from nanoset_core.stages.handoff.description import FilesAndNotes, Handoff
from nanoset_core.stages.mappings.settings import ScheduleSpec

ARGUMENTS = "arguments.txt"
"""Name of the file with the arguments of the command line."""
PREFLIGHT = "preflight.py"
"""Name of the script that checks whether Megatron-LM will find its index files."""
_DATA_ARGS = "data_args.txt"
"""Name of the file of --data-args-path."""
_PER_SPLIT = "per_split_data_args.json"
"""Name of the file of --per-split-data-args-path."""
_SEQUENCES = "sequences_per_dataset.json"
"""Name of the file of --per-dataset-sequences-path."""
_UINT16_VOCABULARY = 65536
"""Largest vocabulary for which Megatron-LM expects tokens of two bytes.

See its GPTDatasetConfig.token_dtype_code.
"""


def megatron_files(handoff: Handoff) -> FilesAndNotes:
    """Return the files with which Megatron-LM is started, so that it finds every index file.

    Args:
        handoff: The built nanoset, as its trainer sees it.

    Returns:
        The files, and notes for the user.
    """
    texts: dict[str, str] = {}
    notes: list[str] = []

    # The datasets and their weights.
    if handoff.is_per_split:
        words_by_split: dict[str, list[str] | None] = {}
        for split in SPLITS:
            words = " ".join(_data_lines(handoff, split)).split()
            words_by_split[split] = words or None
        texts[_PER_SPLIT] = json.dumps(words_by_split, indent=1) + "\n"
    else:
        texts[_DATA_ARGS] = _lines(_data_lines(handoff, "train"))

    # The counts of each dataset. With these, Megatron-LM starts without reading the .idx files, and
    # derives the type of the tokens from the size of the vocabulary. So the file is only written if
    # this gives the right type for all datasets.
    other_paths = _paths_of_other_dtype(handoff)
    if other_paths:
        notes.append(
            f"{_SEQUENCES} was not written: with it, Megatron-LM would read the tokens of "
            f"{', '.join(other_paths)} with another type, since it would derive the type from the "
            f"vocabulary ({handoff.vocab_size:,}) instead of reading the .idx."
        )
    else:
        counts_by_path: dict[str, list[int]] = {}
        for path, counts in handoff.datasets.items():
            counts_by_path[path] = [counts.sequences, counts.document_indices]
        texts[_SEQUENCES] = json.dumps(counts_by_path, indent=1) + "\n"

    # The arguments, and the script that compares them with those of a run.
    texts[ARGUMENTS] = _lines(_arguments(handoff, has_sequences=_SEQUENCES in texts))
    texts[PREFLIGHT] = _preflight(handoff)
    if handoff.tokenizer_note is not None:
        notes.append(handoff.tokenizer_note)
    notes += _notes(handoff)
    return FilesAndNotes(texts, notes)


def _paths_of_other_dtype(handoff: Handoff) -> list[str]:
    """Return the datasets whose tokens have another type than Megatron-LM would assume.

    Without reading the .idx, it assumes a type by the size of the vocabulary.
    """
    assumed_dtype = "uint16" if handoff.vocab_size <= _UINT16_VOCABULARY else "int32"
    return [path for path, counts in handoff.datasets.items() if counts.dtype != assumed_dtype]


def loads_fast(handoff: Handoff) -> bool:
    """Return whether Megatron-LM can be started with --dataloader-fast-cache-load.

    It refuses this option if splits share a blend, and fails with it if an index is missing.
    """
    if not handoff.is_per_split or not handoff.config.rules.starts_without_scanning:
        return False
    return not handoff.sample_count_mismatch


def _lines(lines: Iterable[str]) -> str:
    """Return a text of lines, each of which ends with a newline."""
    return "".join(f"{line}\n" for line in lines)


def _data_lines(handoff: Handoff, split: SplitName) -> list[str]:
    """Return a line for each dataset of a split: its weight and prefix, or only its prefix."""
    lines = []
    for weight, path in handoff.data(split):
        lines.append(path if weight is None else f"{weight!r} {path}")
    return lines


def _preflight(handoff: Handoff) -> str:
    """Return the text of preflight.py, a script that checks the options of a run.

    It runs where the trainer runs, without nanoset. So its constants contain all facts about the
    nanoset that it needs.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    # The module `preflight` is the script with empty constants. Fill them in: for example, replace
    # `NANOSET = ""` by `NANOSET = 'pretrain'`.
    value_by_line = {
        'NANOSET = ""': handoff.section,
        "INDEXES: dict[str, list[str]] = {}": {
            name: list(files) for name, files in handoff.indexes.items()
        },
        "SAMPLES: dict[str, int | None] = {}": _samples_to_compare(handoff),
    }
    text = inspect.getsource(preflight)
    for line, value in value_by_line.items():
        definition, _, _ = line.partition("=")
        text = text.replace(line, f"{definition}= {pformat(value, width=100)}")
    return text


def _samples_to_compare(handoff: Handoff) -> dict[str, int | None]:
    """Return the number of samples that each split with data was built for; None for one epoch.

    With phases, it is empty: their numbers do not follow from the options of one job.
    """
    samples: dict[str, int | None] = {}
    has_phases = bool(handoff.spec.transitions)
    if not has_phases:
        for split in SPLITS:
            if handoff.samples[split]:
                samples[split] = handoff.config.samples(split)
    return samples


def _arguments(handoff: Handoff, *, has_sequences: bool) -> Iterator[str]:
    """Yield the lines of arguments.txt, the command line options of Megatron-LM.

    Args:
        handoff: The built nanoset, as its trainer sees it.
        has_sequences: Whether the handoff has a file with the numbers of sequences and documents of
            each dataset, which Megatron-LM can read instead of scanning the datasets.
    """
    yield from _data_arguments(handoff)
    for mask in handoff.spec.masks:
        # Megatron-LM has no option to create the attention mask, which is its default.
        if mask != "create_attention_mask":
            yield _mask_option(mask)

    # Options that make the start faster, and the length of the run.
    if has_sequences and handoff.config.rules.starts_without_scanning:
        yield f"--per-dataset-sequences-path {handoff.folder}/{_SEQUENCES}"
    if loads_fast(handoff):
        yield "--dataloader-fast-cache-load"
    yield from _length_arguments(handoff)


def _data_arguments(handoff: Handoff) -> Iterator[str]:
    """Yield the arguments that name the data, the order of its samples, and the tokenizer."""
    config = handoff.config
    if handoff.is_per_split:
        yield f"--per-split-data-args-path {handoff.folder}/{_PER_SPLIT}"
    else:
        yield f"--data-args-path {handoff.folder}/{_DATA_ARGS}"
        yield f"--split {config.split.replace(' ', '')}"
    yield f"--seq-length {config.sequence_length}"
    yield f"--seed {config.random_seed}"
    yield from handoff.tokenizer
    yield f"--data-cache-path {handoff.cache}"


def _mask_option(mask: str) -> str:
    """Return the option of Megatron-LM for a mask, such as --reset-position-ids.

    The option of one mask, which separates documents, is spelled with the prefix `dataloader`.
    """
    name = mask.replace("_", "-")
    return f"--dataloader-{name}" if mask == DOCUMENTS else f"--{name}"


def _length_arguments(handoff: Handoff) -> Iterator[str]:
    """Yield the arguments that say how long the run is, and how often it evaluates.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    schedule = handoff.spec.schedule

    # Without data of valid and test, the trainer must not evaluate: core 0.16.1 would fail.
    if not handoff.evaluates:
        yield "--eval-iters 0"

    # Without a schedule in nanoset.yaml, the user chooses all other options.
    if schedule is None:
        if handoff.config.train_split_samples is not None:
            yield f"--train-samples {handoff.config.train_split_samples}"
        return

    yield from _length_of_schedule(handoff, schedule)
    yield f"--global-batch-size {schedule.global_batch_size}"
    yield f"--eval-interval {schedule.eval_interval}"
    if handoff.evaluates:
        yield f"--eval-iters {schedule.eval_iters}"


def _length_of_schedule(handoff: Handoff, schedule: ScheduleSpec) -> Iterator[str]:
    """Yield the arguments that say how long a run with a schedule is."""
    transitions = handoff.spec.transitions
    if transitions:
        # With phases, Megatron-LM needs --train-samples and does not accept --train-iters.
        yield f"--train-samples {schedule.iterations * schedule.global_batch_size}"
        yield f"--phase-transition-iterations {','.join(map(str, transitions))}"
    elif handoff.is_shortened:
        # Fewer samples were built than the schedule requests, because of a limit on epochs.
        yield f"--train-samples {handoff.config.train_split_samples}"
    else:
        yield f"--train-iters {schedule.iterations}"


def _notes(handoff: Handoff) -> Iterator[str]:
    """Yield notes for the user on numbers of samples, and on options that are left out.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    yield from _sample_notes(handoff)
    if handoff.spec.schedule is None:
        yield from _evaluation_notes(handoff)

    # Why the option that makes the start faster, --dataloader-fast-cache-load, is missing.
    if handoff.is_per_split and handoff.sample_count_mismatch:
        yield "--dataloader-fast-cache-load is left out, since an index would be missing."
    if not handoff.is_per_split and handoff.config.rules.starts_without_scanning:
        yield (
            "--dataloader-fast-cache-load is left out: Megatron-LM refuses it if splits share a "
            "blend. To use it, set `blend_per_split` instead of `blend` and `split`."
        )


def _sample_notes(handoff: Handoff) -> Iterator[str]:
    """Yield notes on splits that have another number of samples than the run requests.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    config = handoff.config
    if handoff.samples["train"] and config.train_split_samples is None:
        yield (
            "train was built for one epoch, but Megatron-LM always requests a number of samples: "
            "it would build its own index. Set `schedule`, or `samples: {train: …}`, to the "
            "numbers of your run."
        )
    if handoff.run is not None and handoff.is_shortened:
        yield (
            f"The run is shorter than its schedule: max_epochs allows "
            f"{config.train_split_samples:,} training samples, enough for "
            f"{handoff.run.iterations:,} iterations. Set `iterations: {handoff.run.iterations}` in "
            "`schedule`, so that all numbers agree."
        )
    for split, requested in handoff.sample_count_mismatch.items():
        yield (
            f"The cache of {split} is for {config.samples(split):,} samples, but the run requests "
            f"{requested:,}: Megatron-LM would build its own index, without the limits of "
            "max_epochs. Change `schedule` until this note disappears."
        )


def _evaluation_notes(handoff: Handoff) -> Iterator[str]:
    """Yield notes on the options for evaluations, which the user chooses without a schedule.

    Megatron-LM computes from these options how many samples of valid and test it requests. It finds
    the index files only if they were built for the same number.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    # How many batches of each split Megatron-LM reads, as formulas of its options.
    batches_by_split: dict[SplitName, str] = {
        "valid": "(train_iters // eval_interval + 1) * eval_iters",
        "test": "eval_iters",
    }
    for split, batches in batches_by_split.items():
        if handoff.samples[split]:
            rule = _evaluation_rule(handoff.config.samples(split), batches)
            yield (
                f"The cache of {split} is for {rule}. If `schedule` is set in nanoset.yaml, the "
                "numbers agree."
            )


def _evaluation_rule(n_samples: int | None, batches: str) -> str:
    """Return how many samples a split was built for, and which options request as many.

    Args:
        n_samples: The number of samples; None for one epoch.
        batches: How often Megatron-LM reads a batch of the split, by the names of its options.
    """
    if n_samples is None:
        return (
            "all samples of one epoch: Megatron-LM requests it with --full-validation (valid only)"
        )
    return f"{n_samples:,} samples: {batches} * global_batch_size must have that value"
