"""Write the files with which Megatron-LM is started on a built nanoset.

A nanoset is a weighted blend of datasets whose index files were built before the run. Megatron-LM
only finds these index files if it is started with the same options. So `arguments.txt` contains
the options, such as `--seq-length 4096 --data-cache-path /data/cache`. Other files list the
datasets and their sizes, and the script `preflight.py` checks the options of a run.

Sources:
    Megatron-LM core_v0.16.1 `training/utils.py` (get_blend_and_blend_per_split),
    `training/training.py` (get_train_valid_test_num_samples) and
    `tools/build_sequences_per_dataset.py`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
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
_PADDING_NOTE = (
    "The samples are filled up with the padding token `{token}`. Megatron-LM's loss leaves it out "
    "only if its tokenizer has the same padding token, such as `pad_token` in "
    "tokenizer_config.json, and no other special token with its id."
)
"""Note on samples that are packs with padding."""
_END_NOTE = (
    "Documents end with the token `{token}`. With {options}, Megatron-LM looks for this token, and "
    "finds it only if its tokenizer names the same one, such as `eos_token` in "
    "tokenizer_config.json. Tokenizers of chat models often name another one, which ends a turn."
)
"""Note on options with which Megatron-LM looks for the token at the end of documents."""
_ONE_EPOCH_NOTE = (
    "train was built for one epoch, but Megatron-LM always requests a number of samples: "
    "it would build its own index. Set `schedule`, or `samples: {train: …}`, to the "
    "numbers of your run."
)
"""Note on data of train that has no number of samples."""
_UINT16_VOCABULARY = 65536
"""Largest vocabulary for which Megatron-LM expects tokens of two bytes.

See its GPTDatasetConfig.token_dtype_code.
"""


def megatron_files(handoff: Handoff) -> FilesAndNotes:
    """Return the files with which Megatron-LM is started on the data that was built.

    Args:
        handoff: The data: its datasets, weights and index files, with paths on the machine where
            the trainer runs.

    Returns:
        The text of each file by its name, and notes for the user.
    """
    texts: dict[str, str] = {}
    notes: list[str] = []

    # The datasets with their weights: for each of train, valid and test, or one list for all.
    if handoff.is_per_split:
        texts[_PER_SPLIT] = _per_split_text(handoff)
    else:
        texts[_DATA_ARGS] = _lines(_data_lines(handoff, "train"))

    # With the sizes of the datasets, Megatron-LM starts faster, since it does not open their .idx
    # files. But then it guesses from the vocabulary whether a token has 2 or 4 bytes. So write the
    # sizes only if it will guess right.
    misread_paths = _paths_of_other_dtype(handoff)
    if misread_paths:
        notes.append(_sizes_missing_note(misread_paths, handoff.vocab_size))
    else:
        texts[_SEQUENCES] = _dataset_sizes_text(handoff)

    # The options of the command line, and a script that checks the options of a run.
    texts[ARGUMENTS] = _lines(_arguments(handoff, has_sequences=_SEQUENCES in texts))
    texts[PREFLIGHT] = _preflight(handoff)

    if handoff.tokenizer_note is not None:
        notes.append(handoff.tokenizer_note)
    if handoff.padding_token is not None:
        notes.append(_PADDING_NOTE.format(token=handoff.padding_token))
    end_options = [name for name in preflight.END_OPTIONS if name in handoff.spec.masks]
    if handoff.end_token is not None and end_options:
        flags = ", ".join(preflight.flag_of(name) for name in end_options)
        notes.append(_END_NOTE.format(token=handoff.end_token, options=flags))
    notes += _notes(handoff)
    return FilesAndNotes(texts, notes)


def _per_split_text(handoff: Handoff) -> str:
    """Return the JSON file by which Megatron-LM reads different data for train, valid and test.

    It lists the weights and paths of the datasets of each split, as text. Here valid has no data:

        {"train": ["0.7", "/data/web", "0.3", "/data/code"], "valid": null, "test": ["/data/wiki"]}

    Args:
        handoff: Describes the data that was built: the datasets of each split.
    """
    words_by_split: dict[str, list[str] | None] = {}
    for split in SPLITS:
        words: list[str] = []
        for line in _data_lines(handoff, split):
            words += line.split()  # "0.7 /data/web" → "0.7", "/data/web"
        words_by_split[split] = words or None
    return json.dumps(words_by_split, indent=1) + "\n"


def _dataset_sizes_text(handoff: Handoff) -> str:
    """Return a JSON file with the sizes of all datasets, for `--per-dataset-sequences-path`.

    With it, the trainer need not read the .idx of each dataset at its start, which takes long if
    there are thousands. Each dataset has two numbers: that of its sequences, and the length of the
    array `document_indices` in its .idx, which is one more than its documents:

        {"/data/web": [1000, 1001], "/data/code": [200, 201]}

    Args:
        handoff: Describes the data that was built, with the counts of each dataset.
    """
    sizes_by_path: dict[str, list[int]] = {}
    for path, counts in handoff.datasets.items():
        sizes_by_path[path] = [counts.sequences, counts.document_indices]
    return json.dumps(sizes_by_path, indent=1) + "\n"


def _sizes_missing_note(paths: Sequence[str], vocab_size: int) -> str:
    """Return a note that the file with the sizes of the datasets was not written, and why.

    Args:
        paths: Datasets whose tokens have another type than Megatron-LM would assume.
        vocab_size: Number of tokens of the vocabulary, by which it would choose the type.
    """
    return (
        f"{_SEQUENCES} was not written: with it, Megatron-LM would read the tokens of "
        f"{', '.join(paths)} with another type, since it would derive the type from the "
        f"vocabulary ({vocab_size:,}) instead of reading the .idx."
    )


def _paths_of_other_dtype(handoff: Handoff) -> list[str]:
    """Return the paths of datasets whose tokens have another type than Megatron-LM would assume.

    If it does not read the .idx file of a dataset, it assumes uint16 for a vocabulary of up to
    65,536 tokens, and int32 for a larger one.
    """
    assumed_dtype = "uint16" if handoff.vocab_size <= _UINT16_VOCABULARY else "int32"
    return [path for path, counts in handoff.datasets.items() if counts.dtype != assumed_dtype]


def loads_fast(handoff: Handoff) -> bool:
    """Return whether Megatron-LM can be started with --dataloader-fast-cache-load.

    With this option, it opens its index files without looking for them first, which saves time if
    there are many processes.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
    version_has_option = handoff.config.rules.starts_without_scanning
    # Megatron-LM refuses the option if train, valid and test share their data.
    accepts_data = handoff.is_per_split
    # If the run requested another number of samples of a split than its index files were built for,
    # Megatron-LM would open files that do not exist.
    all_files_exist = len(handoff.sample_count_mismatch) == 0
    return version_has_option and accepts_data and all_files_exist


def _lines(lines: Iterable[str]) -> str:
    """Return a text of lines, each of which ends with a newline."""
    return "".join(f"{line}\n" for line in lines)


def _data_lines(handoff: Handoff, split: SplitName) -> list[str]:
    """Return a line for each dataset of a split, such as "0.7 /data/web" or only "/data/web"."""
    lines = []
    for dataset in handoff.data(split):
        has_weight = dataset.weight is not None
        # `repr` writes all digits of the weight, so that the trainer reads the same number.
        lines.append(f"{dataset.weight!r} {dataset.path}" if has_weight else dataset.path)
    return lines


def _preflight(handoff: Handoff) -> str:
    """Return the text of preflight.py, a script that checks the options of a training run.

    It runs where the trainer runs, without this package. So it is a single file: the source of our
    module `preflight`, in which four empty constants are filled in:

        NANOSET = ""    becomes    NANOSET = 'pretrain'

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
    # Description of each index → the names of its files.
    indexes = {description: list(files) for description, files in handoff.indexes.items()}
    value_by_line = {  # a line, exactly as in the module → the value to fill in
        'NANOSET = ""': handoff.section,
        "INDEXES: dict[str, list[str]] = {}": indexes,
        "SAMPLES: dict[str, int | None] = {}": _samples_to_compare(handoff),
        "TOKEN_IDS: dict[str, int] = {}": dict(handoff.token_ids),
    }
    script = inspect.getsource(preflight)
    for line, value in value_by_line.items():
        name_and_type, _, _ = line.partition("=")
        script = script.replace(line, f"{name_and_type}= {pformat(value, width=100)}")
    return script


def _samples_to_compare(handoff: Handoff) -> dict[str, int | None]:
    """Return for how many samples each split was built, to compare this with the options of a run.

    For example, {"train": 64000, "valid": 800, "test": None}. None stands for one epoch.

    Args:
        handoff: Describes the data that was built, with the number of samples of each split.

    Returns:
        Split → number of samples, for splits that have any. Empty if the numbers cannot be
        compared.
    """
    # If other data is read from some step on, several jobs train one after another. The numbers do
    # not follow from the options of one job.
    has_phases = bool(handoff.spec.transitions)
    if has_phases:
        return {}
    samples: dict[str, int | None] = {}
    for split in SPLITS:
        has_data = bool(handoff.samples[split])
        if has_data:
            samples[split] = handoff.config.samples(split)
    return samples


def _arguments(handoff: Handoff, *, has_sequences: bool) -> Iterator[str]:
    """Yield the lines of arguments.txt, the command line options of Megatron-LM.

    They name the data and its tokenizer, masks such as --reset-position-ids, options that make the
    start faster, and the length of the run.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
        has_sequences: Whether there is a file with the size of each dataset, which Megatron-LM can
            read instead of scanning the datasets.

    Yields:
        Options with their values, such as "--seed 1234".
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
    """Yield the options of Megatron-LM that name the data, the order of samples, and the tokenizer.

    For example:

        --data-args-path /data/…/data_args.txt      the datasets with their weights
        --split 98,1,1                              train, valid and test share them
        --seq-length 4096
        --seed 1234
        --tokenizer-type …
        --data-cache-path /data/…/cache             where the index files are

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
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
    """Yield the options of Megatron-LM that say how long the run is, and how often it evaluates.

    For example, if nanoset.yaml has a `schedule`:

        --train-iters 1000
        --global-batch-size 64
        --eval-interval 100
        --eval-iters 10

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
    schedule = handoff.spec.schedule
    n_train_samples = handoff.config.train_split_samples  # None if train is read once

    # Without data of valid and test, the trainer must not evaluate: core 0.16.1 would fail.
    if not handoff.evaluates:
        yield "--eval-iters 0"

    if schedule is not None:
        yield from _length_of_schedule(handoff, schedule)
        yield f"--global-batch-size {schedule.global_batch_size}"
        yield f"--eval-interval {schedule.eval_interval}"
        if handoff.evaluates:
            yield f"--eval-iters {schedule.eval_iters}"
    elif n_train_samples is not None:
        yield f"--train-samples {n_train_samples}"  # the user chooses the other options


def _length_of_schedule(handoff: Handoff, schedule: ScheduleSpec) -> Iterator[str]:
    """Yield the options of Megatron-LM that say how long a run is, such as --train-iters 1000.

    Args:
        handoff: Describes the data that was built, and the phases of the run.
        schedule: How many iterations the run has, and with which batch size.
    """
    phase_starts = handoff.spec.transitions  # the steps at which the run goes on with other data
    if phase_starts:
        # With this option, Megatron-LM does not accept --train-iters.
        yield f"--train-samples {schedule.iterations * schedule.global_batch_size}"
        yield f"--phase-transition-iterations {','.join(map(str, phase_starts))}"
    elif handoff.is_shortened:
        # There are fewer samples than the iterations need, because of a limit on epochs.
        yield f"--train-samples {handoff.config.train_split_samples}"
    else:
        yield f"--train-iters {schedule.iterations}"


def _notes(handoff: Handoff) -> Iterator[str]:
    """Yield notes for the user on numbers of samples, and on options that are left out.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
    yield from _sample_notes(handoff)
    if handoff.spec.schedule is None:
        yield from _evaluation_notes(handoff)
    yield from _fast_load_notes(handoff)


def _fast_load_notes(handoff: Handoff) -> Iterator[str]:
    """Yield why --dataloader-fast-cache-load, which makes the start faster, is not an argument."""
    if handoff.is_per_split:
        if handoff.sample_count_mismatch:
            yield "--dataloader-fast-cache-load is left out, since an index would be missing."
    elif handoff.config.rules.starts_without_scanning:
        yield (
            "--dataloader-fast-cache-load is left out: Megatron-LM refuses it if splits share a "
            "blend. To use it, set `blend_per_split` instead of `blend` and `split`."
        )


def _sample_notes(handoff: Handoff) -> Iterator[str]:
    """Yield notes on data that was built for another number of samples than the run requests.

    Megatron-LM only finds index files of train, valid and test that were built for exactly as many
    samples as it requests. Otherwise it builds its own at each start.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
    has_train_data = bool(handoff.samples["train"])
    n_train_samples = handoff.config.samples("train")  # None if train was built to be read once
    if has_train_data and n_train_samples is None:
        yield _ONE_EPOCH_NOTE

    # A limit on epochs may leave fewer samples of train than the schedule in nanoset.yaml needs.
    if handoff.run is not None and handoff.is_shortened:
        yield _shortened_run_note(handoff.run.iterations, n_train_samples)

    # The shorter run evaluates less often, so it requests fewer samples of valid, for example.
    for split, n_requested in handoff.sample_count_mismatch.items():
        yield _mismatch_note(split, handoff.config.samples(split), n_requested)


def _mismatch_note(split: SplitName, n_built_for: int | None, n_requested: int) -> str:
    """Return a note that the index files of a split were built for another number of samples.

    Args:
        split: Train, valid or test.
        n_built_for: How many samples they were built for.
        n_requested: How many samples Megatron-LM requests.
    """
    return (
        f"The cache of {split} is for {n_built_for:,} samples, but the run "
        f"requests {n_requested:,}: Megatron-LM would build its own index, without the limits "
        "of max_epochs. Change `schedule` until this note disappears."
    )


def _shortened_run_note(iterations: int, n_train_samples: int | None) -> str:
    """Return a note that a limit on epochs makes the run shorter than nanoset.yaml requests.

    Args:
        iterations: How many iterations the training samples are enough for.
        n_train_samples: How many training samples the limit allows.
    """
    return (
        f"The run is shorter than its schedule: max_epochs allows {n_train_samples:,} training "
        f"samples, enough for {iterations:,} iterations. Set `iterations: {iterations}` in "
        "`schedule`, so that all numbers agree."
    )


def _evaluation_notes(handoff: Handoff) -> Iterator[str]:
    """Yield notes on how the user has to choose Megatron-LM's options for valid and test.

    nanoset.yaml does not say how long the run is, so the user chooses options such as --eval-iters.
    From these, Megatron-LM computes how many samples it requests of valid and test. It only finds
    index files (its "cache") that were built for exactly that many. For example: "The cache of test
    is for 800 samples: eval_iters * global_batch_size must have that value. If `schedule` is set in
    nanoset.yaml, the numbers agree."

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
    """
    formula_by_split: dict[SplitName, str] = {  # how many samples Megatron-LM requests
        "valid": "(train_iters // eval_interval + 1) * eval_iters * global_batch_size",
        "test": "eval_iters * global_batch_size",
    }
    for split, formula in formula_by_split.items():
        has_data = bool(handoff.samples[split])
        if not has_data:
            continue
        n_samples = handoff.config.samples(split)  # for which the index files were built
        if n_samples is None:
            rule = (
                "all samples of one epoch: Megatron-LM requests it with --full-validation "
                "(valid only)"
            )
        else:
            rule = f"{n_samples:,} samples: {formula} must have that value"
        yield (
            f"The cache of {split} is for {rule}. If `schedule` is set in nanoset.yaml, the "
            "numbers agree."
        )
